//! The contract's table "Request body parameters", and the tables it refers to.

use serde_json::{Value, json};

use crate::host::Host;

async fn refused(host: &Host, body: Value) -> String {
    let (status, answer) = host.run(body.clone()).await;
    assert_eq!((status, &answer["error"]), (400, &json!("validation_error")), "{body}: {answer}");
    answer["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn request_body_parameters() {
    let host = Host::start().await;
    let (status, answer) = host.run(json!({"code": "print('hi')"})).await;
    assert_eq!(status, 200);
    for (field, value) in [
        ("success", json!(true)),
        ("stdout", json!("hi\n")),
        ("stderr", json!("")),
        ("exit_code", json!(0)),
        ("error", Value::Null),
    ] {
        assert_eq!(answer[field], value, "{field}");
    }
    for (code, language) in [("print(1)", "python"), ("console.log(1)", "node"), ("echo 1", "bash")]
    {
        let (_, answer) = host.run(json!({"code": code, "language": language})).await;
        assert_eq!(answer["stdout"], "1\n", "{language}");
    }
    // A null field counts as absent; unknown fields are ignored.
    let (status, _) = host
        .run(json!({"code": "1", "language": null, "timeout": null, "thread_id": null,
            "metadata": null, "webhook_url": null, "env_vars": null, "sub_paths": null, "x": [1]}))
        .await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn code_must_be_one_byte_to_one_megabyte() {
    let host = Host::start().await;
    let message = refused(&host, json!({"code": ""})).await;
    assert_eq!(message, "code must be between 1 byte and 1 MB");
    let message = refused(&host, json!({"code": "#".repeat((1 << 20) + 1)})).await;
    assert_eq!(message, "code must be between 1 byte and 1 MB");
    let (status, _) = host.run(json!({"code": "#".repeat(1 << 20)})).await;
    assert_eq!(status, 200);
    // The largest code still fits with every character escaped.
    let escaped = "\\u0023".repeat(1 << 20);
    let response = host
        .request(reqwest::Method::POST, "/v1/sandbox/execute")
        .header("content-type", "application/json")
        .body(format!("{{\"code\": \"{escaped}\"}}"))
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn the_error_for_a_wrong_type_names_the_field() {
    let host = Host::start().await;
    for (body, field) in [
        (json!({"code": 1}), "code"),
        (json!({"code": "1", "timeout": "1"}), "timeout"),
        (json!({"code": "1", "timeout": 1.5}), "timeout"),
        (json!({"code": "1", "metadata": {"a": 1}}), "metadata.a"),
        (json!({"code": "1", "env_vars": []}), "env_vars"),
        (json!({"code": "1", "sub_paths": [1]}), "sub_paths[0]"),
        (json!({}), "code"),
        (json!([]), "the body"),
    ] {
        let message = refused(&host, body).await;
        assert!(message.contains(field), "{field}: {message}");
    }
}

#[tokio::test]
async fn metadata_constraints() {
    let host = Host::start().await;
    let many: Value =
        (0..11).map(|n| (format!("k{n}"), json!("v"))).collect::<serde_json::Map<_, _>>().into();
    let message = refused(&host, json!({"code": "1", "metadata": many})).await;
    assert_eq!(message, "metadata exceeds 10 keys, got 11");
    refused(&host, json!({"code": "1", "metadata": {"k".repeat(41): "v"}})).await;
    refused(&host, json!({"code": "1", "metadata": {"k": "v".repeat(257)}})).await;
    let code = "import os\nprint([n for n in os.environ if 'secret' in os.environ[n]])";
    let (status, answer) = host.run(json!({"code": code, "metadata": {"k.1": "secret"}})).await;
    assert_eq!((status, &answer["stdout"]), (200, &json!("[]\n")));
}

#[tokio::test]
async fn environment_variables_of_all_three_levels_are_merged() {
    let mut host = Host::start().await;
    let team = host.admin_post("teams", json!({"name": "env", "plan": "pro"})).await["id"].clone();
    let env = json!({"A": "sandbox", "B": "sandbox", "C": "sandbox"});
    host.admin_post("sandboxes", json!({"team": team, "name": "s", "env_vars": env})).await;
    let body =
        json!({"team": team, "sandbox": "s", "name": "k", "env_vars": {"B": "key", "C": "key"}});
    host.key = host.admin_post("keys", body).await["key"].as_str().unwrap().to_owned();
    let code = "import os\nprint(os.environ['A'], os.environ['B'], os.environ['C'])";
    let (_, answer) = host.run(json!({"code": code, "env_vars": {"C": "request"}})).await;
    assert_eq!(answer["stdout"], "sandbox key request\n");
    let full: Value =
        (0..48).map(|n| (format!("V{n}"), json!("v"))).collect::<serde_json::Map<_, _>>().into();
    let message = refused(&host, json!({"code": "1", "env_vars": full})).await;
    assert!(message.contains("exceeds 50 variables, got 51"), "{message}");
}

#[tokio::test]
async fn environment_variable_validation_rules() {
    let host = Host::start().await;
    for name in ["LD_PRELOAD", "PYTHONPATH", "NODE_OPTIONS", "PATH", "HOME", "https_proxy", "_X"] {
        let message = refused(&host, json!({"code": "1", "env_vars": {name: "x"}})).await;
        assert_eq!(message, "this environment variable name is reserved by the system");
    }
    for (name, value) in [("lower", "x"), ("1A", "x"), ("A", "\0"), ("A", &"x".repeat(4097))] {
        refused(&host, json!({"code": "1", "env_vars": {name: value}})).await;
    }
}

#[tokio::test]
async fn storage_path_scoping() {
    let host = Host::start().await;
    for path in ["/etc/passwd", "/data/a/../b", "/data/a/%2e%2e/b", "/data/a/b"] {
        let message = refused(&host, json!({"code": "1", "sub_paths": [path]})).await;
        assert!(message.starts_with("sub_paths: "), "{message}");
    }
    let many: Vec<_> = (0..11).map(|n| format!("/data/a{n}/x")).collect();
    refused(&host, json!({"code": "1", "sub_paths": many})).await;
    let (status, _) = host.run(json!({"code": "1", "sub_paths": []})).await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn a_thread_is_busy_until_its_execution_has_ended() {
    let host = Host::start().await;
    let refused = refused(&host, json!({"code": "1", "thread_id": "-a"})).await;
    assert!(refused.starts_with("thread_id must start"), "{refused}");
    let slow =
        host.background(json!({"code": "import time; time.sleep(30)", "thread_id": "t"})).await;
    let (status, answer) = host.run(json!({"code": "1", "thread_id": "t"})).await;
    assert_eq!((status, &answer["error"]), (409, &json!("conflict")));
    let (status, _) = host.run(json!({"code": "1", "thread_id": "u"})).await;
    assert_eq!(status, 200);
    host.request(reqwest::Method::POST, &format!("/v1/executions/{slow}/cancel"))
        .send()
        .await
        .unwrap();
    host.finished(&slow).await;
    let (status, _) = host.run(json!({"code": "1", "thread_id": "t"})).await;
    assert_eq!(status, 200);
}
