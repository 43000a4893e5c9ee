//! Malformed and hostile bodies: each gets a clear error of one form, and the sidecar goes on.

use reqwest::Method;
use serde_json::{Value, json};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    executor::{KEY, Sidecar},
    host::PATIENCE,
};

/// Sends these bytes unchanged.
async fn send(sidecar: &Sidecar, bytes: Vec<u8>) -> (u16, Value) {
    let request = sidecar.request(Method::POST, "/execute").header("x-service-api-key", KEY);
    let request = request.header("content-type", "application/json").body(bytes);
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    let body = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    (status, body)
}

fn file(name: &str) -> Value {
    json!({"code": "1", "files": [{"name": name, "content": ""}]})
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_field_is_refused_by_name() {
    let Some(sidecar) = Sidecar::start().await else { return };
    let many: Vec<_> = (0..33).map(|n| json!({"name": n.to_string(), "content": ""})).collect();
    let big = "x".repeat((1 << 20) + 1);
    let bulk = "x".repeat((8 << 20) + 1);
    for (body, status, word) in [
        (json!({}), 400, "code"),
        (json!({"code": ""}), 400, "code"),
        (json!({"code": null}), 400, "code"),
        (json!({"code": 7}), 400, "code"),
        (json!({"code": ["print(1)"]}), 400, "code"),
        (json!({"code": big}), 400, "code"),
        (json!({"code": "1", "language": "ruby"}), 400, "ruby"),
        (json!({"code": "1", "language": "Python"}), 400, "Python"),
        (json!({"code": "1", "language": 3}), 400, "language"),
        (json!({"code": "1", "stdin": {"a": 1}}), 400, "stdin"),
        (json!({"code": "1", "stdin": big}), 400, "stdin"),
        (json!({"code": "1", "timeout_ms": 0}), 400, "timeout_ms"),
        (json!({"code": "1", "timeout_ms": -5}), 400, "timeout_ms"),
        (json!({"code": "1", "timeout_ms": 1.5}), 400, "timeout_ms"),
        (json!({"code": "1", "timeout_ms": 1e300}), 400, "timeout_ms"),
        (json!({"code": "1", "timeout_ms": "5"}), 400, "timeout_ms"),
        (json!({"code": "1", "files": {}}), 400, "files"),
        (json!({"code": "1", "files": [7]}), 400, "files[0]"),
        (json!({"code": "1", "files": [{"content": ""}]}), 400, "files[0]"),
        (json!({"code": "1", "files": [{"name": "a"}]}), 400, "files[0]"),
        (json!({"code": "1", "files": [{"name": "a", "content": 1}]}), 400, "files[0].content"),
        (json!({"code": "1", "files": [{"name": "a", "content_base64": "*"}]}), 400, "base64"),
        (
            json!({"code": "1", "files": [{"name": "a", "content": "", "content_base64": ""}]}),
            400,
            "both",
        ),
        (
            json!({"code": "1", "files": [{"name": "a", "content": ""}, {"name": "a", "content": ""}]}),
            400,
            "twice",
        ),
        (json!({"code": "1", "files": [{"name": "a", "content": bulk}]}), 400, "8 MB"),
        (json!({"code": "1", "files": many}), 400, "32"),
        (file("main.py"), 400, "main.py"),
        (json!({"code": "1", "env": {"LD_PRELOAD": "x"}}), 400, "reserved"),
        (json!({"code": "1", "env": {"a b": "x"}}), 400, "env"),
        (json!({"code": "1", "env": {"A": "x\u{0}"}}), 400, "env"),
        (json!({"code": "1", "env": []}), 400, "env"),
        (json!({"code": "1", "limits": {"memory_bytes": 1}}), 400, "memory_bytes"),
        (json!({"code": "1", "limits": {"memory_bytes": -1}}), 400, "limits"),
        (json!({"code": "1", "limits": {"mercy": 1}}), 400, "mercy"),
        (json!({"code": "1", "limits": {"pids": 1_000_000}}), 422, "pids"),
        (json!({"code": "1", "limits": {"cpu_milli": 4_000_000_000_u64}}), 422, "cpu_milli"),
        (json!({"code": "1", "limits": {"timeout_ms": u64::MAX}}), 422, "timeout_ms"),
        (json!({"code": "1", "template": "no"}), 400, "template"),
    ] {
        let shown: String = body.to_string().chars().take(100).collect();
        let (got, answer) = send(&sidecar, body.to_string().into_bytes()).await;
        let message = answer["message"].as_str().unwrap_or_default();
        assert_eq!(got, status, "{shown}: {answer}");
        assert!(message.contains(word), "{shown}: {answer}");
        assert!(answer["error"].is_string() && message.len() < 1000, "{shown}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_plain_file_names_are_accepted() {
    let Some(sidecar) = Sidecar::start().await else { return };
    for name in
        ["", ".", "..", "a/b", "/etc/passwd", "../x", "a\\b", "a\0b", "a\nb", &"x".repeat(256)]
    {
        let (got, answer) = send(&sidecar, file(name).to_string().into_bytes()).await;
        assert_eq!(got, 400, "{name:?}: {answer}");
        assert!(answer["message"].as_str().unwrap().contains("plain file name"), "{answer}");
    }
    for name in ["-rf", "...", "späte Daten.txt", "$(reboot)", "*", "main.js", &"x".repeat(255)] {
        assert_eq!(send(&sidecar, file(name).to_string().into_bytes()).await.0, 200, "{name:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_valid_body_are_refused() {
    let Some(sidecar) = Sidecar::start().await else { return };
    let deep = |open: &str, close: &str, levels: usize| {
        format!("{{\"code\":\"1\",\"x\":{}1{}}}", open.repeat(levels), close.repeat(levels))
    };
    for (bytes, status) in [
        (b"".to_vec(), 400),
        (b"{".to_vec(), 400),
        (b"null".to_vec(), 400),
        (b"[]".to_vec(), 400),
        (b"[\"print(1)\"]".to_vec(), 400),
        (b"\"print(1)\"".to_vec(), 400),
        (b"{\"code\":\"1\"} {}".to_vec(), 400),
        (b"{\"code\":\"1\",\"code\":\"2\"}".to_vec(), 400),
        (b"{\"code\":\"\\ud800\"}".to_vec(), 400),
        (b"{\"code\":\"\xff\"}".to_vec(), 400),
        (b"\xef\xbb\xbf{\"code\":\"1\"}".to_vec(), 400),
        (deep("[", "]", 10_000_000).into_bytes(), 400),
        (deep("{\"a\":", "}", 100_000).into_bytes(), 400),
        (deep("[", "", 1_000_000).into_bytes(), 400),
    ] {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        let (got, answer) = send(&sidecar, bytes).await;
        assert_eq!(got, status, "{shown}: {answer}");
    }
    let plain = sidecar.request(Method::POST, "/execute").header("x-service-api-key", KEY);
    let plain = plain.header("content-type", "text/plain").body("{\"code\":\"1\"}");
    assert_eq!(plain.send().await.unwrap().status(), 415);
    for (method, path, status) in [
        (Method::GET, "/execute", 405),
        (Method::POST, "/healthz", 405),
        (Method::GET, "/", 404),
        (Method::POST, "/execute/", 404),
        (Method::GET, "/../etc/passwd", 404),
    ] {
        let response = sidecar.request(method, path).send().await.unwrap();
        assert_eq!(response.status(), status, "{path}");
    }
    assert_eq!(sidecar.run(json!({"code": "1"})).await.0, 200);
}

/// Refused by its announced length, before any of it is read.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_too_large_is_not_read() {
    let Some(sidecar) = Sidecar::start().await else { return };
    let mut stream = TcpStream::connect(sidecar.address()).await.unwrap();
    let length = (24 << 20) + 1;
    let head = format!(
        "POST /execute HTTP/1.1\r\nhost: x\r\nx-service-api-key: {KEY}\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains("payload_too_large"), "{answer}");
}

/// A valid body with bytes removed, inserted and flipped, the same in every run.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_body_is_run_or_refused_and_never_a_server_error() {
    let Some(sidecar) = Sidecar::start().await else { return };
    let good = json!({
        "code": "print(1)", "language": "python", "stdin": "in", "timeout_ms": 5000,
        "files": [{"name": "a.txt", "content": "A"}, {"name": "b.bin", "content_base64": "AP8="}],
        "env": {"A": "b"}, "limits": {"memory_bytes": 268_435_456, "pids": 64}, "template": true,
    });
    let good = good.to_string().into_bytes();
    assert_eq!(send(&sidecar, good.clone()).await.0, 200);
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).unwrap()
    };
    let pieces =
        [&b"null"[..], b"{", b"]", b"\"", b"\\u0000", b"-1", b"1e99", b"\xc3", b",", b"[[[", b"/"];
    for round in 0..300 {
        let mut body = good.clone();
        for _ in 0..=random(3) {
            let at = random(body.len());
            match random(3) {
                0 => drop(body.drain(at..(at + random(8)).min(body.len()))),
                1 => drop(body.splice(at..at, pieces[random(pieces.len())].iter().copied())),
                _ => body[at] ^= 1 << random(8),
            }
        }
        let shown = String::from_utf8_lossy(&body).into_owned();
        let (status, answer) = send(&sidecar, body).await;
        match status {
            200 => assert!(answer["exit_code"].is_i64(), "{round}: {shown}: {answer}"),
            400 | 422 => assert!(answer["message"].is_string(), "{round}: {shown}: {answer}"),
            _ => panic!("{round}: {status} {shown}: {answer}"),
        }
    }
}
