//! The Files API: lists, signed URLs, uploads and downloads.

use std::time::Duration;

use cloche_engine::{EngineConfig, HomesConfig};
use cloche_gateway::GatewayConfig;
use reqwest::{Client, Method, Response};
use serde_json::{Value, json};

use crate::host::Host;

pub(crate) async fn upload_url(
    host: &Host,
    thread: &str,
    path: &str,
    length: usize,
) -> (u16, Value) {
    let body = json!({"source": "thread", "id": thread, "path": path, "content_length": length});
    host.send(Method::POST, "/v1/files/upload_url", body).await
}

pub(crate) async fn download_url(host: &Host, thread: &str, path: &str) -> (u16, Value) {
    let body = json!({"source": "thread", "id": thread, "path": path});
    host.send(Method::POST, "/v1/files/download_url", body).await
}

async fn put(signed: &Value, content: impl Into<reqwest::Body>) -> Response {
    Client::new().put(signed["url"].as_str().unwrap()).body(content).send().await.unwrap()
}

async fn get(signed: &Value, range: Option<&str>) -> Response {
    let mut request = Client::new().get(signed["url"].as_str().unwrap());
    if let Some(range) = range {
        request = request.header("range", range);
    }
    request.send().await.unwrap()
}

async fn upload(host: &Host, thread: &str, path: &str, content: &'static str) {
    let (status, signed) = upload_url(host, thread, path, content.len()).await;
    assert_eq!((status, &signed["method"]), (200, &json!("PUT")), "{signed}");
    let response = put(&signed, content).await;
    assert_eq!(response.status(), 200, "{}", response.text().await.unwrap());
}

