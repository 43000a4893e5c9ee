//! The contract's table "HTTP status codes": each status, its code, and its format.

use reqwest::Method;
use serde_json::{Value, json};

use crate::host::{Host, trace_id};

#[tokio::test]
async fn http_status_codes() {
    let mut host = Host::start().await;
    let (status, answer) = host.run(json!({"code": ""})).await;
    assert_eq!((status, &answer["error"]), (400, &json!("validation_error")));
    let good = std::mem::replace(&mut host.key, "sk-us-wrong".to_owned());
    let (status, answer) = host.run(json!({"code": "1"})).await;
    assert_eq!((status, &answer["error"]), (401, &json!("unauthorized")));
    host.key = good;
    let (status, answer) = host.get("/v1/executions/trc_missing").await;
    assert_eq!((status, &answer["error"]), (404, &json!("not_found")));
    let response = host.request(Method::PUT, "/v1/sandbox/execute").send().await.unwrap();
    assert_eq!(response.status(), 405);
    assert!(response.headers().contains_key("allow"));
    assert_eq!(response.json::<Value>().await.unwrap()["error"], "method_not_allowed");
    let (status, answer) = host.get("/v1/nothing").await;
    assert_eq!((status, &answer["error"]), (404, &json!("not_found")));
}

#[tokio::test]
async fn an_inline_timeout_returns_504_with_the_result() {
    let host = Host::start().await;
    let code = "import time\nprint('begun', flush=True)\ntime.sleep(30)";
    let response = host.post(json!({"code": code, "timeout": 1})).await;
    assert_eq!(response.status(), 504);
    let id = trace_id(&response);
    let answer: Value = response.json().await.unwrap();
    for (field, value) in [
        ("success", json!(false)),
        ("stdout", json!("begun\n")),
        ("exit_code", json!(-1)),
        ("error", json!("execution timed out after 1s")),
        ("message", json!("execution timed out after 1s")),
        ("code", json!("gateway_timeout")),
    ] {
        assert_eq!(answer[field], value, "{field}");
    }
    assert_eq!(host.get(&format!("/v1/executions/{id}")).await.1["status"], "timeout");
}

#[tokio::test]
async fn a_failure_of_the_code_is_not_an_error_of_the_platform() {
    let host = Host::start().await;
    let response =
        host.post(json!({"code": "import sys; sys.stderr.write('x'); sys.exit(3)"})).await;
    assert_eq!(response.status(), 200);
    let id = trace_id(&response);
    let answer: Value = response.json().await.unwrap();
    assert_eq!(answer["success"], false);
    assert_eq!(
        (&answer["exit_code"], &answer["stderr"], &answer["error"]),
        (&json!(3), &json!("x"), &Value::Null)
    );
    assert_eq!(host.get(&format!("/v1/executions/{id}")).await.1["status"], "failed");
    let (_, answer) = host.run(json!({"code": "kill -9 $$", "language": "bash"})).await;
    assert_eq!(answer["exit_code"], 137);
}

#[tokio::test]
async fn a_failure_of_the_platform_is_reported_in_the_result() {
    let host = Host::start().await;
    let (status, answer) = host.run(json!({"code": "raise SystemError('no executor')"})).await;
    assert_eq!(status, 200);
    assert_eq!(answer["error"], "the sandbox failed to run the code");
    assert_eq!((&answer["success"], &answer["exit_code"]), (&json!(false), &json!(-1)));
}

#[tokio::test]
async fn every_route_requires_a_key() {
    let host = Host::start().await;
    let client = reqwest::Client::new();
    for (method, path) in [
        (Method::POST, "/v1/sandbox/execute"),
        (Method::GET, "/v1/executions"),
        (Method::GET, "/v1/executions/trc_a"),
        (Method::POST, "/v1/executions/trc_a/cancel"),
        (Method::GET, "/v1/executions/trc_a/output"),
        (Method::GET, "/v1/admin/teams"),
        (Method::POST, "/v1/admin/keys"),
        (Method::DELETE, "/v1/admin/sandboxes/sbx_a"),
    ] {
        let url = format!("http://{}{path}", host.address);
        for token in [None, Some(""), Some("sk-us-wrong")] {
            let mut request = client.request(method.clone(), &url).json(&json!({}));
            if let Some(token) = token {
                request = request.bearer_auth(token);
            }
            let response = request.send().await.unwrap();
            assert_eq!(response.status(), 401, "{method} {path} {token:?}");
            assert_eq!(response.json::<Value>().await.unwrap()["error"], "unauthorized");
        }
    }
    // An API key is not accepted as admin token.
    let response = host.request(Method::GET, "/v1/admin/teams").send().await.unwrap();
    assert_eq!(response.status(), 401);
}

#[tokio::test]
async fn a_refusal_is_recorded_in_the_ledger_without_the_code() {
    let host = Host::start().await;
    let response = host.post(json!({"code": "1", "env_vars": {"PATH": "s3cret"}})).await;
    assert_eq!(response.status(), 400);
    let id = trace_id(&response);
    let (_, record) = host.get(&format!("/v1/executions/{id}")).await;
    assert_eq!(record["status"], "blocked");
    assert!(record["error"].as_str().unwrap().starts_with("validation_error: "), "{record}");
    assert_eq!(record["code"], Value::Null);
    assert!(!record.to_string().contains("s3cret"));
}
