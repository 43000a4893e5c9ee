//! The state after a shutdown, a crash or a restart.

use std::{os::unix::fs::PermissionsExt, time::Duration};

use cloche_engine::EngineConfig;
use cloche_gateway::GatewayConfig;
use serde_json::json;

use crate::host::{Host, events};

#[tokio::test]
async fn the_bootstrap_file_is_readable_by_its_owner_only() {
    let host = Host::start().await;
    let path = host.directory().join("bootstrap.json");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let first: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(first["url"], format!("http://{}", host.address));
    assert_eq!(first["api_key"], host.key);
    let host = host.restart().await;
    let second: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(second["url"], format!("http://{}", host.address));
    assert_eq!(
        (&second["api_key"], &second["admin_token"]),
        (&first["api_key"], &first["admin_token"])
    );
    assert_eq!(host.run(json!({"code": "1"})).await.0, 200);
}

#[tokio::test]
async fn shutdown_waits_for_running_executions() {
    let mut host = Host::start().await;
    let body = json!({"code": "import time; time.sleep(.5); print('done')"});
    let running =
        tokio::spawn(host.request(reqwest::Method::POST, "/v1/sandbox/execute").json(&body).send());
    while host.get("/v1/executions?status=running").await.1["executions"] == json!([]) {}
    host.stop().await;
    let answer: serde_json::Value = running.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(answer["stdout"], "done\n");
}

#[tokio::test]
async fn shutdown_stops_executions_after_the_grace_period() {
    let config = EngineConfig { grace: Duration::from_millis(200), ..EngineConfig::default() };
    let host = Host::start_with(config, GatewayConfig::default()).await;
    let stream = host.stream(json!({"code": "import time; time.sleep(60)"})).await;
    let id = crate::host::trace_id(&stream);
    let host = host.restart().await;
    let seen = events(&stream.text().await.unwrap());
    let error = "the server was shut down before the execution ended";
    assert_eq!(seen.last().unwrap()["result"]["error"], error);
    let (_, record) = host.get(&format!("/v1/executions/{id}")).await;
    assert_eq!((&record["status"], &record["error"]), (&json!("failed"), &json!(error)));
}

#[tokio::test]
async fn after_a_crash_nothing_is_running_and_no_thread_is_locked() {
    let mut host = Host::start().await;
    let body = json!({"code": "import time; time.sleep(60)", "thread_id": "t"});
    let id = host.background(body).await;
    // The files at this moment are what a `kill -9` would leave.
    let copy = tempfile::tempdir().unwrap();
    for name in ["cloche.db", "cloche.db-wal"] {
        std::fs::copy(host.directory().join(name), copy.path().join(name)).unwrap();
    }
    host.request(reqwest::Method::POST, &format!("/v1/executions/{id}/cancel"))
        .send()
        .await
        .unwrap();
    host.stop().await;
    for name in ["cloche.db", "cloche.db-wal"] {
        std::fs::copy(copy.path().join(name), host.directory().join(name)).unwrap();
    }
    let _ = std::fs::remove_file(host.directory().join("cloche.db-shm"));
    let host = host.restart().await;
    let (_, record) = host.get(&format!("/v1/executions/{id}")).await;
    assert_eq!(record["status"], "failed");
    assert_eq!(record["error"], "the server was restarted while this execution was running");
    assert_eq!(host.run(json!({"code": "1", "thread_id": "t"})).await.0, 200);
    let (_, page) = host.get("/v1/executions?status=running").await;
    assert_eq!(page["executions"], json!([]));
}

#[tokio::test]
async fn a_second_server_on_the_same_directory_is_refused() {
    let host = Host::start().await;
    let options = cloche_gateway::ServerOptions {
        data_dir: host.directory().to_owned(),
        listen: "127.0.0.1:0".to_owned(),
        engine: EngineConfig::default(),
        gateway: GatewayConfig::default(),
    };
    let elsewhere = tempfile::tempdir().unwrap();
    let layers = crate::host::layers(elsewhere.path()).await;
    let children = std::sync::Arc::new(crate::child::Children { layers });
    let error = cloche_gateway::Server::open(options, children).await.err().unwrap();
    assert!(error.to_string().ends_with("is in use by another server"), "{error}");
    assert_eq!(host.run(json!({"code": "1"})).await.0, 200);
}
