//! Runs in: test.
//!
//! No executor takes an execution: the status says so in every delivery mode, and so does the
//! ledger.

use reqwest::Response;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{
    executor::Sidecar,
    faults::answering,
    host::{Host, events, trace_id},
    processes::{below, mark, sleepers, wait_for},
    support::{can_sandbox, eventually},
};

/// The headers that select each delivery mode.
pub(crate) const MODES: [(&str, &str); 3] = [
    ("accept", "application/json"),
    ("accept", "application/x-ndjson"),
    ("prefer", "respond-async"),
];

/// Sends one request in this mode.
pub(crate) async fn send(host: &Host, mode: (&str, &str), body: &Value) -> Response {
    host.execute(body).header(mode.0, mode.1).send().await.unwrap()
}

/// Asserts that the answer is a 503 and that the ledger has the end of its execution.
pub(crate) async fn assert_unavailable(host: &Host, mode: (&str, &str), body: &Value) {
    let response = send(host, mode, body).await;
    let (status, id) = (response.status(), trace_id(&response));
    let retry = response.headers().get("retry-after").cloned();
    let answer: Value = response.json().await.unwrap();
    assert_eq!(
        (status.as_u16(), &answer["error"]),
        (503, &json!("service_unavailable")),
        "{mode:?}"
    );
    assert!(retry.is_some_and(|after| after.to_str().unwrap().parse::<u64>().is_ok()), "{mode:?}");
    let record = host.record(&id).await;
    assert!(record["status"] == "failed" || record["status"] == "blocked", "{mode:?} {record}");
    assert!(record["error"].as_str().unwrap().contains("no executor is available"), "{record}");
    assert_eq!(record["webhook_delivery_status"], Value::Null, "nothing is delivered: {record}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_sidecar_is_a_503_in_every_delivery_mode() {
    let Some(sidecar) = Sidecar::start_without_key().await else { return };
    // Each server finds out with another mode that the sidecar is gone.
    let mut hosts = Vec::new();
    for _ in MODES {
        hosts.push(Host::start_with(&["--executor-url", &sidecar.url]).await.unwrap());
    }
    sidecar.crash();
    let body = json!({"code": "print(1)"});
    for (first, host) in hosts.iter().enumerate() {
        for turn in 0..MODES.len() {
            assert_unavailable(host, MODES[(first + turn) % MODES.len()], &body).await;
        }
    }
}

/// The sidecar is well by its health check, so only the attempt shows that it takes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_sidecar_is_a_503_in_every_delivery_mode() {
    if !can_sandbox() {
        return;
    }
    let busy = b"HTTP/1.1 429 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let url = answering(busy, false).await;
    let arguments = ["--executor-url", &url, "--webhook-allow", "127.0.0.0/8"];
    let host = Host::start_with(&arguments).await.unwrap();
    for mode in MODES {
        let body = json!({"code": "print(1)", "webhook_url": "https://127.0.0.1:9/hook"});
        assert_unavailable(&host, mode, &body).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_head_of_a_stream_comes_when_a_sidecar_has_taken_the_run() {
    let Some(sidecar) = Sidecar::start_without_key().await else { return };
    let host = Host::start_with(&["--executor-url", &sidecar.url]).await.unwrap();
    let mark = mark();
    let stream = host.stream(json!({"code": sleepers(&mark), "language": "bash"})).await;
    assert_eq!(stream.status(), 200);
    wait_for(&mark, 2);
    host.cancel(&trace_id(&stream)).await;
    let seen = events(&stream.text().await.unwrap());
    assert_eq!(seen.last().unwrap()["status"], "cancelled", "{seen:?}");
    wait_for(&mark, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_no_sidecar_takes_as_asked_is_a_400_in_every_delivery_mode() {
    if !can_sandbox() {
        return;
    }
    let refusal = b"HTTP/1.1 422 No\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n\
        {\"error\":\"unprocessable\",\"message\":\"limits.pids: too many\"}";
    let url = answering(refusal, false).await;
    let host = Host::start_with(&["--executor-url", &url]).await.unwrap();
    for mode in MODES {
        let response = send(&host, mode, &json!({"code": "print(1)"})).await;
        let (status, id) = (response.status().as_u16(), trace_id(&response));
        let answer: Value = response.json().await.unwrap();
        assert_eq!(
            (status, &answer["message"]),
            (400, &json!("limits.pids: too many")),
            "{mode:?}"
        );
        assert_eq!(host.record(&id).await["status"], "failed", "{mode:?}");
    }
}

/// Kills the spawner and everything below it.
fn kill_spawner(of: u32) {
    for (pid, _) in below(of) {
        // It may have ended with its parent.
        let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        let _ = kill_process(pid, Signal::KILL);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_its_spawner_is_a_503_in_every_delivery_mode() {
    let Some(host) = Host::start().await else { return };
    kill_spawner(host.pid());
    eventually("the server is not ready", async || host.get("/readyz").await.0 == 503).await;
    for mode in MODES {
        assert_unavailable(&host, mode, &json!({"code": "print(1)"})).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_without_its_spawner_takes_no_job() {
    let Some(sidecar) = Sidecar::start().await else { return };
    assert_eq!(sidecar.run(json!({"code": "print(1)"})).await.0, 200);
    kill_spawner(sidecar.pid());
    let health = eventually("the sidecar is not well", async || {
        let health = sidecar.health().await;
        if health["status"] == "ok" { Err(health) } else { Ok(health) }
    })
    .await;
    assert_eq!(health["error"], "service_unavailable");
    let request = sidecar.post(&json!({"code": "print(1)"}));
    let response = request.header("accept", "application/x-ndjson").send().await.unwrap();
    assert_eq!(response.status(), 503, "no stream begins");
}
