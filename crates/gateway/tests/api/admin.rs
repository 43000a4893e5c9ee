//! `/v1/admin`: teams, sandboxes and keys.

use reqwest::Method;
use serde_json::{Value, json};

use crate::host::Host;

async fn ask(host: &Host, method: Method, path: &str, body: Value) -> (u16, Value) {
    let response = host.admin_request(method, path).json(&body).send().await.unwrap();
    let status = response.status().as_u16();
    (status, response.json().await.unwrap_or_default())
}

#[tokio::test]
async fn a_key_is_shown_once_and_revoked_immediately() {
    let mut host = Host::start().await;
    let made = host
        .admin_post("keys", json!({"team": "default", "sandbox": "default", "name": "k"}))
        .await;
    host.key = made["key"].as_str().unwrap().to_owned();
    assert!(host.key.starts_with("sk-us-"));
    assert_eq!(host.run(json!({"code": "1"})).await.0, 200);
    let id = made["id"].as_str().unwrap();
    let (status, seen) = ask(&host, Method::GET, &format!("keys/{id}"), json!({})).await;
    assert_eq!(status, 200);
    assert!(!seen.to_string().contains(&host.key));
    let bytes = std::fs::read(host.database()).unwrap();
    let wal = std::fs::read(host.directory().join("cloche.db-wal")).unwrap_or_default();
    let kept = [bytes, wal].concat();
    assert!(!kept.windows(host.key.len()).any(|window| window == host.key.as_bytes()));
    let (status, revoked) = ask(&host, Method::DELETE, &format!("keys/{id}"), json!({})).await;
    assert_eq!(status, 200);
    assert!(revoked["revoked_at"].is_string());
    assert_eq!(host.run(json!({"code": "1"})).await.0, 401);
}

#[tokio::test]
async fn a_change_applies_to_the_next_request() {
    let mut host = Host::start().await;
    host.with_key("pro").await;
    assert_eq!(host.run(json!({"code": "1", "timeout": 100})).await.0, 200);
    ask(&host, Method::PATCH, "teams/team-pro-0", json!({"plan": "free"})).await;
    assert_eq!(host.run(json!({"code": "1", "timeout": 100})).await.0, 429);
    let (_, list) = ask(&host, Method::GET, "sandboxes?team=team-pro-0", json!({})).await;
    let sandbox = list["sandboxes"][0]["id"].as_str().unwrap();
    let change = json!({"env_vars": {"A": "1"}, "retain_code": false});
    let (status, changed) =
        ask(&host, Method::PATCH, &format!("sandboxes/{sandbox}"), change).await;
    assert_eq!((status, &changed["retain_code"]), (200, &json!(false)));
    let response = host.post(json!({"code": "import os; print(os.environ['A'])"})).await;
    let id = crate::host::trace_id(&response);
    assert_eq!(response.json::<Value>().await.unwrap()["stdout"], "1\n");
    let (_, record) = host.get(&format!("/v1/executions/{id}")).await;
    assert_eq!(record["code"], Value::Null);
    assert_eq!(record["code_digest"].as_str().unwrap().len(), 64);
}

#[tokio::test]
async fn unsupported_sandbox_settings_are_refused_when_saved() {
    let host = Host::start().await;
    for setting in [
        json!({"image": "python:3.14"}),
        json!({"network": "odd"}),
        json!({"network": "allowlist"}),
        json!({"network_allow": ["pypi.example"]}),
        json!({"network": "unrestricted", "network_allow": ["pypi.example"]}),
        json!({"network": "unrestricted", "profile": "strict"}),
        json!({"network": "allowlist", "network_allow": ["*.com"]}),
        json!({"network_limits": {"connections": 257}}),
        json!({"network_limits": {"unknown": 1}}),
        json!({"profile": "odd"}),
        json!({"storage": ["bucket"]}),
        json!({"preload": ["os; import sys"]}),
        json!({"memory_mb": 1}),
        json!({"cpu": 0}),
        json!({"env_vars": {"PATH": "/"}}),
        json!({"unknown": 1}),
        json!({"name": "No Such Name"}),
    ] {
        let mut body = json!({"team": "default", "name": "x"});
        body.as_object_mut().unwrap().extend(setting.as_object().unwrap().clone());
        let (status, answer) = ask(&host, Method::POST, "sandboxes", body).await;
        assert_eq!((status, &answer["error"]), (400, &json!("validation_error")), "{setting}");
    }
}

