//! Runs in: test. Admission by the host's capacity, through the real binary: a host for two cells
//! with a short queue, so that the order of admission is visible.

use std::sync::{Arc, Mutex};

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;

use crate::{
    host::{Host, events},
    processes::{mark, sleepers, wait_for},
    support::eventually,
    tls::{TlsListener, read_request},
};

/// A server with these lines under `[capacity]`, and the directory of its settings.
async fn host_with(capacity: &str, arguments: &[&str]) -> Option<(Host, TempDir)> {
    let files = TempDir::new().unwrap();
    let config = files.path().join("cloche.toml");
    std::fs::write(&config, format!("[capacity]\n{capacity}\n")).unwrap();
    let path = config.display().to_string();
    let arguments: Vec<&str> =
        ["--config", &path].into_iter().chain(arguments.iter().copied()).collect();
    Some((Host::start_with(&arguments).await?, files))
}

/// Creates a team on the Pro plan. Returns its key.
async fn make_team(host: &Host, name: &str) -> String {
    host.admin_json(Method::POST, "teams", json!({"name": name, "plan": "pro"})).await;
    host.admin_json(Method::POST, "sandboxes", json!({"team": name, "name": "box"})).await;
    let key = json!({"team": name, "sandbox": "box", "name": "key"});
    host.admin_json(Method::POST, "keys", key).await["key"].as_str().unwrap().to_owned()
}

/// Starts an execution in the background with this key. Returns the status and the body.
async fn start(host: &Host, key: &str, body: &Value) -> (u16, Option<String>, Value) {
    let request = reqwest::Client::new().post(format!("{}/v1/sandbox/execute", host.url));
    let request = request.bearer_auth(key).header("prefer", "respond-async").json(body);
    let response = request.send().await.unwrap();
    let header = response.headers().get("retry-after");
    let retry = header.map(|value| value.to_str().unwrap().to_owned());
    (response.status().as_u16(), retry, response.json().await.unwrap())
}

async fn started(host: &Host, key: &str, body: &Value) -> String {
    let (status, _, body) = start(host, key, body).await;
    assert_eq!(status, 202, "{body}");
    body["trace_id"].as_str().unwrap().to_owned()
}

async fn metrics(host: &Host) -> String {
    host.metrics().await
}

/// The value of a metric with these labels.
async fn metric(host: &Host, line: &str) -> u64 {
    let text = metrics(host).await;
    let found = text.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' '));
    found.map_or(0, |value| value.trim().parse().unwrap())
}

async fn until_metric(host: &Host, line: &str, wanted: u64) {
    eventually(format!("{line} is {wanted}"), async || {
        let value = metric(host, line).await;
        if value == wanted { Ok(()) } else { Err(value) }
    })
    .await;
}

async fn until_queued(host: &Host, count: u64) {
    until_metric(host, "cloche_admission_queued{class=\"run\"}", count).await;
}

fn sleeping(mark: &str) -> Value {
    json!({"code": sleepers(mark), "language": "bash"})
}

#[tokio::test]
async fn a_full_host_serves_the_other_team_next_and_refuses_beyond_the_queue() {
    let settings = "cells = 2\nteam_share = 1.0\nqueued_per_team = 2\nqueue_seconds = 600\n\
        weights = { pro = 1 }";
    let Some((host, _files)) = host_with(settings, &[]).await else { return };
    let (first, second) = (make_team(&host, "first").await, make_team(&host, "second").await);
    let mark = mark();
    let mut running = Vec::new();
    for _ in 0..2 {
        running.push(started(&host, &first, &sleeping(&mark)).await);
    }
    wait_for(&mark, 4);
    let mut queued = Vec::new();
    for _ in 0..2 {
        queued.push(started(&host, &first, &sleeping(&mark)).await);
    }
    until_queued(&host, 2).await;
    let (status, retry, body) = start(&host, &first, &sleeping(&mark)).await;
    assert_eq!((status, &body["error"]), (503, &json!("service_unavailable")), "{body}");
    assert!(retry.is_some_and(|seconds| seconds.parse::<u64>().unwrap() > 0), "{body}");
    let refused = "cloche_admission_refused_total{class=\"run\",reason=\"team_queue\"}";
    assert_eq!(metric(&host, refused).await, 1);
    let other = started(&host, &second, &json!({"code": "print(2)"})).await;
    until_queued(&host, 3).await;
    // The first team gets one turn, then the second, although the first has two older requests.
    let of_first = |host: Host| host.with_key(first.clone());
    let host = of_first(host);
    host.cancel(&running[0]).await;
    until_queued(&host, 2).await;
    host.cancel(&running[1]).await;
    let host = host.with_key(second.clone());
    let record = host.finished(&other).await;
    assert_eq!((&record["status"], &record["stdout"]), (&json!("success"), &json!("2\n")));
    let host = of_first(host);
    for id in running.iter().chain(&queued) {
        host.cancel(id).await;
        assert_eq!(host.finished(id).await["status"], "cancelled");
    }
    wait_for(&mark, 0);
}

