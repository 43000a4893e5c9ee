//! The contract's table "NDJSON event types" and its section "Streaming behavior".

use std::time::Duration;

use cloche_engine::EngineConfig;
use cloche_gateway::GatewayConfig;
use reqwest::Method;
use serde_json::{Value, json};

use crate::host::{Host, events, trace_id};

async fn replay(host: &Host, id: &str, after: u64) -> String {
    let path = format!("/v1/executions/{id}/output?after_seq={after}");
    let response = host.request(Method::GET, &path).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(trace_id(&response), id);
    response.text().await.unwrap()
}

#[tokio::test]
async fn ndjson_event_types() {
    let config = EngineConfig { keepalive: Duration::from_millis(300), ..EngineConfig::default() };
    let host = Host::start_with(config, GatewayConfig::default()).await;
    let code = "import sys, time\nprint('one', flush=True)\ntime.sleep(.8)\n\
                print('two', file=sys.stderr)\nsys.stdout.write('three')";
    let response = host.stream(json!({"code": code})).await;
    let id = trace_id(&response);
    let text = response.text().await.unwrap();
    let seen = events(&text);
    assert_eq!(seen[0], json!({"type": "status", "trace_id": id, "status": "running", "seq": 1}));
    // On a busy machine a keepalive may also come before the first line.
    let one = seen.iter().find(|event| event["type"] == "output").unwrap();
    assert_eq!((&one["stream"], &one["data"]), (&json!("stdout"), &json!("one\n")));
    let after_one = &seen[one["seq"].as_u64().unwrap() as usize];
    assert_eq!(after_one, &json!({"type": "keepalive", "seq": after_one["seq"]}));
    assert!(seen.iter().any(|event| event["stream"] == "stderr" && event["data"] == "two\n"));
    assert!(seen.iter().any(|event| event["data"] == "three"), "a partial line is sent at the end");
    let last = seen.last().unwrap();
    assert_eq!(
        (&last["type"], &last["status"], &last["trace_id"]),
        (&json!("result"), &json!("success"), &json!(id))
    );
    assert_eq!(last["output_truncated"], false);
    assert_eq!(last["result"]["stdout"], "one\nthree");
    for (position, event) in seen.iter().enumerate() {
        assert_eq!(event["seq"], json!(position + 1));
    }
    // A replay after the end has the same bytes and sequence numbers, including keepalives.
    assert_eq!(replay(&host, &id, 0).await, text);
    let after: String = text.lines().skip(3).flat_map(|line| [line, "\n"]).collect();
    assert_eq!(replay(&host, &id, 3).await, after);
    assert_eq!(replay(&host, &id, 999).await, "");
}

#[tokio::test]
async fn line_buffered_output() {
    let host = Host::start().await;
    let code = "import sys, time\nsys.stdout.write('a'); sys.stdout.flush(); time.sleep(.3)\n\
                sys.stdout.write('b\\nc\\nd'); sys.stdout.flush(); time.sleep(.1)";
    let seen = events(&host.stream(json!({"code": code})).await.text().await.unwrap());
    let lines: Vec<_> =
        seen.iter().filter(|e| e["type"] == "output").map(|e| e["data"].clone()).collect();
    assert_eq!(lines, [json!("ab\n"), json!("c\n"), json!("d")]);
}

#[tokio::test]
async fn a_late_reader_gets_the_same_events_during_the_execution() {
    let host = Host::start().await;
    let code = "import time\nfor i in range(6):\n  print(i, flush=True)\n  time.sleep(.1)";
    let mut response = host.stream(json!({"code": code})).await;
    let id = trace_id(&response);
    let mut text = Vec::new();
    while text.iter().filter(|byte| **byte == b'\n').count() < 3 {
        text.extend_from_slice(&response.chunk().await.unwrap().unwrap());
    }
    let late = replay(&host, &id, 0).await;
    while let Some(chunk) = response.chunk().await.unwrap() {
        text.extend_from_slice(&chunk);
    }
    assert_eq!(late.as_bytes(), text);
    assert_eq!(replay(&host, &id, 0).await, late);
}

#[tokio::test]
async fn output_truncated_flag() {
    let host = Host::start().await;
    let code = "for i in range(12000): print(i)";
    let response = host.stream(json!({"code": code})).await;
    let id = trace_id(&response);
    let seen = events(&response.text().await.unwrap());
    // A reader that follows from the start misses nothing.
    assert_eq!(seen.iter().filter(|event| event["type"] == "output").count(), 12_000);
    let last = seen.last().unwrap();
    assert_eq!(last["output_truncated"], true);
    let stdout = last["result"]["stdout"].as_str().unwrap();
    assert_eq!(
        (stdout.lines().count(), &last["result"]["stdout_dropped_bytes"]),
        (12_000, &json!(0))
    );
    assert_eq!(last["result"]["output_truncated"], true, "one name has one meaning");
    // A late reader misses the first 2,000 events, as the sequence numbers show.
    let again = events(&replay(&host, &id, 0).await);
    assert_eq!((again[0]["seq"].clone(), again[1]["seq"].clone()), (json!(1), json!(2002)));
    assert_eq!(again[1]["data"], "2000\n");
    assert_eq!(again.len(), 10_002);
    assert_eq!(again.last(), seen.last());
    let missing: usize = (0..2000).map(|i: u32| i.to_string().len() + 1).sum();
    assert_eq!(last["stdout_omitted_bytes"], json!(missing));
    // The record and the list say the same, for every delivery mode.
    let background = host.background(json!({"code": code})).await;
    let (_, inline) = host.run(json!({"code": code})).await;
    assert_eq!(inline["output_truncated"], true);
    for id in [id, background] {
        assert_eq!(host.finished(&id).await["output_truncated"], true);
    }
    let (_, page) = host.get("/v1/executions").await;
    for listed in page["executions"].as_array().unwrap() {
        assert_eq!(listed["output_truncated"], true, "{listed}");
    }
}

