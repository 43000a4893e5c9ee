//! `/v1/executions`: the records of the ledger, and who can read them.

use reqwest::Method;
use serde_json::{Value, json};

use crate::host::{Host, trace_id};

#[tokio::test]
async fn a_record_has_the_fields_that_clients_read() {
    let host = Host::start().await;
    let body = json!({"code": "print(1)", "metadata": {"user": "u1"}, "thread_id": "t"});
    let response = host.post(body).await;
    let id = trace_id(&response);
    let (status, record) = host.get(&format!("/v1/executions/{id}")).await;
    assert_eq!(status, 200);
    for (field, value) in [
        ("trace_id", json!(id)),
        ("status", json!("success")),
        ("exit_code", json!(0)),
        ("stdout", json!("1\n")),
        ("stderr", json!("")),
        ("error", Value::Null),
        ("delivery_mode", json!("inline")),
        ("webhook_url", Value::Null),
        ("webhook_delivery_status", Value::Null),
        ("metadata", json!({"user": "u1"})),
        ("language", json!("python")),
        ("thread_id", json!("t")),
        ("code", json!("print(1)")),
    ] {
        assert_eq!(record[field], value, "{field}");
    }
    for field in ["created_at", "completed_at"] {
        assert!(record[field].as_str().unwrap().ends_with('Z'), "{field}");
    }
    assert!(record["duration_ms"].as_u64().unwrap() > 0);
    assert!(record["usage"]["credits"].as_f64().unwrap() > 0.0);
}

#[tokio::test]
async fn a_list_is_filtered_and_paginated() {
    let host = Host::start().await;
    for n in 0..5 {
        let body = json!({"code": "echo", "language": "bash", "metadata": {"n": n.to_string(), "all": "x"}});
        assert_eq!(host.run(body).await.0, 200);
    }
    let (_, page) = host.get("/v1/executions?metadata.n=3&metadata.all=x").await;
    assert_eq!(page["executions"].as_array().unwrap().len(), 1);
    assert_eq!(page["executions"][0]["metadata"]["n"], "3");
    let (_, first) = host.get("/v1/executions?limit=3&language=bash&status=success").await;
    let cursor = first["next_cursor"].as_str().unwrap();
    let (_, rest) = host.get(&format!("/v1/executions?limit=3&cursor={cursor}")).await;
    assert_eq!(rest["executions"].as_array().unwrap().len(), 2);
    assert_eq!(rest["next_cursor"], Value::Null);
    for query in ["status=odd", "limit=0", "limit=x", "since=yesterday", "cursor=1", "metadata.=1"]
    {
        assert_eq!(host.get(&format!("/v1/executions?{query}")).await.0, 400, "{query}");
    }
    let (_, none) = host.get("/v1/executions?until=2020-01-01T00:00:00Z").await;
    assert_eq!(none["executions"], json!([]));
}

#[tokio::test]
async fn another_tenants_execution_looks_like_a_missing_one() {
    let mut host = Host::start().await;
    let running = host.background(json!({"code": "import time; time.sleep(30)"})).await;
    let over = trace_id(&host.post(json!({"code": "1"})).await);
    let owner = host.key.clone();
    host.with_key("pro").await;
    let missing = host.get("/v1/executions/trc_doesnotexist").await;
    for id in [&running, &over, "x", "trc_", "trc_%2e%2e"] {
        for (method, path) in [
            (Method::GET, format!("/v1/executions/{id}")),
            (Method::POST, format!("/v1/executions/{id}/cancel")),
            (Method::GET, format!("/v1/executions/{id}/output")),
        ] {
            let response = host.request(method, &path).send().await.unwrap();
            let answer = (response.status().as_u16(), response.json::<Value>().await.unwrap());
            assert_eq!(answer, missing, "{path}");
        }
    }
    assert_eq!(host.get("/v1/executions").await.1["executions"], json!([]));
    host.key = owner;
    assert_eq!(host.get(&format!("/v1/executions/{running}")).await.1["status"], "running");
    host.request(Method::POST, &format!("/v1/executions/{running}/cancel")).send().await.unwrap();
    host.finished(&running).await;
}
