//! `kill -9` of the real server at every named point between a write and its acknowledgement. After
//! a restart the home is the old or the new one, and every acknowledged change is there.

use std::time::Instant;

use rustix::process::Signal;
use serde_json::json;

use crate::{
    host::{Host, PATIENCE},
    threads::{bash, put},
};

/// Before the layer is published and the row is written, the home is the old one; after that it is
/// the new one. The names are those of `cloche_layers::crash` and of the engine.
const BEFORE: [&str; 5] = [
    "layer-temp-written",
    "layer-before-rename",
    "layer-after-rename",
    "layer-stored",
    "layer-durable",
];
const AFTER: [&str; 1] = ["head-moved"];

/// Two files that always belong together. A mix of two homes would break them.
fn pair(text: &str) -> String {
    format!("echo {text} >a; mkdir -p d; echo {text} >d/b; rm -f old-*; touch old-{text}")
}

async fn state(host: &Host, thread: &str) -> String {
    bash(host, thread, "cat a d/b; ls old-*").await
}

/// A server that is killed at this point when it next moves the head of a thread.
async fn dying_at(host: Host, point: &str) -> Host {
    host.stop_and_start(&[("CLOCHE_CRASH_AT", point)]).await
}

#[tokio::test]
async fn a_killed_run_leaves_the_old_or_the_new_home() {
    let Some(mut host) = Host::start().await else { return };
    for (point, survives) in
        BEFORE.iter().map(|point| (*point, false)).chain(AFTER.map(|point| (point, true)))
    {
        bash(&host, point, &pair("one")).await;
        host = dying_at(host, point).await;
        let body = json!({"code": pair("two"), "language": "bash", "thread_id": point});
        assert!(host.execute(&body).send().await.is_err(), "{point}: there was an answer");
        host.ended().await;
        host = host.again().await;
        let text = if survives { "two" } else { "one" };
        assert_eq!(state(&host, point).await, format!("{text}\n{text}\nold-{text}\n"), "{point}");
        // No lease is left on the thread, and it can be used.
        bash(&host, point, &pair("three")).await;
        assert_eq!(state(&host, point).await, "three\nthree\nold-three\n", "{point}");
    }
}

#[tokio::test]
async fn a_killed_upload_is_complete_or_absent() {
    let Some(mut host) = Host::start().await else { return };
    for (point, survives) in
        BEFORE.iter().map(|point| (*point, false)).chain(AFTER.map(|point| (point, true)))
    {
        assert_eq!(put(&host, point, "d/f", "one").await, Some(200));
        host = dying_at(host, point).await;
        assert_eq!(put(&host, point, "d/f", "two-and-longer").await, None, "{point}");
        host.ended().await;
        host = host.again().await;
        let text = if survives { "two-and-longer" } else { "one" };
        assert_eq!(bash(&host, point, "cat d/f").await, text, "{point}");
        assert_eq!(put(&host, point, "d/f", "three").await, Some(200), "{point}");
    }
}

#[tokio::test]
async fn acknowledged_changes_survive_a_kill_and_a_running_execution_does_not() {
    let Some(mut host) = Host::start().await else { return };
    bash(&host, "t", &pair("kept")).await;
    host.signal(Signal::KILL);
    host.ended().await;
    host = host.again().await;
    assert_eq!(state(&host, "t").await, "kept\nkept\nold-kept\n");
    let body = json!({"code": format!("{}; sleep 60", pair("lost")), "language": "bash", "thread_id": "t"});
    let running = host.background(body).await;
    let deadline = Instant::now() + PATIENCE;
    while host.record(&running).await["status"] != "running" {
        assert!(Instant::now() < deadline);
    }
    host.signal(Signal::KILL);
    host.ended().await;
    host = host.again().await;
    assert_eq!(host.record(&running).await["status"], "failed");
    assert_eq!(state(&host, "t").await, "kept\nkept\nold-kept\n");
}