async fn list(host: &Host, body: Value) -> Vec<String> {
    let (status, answer) = host.send(Method::POST, "/v1/files/list", body).await;
    assert_eq!(status, 200, "{answer}");
    let files = answer["files"].as_array().unwrap();
    files.iter().map(|file| file["path"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn an_execution_sees_uploads_and_its_files_are_listed() {
    let host = Host::start().await;
    upload(&host, "new-thread", "in/data.csv", "1,2\n").await;
    let code = "cat in/data.csv; mkdir -p out/deep; echo 3 >'out/deep/a b.txt'; echo 4 >outer";
    assert_eq!(host.bash("new-thread", code).await["stdout"], "1,2\n");
    let all = list(&host, json!({"id": "new-thread"})).await;
    assert_eq!(all, ["in/data.csv", "out/deep/a b.txt", "outer"]);
    for (path, expected) in [
        ("out", vec!["out/deep/a b.txt"]),
        ("/home/baponi/out/deep/", vec!["out/deep/a b.txt"]),
        ("outer", vec!["outer"]),
        ("nothing", vec![]),
    ] {
        let body = json!({"source": "thread", "id": "new-thread", "path": path});
        assert_eq!(list(&host, body).await, expected, "{path}");
    }
    for path in all {
        let (status, signed) = download_url(&host, "new-thread", &path).await;
        assert_eq!((status, &signed["method"]), (200, &json!("GET")), "{path} {signed}");
        assert_eq!(get(&signed, None).await.status(), 200, "{path}");
    }
    let page = json!({"id": "new-thread", "limit": 1, "after": "in/data.csv"});
    let (_, answer) = host.send(Method::POST, "/v1/files/list", page).await;
    assert_eq!(answer["next"], "out/deep/a b.txt");
    let (_, history) = host.get("/v1/threads/new-thread/history").await;
    assert_eq!(history["points"][1]["kind"], "upload");
}

#[tokio::test]
async fn names_that_are_not_utf8_are_listed_in_a_form_that_can_be_used() {
    let host = Host::start().await;
    let code =
        r"mkdir $'d\xff'; printf one >$'d\xff/\xfe\xc3\xa9'; printf two >'\xFF'; printf 3 >$'\xff'";
    let body = json!({"code": code, "language": "bash", "thread_id": "t"});
    let response = host.post(body).await;
    let trace = crate::host::trace_id(&response);
    let answer: Value = response.json().await.unwrap();
    let written = answer["output_files"].as_array().unwrap();
    let written: Vec<_> = written.iter().map(|file| file["name"].as_str().unwrap()).collect();
    let names = [r"\x5CxFF", "d\\xFF/\\xFE\u{e9}", r"\xFF"];
    assert_eq!(written, names);
    assert_eq!(list(&host, json!({"id": "t"})).await, names);
    for (name, content) in names.into_iter().zip(["two", "one", "3"]) {
        let (status, signed) = download_url(&host, "t", name).await;
        assert_eq!(status, 200, "{name} {signed}");
        assert_eq!(get(&signed, None).await.text().await.unwrap(), content, "{name}");
        let url = reqwest::Url::parse("http://x").unwrap();
        let mut url = url.join(&format!("/v1/executions/{trace}/files")).unwrap();
        url.path_segments_mut().unwrap().extend(name.split('/'));
        // An unescaped backslash in a URL would be converted to a slash.
        let path = url.path().replace('\\', "%5C");
        let file = host.request(Method::GET, &path).send().await.unwrap();
        assert_eq!(file.text().await.unwrap(), content, "{path}");
    }
    let page = json!({"id": "t", "limit": 1, "after": names[0]});
    assert_eq!(list(&host, page).await, [names[1]]);
    assert_eq!(list(&host, json!({"id": "t", "path": r"d\xFF"})).await, [names[1]]);
    // The raw bytes work as well.
    let path = format!("/v1/executions/{trace}/files/d%FF/%FE%C3%A9");
    assert_eq!(host.request(Method::GET, &path).send().await.unwrap().text().await.unwrap(), "one");
    upload(&host, "t", r"d\xFF/new", "up").await;
    assert_eq!(host.bash("t", r"cat $'d\xff/new'").await["stdout"], "up");
    let (_, diff) = host.get("/v1/threads/t/diff?from=1&to=2").await;
    assert_eq!(diff["added"], json!([r"d\xFF/new"]), "{diff}");
}

#[tokio::test]
async fn a_download_supports_ranges() {
    let host = Host::start().await;
    upload(&host, "t", "digits", "0123456789").await;
    let (_, signed) = download_url(&host, "t", "/home/baponi/digits").await;
    let whole = get(&signed, None).await;
    assert_eq!(whole.headers()["accept-ranges"], "bytes");
    assert_eq!(whole.headers()["x-content-type-options"], "nosniff");
    assert!(whole.headers()["content-disposition"].to_str().unwrap().starts_with("attachment"));
    assert_eq!(whole.text().await.unwrap(), "0123456789");
    for (range, shown, content) in [
        ("bytes=0-3", "bytes 0-3/10", "0123"),
        ("bytes=8-", "bytes 8-9/10", "89"),
        ("bytes=-4", "bytes 6-9/10", "6789"),
    ] {
        let part = get(&signed, Some(range)).await;
        assert_eq!(
            (part.status().as_u16(), part.headers()["content-range"].to_str().unwrap()),
            (206, shown)
        );
        assert_eq!(part.text().await.unwrap(), content, "{range}");
    }
    let none = get(&signed, Some("bytes=10-")).await;
    assert_eq!(
        (none.status().as_u16(), none.headers()["content-range"].to_str().unwrap()),
        (416, "bytes */10")
    );
    let head = Client::new().head(signed["url"].as_str().unwrap()).send().await.unwrap();
    assert_eq!(
        (head.status().as_u16(), head.headers()["content-length"].to_str().unwrap()),
        (200, "10")
    );
}

#[tokio::test]
async fn a_signed_url_permits_one_method_one_path_and_one_length() {
    let host = Host::start().await;
    upload(&host, "t", "f", "first").await;
    let (_, up) = upload_url(&host, "t", "f", 5).await;
    let (_, down) = download_url(&host, "t", "f").await;
    assert_eq!(get(&up, None).await.status(), 401);
    assert_eq!(put(&down, "other").await.status(), 401);
    for content in ["four", "sixsix"] {
        assert_eq!(put(&up, content).await.status(), 401, "{content:?}");
    }
    assert!(put(&up, "").await.status().is_client_error());
    // Without a `Content-Length` the bytes are counted.
    for content in ["four", "sixsix"] {
        let pieces = futures::stream::iter([Ok::<_, std::io::Error>(content)]);
        let answer = put(&up, reqwest::Body::wrap_stream(pieces)).await;
        assert_eq!(answer.status(), 400, "{content:?} {}", answer.text().await.unwrap());
    }
    assert_eq!(get(&down, None).await.text().await.unwrap(), "first");
    let url = up["url"].as_str().unwrap();
    let (text, code) = url.rsplit_once('.').unwrap();
    for forged in [format!("{text}x.{code}"), format!("{text}.{code}x"), format!("{text}.")] {
        let answer = put(&json!({"url": forged}), "fivee").await;
        assert_eq!(answer.status(), 401, "{forged}");
    }
    assert_eq!(put(&up, "fivee").await.status(), 200);
    assert_eq!(get(&down, None).await.text().await.unwrap(), "fivee");
}

#[tokio::test]
async fn a_signed_url_cannot_recreate_a_deleted_thread() {
    let host = Host::start().await;
    // For a thread that does not exist yet, and for one that does.
    let (_, before) = upload_url(&host, "t", "f", 5).await;
    assert_eq!(put(&before, "first").await.status(), 200);
    // A client that received no response retries.
    assert_eq!(put(&before, "first").await.status(), 200);
    let (_, later) = upload_url(&host, "t", "g", 5).await;
    assert_eq!(host.send(Method::DELETE, "/v1/threads/t", Value::Null).await.0, 204);
    for signed in [&before, &later] {
        let answer = put(signed, "again").await;
        assert_eq!(answer.status(), 404, "{}", answer.text().await.unwrap());
    }
    assert_eq!(host.get("/v1/threads/t").await.0, 404);
    let host = host.restart().await;
    let old = before["url"].as_str().unwrap().rsplit('/').next().unwrap();
    let old = json!({"url": format!("http://{}/v1/files/transfer/{old}", host.address)});
    assert_eq!(put(&old, "again").await.status(), 404);
    // A new URL may recreate the thread; the old URLs still cannot write to it.
    upload(&host, "t", "f", "fresh").await;
    assert_eq!(put(&old, "again").await.status(), 404);
    assert_eq!(host.bash("t", "cat f").await["stdout"], "fresh");
}

#[tokio::test]
async fn a_signed_url_expires_and_is_revoked_with_its_key() {
    let homes = HomesConfig { url_expiry: Duration::ZERO, ..HomesConfig::default() };
    let config = EngineConfig { homes, ..EngineConfig::default() };
    let host = Host::start_with(config, GatewayConfig::default()).await;
    let (_, late) = upload_url(&host, "t", "f", 1).await;
    assert_eq!(put(&late, "x").await.status(), 401);

    let mut host = Host::start().await;
    host.with_key("pro").await;
    upload(&host, "t", "f", "x").await;
    let (_, down) = download_url(&host, "t", "f").await;
    assert_eq!(get(&down, None).await.status(), 200);
    let keys = host.admin_request(Method::GET, "keys").send().await.unwrap();
    let keys: Value = keys.json().await.unwrap();
    let key = keys["keys"].as_array().unwrap().iter().find(|key| key["name"] == "test").unwrap();
    let path = format!("keys/{}", key["id"].as_str().unwrap());
    host.admin_request(Method::DELETE, &path).send().await.unwrap();
    assert_eq!(get(&down, None).await.status(), 401);
}

#[tokio::test]
async fn a_signed_url_survives_a_restart() {
    let host = Host::start().await;
    upload(&host, "t", "f", "x").await;
    let (_, down) = download_url(&host, "t", "f").await;
    let token = down["url"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
    let host = host.restart().await;
    let url = format!("http://{}/v1/files/transfer/{token}", host.address);
    assert_eq!(get(&json!({"url": url}), None).await.text().await.unwrap(), "x");
}

#[tokio::test]
async fn invalid_and_missing_paths_have_different_statuses() {
    let host = Host::start().await;
    host.bash("t", "mkdir d; echo 1 >f; echo 1 >d/e").await;
    for path in ["", "/", "../x", "/etc/passwd", "a//b", "a/./b", "d/..", "a\u{0}b"] {
        assert_eq!(upload_url(&host, "t", path, 1).await.0, 400, "{path:?}");
        assert_eq!(download_url(&host, "t", path).await.0, 400, "{path:?}");
    }
    for (path, status) in [("d", 400), ("f/x", 400), ("d/x", 200), ("f", 200), ("%2e%2e/x", 200)] {
        assert_eq!(upload_url(&host, "t", path, 1).await.0, status, "{path:?}");
    }
    for path in ["d", "none", "f/x"] {
        assert_eq!(download_url(&host, "t", path).await.0, 404, "{path:?}");
    }
    assert_eq!(upload_url(&host, "t", "x", (10 << 30) + 1).await.0, 400);
    for body in [json!({"source": "volume", "id": "v"}), json!({"id": "none"})] {
        let (status, answer) = host.send(Method::POST, "/v1/files/list", body.clone()).await;
        assert_eq!((status, &answer["error"]), (404, &json!("not_found")), "{body}");
    }
    let (status, _) =
        host.send(Method::POST, "/v1/files/list", json!({"source": "disk", "id": "t"})).await;
    assert_eq!(status, 400);
}

#[tokio::test]
async fn concurrent_uploads_are_all_stored() {
    let host = Host::start().await;
    let host = &host;
    let puts = (0..8).map(|n| async move {
        let path = format!("d{}/f{n}", n % 2);
        let (_, signed) = upload_url(host, "t", &path, 1).await;
        (put(&signed, "x").await.status().as_u16(), path)
    });
    let mut arrived = Vec::new();
    for (status, path) in futures::future::join_all(puts).await {
        // Two uploads cannot both create the same directory; one of them gets a conflict.
        assert!(matches!(status, 200 | 409), "{status}");
        if status == 200 {
            arrived.push(path);
        }
    }
    arrived.sort();
    assert!(arrived.len() >= 2);
    assert_eq!(list(host, json!({"id": "t"})).await, arrived);
}
