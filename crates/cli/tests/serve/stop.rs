//! How a server stops, and what the next one finds.

use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    host::{Host, events, trace_id},
    processes::{below, cgroups_of, mark, sleepers, wait_for, wait_until_gone},
};

#[tokio::test]
async fn a_killed_server_leaves_no_process_and_no_running_row() {
    let Some(mut host) = Host::start().await else { return };
    let mark = mark();
    let body = json!({"code": sleepers(&mark), "language": "bash", "thread_id": "t"});
    let id = host.background(body).await;
    wait_for(&mark, 2);
    let processes = below(host.pid());
    assert!(!processes.is_empty(), "the spawner is a child of the server");
    host.signal(Signal::KILL);
    host.ended().await;
    wait_for(&mark, 0);
    wait_until_gone(&processes);
    assert_eq!(cgroups_of(&processes), Vec::<PathBuf>::new());
    let host = host.again().await;
    let record = host.record(&id).await;
    assert_eq!(record["status"], "failed");
    assert_eq!(record["error"], "the server was restarted while this execution was running");
    assert!(record["completed_at"].is_string());
    let (_, page) = host.get("/v1/executions?status=running").await;
    assert_eq!(page["executions"], json!([]));
    assert_eq!(host.run(json!({"code": "1", "thread_id": "t"})).await.0, 200);
}

#[tokio::test]
async fn a_stopped_server_lets_running_executions_finish() {
    let Some(mut host) = Host::start().await else { return };
    let code = "import time\nprint('up', flush=True)\ntime.sleep(1)\nprint('done')";
    let mut stream = host.stream(json!({"code": code})).await;
    let id = trace_id(&stream);
    let mut text = String::new();
    while !text.contains("up") {
        text.push_str(std::str::from_utf8(&stream.chunk().await.unwrap().unwrap()).unwrap());
    }
    let processes = below(host.pid());
    host.signal(Signal::TERM);
    text.push_str(&stream.text().await.unwrap());
    assert_eq!(events(&text).last().unwrap()["result"]["stdout"], "up\ndone\n");
    assert!(host.ended().await.success());
    wait_until_gone(&processes);
    assert_eq!(cgroups_of(&processes), Vec::<PathBuf>::new());
    let host = host.again().await;
    let record = host.record(&id).await;
    assert_eq!((&record["status"], &record["error"]), (&json!("success"), &Value::Null));
}

#[tokio::test]
async fn a_stopping_server_refuses_new_work_with_a_response() {
    let Some(mut host) = Host::start().await else { return };
    let code = "import time\nprint('up', flush=True)\ntime.sleep(4)\nprint('done')";
    let mut stream = host.stream(json!({"code": code})).await;
    let mut text = String::new();
    while !text.contains("up") {
        text.push_str(std::str::from_utf8(&stream.chunk().await.unwrap().unwrap()).unwrap());
    }
    host.signal(Signal::TERM);
    // Each request has a connection of its own, as those of a health check.
    let ready = format!("{}/readyz", host.url);
    while reqwest::get(&ready).await.unwrap().status() != 503 {}
    let refused = reqwest::Client::new().post(format!("{}/v1/sandbox/execute", host.url));
    let refused = refused.bearer_auth(&host.key).json(&json!({"code": "print(1)"}));
    let refused = refused.send().await.unwrap();
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("retry-after"), "{:?}", refused.headers());
    text.push_str(&stream.text().await.unwrap());
    assert_eq!(events(&text).last().unwrap()["result"]["stdout"], "up\ndone\n");
    assert!(host.ended().await.success());
}

#[tokio::test]
async fn after_the_grace_period_running_executions_are_ended_and_recorded() {
    let Some(mut host) = Host::start_with(&["--grace", "1"]).await else { return };
    let mark = mark();
    let stream = host.stream(json!({"code": sleepers(&mark), "language": "bash"})).await;
    let id = trace_id(&stream);
    wait_for(&mark, 2);
    let processes = below(host.pid());
    host.signal(Signal::TERM);
    let seen = events(&stream.text().await.unwrap());
    let error = json!("the server was shut down before the execution ended");
    assert_eq!(seen.last().unwrap()["result"]["error"], error);
    assert!(host.ended().await.success());
    wait_for(&mark, 0);
    wait_until_gone(&processes);
    assert_eq!(cgroups_of(&processes), Vec::<PathBuf>::new());
    let host = host.again().await;
    let record = host.record(&id).await;
    assert_eq!((&record["status"], &record["error"]), (&json!("failed"), &error));
}

#[tokio::test]
async fn a_second_server_cannot_use_the_port_or_directory_of_the_first() {
    let Some(host) = Host::start().await else { return };
    let id = host.background(json!({"code": "sleep 60", "language": "bash"})).await;
    let data = host.data();
    let port = host.url.trim_start_matches("http://");
    let other = tempfile::tempdir().unwrap();
    for (listen, data, reason) in [
        (port, other.path(), "cannot listen on"),
        ("127.0.0.1:0", data.as_path(), "in use by another server"),
    ] {
        let arguments = ["serve", "--listen", listen, "--data-dir", data.to_str().unwrap()];
        let ended = crate::support::cloche(arguments);
        assert_eq!(ended.code, 1, "{ended:?}");
        assert!(ended.stderr.contains(reason), "{ended:?}");
        assert_eq!(host.record(&id).await["status"], "running");
    }
    host.cancel(&id).await;
}

#[tokio::test]
async fn a_server_killed_during_warm_up_leaves_nothing() {
    for _ in 0..5 {
        let Some(mut host) = Host::start().await else { return };
        // Runs take parked cells, so that others are being made when the server is killed.
        let jobs = (0..4).map(|_| host.background(json!({"code": "import time; time.sleep(60)"})));
        for job in jobs {
            job.await;
        }
        let processes = below(host.pid());
        host.signal(Signal::KILL);
        host.ended().await;
        wait_until_gone(&processes);
        assert_eq!(cgroups_of(&processes), Vec::<PathBuf>::new());
    }
}
