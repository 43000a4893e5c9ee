//! Webhooks of the real binary, to a listener with a certificate of its own authority.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use hmac::{Hmac, Mac};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use sha2::Sha256;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer},
    server::TlsStream,
};

use crate::host::{Host, PATIENCE};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
const BROKEN: &str = "HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n";

/// What came in: the head in lower case, and the body.
type Received = (String, Vec<u8>);

struct Receiver {
    url: String,
    files: TempDir,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Receiver {
    /// Answers so many attempts with a failure, and then well.
    async fn start(failures: usize) -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let files = TempDir::new().unwrap();
        std::fs::write(files.path().join("ca.pem"), made.cert.pem()).unwrap();
        let schedule = "[webhook]\nschedule_seconds = [0.1, 0.4, 4.0]\n";
        std::fs::write(files.path().join("cloche.toml"), schedule).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let tls = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://localhost:{}/hook", listener.local_addr().unwrap().port());
        let received: Arc<Mutex<Vec<Received>>> = Arc::default();
        let kept = Arc::clone(&received);
        tokio::spawn(async move {
            let acceptor = TlsAcceptor::from(Arc::new(tls));
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(stream) = acceptor.accept(stream).await else { continue };
                answer(stream, &kept, failures).await;
            }
        });
        Self { url, files, received }
    }

    /// A server that may deliver here.
    async fn host(&self) -> Option<Host> {
        let path = |name: &str| self.files.path().join(name).display().to_string();
        let (ca, config) = (path("ca.pem"), path("cloche.toml"));
        let networks = "127.0.0.0/8,::1/128";
        let arguments = ["--config", &config, "--webhook-ca", &ca, "--webhook-allow", networks];
        Host::start_with(&arguments).await
    }

    fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}

async fn answer(
    mut stream: TlsStream<TcpStream>,
    received: &Mutex<Vec<Received>>,
    failures: usize,
) {
    let mut seen = Vec::new();
    let (head, body) = loop {
        let mut buffer = [0; 4096];
        let Ok(length @ 1..) = stream.read(&mut buffer).await else { return };
        seen.extend_from_slice(&buffer[..length]);
        let Some(end) = seen.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&seen[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.unwrap().parse().unwrap();
        if seen.len() >= end + 4 + length {
            break (head, seen[end + 4..].to_vec());
        }
    };
    let count = {
        let mut received = received.lock().unwrap();
        received.push((head, body));
        received.len()
    };
    let text = if count <= failures { BROKEN } else { OK };
    let _ = stream.write_all(text.as_bytes()).await;
    let _ = stream.shutdown().await;
}

fn signature(secret: &[u8], body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).unwrap();
    mac.update(body);
    format!("x-baponi-signature: sha256={}", hex::encode(mac.finalize().into_bytes()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_fails_twice_survives_a_restart_and_is_signed() {
    let receiver = Receiver::start(2).await;
    let Some(host) = receiver.host().await else { return };
    let body = json!({"team": "default", "sandbox": "default", "name": "hooked",
        "webhook_url": receiver.url, "webhook_secret": "s3cret"});
    let made = host.admin_json(Method::POST, "keys", body).await;
    let mut host = host.with_key(made["key"].as_str().unwrap());
    let id = host.background(json!({"code": "print('done')", "metadata": {"a": "b"}})).await;
    let deadline = Instant::now() + PATIENCE;
    while receiver.received().len() < 2 {
        assert!(Instant::now() < deadline, "{}", host.said("log"));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    host.signal(Signal::TERM);
    host.ended().await;
    assert_eq!(receiver.received().len(), 2, "the third is not due yet");
    let host = host.again().await;
    let record = host.until(&id, |record| record["webhook_delivery_status"] == "delivered").await;
    assert_eq!(record["webhook_url"], receiver.url);
    let received = receiver.received();
    assert_eq!(received.len(), 3);
    for (head, body) in &received {
        assert!(head.starts_with("post /hook http/1.1"), "{head}");
        assert!(head.contains(&signature(b"s3cret", body)), "{head}");
        assert_eq!(*body, received[0].1, "every attempt sends the same bytes");
    }
    let body: Value = serde_json::from_slice(&received[0].1).unwrap();
    assert_eq!((&body["event"], &body["trace_id"]), (&json!("execution.completed"), &json!(id)));
    assert_eq!(body["result"]["stdout"], "done\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_s_deliveries_are_made_by_the_next() {
    let receiver = Receiver::start(2).await;
    let Some(mut host) = receiver.host().await else { return };
    let body = json!({"code": "print(1)", "webhook_url": receiver.url});
    let id = host.background(body).await;
    host.finished(&id).await;
    host.signal(Signal::KILL);
    host.ended().await;
    let host = host.again().await;
    host.until(&id, |record| record["webhook_delivery_status"] == "delivered").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_leave_a_private_address_is_refused() {
    let receiver = Receiver::start(0).await;
    let Some(host) = Host::start().await else { return };
    let body = json!({"code": "print(1)", "webhook_url": receiver.url});
    let request = host.execute(&body).header("prefer", "respond-async");
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 400);
    assert!(receiver.received().is_empty());
}
