//! Isolation between tenants: threads and files of another team look like missing ones.

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    files::{download_url, upload_url},
    host::{Host, trace_id},
};

/// The status and the text of a response.
async fn answer(host: &Host, method: Method, path: &str, body: &Value) -> (u16, String) {
    let request = host.request(method.clone(), path);
    let request = if method == Method::GET { request } else { request.json(body) };
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

#[tokio::test]
async fn another_teams_thread_and_files_look_like_missing_ones() {
    let mut host = Host::start().await;
    let body = json!({"code": "echo secret >f", "language": "bash", "thread_id": "theirs"});
    let trace = trace_id(&host.post(body).await);
    host.with_key("pro").await;
    let list = |id: &str| json!({"source": "thread", "id": id});
    let file = |id: &str| json!({"source": "thread", "id": id, "path": "f"});
    for (method, path, body) in [
        (Method::GET, "/v1/threads/ID", json!(null)),
        (Method::GET, "/v1/threads/ID/history", json!(null)),
        (Method::GET, "/v1/threads/ID/diff?from=0&to=1", json!(null)),
        (Method::GET, "/v1/threads/ID/export", json!(null)),
        (Method::POST, "/v1/threads/ID/fork", json!({"thread_id": "mine"})),
        (Method::POST, "/v1/threads/ID/rollback", json!({"to": 1})),
        (Method::DELETE, "/v1/threads/ID", json!(null)),
        (Method::POST, "/v1/files/list", list("theirs")),
        (Method::POST, "/v1/files/download_url", file("theirs")),
    ] {
        let theirs = answer(&host, method.clone(), &path.replace("ID", "theirs"), &body).await;
        let none = serde_json::from_str(&body.to_string().replace("theirs", "none")).unwrap();
        let missing = answer(&host, method, &path.replace("ID", "none"), &none).await;
        assert_eq!(theirs, missing, "{path}");
        assert_eq!(theirs.0, 404, "{path}");
    }
    for path in ["/v1/executions/ID/files", "/v1/executions/ID/files/f"] {
        let theirs = answer(&host, Method::GET, &path.replace("ID", &trace), &Value::Null).await;
        let missing =
            answer(&host, Method::GET, &path.replace("ID", "trc_none"), &Value::Null).await;
        assert_eq!(theirs, missing, "{path}");
        assert_eq!(theirs.0, 404, "{path}");
    }
    assert_eq!(host.get("/v1/threads").await.1["threads"], json!([]));
}

#[tokio::test]
async fn threads_with_the_same_name_in_two_teams_are_separate() {
    let mut host = Host::start().await;
    host.bash("shared", "echo theirs >f").await;
    let theirs = host.key.clone();
    host.with_key("pro").await;
    assert_eq!(host.bash("shared", "ls f || echo none").await["stdout"], "none\n");
    let (_, signed) = upload_url(&host, "shared", "f", 4).await;
    let put = reqwest::Client::new().put(signed["url"].as_str().unwrap()).body("mine");
    assert_eq!(put.send().await.unwrap().status(), 200);
    host.send(Method::DELETE, "/v1/threads/shared", Value::Null).await;
    host.key = theirs;
    assert_eq!(host.bash("shared", "cat f").await["stdout"], "theirs\n");
}

#[tokio::test]
async fn another_teams_execution_does_not_make_a_thread_busy() {
    let mut host = Host::start().await;
    let body = json!({"code": "sleep 60", "language": "bash", "thread_id": "t"});
    let running = host.background(body).await;
    let theirs = host.key.clone();
    host.with_key("pro").await;
    assert_eq!(host.bash("t", "echo free").await["stdout"], "free\n");
    host.key = theirs;
    let cancel = format!("/v1/executions/{running}/cancel");
    host.request(Method::POST, &cancel).send().await.unwrap();
    host.finished(&running).await;
}

#[tokio::test]
async fn a_path_cannot_lead_into_another_thread() {
    let host = Host::start().await;
    host.bash("users-1", "mkdir d; echo one >d/f").await;
    host.bash("users-10", "echo ten >f").await;
    for path in ["../users-10/f", "d/../../users-10/f", "/home/baponi/../users-10/f"] {
        assert_eq!(download_url(&host, "users-1", path).await.0, 400, "{path}");
    }
    for path in ["%2e%2e/users-10/f", "\u{2024}\u{2024}/users-10/f", "D/F", "d/F"] {
        assert_eq!(download_url(&host, "users-1", path).await.0, 404, "{path}");
    }
    let (_, answer) =
        host.send(Method::POST, "/v1/files/list", json!({"id": "users-1", "path": "d"})).await;
    assert_eq!(answer["files"][0]["path"], "d/f");
    assert_eq!(download_url(&host, "users-1", "d/f").await.0, 200);
}

#[tokio::test]
async fn threads_and_files_require_a_valid_key() {
    let mut host = Host::start().await;
    host.bash("t", "echo 1 >f").await;
    for key in ["sk-us-wrong", "ck-admin-wrong", "x"] {
        host.key = key.to_owned();
        for (method, path) in [
            (Method::GET, "/v1/threads"),
            (Method::GET, "/v1/threads/t"),
            (Method::GET, "/v1/threads/t/export"),
            (Method::POST, "/v1/threads/t/import"),
            (Method::DELETE, "/v1/threads/t"),
            (Method::POST, "/v1/files/list"),
            (Method::POST, "/v1/files/upload_url"),
            (Method::GET, "/v1/executions/trc_a/files/f"),
            (Method::GET, "/v1/files/transfer/abc.def"),
            (Method::PUT, "/v1/files/transfer/abc.def"),
        ] {
            assert_eq!(
                answer(&host, method, path, &json!({"id": "t"})).await.0,
                401,
                "{key} {path}"
            );
        }
    }
}
