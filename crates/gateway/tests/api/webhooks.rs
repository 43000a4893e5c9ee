//! The contract's section "Webhook delivery", with a real TLS listener as receiver.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use cloche_engine::{EngineConfig, WebhookConfig};
use cloche_gateway::GatewayConfig;
use cloche_test_support::eventually;
use hmac::{Hmac, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use tempfile::NamedTempFile;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer},
};

use crate::host::Host;

/// A webhook receiver with a self-signed certificate.
struct Receiver {
    url: String,
    authority: NamedTempFile,
    requests: Arc<Mutex<Vec<Received>>>,
    /// The responses in order; the last one is repeated.
    answers: Arc<Mutex<Vec<&'static str>>>,
}

#[derive(Clone)]
struct Received {
    head: String,
    body: Vec<u8>,
    at: Instant,
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
const BROKEN: &str = "HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n";
const ELSEWHERE: &str =
    "HTTP/1.1 302 Found\r\nlocation: https://localhost/\r\ncontent-length: 0\r\n\r\n";

impl Receiver {
    async fn start(answers: &[&'static str]) -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let authority = NamedTempFile::new().unwrap();
        std::fs::write(authority.path(), made.cert.pem()).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let tls = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://localhost:{}/hook?x=1", listener.local_addr().unwrap().port());
        let receiver = Self {
            url,
            authority,
            requests: Arc::default(),
            answers: Arc::new(Mutex::new(answers.to_vec())),
        };
        let (requests, answers) = (Arc::clone(&receiver.requests), Arc::clone(&receiver.answers));
        tokio::spawn(async move {
            let acceptor = TlsAcceptor::from(Arc::new(tls));
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(stream) = acceptor.accept(stream).await else { continue };
                tokio::spawn(answer(stream, Arc::clone(&requests), Arc::clone(&answers)));
            }
        });
        receiver
    }

