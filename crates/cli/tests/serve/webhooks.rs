//! Webhooks of the real binary, to a listener with a certificate of its own authority.

use std::sync::{Arc, Mutex};

use hmac::{Hmac, Mac};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use sha2::Sha256;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;

use crate::{
    host::Host,
    support::{eventually, skip},
    tls::{TlsListener, read_request},
};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
const BROKEN: &str = "HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n";

/// The received request: the head in lower case, and the body.
type Received = (String, Vec<u8>);

struct Receiver {
    url: String,
    files: TempDir,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Receiver {
    /// Responds to this many attempts with a failure, and then with success.
    async fn start(failures: usize) -> Self {
        let listener = TlsListener::bind().await;
        let files = TempDir::new().unwrap();
        std::fs::write(files.path().join("ca.pem"), &listener.pem).unwrap();
        let schedule = "[webhook]\nschedule_seconds = [0.1, 0.4, 4.0]\n";
        std::fs::write(files.path().join("cloche.toml"), schedule).unwrap();
        let url = format!("{}/hook", listener.url());
        let received: Arc<Mutex<Vec<Received>>> = Arc::default();
        let kept = Arc::clone(&received);
        tokio::spawn(async move {
            loop {
                let mut stream = listener.accept().await;
                let Some(request) = read_request(&mut stream).await else { continue };
                let count = {
                    let mut kept = kept.lock().unwrap();
                    kept.push(request);
                    kept.len()
                };
                let answer = if count <= failures { BROKEN } else { OK };
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        });
        Self { url, files, received }
    }

    /// A server that may deliver to this listener.
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
    eventually("two attempts have failed", async || {
        (receiver.received().len() >= 2).then_some(()).ok_or_else(|| host.said("log"))
    })
    .await;
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

/// Nothing leaves the machine: the address is refused before it is dialled.
#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_says_what_the_network_denied() {
    let receiver = Receiver::start(0).await;
    let Some(host) = receiver.host().await else { return };
    if !rustix::process::geteuid().is_root() {
        skip("this user may not have a device for a network");
        return;
    }
    let sandbox = json!({"team": "default", "name": "open", "network": "unrestricted"});
    host.admin_json(Method::POST, "sandboxes", sandbox).await;
    let key = json!({"team": "default", "sandbox": "open", "name": "open"});
    let made = host.admin_json(Method::POST, "keys", key).await;
    let host = host.with_key(made["key"].as_str().unwrap());
    let code = "import socket; socket.create_connection(('169.254.169.254', 80))";
    let id = host.background(json!({"code": code, "webhook_url": receiver.url})).await;
    let record = host.until(&id, |record| record["webhook_delivery_status"] == "delivered").await;
    let body: Value = serde_json::from_slice(&receiver.received()[0].1).unwrap();
    assert_eq!((&body["status"], &record["status"]), (&json!("blocked"), &json!("blocked")));
    assert_eq!(body["result"]["network"], record["network"], "{body}");
    let denied = json!([{"host": "169.254.169.254", "port": 80, "protocol": "tcp",
        "reason": "address_blocked", "count": 1}]);
    assert_eq!(body["result"]["network"]["denied"], denied, "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_server_makes_the_deliveries_of_a_killed_one() {
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
async fn a_private_webhook_address_is_refused_unless_allowed() {
    let receiver = Receiver::start(0).await;
    let Some(host) = Host::start().await else { return };
    let body = json!({"code": "print(1)", "webhook_url": receiver.url});
    let request = host.execute(&body).header("prefer", "respond-async");
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 400);
    assert!(receiver.received().is_empty());
}