#[tokio::test]
async fn output_beyond_the_limit_is_dropped_and_flagged() {
    let config =
        EngineConfig { output: cloche_model::ByteSize::kib(64), ..EngineConfig::default() };
    let host = Host::start_with(config, GatewayConfig::default()).await;
    let code = "import sys\nsys.stdout.write('x' * 1000000)";
    let (_, answer) = host.run(json!({"code": code})).await;
    assert_eq!(answer["stdout"].as_str().unwrap().len(), 64 << 10);
    assert_eq!(answer["output_truncated"], true);
    assert_eq!(answer["stdout_dropped_bytes"], 1_000_000 - (64 << 10));
    let response = host.stream(json!({"code": code})).await;
    let id = trace_id(&response);
    let seen = events(&response.text().await.unwrap());
    let text = |seen: &[Value]| -> String {
        seen.iter().filter_map(|event| event["data"].as_str()).collect()
    };
    assert_eq!(text(&seen), "x".repeat(1_000_000), "the live stream has no limit");
    let last = seen.last().unwrap();
    assert_eq!((&last["type"], &last["output_truncated"]), (&json!("result"), &json!(true)));
    assert_eq!(last["result"], answer_without_duration(&last["result"], &answer));
    // The replay has what is kept: here the beginning of the one long line.
    let again = events(&replay(&host, &id, 0).await);
    assert_eq!(text(&again), "x".repeat(64 << 10));
    assert_eq!(again.last(), seen.last());
    assert_eq!(last["stdout_omitted_bytes"], json!(1_000_000 - (64 << 10)));
}

/// The result of the same program in another delivery mode, which took a time of its own.
fn answer_without_duration(one: &Value, other: &Value) -> Value {
    let mut other = other.clone();
    other["duration_ms"] = one["duration_ms"].clone();
    other
}

#[tokio::test]
async fn a_line_at_the_limit_is_whole_in_the_stream_and_shortened_in_the_replay() {
    let config = EngineConfig { output: cloche_model::ByteSize(10), ..EngineConfig::default() };
    let host = Host::start_with(config, GatewayConfig::default()).await;
    let code = "import sys\nprint('first')\nprint('second')\nprint('third')\n\
                sys.stdout.flush()\nprint('error', file=sys.stderr)";
    let response = host.stream(json!({"code": code})).await;
    let id = trace_id(&response);
    let lines = |text: &str| -> Vec<(u64, String)> {
        let output = events(text).into_iter().filter(|event| event["type"] == "output");
        let line = |event: Value| {
            (event["seq"].as_u64().unwrap(), event["data"].as_str().unwrap().to_owned())
        };
        output.map(line).collect()
    };
    let live = lines(&response.text().await.unwrap());
    let texts: Vec<_> = live.iter().map(|(_, text)| text.as_str()).collect();
    assert!(["first\n", "second\n", "third\n", "error\n"].iter().all(|line| texts.contains(line)));
    let at = |wanted: &str| live.iter().find(|(_, text)| text == wanted).unwrap().0;
    let mut expected = vec![
        (at("first\n"), "first\n".to_owned()),
        (at("second\n"), "seco".to_owned()),
        (at("error\n"), "error\n".to_owned()),
    ];
    expected.sort();
    assert_eq!(lines(&replay(&host, &id, 0).await), expected);
}

#[tokio::test]
async fn cancellation() {
    let host = Host::start().await;
    let code = "import time\nprint('begun', flush=True)\ntime.sleep(30)";
    let mut response = host.stream(json!({"code": code})).await;
    let id = trace_id(&response);
    let mut text = Vec::new();
    while !String::from_utf8_lossy(&text).contains("begun") {
        text.extend_from_slice(&response.chunk().await.unwrap().unwrap());
    }
    let path = format!("/v1/executions/{id}/cancel");
    let answer = host.request(Method::POST, &path).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(
        answer.json::<Value>().await.unwrap(),
        json!({"trace_id": id, "status": "cancelling"})
    );
    while let Some(chunk) = response.chunk().await.unwrap() {
        text.extend_from_slice(&chunk);
    }
    let seen = events(&String::from_utf8(text).unwrap());
    let last = seen.last().unwrap();
    assert_eq!(
        (&last["status"], &last["result"]["error"]),
        (&json!("cancelled"), &json!("Cancelled by user"))
    );
    assert_eq!(last["result"]["stdout"], "begun\n");
    // Cancelling an execution that has ended returns its status.
    let answer = host.request(Method::POST, &path).send().await.unwrap();
    assert_eq!(answer.json::<Value>().await.unwrap()["status"], "cancelled");
}

#[tokio::test]
async fn output_that_is_not_utf8_is_replaced_and_flagged() {
    let host = Host::start().await;
    let code = "import sys\nsys.stdout.buffer.write(b'a\\xffb\\n\\x00\\x1b[31m\\n')";
    let (_, answer) = host.run(json!({"code": code})).await;
    assert_eq!(answer["stdout"], "a\u{fffd}b\n\u{0}\u{1b}[31m\n");
    assert_eq!(answer["invalid_utf8"], true);
}
