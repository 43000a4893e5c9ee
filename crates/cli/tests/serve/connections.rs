//! Runs in: test.
//!
//! Idle clients are disconnected, and the number of connections per address is limited, while other
//! clients are served.

use std::{net::SocketAddr, time::Duration};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::timeout,
};

use crate::{
    host::{Host, PATIENCE, events, trace_id},
    memory::{budget, start_with_file},
    support::eventually,
};

const IMPATIENT: &str = "[connections]\nheader_seconds = 0.5\nidle_seconds = 0.5\n\
    body_seconds = 0.5\n";
/// A limit only for clients that do not read; the clients of a test keep their connections.
const READ_OR_LEAVE: &str = "[connections]\nwrite_seconds = 1\n";

fn address(host: &Host) -> SocketAddr {
    host.url.strip_prefix("http://").unwrap().parse().unwrap()
}

async fn say(host: &Host, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address(host)).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

/// Everything until the server closes the connection.
async fn read_to_end(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await;
    // A reset counts as an end too.
    let _ = read.expect("the connection is still open");
    bytes
}

async fn assert_served(host: &Host) {
    let (status, result) = host.run(json!({ "code": "print(1)" })).await;
    assert_eq!((status, &result["stdout"]), (200, &json!("1\n")));
}

fn head(host: &Host, more: &str) -> String {
    format!(
        "POST /v1/sandbox/execute HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\n{more}\r\n",
        address(host),
        host.key
    )
}

