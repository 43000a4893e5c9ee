//! Runs in: test.
//!
//! The server's memory is bounded by its budgets, whatever its callers print and send. The same
//! attacks took a server without budgets to several times these bounds.

use std::{fs, path::Path};

use futures::{StreamExt, stream::FuturesUnordered};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::host::{Host, PATIENCE, events};

const MIB: u64 = 1 << 20;

/// A server with this configuration.
pub(crate) async fn start_with_file(text: &str) -> Option<(Host, tempfile::TempDir)> {
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("cloche.toml");
    fs::write(&path, text).unwrap();
    let host = Host::start_with(&["--config", path.to_str().unwrap()]).await?;
    Some((host, directory))
}

/// A line of `/proc/PID/status`, in bytes.
pub(crate) fn status(host: &Host, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/status", host.pid())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let kib: u64 = line.trim_matches([':', ' ', '\t']).trim_end_matches(" kB").parse().unwrap();
    kib << 10
}

/// Resets the peak memory of the server. Returns its current memory.
pub(crate) fn reset_peak(host: &Host) -> u64 {
    fs::write(Path::new("/proc").join(host.pid().to_string()).join("clear_refs"), "5").unwrap();
    status(host, "VmRSS")
}

/// The value of a budget's metric.
pub(crate) async fn budget(host: &Host, what: &str, name: &str) -> u64 {
    let text = host.metrics().await;
    let line = format!("cloche_memory_{what}{{budget=\"{name}\"}} ");
    let value = text.lines().find_map(|text| text.strip_prefix(&line));
    value.unwrap_or_else(|| panic!("no {line} in {text}")).parse().unwrap()
}

fn flood(mib: usize) -> Value {
    let code = format!(
        "import sys\nblock = chr(1) * (1 << 20)\nfor _ in range({mib}):\n    \
         sys.stdout.write(block)\n    sys.stderr.write(block)\n"
    );
    json!({ "code": code })
}

#[tokio::test]
async fn memory_for_outputs_stays_within_its_budget_plus_slack() {
    let file = "output = \"8M\"\n[memory]\noutputs = \"32M\"\nreplies = \"32M\"\n";
    let Some((host, _file)) = start_with_file(file).await else { return };
    host.run(json!({ "code": "print(1)" })).await;
    let before = reset_peak(&host);
    // 5 × 16 MiB of output, which are 5 × 96 MiB of JSON.
    let run = || async {
        let request = host.execute(&flood(8)).send().await.unwrap();
        assert_eq!(request.status(), 200);
        let trace_id = crate::host::trace_id(&request);
        let result: Value = request.json().await.unwrap();
        assert_eq!(result["success"], json!(true), "{}", result["error"]);
        for stream in ["stdout", "stderr"] {
            let kept = result[stream].as_str().unwrap().len() as u64;
            let dropped = result[format!("{stream}_dropped_bytes")].as_u64().unwrap();
            assert_eq!(kept + dropped, 8 * MIB);
        }
        trace_id
    };
    let traces = tokio::join!(run(), run(), run(), run(), run());
    let record = host.record(&traces.0).await;
    assert_eq!(record["status"], "success");
    let grown = status(&host, "VmHWM").saturating_sub(before);
    // Outputs, one record that is read, and the database's copies of one execution at a time.
    let bound = (32 + 32 + 64) * MIB;
    assert!(grown <= bound, "{} MiB", grown / MIB);
    assert!(budget(&host, "peak_bytes", "outputs").await <= 32 * MIB);
    assert_eq!(budget(&host, "used_bytes", "outputs").await, 0);
    // Memory is returned. A quarter of it would be a leak.
    let kept = status(&host, "VmRSS").saturating_sub(before);
    assert!(kept <= 32 * MIB, "{} MiB are still there", kept / MIB);
}

