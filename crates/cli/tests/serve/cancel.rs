//! Cancellation kills the whole process tree, soon.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::{
    host::{Host, events, trace_id},
    processes::{mark, sleepers, wait_for},
};

/// The promised time for the call and the kills together.
const PROMISED: Duration = Duration::from_millis(100);

#[tokio::test]
async fn a_cancelled_process_tree_is_dead_within_100_ms() {
    let Some(host) = Host::start().await else { return };
    let mut best = Duration::MAX;
    // A busy machine may delay some attempts, but not all.
    for _ in 0..5 {
        let mark = mark();
        let id = host.background(json!({"code": sleepers(&mark), "language": "bash"})).await;
        wait_for(&mark, 2);
        let call = Instant::now();
        let answer = host.cancel(&id).await;
        wait_for(&mark, 0);
        best = best.min(call.elapsed());
        assert_eq!(answer, json!({"trace_id": id, "status": "cancelling"}));
        let record = host.finished(&id).await;
        assert_eq!(record["status"], "cancelled");
        assert_eq!(record["error"], "Cancelled by user");
        if best <= PROMISED {
            return;
        }
    }
    panic!("the fastest took {best:?}");
}

#[tokio::test]
async fn the_last_event_of_a_cancelled_stream_reports_the_cancellation() {
    let Some(host) = Host::start().await else { return };
    let mark = mark();
    let stream = host.stream(json!({"code": sleepers(&mark), "language": "bash"})).await;
    let id = trace_id(&stream);
    wait_for(&mark, 2);
    host.cancel(&id).await;
    let seen = events(&stream.text().await.unwrap());
    let last = seen.last().unwrap();
    assert_eq!((&last["type"], &last["status"]), (&json!("result"), &json!("cancelled")));
    assert_eq!(last["result"]["error"], "Cancelled by user");
    assert_eq!(last["result"]["stdout"], "up\n");
    wait_for(&mark, 0);
}
