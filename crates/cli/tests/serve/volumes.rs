//! Runs in: test. Volumes through the files API, as the public client uses it.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    host::Host,
    storage_connections::{operator, operator_json},
};

/// Asks the files API. Returns the status and the answer.
async fn files(host: &Host, what: &str, body: Value) -> (StatusCode, Value) {
    let request = host.request(Method::POST, &format!("/v1/files/{what}")).json(&body);
    let answer = request.send().await.unwrap();
    (answer.status(), answer.json().await.unwrap())
}

/// Uploads a file to a volume by a signed URL. Returns the status of the upload.
pub(crate) async fn upload(host: &Host, volume: &str, path: &str, content: Vec<u8>) -> StatusCode {
    let body = json!({"source": "volume", "id": volume, "path": path,
        "content_length": content.len()});
    let (status, signed) = files(host, "upload_url", body).await;
    if status != 200 {
        return status;
    }
    let url = signed["url"].as_str().unwrap();
    reqwest::Client::new().put(url).body(content).send().await.unwrap().status()
}

/// Downloads a file of a volume by a signed URL.
pub(crate) async fn download(host: &Host, volume: &str, path: &str) -> Result<Vec<u8>, StatusCode> {
    let body = json!({"source": "volume", "id": volume, "path": path});
    let (status, signed) = files(host, "download_url", body).await;
    if status != 200 {
        return Err(status);
    }
    let got = reqwest::get(signed["url"].as_str().unwrap()).await.unwrap();
    match got.status() {
        StatusCode::OK => Ok(got.bytes().await.unwrap().to_vec()),
        status => Err(status),
    }
}

pub(crate) async fn listed(host: &Host, body: Value) -> Vec<String> {
    let (status, answer) = files(host, "list", body).await;
    assert_eq!(status, 200, "{answer}");
    let files = answer["files"].as_array().unwrap();
    files.iter().map(|file| file["path"].as_str().unwrap().to_owned()).collect()
}

