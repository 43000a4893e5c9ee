//! Runs in: test. `kill -9` of the real server while something is written to storage: no object and
//! no file is ever seen in part, and nothing that was acknowledged is lost.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use cloche_test_support::eventually;
use futures::StreamExt as _;
use reqwest::Method;
use rustix::process::Signal;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::{
    host::Host,
    moto::Moto,
    storage_connections::operator_json,
    volumes::{download, listed, upload},
};

const SIGNED: &str =
    "AWS4-HMAC-SHA256 Credential=A/20260101/us-east-1/s3/aws4_request, Signature=none";

/// A way to a store that passes on a number of bytes and then holds the rest back.
struct HeldStore {
    address: String,
    /// Bytes of requests that were passed on.
    passed: Arc<AtomicU64>,
    /// How many may be.
    most: Arc<AtomicU64>,
}

impl HeldStore {
    async fn start(store: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (passed, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(u64::MAX)));
        let store = store.to_owned();
        let counts = (Arc::clone(&passed), Arc::clone(&most));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let store = TcpStream::connect(&store).await.unwrap();
                tokio::spawn(pass_on(client, store, counts.clone()));
            }
        });
        Self { address, passed, most }
    }

    /// Holds everything back after this many bytes from now.
    fn hold_after(&self, bytes: u64) {
        self.most.store(self.passed.load(Ordering::SeqCst) + bytes, Ordering::SeqCst);
    }

    fn release(&self) {
        self.most.store(u64::MAX, Ordering::SeqCst);
    }

    async fn wait_until_held(&self) {
        let is_held = || self.passed.load(Ordering::SeqCst) >= self.most.load(Ordering::SeqCst);
        eventually("the upload is held back", async || is_held()).await;
    }
}

/// Passes on requests of a connection, and all answers. What is held back is dropped, and so is the
/// connection to the store when the client ends.
async fn pass_on(client: TcpStream, store: TcpStream, counts: (Arc<AtomicU64>, Arc<AtomicU64>)) {
    let ((mut asks, mut hears), (mut answers, mut takes)) =
        (client.into_split(), store.into_split());
    let answering = tokio::spawn(async move { tokio::io::copy(&mut answers, &mut hears).await });
    let mut bytes = vec![0; 64 << 10];
    let mut is_held = false;
    while let Ok(read @ 1..) = asks.read(&mut bytes).await {
        let before = counts.0.fetch_add(read as u64, Ordering::SeqCst);
        is_held |= before + read as u64 > counts.1.load(Ordering::SeqCst);
        if !is_held && takes.write_all(&bytes[..read]).await.is_err() {
            break;
        }
    }
    answering.abort();
}

// The way to the store works while a command of the operator is awaited.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_whose_upload_is_killed_is_never_seen_in_part() {
    let Some(moto) = Moto::start() else { return };
    let Some(mut host) = Host::start().await else { return };
    let store = HeldStore::start(&moto.address).await;
    let endpoint = format!("http://{}", store.address);
    let words = ["storage", "create", "b", "--bucket", "layers", "--endpoint", &endpoint];
    let access = ["--allow-private-endpoint", "--access-key-id", "A", "--secret-file", "-"];
    operator_json(&host, &[&words[..], &access].concat(), "secret");
    operator_json(&host, &["storage", "bind", "b", "--sandbox", "default", "--read-write"], "");
    // One request for the whole object, and an upload in parts. Each is new the first time, and
    // replaces an object the second time.
    for (name, size, held_after) in [("one", 4 << 20, 1 << 20), ("parts", 20 << 20, 10 << 20)] {
        let url = format!("http://{}/layers/{name}", moto.address);
        for old in [None, Some(size)] {
            let code = format!("open('/data/b/{name}', 'wb').write(b'x' * {})", size + 1);
            let body = json!({"language": "python", "code": code});
            store.hold_after(held_after);
            let running = host.background(body.clone()).await;
            store.wait_until_held().await;
            host.signal(Signal::KILL);
            host.ended().await;
            store.release();
            host = host.again().await;
            assert_eq!(host.record(&running).await["status"], "failed");
            // The store gives objects only to requests that look signed.
            let seen = reqwest::Client::new().get(&url).header("authorization", SIGNED);
            let seen = seen.send().await.unwrap();
            match old {
                None => assert_eq!(seen.status(), 404, "{name}"),
                Some(size) => assert_eq!(seen.bytes().await.unwrap().len(), size, "{name}"),
            }
            // What was being written is gone with the processes.
            assert_eq!(fs::read_dir(host.data().join("spool")).unwrap().count(), 0);
            if old.is_none() {
                let code = format!("open('/data/b/{name}', 'wb').write(b'x' * {size})");
                let (_, answer) = host.run(json!({"language": "python", "code": code})).await;
                assert_eq!(answer["success"], true, "{answer}");
            }
        }
    }
}