#[tokio::test]
async fn a_queued_execution_is_visible_and_can_be_cancelled_before_it_runs() {
    let settings = "cells = 1\nqueue_seconds = 600";
    let Some((host, _files)) = host_with(settings, &[]).await else { return };
    let (mark, marked) = (mark(), mark());
    let running = host.background(sleeping(&mark)).await;
    wait_for(&mark, 2);
    let body = json!({"code": sleepers(&marked), "language": "bash", "thread_id": "t"});
    let queued = host.background(body.clone()).await;
    until_queued(&host, 1).await;
    assert_eq!(host.record(&queued).await["status"], "running");
    assert_eq!(host.run(body).await.0, 409, "it holds its thread");
    host.cancel(&queued).await;
    let record = host.finished(&queued).await;
    assert_eq!(
        (&record["status"], &record["error"]),
        (&json!("cancelled"), &json!("Cancelled by user"))
    );
    until_queued(&host, 0).await;
    wait_for(&marked, 0);
    assert_eq!(host.record(&running).await["status"], "running");
    host.cancel(&running).await;
    host.finished(&running).await;
    assert_eq!(host.run(json!({"code": "1", "thread_id": "t"})).await.0, 200);
}

#[tokio::test]
async fn an_execution_that_waited_too_long_gets_503() {
    let Some((host, _files)) = host_with("cells = 1\nqueue_seconds = 1", &[]).await else { return };
    let mark = mark();
    let running = host.background(sleeping(&mark)).await;
    wait_for(&mark, 2);
    let response = host.execute(&json!({"code": "print(1)"})).send().await.unwrap();
    assert_eq!(response.status(), 503);
    assert!(response.headers().contains_key("retry-after"));
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["error"], "service_unavailable");
    host.cancel(&running).await;
    host.finished(&running).await;
    assert_eq!(host.run(json!({"code": "print(1)"})).await.0, 200);
}

#[tokio::test]
async fn the_time_limit_of_a_queued_execution_starts_with_its_run() {
    let settings = "cells = 1\nqueue_seconds = 600";
    let Some((host, _files)) = host_with(settings, &[]).await else { return };
    // The only place is taken for longer than the time limit of the execution that waits for it.
    host.background(json!({"code": "import time; time.sleep(3)"})).await;
    let stream = host.stream(json!({"code": "print(3)", "timeout": 1})).await;
    let seen = events(&stream.text().await.unwrap());
    assert_eq!(seen[0]["type"], "status");
    assert_eq!(seen.last().unwrap()["result"]["stdout"], "3\n", "{seen:?}");
}

#[tokio::test]
async fn a_shutdown_runs_queued_executions_and_records_the_rest() {
    let settings = "cells = 1\nqueue_seconds = 600";
    let Some((mut host, _files)) = host_with(settings, &["--grace", "2"]).await else { return };
    let mark = mark();
    let running = host.background(sleeping(&mark)).await;
    wait_for(&mark, 2);
    let queued = host.background(json!({"code": "print(1)"})).await;
    until_queued(&host, 1).await;
    host.signal(Signal::TERM);
    assert!(host.ended().await.success());
    wait_for(&mark, 0);
    let host = host.again().await;
    for id in [&running, &queued] {
        let record = host.record(id).await;
        let error = "the server was shut down before the execution ended";
        assert_eq!((&record["status"], &record["error"]), (&json!("failed"), &json!(error)));
    }
}

#[tokio::test]
async fn a_sandbox_is_admitted_by_its_memory() {
    // The default sandbox reserves one GiB, so one and a half are one cell.
    let settings = "memory = \"1536MiB\"\nqueue_seconds = 600";
    let Some((host, _files)) = host_with(settings, &[]).await else { return };
    let mark = mark();
    let running = host.background(sleeping(&mark)).await;
    wait_for(&mark, 2);
    let next = host.background(json!({"code": "print(1)"})).await;
    until_queued(&host, 1).await;
    host.cancel(&running).await;
    assert_eq!(host.finished(&next).await["status"], "success");
}