#[tokio::test]
async fn output_beyond_the_memory_budget_is_truncated_and_flagged() {
    let file = "output = \"4M\"\n[memory]\noutputs = \"2M\"\n";
    let Some((host, _file)) = start_with_file(file).await else { return };
    let code = "print('a' * 70)\n".to_owned() + flood(1)["code"].as_str().unwrap();
    let (status, result) = host.run(json!({ "code": code })).await;
    assert_eq!((status, &result["success"]), (200, &json!(true)), "the run itself goes on");
    assert_eq!(result["output_truncated"], json!(true));
    assert!(result["stdout"].as_str().unwrap().starts_with("aaaa"));
    let stream = host.stream(json!({ "code": code })).await;
    let trace_id = crate::host::trace_id(&stream);
    let live = stream.text().await.unwrap();
    let last = events(&live).pop().unwrap();
    assert_eq!((&last["type"], &last["output_truncated"]), (&json!("result"), &json!(true)));
    let printed = |text: &str, stream: &str| -> u64 {
        let lines = events(text).into_iter().filter(|event| event["stream"] == stream);
        lines.map(|event| event["data"].as_str().unwrap().len() as u64).sum()
    };
    let path = format!("/v1/executions/{trace_id}/output");
    let replay = host.request(Method::GET, &path).send().await.unwrap().text().await.unwrap();
    assert_eq!(events(&replay).pop().as_ref(), Some(&last));
    for (stream, all) in [("stdout", 71 + MIB), ("stderr", MIB)] {
        assert_eq!(printed(&live, stream), all, "the live stream has no limit");
        let kept = last["result"][stream].as_str().unwrap().len() as u64;
        assert_eq!(printed(&replay, stream), kept);
        assert_eq!(last[format!("{stream}_omitted_bytes")], json!(all - kept));
    }
    assert_eq!(host.record(&trace_id).await["output_truncated"], json!(true));
}

/// Sends all but the last byte of a body of this length. Returns the start of the response, if
/// there is one.
async fn leave_unfinished(host: &Host, length: usize) -> String {
    let address = host.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /v1/sandbox/execute HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n",
        host.key
    );
    let (mut reader, mut writer) = stream.split();
    let send = async {
        let body = vec![b' '; length - 1];
        let sent = async {
            writer.write_all(head.as_bytes()).await?;
            writer.write_all(&body).await
        };
        // A refused connection is closed while the body is sent.
        let _ = sent.await;
        std::future::pending::<()>().await;
    };
    let mut answer = vec![0; 12];
    tokio::select! {
        read = reader.read_exact(&mut answer) => match read {
            Ok(_) => String::from_utf8(answer).unwrap(),
            Err(_) => "closed".to_owned(),
        },
        () = send => unreachable!("it waits for ever"),
    }
}

#[tokio::test]
async fn memory_for_bodies_stays_within_its_budget_plus_slack() {
    let file = "[memory]\nbodies = \"16M\"\n[connections]\nbody_seconds = 600\n";
    let Some((host, _file)) = start_with_file(file).await else { return };
    host.run(json!({ "code": "print(1)" })).await;
    let before = reset_peak(&host);
    // 64 × 3 MiB that never end. A key may use 8 MiB and a body needs twice its size, so one is
    // read.
    let length = usize::try_from(3 * MIB).unwrap();
    let mut attack: FuturesUnordered<_> =
        (0..64).map(|_| leave_unfinished(&host, length)).collect();
    let refused = attack.by_ref().take(63).collect::<Vec<_>>();
    let refused = tokio::time::timeout(PATIENCE, refused).await.expect("63 are refused");
    assert!(refused.iter().any(|answer| answer == "HTTP/1.1 429"), "{refused:?}");
    assert!(refused.iter().all(|answer| ["HTTP/1.1 429", "closed"].contains(&answer.as_str())));
    let grown = status(&host, "VmHWM").saturating_sub(before);
    assert!(grown <= (16 + 48) * MIB, "{} MiB", grown / MIB);
    assert!(budget(&host, "peak_bytes", "bodies").await <= 8 * MIB);
    // Small bodies still fit, also of the same key, while one body is held.
    let (status, result) = host.run(json!({ "code": "print(2)" })).await;
    assert_eq!((status, &result["stdout"]), (200, &json!("2\n")));
    assert!(budget(&host, "used_bytes", "bodies").await >= 6 * MIB);
    drop(attack);
}

#[tokio::test]
async fn a_body_over_its_limit_is_looked_through_and_not_held() {
    let Some(host) = Host::start().await else { return };
    host.run(json!({ "code": "print(1)" })).await;
    let mib = usize::try_from(MIB).unwrap();
    for (code, more, expected) in [(40 * mib, 0, 400), (2 * mib, 40 * mib, 400), (1, 40 * mib, 413)]
    {
        let body = format!(r#"{{"code":"{}","x":"{}"}}"#, "a".repeat(code), "b".repeat(more));
        let before = reset_peak(&host);
        let request = host.request(Method::POST, "/v1/sandbox/execute");
        let request = request.header("content-type", "application/json").body(body);
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status().as_u16(), expected, "{code} {more}");
        let answer: Value = answer.json().await.unwrap();
        if expected == 400 {
            assert_eq!(answer["error"], "validation_error");
            assert_eq!(answer["message"], "code must be between 1 byte and 1 MB");
        } else {
            assert_eq!(answer["error"], "payload_too_large");
        }
        let grown = status(&host, "VmHWM").saturating_sub(before);
        assert!(grown <= 8 * MIB, "{} MiB", grown / MIB);
    }
}