#[tokio::test]
async fn what_fsync_acknowledged_on_a_volume_survives_a_kill() {
    let Some(mut host) = Host::start().await else { return };
    operator_json(&host, &["volume", "create", "work", "--quota", "64M"], "");
    operator_json(&host, &["storage", "bind", "work", "--sandbox", "default", "--read-write"], "");
    let code = "\
import os
log = os.open('/data/work/log', os.O_CREAT | os.O_WRONLY | os.O_APPEND)
for n in range(10**9):
    os.write(log, b'%d\\n' % n)
    os.fsync(log)
    print(f'synced-{n};', flush=True)
";
    let mut stream = host.stream(json!({"language": "python", "code": code})).await;
    let mut text = String::new();
    while !text.contains("synced-60;") {
        text.push_str(std::str::from_utf8(&stream.chunk().await.unwrap().unwrap()).unwrap());
    }
    host.signal(Signal::KILL);
    // What was on its way is acknowledged as well.
    while let Ok(Some(chunk)) = stream.chunk().await {
        text.push_str(&String::from_utf8_lossy(&chunk));
    }
    host.ended().await;
    let acknowledged = text.matches("synced-").count();
    host = host.again().await;
    let log = String::from_utf8(download(&host, "work", "log").await.unwrap()).unwrap();
    let found: Vec<usize> = log.lines().map(|line| line.parse().unwrap()).collect();
    assert!(found.len() >= acknowledged, "{} of {acknowledged}", found.len());
    assert!(found.iter().enumerate().all(|(at, number)| at == *number), "{log}");
    // The quota counts what is there.
    let usage = operator_json(&host, &["volume", "show", "work"], "");
    assert_eq!(usage["used_bytes"], log.len(), "{usage}");
}

#[tokio::test]
async fn an_upload_to_a_volume_that_is_killed_leaves_nothing() {
    let Some(mut host) = Host::start().await else { return };
    operator_json(&host, &["volume", "create", "work", "--quota", "64M"], "");
    operator_json(&host, &["storage", "bind", "work", "--sandbox", "default", "--read-write"], "");
    assert_eq!(upload(&host, "work", "d/a", b"old".to_vec()).await, 200);
    let body = json!({"source": "volume", "id": "work", "path": "d/a", "content_length": 8 << 20});
    let request = host.request(Method::POST, "/v1/files/upload_url").json(&body);
    let signed: serde_json::Value = request.send().await.unwrap().json().await.unwrap();
    // Half of the content, and then nothing.
    let half = futures::stream::iter([Ok::<_, std::io::Error>(vec![7; 4 << 20])]);
    let body = reqwest::Body::wrap_stream(half.chain(futures::stream::pending()));
    let put = reqwest::Client::new().put(signed["url"].as_str().unwrap());
    let sending = tokio::spawn(put.header("content-length", 8 << 20).body(body).send());
    let volumes = host.data().join("volumes");
    let volume = fs::read_dir(&volumes).unwrap().next().unwrap().unwrap().path();
    let uploads = volume.join("uploads");
    eventually("half of the file has arrived", async || {
        let file = fs::read_dir(&uploads).ok()?.next()?.ok()?;
        (file.metadata().ok()?.len() >= 4 << 20).then_some(())
    })
    .await;
    // Neither clients nor programs see it.
    let all = json!({"source": "volume", "id": "work"});
    assert_eq!(listed(&host, all.clone()).await, ["d/a"]);
    let code = json!({"language": "bash", "code": "ls -A /data/work/d; cat /data/work/d/a"});
    assert_eq!(host.run(code).await.1["stdout"], "a\nold");
    host.signal(Signal::KILL);
    host.ended().await;
    assert!(sending.await.unwrap().is_err());
    host = host.again().await;
    assert!(!uploads.exists() || fs::read_dir(&uploads).unwrap().count() == 0);
    assert_eq!(listed(&host, all).await, ["d/a"]);
    assert_eq!(download(&host, "work", "d/a").await.unwrap(), b"old");
    let usage = operator_json(&host, &["volume", "show", "work"], "");
    assert_eq!(usage["used_bytes"], 3, "{usage}");
}
