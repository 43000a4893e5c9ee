//! Streams from real sandboxes, interrupted and resumed.

use reqwest::Method;
use serde_json::{Value, json};

use crate::host::{Host, events, trace_id};

async fn output(host: &Host, id: &str, after: u64) -> Vec<Value> {
    let path = format!("/v1/executions/{id}/output?after_seq={after}");
    events(&host.request(Method::GET, &path).send().await.unwrap().text().await.unwrap())
}

#[tokio::test]
async fn an_interrupted_stream_resumes_where_it_stopped() {
    let Some(host) = Host::start().await else { return };
    let code = "import time\nfor i in range(8):\n    print(i, flush=True)\n    time.sleep(.1)";
    let mut stream = host.stream(json!({"code": code})).await;
    let id = trace_id(&stream);
    let mut text = String::new();
    while text.lines().count() < 3 || !text.ends_with('\n') {
        text.push_str(std::str::from_utf8(&stream.chunk().await.unwrap().unwrap()).unwrap());
    }
    // The client has disconnected, and the execution goes on.
    drop(stream);
    let mut seen = events(&text);
    let after = seen.last().unwrap()["seq"].as_u64().unwrap();
    assert_eq!(host.record(&id).await["status"], "running");
    seen.extend(output(&host, &id, after).await);
    let numbers: Vec<_> = seen.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=u64::try_from(seen.len()).unwrap()).collect::<Vec<_>>());
    let lines = seen.iter().filter(|event| event["type"] == "output");
    let lines: Vec<_> = lines.map(|event| event["data"].as_str().unwrap()).collect();
    assert_eq!(lines.concat(), "0\n1\n2\n3\n4\n5\n6\n7\n");
    assert_eq!(seen.last().unwrap()["result"]["stdout"], lines.concat());
    assert_eq!(output(&host, &id, 0).await, seen, "after the end it is the same");
}

#[tokio::test]
async fn more_than_ten_thousand_lines_lose_no_output() {
    let Some(host) = Host::start().await else { return };
    let code = "for i in range(10_050): print(i)";
    let response = host.stream(json!({"code": code})).await;
    let id = trace_id(&response);
    let seen = events(&response.text().await.unwrap());
    let last = seen.last().unwrap();
    assert_eq!(last["status"], "success");
    let expected: String = (0..10_050).map(|i| format!("{i}\n")).collect();
    assert_eq!(last["result"]["stdout"], expected);
    assert_eq!(last["output_truncated"], true);
    assert_eq!(host.record(&id).await["stdout"], expected);
}