/// Makes a key in a sandbox of its own, which the volume is bound to with these arguments.
fn key_bound_to(host: &Host, volume: &str, name: &str, more: &[&str]) -> String {
    operator_json(host, &["sandbox", "create", name], "");
    let key = operator_json(host, &["key", "create", name, "--sandbox", name], "");
    let bind = ["storage", "bind", volume, "--key", key["id"].as_str().unwrap()];
    operator_json(host, &[&bind[..], more].concat(), "");
    key["key"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn files_of_a_volume_are_listed_uploaded_and_downloaded() {
    let Some(host) = Host::start().await else { return };
    let made = operator_json(&host, &["volume", "create", "work", "--quota", "8M"], "");
    assert_eq!((&made["quota_bytes"], &made["used_bytes"]), (&json!(8 << 20), &json!(0)));
    let body = json!({"source": "volume", "id": "work"});
    assert_eq!(files(&host, "list", body.clone()).await.0, 404, "it is not bound to the key");
    let bind = ["storage", "bind", "work", "--sandbox", "default", "--read-write"];
    operator_json(&host, &bind, "");
    assert_eq!(listed(&host, body.clone()).await, Vec::<String>::new());
    for (path, content) in [("a/b.txt", "one"), ("a.txt", "two"), ("a/c/ü.txt", "three"), ("z", "")]
    {
        assert_eq!(upload(&host, "work", path, content.into()).await, 200, "{path}");
        assert_eq!(download(&host, "work", path).await.unwrap(), content.as_bytes());
    }
    assert_eq!(listed(&host, body.clone()).await, ["a.txt", "a/b.txt", "a/c/ü.txt", "z"]);
    let in_a = json!({"source": "volume", "id": "work", "path": "a"});
    assert_eq!(listed(&host, in_a).await, ["a/b.txt", "a/c/ü.txt"]);
    let page = json!({"source": "volume", "id": "work", "limit": 2});
    let (_, first) = files(&host, "list", page).await;
    assert_eq!(first["next"], "a/b.txt");
    let page = json!({"source": "volume", "id": "work", "limit": 2, "after": "a/b.txt"});
    assert_eq!(listed(&host, page).await, ["a/c/ü.txt", "z"]);
    assert_eq!(upload(&host, "work", "z", b"replaced".to_vec()).await, 200);
    assert_eq!(download(&host, "work", "z").await.unwrap(), b"replaced");
    for path in ["nothing", "a", "a/b.txt/x"] {
        assert_eq!(download(&host, "work", path).await, Err(StatusCode::NOT_FOUND), "{path}");
    }
    // What it holds is counted, and the quota holds for uploads.
    let shown = operator_json(&host, &["volume", "show", "work"], "");
    assert_eq!(shown["used_bytes"], 3 + 3 + 5 + 8);
    assert_eq!(upload(&host, "work", "big", vec![b'x'; 9 << 20]).await, 413);
    operator_json(&host, &["volume", "set", "work", "--quota", "16M"], "");
    assert_eq!(upload(&host, "work", "big", vec![b'x'; 9 << 20]).await, 200);
    let refused = operator(&host, &["volume", "rm", "work"], "");
    assert!(refused.stderr.contains("is used by sandbox default"), "{refused:?}");
    operator_json(&host, &["storage", "unbind", "work", "--sandbox", "default"], "");
    assert_eq!(files(&host, "list", body).await.0, 404);
    assert_eq!(operator(&host, &["volume", "rm", "work"], "").printed(), "removed work\n");
    assert_eq!(std::fs::read_dir(host.data().join("volumes")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_key_uses_a_volume_only_as_far_as_it_is_bound() {
    let Some(host) = Host::start().await else { return };
    operator_json(&host, &["volume", "create", "work", "--quota", "8M"], "");
    let all = key_bound_to(&host, "work", "all", &["--read-write"]);
    let one = key_bound_to(&host, "work", "one", &["--path", "users/1", "--read-write"]);
    let reader = key_bound_to(&host, "work", "reader", &["--path", "users"]);
    let host = host.with_key(all);
    for path in ["users/1/a", "users/10/b", "top"] {
        assert_eq!(upload(&host, "work", path, b"x".to_vec()).await, 200);
    }
    let body = json!({"source": "volume", "id": "work"});
    let host = host.with_key(one);
    assert_eq!(listed(&host, body.clone()).await, ["users/1/a"]);
    assert!(download(&host, "work", "users/1/a").await.is_ok());
    for path in ["users/10/b", "top", "users/1"] {
        assert_eq!(download(&host, "work", path).await, Err(StatusCode::NOT_FOUND), "{path}");
    }
    for path in ["users/10/b", "users/2", "top", "users/1x"] {
        assert_eq!(upload(&host, "work", path, b"y".to_vec()).await, 403, "{path}");
    }
    for path in ["users/1/../10/b", "/users/1/a", "users//1/a", "users/1/./a"] {
        let body = json!({"source": "volume", "id": "work", "path": path, "content_length": 1});
        assert_eq!(files(&host, "upload_url", body.clone()).await.0, 400, "{path}");
        assert_eq!(files(&host, "download_url", body).await.0, 400, "{path}");
    }
    let outside = json!({"source": "volume", "id": "work", "path": "users/10"});
    assert_eq!(listed(&host, outside).await, Vec::<String>::new());
    assert_eq!(upload(&host, "work", "users/1/new", b"y".to_vec()).await, 200);
    let host = host.with_key(reader);
    assert_eq!(listed(&host, body).await, ["users/1/a", "users/1/new", "users/10/b"]);
    assert_eq!(upload(&host, "work", "users/x", b"y".to_vec()).await, 403);
}

#[tokio::test]
async fn a_signed_url_of_a_volume_ends_with_its_binding() {
    let Some(host) = Host::start().await else { return };
    operator_json(&host, &["volume", "create", "work", "--quota", "8M"], "");
    let bind = ["storage", "bind", "work", "--sandbox", "default", "--read-write"];
    operator_json(&host, &bind, "");
    assert_eq!(upload(&host, "work", "f", b"x".to_vec()).await, 200);
    let body = json!({"source": "volume", "id": "work", "path": "f", "content_length": 3});
    let (_, get) = files(&host, "download_url", body.clone()).await;
    let (_, put) = files(&host, "upload_url", body).await;
    let client = reqwest::Client::new();
    let put = |content: &'static str| client.put(put["url"].as_str().unwrap()).body(content).send();
    for content in ["12", "1234"] {
        assert_eq!(put(content).await.unwrap().status(), 401, "{content}");
    }
    // Read-only from now on.
    operator_json(&host, &["storage", "bind", "work", "--sandbox", "default"], "");
    assert_eq!(put("123").await.unwrap().status(), 403);
    let got = || reqwest::get(get["url"].as_str().unwrap());
    assert_eq!(got().await.unwrap().text().await.unwrap(), "x");
    operator_json(&host, &["storage", "unbind", "work", "--sandbox", "default"], "");
    assert_eq!(got().await.unwrap().status(), 404);
}
