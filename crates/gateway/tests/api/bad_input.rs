//! Malformed and hostile requests.

use std::time::Duration;

use cloche_engine::EngineConfig;
use cloche_gateway::GatewayConfig;
use reqwest::Method;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::host::Host;

async fn raw(host: &Host, body: impl Into<reqwest::Body>, kind: &str) -> (u16, Value) {
    let request = host.request(Method::POST, "/v1/sandbox/execute").header("content-type", kind);
    let response = request.body(body).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test]
async fn an_invalid_body_is_refused_in_the_error_format() {
    let host = Host::start().await;
    for (body, kind, status) in [
        ("{".to_owned(), "application/json", 400),
        ("".to_owned(), "application/json", 400),
        ("null".to_owned(), "application/json", 400),
        ("{\"code\": \"\\ud800\"}".to_owned(), "application/json", 400),
        ("{\"code\": \"1\"} x".to_owned(), "application/json", 400),
        ("{\"code\": \"1\", \"code\": \"2\"}".to_owned(), "application/json", 400),
        ("code=1".to_owned(), "application/x-www-form-urlencoded", 415),
        ("{\"code\": \"1\"}".to_owned(), "text/plain", 415),
        ("[".repeat(1_000_000), "application/json", 400),
        ("[\"print(1)\"]".to_owned(), "application/json", 400),
        (format!("{{\"code\": \"1\", \"x\": {}}}", "[".repeat(1_000_000)), "application/json", 400),
        (
            format!("{{\"code\": \"1\", \"x\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000)),
            "application/json",
            400,
        ),
    ] {
        let (got, answer) = raw(&host, body.clone(), kind).await;
        let shown: String = body.chars().take(40).collect();
        assert_eq!(got, status, "{shown}: {answer}");
        assert!(answer["error"].is_string() && answer["message"].is_string(), "{shown}");
    }
    let (status, _) = raw(&host, b"{\"code\": \"\xff\"}".to_vec(), "application/json").await;
    assert_eq!(status, 400);
}

#[tokio::test]
async fn a_body_declared_over_the_limit_is_refused_before_it_is_sent() {
    let host = Host::start().await;
    let mut stream = TcpStream::connect(host.address).await.unwrap();
    let head = format!(
        "POST /v1/sandbox/execute HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: 1000000000\r\n\r\n",
        host.key
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    let length = stream.read(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert!(answer.contains("payload_too_large"), "{answer}");
}

#[tokio::test]
async fn a_chunked_body_over_the_limit_is_refused() {
    let host = Host::start().await;
    let chunks = futures::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 1 << 20]));
    let endless = reqwest::Body::wrap_stream(futures::StreamExt::take(chunks, 64));
    let request = host.request(Method::POST, "/v1/sandbox/execute");
    let answer = request.header("content-type", "application/json").body(endless).send().await;
    // The server responds and closes while the client still sends; either may be seen first.
    if let Ok(answer) = answer {
        assert_eq!(answer.status(), 413);
    }
}

/// A body of this many bytes of code, and as many of an unknown field behind it.
fn long_body(code: usize, more: usize) -> String {
    format!("{{\"code\": \"{}\", \"more\": \"{}\"}}", "a".repeat(code), "b".repeat(more))
}

#[tokio::test]
async fn code_that_is_too_long_is_named_also_when_the_body_exceeds_its_limit() {
    let gateway =
        GatewayConfig { body: cloche_model::ByteSize::mib(4), ..GatewayConfig::default() };
    let host = Host::start_with(EngineConfig::default(), gateway).await;
    let mib = 1 << 20;
    for (code, more, status, error) in [
        (mib + 1, 0, 400, "validation_error"),
        (40 * mib, 0, 400, "validation_error"),
        (2 * mib, 10 * mib, 400, "validation_error"),
        (1, 10 * mib, 413, "payload_too_large"),
        (mib, 10 * mib, 413, "payload_too_large"),
    ] {
        let (got, answer) = raw(&host, long_body(code, more), "application/json").await;
        assert_eq!((got, &answer["error"]), (status, &error.into()), "{code} {more}: {answer}");
        if status == 400 {
            assert_eq!(answer["message"], "code must be between 1 byte and 1 MB");
        }
        let streamed = futures::stream::iter(
            long_body(code, more)
                .into_bytes()
                .chunks(mib)
                .map(|chunk| Ok::<_, std::io::Error>(chunk.to_vec()))
                .collect::<Vec<_>>(),
        );
        let request = host.request(Method::POST, "/v1/sandbox/execute");
        let request = request.header("content-type", "application/json");
        // The server responds and closes while the client still sends; either may be seen first.
        if let Ok(answer) = request.body(reqwest::Body::wrap_stream(streamed)).send().await {
            assert_eq!(answer.status().as_u16(), status, "{code} {more}, chunked");
        }
    }
    // Without a key there is nothing to look at.
    let request =
        reqwest::Client::new().post(format!("http://{}/v1/sandbox/execute", host.address));
    let request = request.header("content-type", "application/json");
    if let Ok(answer) = request.body(long_body(2 * mib, 10 * mib)).send().await {
        assert_eq!(answer.status(), 401);
    }
}

#[tokio::test]
async fn slow_senders_are_disconnected() {
    let gateway = GatewayConfig {
        header_timeout: Duration::from_millis(200),
        body_timeout: Duration::from_millis(200),
        ..GatewayConfig::default()
    };
    let host = Host::start_with(EngineConfig::default(), gateway).await;
    let head = format!(
        "POST /v1/sandbox/execute HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: 10\r\n\r\n{{",
        host.key
    );
    for start in ["", "P", "PRI * HT", "POST /v1/sandbox/execute HTTP/1.1\r\nhost:", &head] {
        let mut stream = TcpStream::connect(host.address).await.unwrap();
        stream.write_all(start.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut answer));
        assert!(read.await.is_ok(), "the connection was not closed after {start:?}");
        if start == head {
            assert!(answer.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer));
        }
    }
}