/// Sends the first part of an upload with an incomplete body.
async fn begin_upload(host: &Host, thread: &str) -> tokio::net::TcpStream {
    let body = json!({"source": "thread", "id": thread, "path": "f", "content_length": 2});
    let request = host.request(Method::POST, "/v1/files/upload_url").json(&body);
    let signed: Value = request.send().await.unwrap().json().await.unwrap();
    let address = host.url.trim_start_matches("http://");
    let path = signed["url"].as_str().unwrap().split_once(address).unwrap().1;
    let head = format!("PUT {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: 2\r\n\r\na");
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn an_upload_waits_while_all_transfer_places_are_taken() {
    let Some((host, _files)) = host_with("transfers = 1", &[]).await else { return };
    let mut first = begin_upload(&host, "t1").await;
    let count = async |what: &str| {
        metric(&host, &format!("cloche_admission_{what}{{class=\"transfer\"}}")).await
    };
    let until = async |what: &str, wanted: u64| {
        let line = format!("cloche_admission_{what}{{class=\"transfer\"}}");
        until_metric(&host, &line, wanted).await;
    };
    until("running", 1).await;
    let mut second = begin_upload(&host, "t2").await;
    until("queued", 1).await;
    assert_eq!(count("running").await, 1);
    first.write_all(b"b").await.unwrap();
    until("queued", 0).await;
    second.write_all(b"b").await.unwrap();
    until("running", 0).await;
    for thread in ["t1", "t2"] {
        let (_, answer) =
            host.run(json!({"code": "cat f", "language": "bash", "thread_id": thread})).await;
        assert_eq!(answer["stdout"], "ab", "{answer}");
    }
}

/// Accepts connections with its certificate, and never responds.
async fn tarpit() -> (TlsListenerUrl, Arc<Mutex<usize>>) {
    let listener = TlsListener::bind().await;
    let known =
        TlsListenerUrl { url: format!("{}/hook", listener.url()), pem: listener.pem.clone() };
    let caught = Arc::new(Mutex::new(0));
    let counter = Arc::clone(&caught);
    tokio::spawn(async move {
        let mut held = Vec::new();
        loop {
            let mut stream = listener.accept().await;
            let request = read_request(&mut stream).await;
            *counter.lock().unwrap() += usize::from(request.is_some());
            held.push(stream);
        }
    });
    (known, caught)
}

struct TlsListenerUrl {
    url: String,
    pem: String,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tarpit_of_one_team_does_not_delay_webhooks_of_another() {
    let (pit, caught) = tarpit().await;
    let receiver = TlsListener::bind().await;
    let url = format!("{}/hook", receiver.url());
    let files = TempDir::new().unwrap();
    let path = |name: &str| files.path().join(name).display().to_string();
    std::fs::write(path("ca.pem"), format!("{}{}", pit.pem, receiver.pem)).unwrap();
    // An attempt to reach the tarpit ends long after this test.
    let settings = "[webhook]\nschedule_seconds = [0.0, 1.0, 2.0]\ntimeout_seconds = 600\n\
        at_once = 16\nat_once_per_team = 8\nat_once_per_host = 8\n";
    std::fs::write(path("cloche.toml"), settings).unwrap();
    let (config, ca, networks) = (path("cloche.toml"), path("ca.pem"), "127.0.0.0/8,::1/128");
    let arguments = ["--config", &config, "--webhook-ca", &ca, "--webhook-allow", networks];
    let Some(host) = Host::start_with(&arguments).await else { return };
    let (slow, normal) = (make_team(&host, "slow").await, make_team(&host, "normal").await);
    let delivered = Arc::new(Mutex::new(0));
    let counter = Arc::clone(&delivered);
    tokio::spawn(async move {
        loop {
            let mut stream = receiver.accept().await;
            if read_request(&mut stream).await.is_some() {
                *counter.lock().unwrap() += 1;
                let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                let _ = stream.write_all(answer.as_bytes()).await;
            }
            let _ = stream.shutdown().await;
        }
    });
    let hooked = json!({"code": "echo 1", "language": "bash", "webhook_url": pit.url});
    let mut pending = Vec::new();
    for _ in 0..40 {
        pending.push(started(&host, &slow, &hooked).await);
    }
    let host = host.with_key(slow);
    for id in &pending {
        host.finished(id).await;
    }
    eventually("seven deliveries are under way", async || {
        (*caught.lock().unwrap() >= 7).then_some(()).ok_or_else(|| host.said("log"))
    })
    .await;
    let body = json!({"code": "echo 1", "language": "bash", "webhook_url": url});
    let host = host.with_key(normal.clone());
    let id = started(&host, &normal, &body).await;
    host.until(&id, |record| record["webhook_delivery_status"] == "delivered").await;
    assert_eq!(*delivered.lock().unwrap(), 1);
    assert!(*caught.lock().unwrap() <= 8, "no more of a team than its places");
}