#[tokio::test]
async fn connections_of_idle_clients_are_closed_while_others_are_served() {
    let Some((host, _file)) = start_with_file(IMPATIENT).await else { return };
    let nothing = say(&host, b"").await;
    let half_a_head = say(&host, b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-slow: ").await;
    let half_a_preface = say(&host, b"PRI * HTTP/2.0\r\n").await;
    let no_next_request = say(&host, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
    // The preface and an empty SETTINGS frame: an HTTP/2 connection without a request.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let idle_http2 = say(&host, preface).await;
    let slow_body = say(&host, head(&host, "content-length: 100\r\n").as_bytes()).await;
    assert_served(&host).await;
    for silent in [nothing, half_a_head, half_a_preface] {
        read_to_end(silent).await;
    }
    let answered = read_to_end(no_next_request).await;
    assert!(answered.starts_with(b"HTTP/1.1 200"));
    // GOAWAY is the frame of type 7.
    let frames = read_to_end(idle_http2).await;
    assert!(frames.windows(9).any(|frame| frame[3] == 7 && frame[..2] == [0, 0]), "{frames:?}");
    let answered = read_to_end(slow_body).await;
    assert!(answered.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answered));
    assert_served(&host).await;
}

#[tokio::test]
async fn a_slow_body_is_refused_although_it_never_stalls() {
    let file = "[connections]\nbody_seconds = 0.5\nbody_rate = \"64k\"\n";
    let Some((host, _file)) = start_with_file(file).await else { return };
    let stream = say(&host, head(&host, "content-length: 100000\r\n").as_bytes()).await;
    let (mut reader, mut writer) = stream.into_split();
    let dripping = tokio::spawn(async move {
        while writer.write_all(b" ").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let mut answer = [0; 12];
    timeout(PATIENCE, reader.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(&answer, b"HTTP/1.1 408");
    dripping.abort();
}

/// Prints 8 MiB in lines of 64 KiB.
fn much() -> Value {
    json!({ "code": "for n in range(128):\n    print(str(n % 10) * 65535)\n" })
}

#[tokio::test]
async fn an_unread_stream_is_closed_and_its_run_and_replay_are_complete() {
    let Some((host, _file)) = start_with_file(READ_OR_LEAVE).await else { return };
    let body = much().to_string();
    let length = format!("accept: application/x-ndjson\r\ncontent-length: {}\r\n", body.len());
    let mut stalled = say(&host, (head(&host, &length) + &body).as_bytes()).await;
    let mut first = vec![0; 4096];
    let read = timeout(PATIENCE, stalled.read(&mut first)).await.unwrap().unwrap();
    let text = String::from_utf8_lossy(&first[..read]).to_lowercase();
    let start = text.find("x-trace-id: ").expect(&text) + "x-trace-id: ".len();
    let found = String::from_utf8_lossy(&first[start..read]).into_owned();
    let trace = found.lines().next().unwrap().trim().to_owned();
    // From here on the client does not read.
    assert_eq!(host.finished(&trace).await["status"], "success");
    // A response holds its output until it ends. Once it is closed, no output is held.
    eventually("the answer is no longer held", async || {
        budget(&host, "used_bytes", "outputs").await == 0
    })
    .await;
    drop(stalled);
    let path = format!("/v1/executions/{trace}/output");
    let replay = host.request(Method::GET, &path).send().await.unwrap().text().await.unwrap();
    let whole = host.stream(much()).await;
    assert_ne!(trace_id(&whole), trace);
    let whole = whole.text().await.unwrap();
    let lines = |text: &str| {
        let events = events(text);
        let output = events.into_iter().filter(|event| event["type"] == "output");
        output.map(|event| event["data"].clone()).collect::<Vec<_>>()
    };
    assert!(lines(&replay) == lines(&whole) && lines(&replay).len() == 128);
    assert_served(&host).await;
}

#[tokio::test]
async fn an_unread_response_is_closed() {
    let Some((host, _file)) = start_with_file(READ_OR_LEAVE).await else { return };
    let body = much().to_string();
    let length = format!("content-length: {}\r\n", body.len());
    let stalled = say(&host, (head(&host, &length) + &body).as_bytes()).await;
    eventually("the answer was held and is no longer", async || {
        budget(&host, "peak_bytes", "outputs").await > 0
            && budget(&host, "used_bytes", "outputs").await == 0
    })
    .await;
    drop(stalled);
}

#[tokio::test]
async fn connections_per_address_are_limited() {
    let file = "[connections]\nper_loopback = 8\n";
    let Some((host, _file)) = start_with_file(file).await else { return };
    let mut held = Vec::new();
    let refused = loop {
        assert!(held.len() < 9, "more than 8 connections were accepted");
        let mut stream = say(&host, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
        let mut answer = vec![0; 12];
        match timeout(PATIENCE, stream.read_exact(&mut answer)).await.unwrap() {
            Ok(_) if answer == b"HTTP/1.1 200" => held.push(stream),
            Ok(_) => break String::from_utf8(answer).unwrap(),
            // The refusal can get lost if the request was not read.
            Err(_) => break "HTTP/1.1 429".to_owned(),
        }
    };
    assert_eq!(refused, "HTTP/1.1 429");
    assert!(!held.is_empty());
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut other = socket.connect(address(&host)).await.unwrap();
    other
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    assert!(read_to_end(other).await.starts_with(b"HTTP/1.1 200"));
    held.clear();
    assert_served(&host).await;
}

#[tokio::test]
async fn the_server_uses_its_hard_limit_of_open_files_and_cells_do_not() {
    let Some(host) = Host::start().await else { return };
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", host.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let words: Vec<_> = line.split_whitespace().collect();
    assert_eq!(words[3], words[4], "{line}");
    let code = "import resource\nprint(resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n";
    let (_, result) = host.run(json!({ "code": code })).await;
    let of_cell: u64 = result["stdout"].as_str().unwrap().trim().parse().unwrap();
    assert!(of_cell <= 4096, "{of_cell}");
}

#[tokio::test]
async fn bodies_announced_by_expect_and_chunked_bodies_are_read() {
    let Some(host) = Host::start().await else { return };
    let body = r#"{"code": "print(3)"}"#;
    let length = format!("expect: 100-continue\r\ncontent-length: {}\r\n", body.len());
    let mut waiting = say(&host, head(&host, &length).as_bytes()).await;
    let mut asked = [0; 12];
    timeout(PATIENCE, waiting.read_exact(&mut asked)).await.unwrap().unwrap();
    assert_eq!(&asked, b"HTTP/1.1 100");
    waiting.write_all(body.as_bytes()).await.unwrap();
    let chunked = "transfer-encoding: chunked\r\nconnection: close\r\n";
    let chunks = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let mut sent = say(&host, (head(&host, chunked) + &chunks).as_bytes()).await;
    for stream in [&mut waiting, &mut sent] {
        let mut text = String::new();
        while !text.contains("\"stdout\":\"3\\n\"") {
            let mut bytes = [0; 1024];
            let read = timeout(PATIENCE, stream.read(&mut bytes)).await.unwrap().unwrap();
            assert!(read > 0, "{text}");
            text += &String::from_utf8_lossy(&bytes[..read]);
        }
    }
}