#[tokio::test]
async fn a_sandbox_profile_is_standard_until_it_is_set_to_strict() {
    let host = Host::start().await;
    let made = host.admin_post("sandboxes", json!({"team": "default", "name": "p"})).await;
    assert_eq!(made["profile"], "standard");
    let path = format!("sandboxes/{}", made["id"].as_str().unwrap());
    let (status, _) = ask(&host, Method::PATCH, &path, json!({"profile": "strict"})).await;
    assert_eq!(status, 200);
    let (_, seen) = ask(&host, Method::GET, &path, json!({})).await;
    assert_eq!(seen["profile"], "strict");
    // Absent fields are left unchanged.
    ask(&host, Method::PATCH, &path, json!({"pids": 64})).await;
    let (_, list) = ask(&host, Method::GET, "sandboxes?team=default", json!({})).await;
    let all = list["sandboxes"].as_array().unwrap();
    let kept = all.iter().find(|sandbox| sandbox["name"] == "p").unwrap();
    assert_eq!((&kept["profile"], &kept["pids"]), (&json!("strict"), &json!(64)));
}

#[tokio::test]
async fn teams_sandboxes_and_keys_are_created_changed_and_deleted() {
    let host = Host::start().await;
    let (status, answer) =
        ask(&host, Method::POST, "teams", json!({"name": "default", "plan": "free"})).await;
    assert_eq!((status, &answer["error"]), (409, &json!("conflict")));
    let team =
        host.admin_post("teams", json!({"name": "t", "plan": "free", "max_concurrency": 2})).await;
    assert_eq!(team["max_concurrency"], 2);
    let change = json!({"max_concurrency": null});
    assert_eq!(
        ask(&host, Method::PATCH, "teams/t", change).await.1["max_concurrency"],
        Value::Null
    );
    let sandbox = host.admin_post("sandboxes", json!({"team": "t", "name": "s"})).await;
    let body = json!({"team": "t", "sandbox": "s", "name": "k",
        "webhook_url": "https://example.invalid/hook", "webhook_secret": "s3cret"});
    let key = host.admin_post("keys", body).await;
    assert_eq!(key["webhook_signed"], true);
    assert!(!key.to_string().contains("s3cret"));
    let key = format!("keys/{}", key["id"].as_str().unwrap());
    let change = json!({"webhook_url": null, "webhook_secret": null});
    assert_eq!(ask(&host, Method::PATCH, &key, change).await.1["webhook_signed"], false);
    let change = json!({"webhook_url": "https://127.0.0.1/"});
    assert_eq!(ask(&host, Method::PATCH, &key, change).await.0, 400);
    let sandbox = format!("sandboxes/{}", sandbox["id"].as_str().unwrap());
    assert_eq!(ask(&host, Method::DELETE, &sandbox, json!({})).await.0, 409);
    assert_eq!(ask(&host, Method::DELETE, "teams/t", json!({})).await.0, 409);
    assert_eq!(ask(&host, Method::DELETE, &key, json!({})).await.0, 200);
    assert_eq!(ask(&host, Method::DELETE, &sandbox, json!({})).await.0, 204);
    assert_eq!(ask(&host, Method::DELETE, "teams/t", json!({})).await.0, 204);
    assert_eq!(ask(&host, Method::GET, "teams/t", json!({})).await.0, 404);
    assert_eq!(ask(&host, Method::GET, &sandbox, json!({})).await.0, 404);
}