    /// Settings that allow deliveries to this receiver, with short delays.
    fn config(&self, waits: [u64; 3]) -> EngineConfig {
        let webhook = WebhookConfig {
            waits: waits.map(Duration::from_millis).to_vec(),
            timeout: Duration::from_secs(2),
            allow: vec!["127.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()],
            extra_ca: Some(self.authority.path().to_owned()),
            ..WebhookConfig::default()
        };
        EngineConfig { webhook, ..EngineConfig::default() }
    }

    fn received(&self) -> Vec<Received> {
        self.requests.lock().unwrap().clone()
    }
}

async fn answer(
    mut stream: tokio_rustls::server::TlsStream<tokio::net::TcpStream>,
    requests: Arc<Mutex<Vec<Received>>>,
    answers: Arc<Mutex<Vec<&'static str>>>,
) {
    let mut seen = Vec::new();
    let received = loop {
        let mut buffer = [0; 4096];
        let Ok(length @ 1..) = stream.read(&mut buffer).await else { return };
        seen.extend_from_slice(&buffer[..length]);
        let Some(end) = seen.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&seen[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.unwrap().parse().unwrap();
        if seen.len() >= end + 4 + length {
            break Received { head, body: seen[end + 4..].to_vec(), at: Instant::now() };
        }
    };
    requests.lock().unwrap().push(received);
    let answer = {
        let mut answers = answers.lock().unwrap();
        if answers.len() > 1 { answers.remove(0) } else { answers[0] }
    };
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
}

async fn delivered(host: &Host, id: &str) -> Value {
    host.until(id, |record| record["webhook_delivery_status"] == "delivered").await
}

#[tokio::test]
async fn a_result_is_posted_and_signed() {
    let receiver = Receiver::start(&[OK]).await;
    let mut host = Host::start_with(receiver.config([10, 20, 30]), GatewayConfig::default()).await;
    let body = json!({"team": "default", "sandbox": "default", "name": "hooked",
        "webhook_url": receiver.url, "webhook_secret": "s3cret"});
    host.key = host.admin_post("keys", body).await["key"].as_str().unwrap().to_owned();
    let id = host.background(json!({"code": "print('done')", "metadata": {"a": "b"}})).await;
    let record = delivered(&host, &id).await;
    assert_eq!(record["webhook_url"], receiver.url);
    let received = receiver.received();
    assert_eq!(received.len(), 1);
    let Received { head, body, .. } = &received[0];
    assert!(head.starts_with("post /hook?x=1 http/1.1"), "{head}");
    assert!(head.contains("host: localhost:"), "{head}");
    let mut mac = Hmac::<Sha256>::new_from_slice(b"s3cret").unwrap();
    mac.update(body);
    let signature =
        format!("x-baponi-signature: sha256={}", hex::encode(mac.finalize().into_bytes()));
    assert!(head.contains(&signature), "{head}");
    let body: Value = serde_json::from_slice(body).unwrap();
    assert_eq!((&body["event"], &body["trace_id"]), (&json!("execution.completed"), &json!(id)));
    assert_eq!(body["result"]["stdout"], "done\n");
    assert!(body["result"]["duration_ms"].is_u64());
    assert_eq!(
        (&body["output_truncated"], &body["timestamp"]),
        (&json!(false), &record["completed_at"])
    );
}

#[tokio::test]
async fn a_cancelled_execution_is_delivered_as_cancelled() {
    let receiver = Receiver::start(&[OK]).await;
    let host = Host::start_with(receiver.config([10, 20, 30]), GatewayConfig::default()).await;
    let id = host
        .background(json!({"code": "import time; time.sleep(30)", "webhook_url": receiver.url}))
        .await;
    host.request(reqwest::Method::POST, &format!("/v1/executions/{id}/cancel"))
        .send()
        .await
        .unwrap();
    delivered(&host, &id).await;
    let received = receiver.received();
    let body: Value = serde_json::from_slice(&received[0].body).unwrap();
    assert_eq!(
        (&body["event"], &body["result"]["error"]),
        (&json!("execution.cancelled"), &json!("Cancelled by user"))
    );
    assert!(
        !received[0].head.contains("x-baponi-signature"),
        "without a secret there is no signature"
    );
}

#[tokio::test]
async fn three_attempts_survive_a_restart_and_send_the_same_bytes() {
    let receiver = Receiver::start(&[BROKEN, ELSEWHERE, OK]).await;
    let host = Host::start_with(receiver.config([10, 50, 1500]), GatewayConfig::default()).await;
    let id = host.background(json!({"code": "print(1)", "webhook_url": receiver.url})).await;
    eventually("two attempts have failed", async || receiver.received().len() >= 2).await;
    let host = host.restart().await;
    assert_eq!(
        host.get(&format!("/v1/executions/{id}")).await.1["webhook_delivery_status"],
        "pending"
    );
    delivered(&host, &id).await;
    let received = receiver.received();
    assert_eq!(received.len(), 3);
    assert!(received.iter().all(|one| one.body == received[0].body));
}

#[tokio::test]
async fn the_first_attempt_is_made_at_once_and_the_second_a_second_after_its_failure() {
    let receiver = Receiver::start(&[BROKEN, OK]).await;
    let mut config = receiver.config([0; 3]);
    config.webhook.waits = WebhookConfig::default().waits;
    assert_eq!(config.webhook.waits, [0, 1, 10].map(Duration::from_secs));
    let host = Host::start_with(config, GatewayConfig::default()).await;
    let id = host.background(json!({"code": "print(1)", "webhook_url": receiver.url})).await;
    let over = host.finished(&id).await;
    let seen_over = Instant::now();
    assert_eq!(over["webhook_delivery_status"], "pending");
    delivered(&host, &id).await;
    let received = receiver.received();
    assert_eq!(received.len(), 2);
    let after_end = received[0].at.saturating_duration_since(seen_over);
    assert!(after_end < Duration::from_millis(800), "{after_end:?}");
    let wait = received[1].at - received[0].at;
    assert!((Duration::from_secs(1)..Duration::from_secs(5)).contains(&wait), "{wait:?}");
}

#[tokio::test]
async fn output_truncated_is_the_same_in_the_webhook_and_in_the_record() {
    let receiver = Receiver::start(&[OK]).await;
    let mut config = receiver.config([0; 3]);
    config.output = cloche_model::ByteSize::mib(1);
    let host = Host::start_with(config, GatewayConfig::default()).await;
    // Nothing is lost, the replay has not every line, and the result has not every byte.
    for (lines, length, expected) in [(10, 1, false), (12_000, 1, true), (100, 20_000, true)] {
        let code = format!("for i in range({lines}): print('x' * {length})");
        let id = host.background(json!({"code": code, "webhook_url": receiver.url})).await;
        let record = delivered(&host, &id).await;
        let received = receiver.received();
        let body: Value = serde_json::from_slice(&received.last().unwrap().body).unwrap();
        assert_eq!(body["trace_id"], json!(id));
        assert_eq!(body["output_truncated"], json!(expected), "{lines} × {length}");
        assert_eq!(record["output_truncated"], json!(expected), "{lines} × {length}");
        let path = format!("/v1/executions/{id}/output");
        let replay = host.request(reqwest::Method::GET, &path).send().await.unwrap();
        let replay = crate::host::events(&replay.text().await.unwrap());
        let last = replay.last().unwrap();
        assert_eq!(last["output_truncated"], json!(expected), "{lines} × {length}");
        assert_eq!(last["result"]["output_truncated"], json!(expected));
    }
}

#[tokio::test]
async fn a_delivery_fails_after_the_last_attempt() {
    let receiver = Receiver::start(&[BROKEN]).await;
    let host = Host::start_with(receiver.config([10, 20, 30]), GatewayConfig::default()).await;
    let id = host.background(json!({"code": "print(1)", "webhook_url": receiver.url})).await;
    host.until(&id, |record| record["webhook_delivery_status"] == "failed").await;
    assert_eq!(receiver.received().len(), 3);
}

#[tokio::test]
async fn an_address_that_is_not_public_is_refused() {
    let host = Host::start().await;
    for url in [
        "https://localhost/",
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://10.0.0.1/",
        "https://169.254.169.254/",
        "https://2130706433/",
        "http://example.com/",
        "https://u:p@example.com/",
    ] {
        let request = host.request(reqwest::Method::POST, "/v1/sandbox/execute");
        let request = request.json(&json!({"code": "1", "webhook_url": url}));
        let response = request.header("prefer", "respond-async").send().await.unwrap();
        assert_eq!(response.status(), 400, "{url}");
    }
}

#[tokio::test]
async fn an_untrusted_certificate_fails_the_delivery() {
    let receiver = Receiver::start(&[OK]).await;
    let mut config = receiver.config([10, 20, 30]);
    config.webhook.extra_ca = None;
    let host = Host::start_with(config, GatewayConfig::default()).await;
    let id = host.background(json!({"code": "print(1)", "webhook_url": receiver.url})).await;
    host.until(&id, |record| record["webhook_delivery_status"] == "failed").await;
    assert!(receiver.received().is_empty());
}
