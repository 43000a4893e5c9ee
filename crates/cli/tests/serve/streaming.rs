//! Streams from real sandboxes, interrupted and resumed.

use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::{
    host::{Host, events, trace_id},
    memory::{reset_peak, start_with_file, status},
};

const MIB: u64 = 1 << 20;

/// A program that prints so many lines of 1 KiB, each with its number.
fn numbered_lines(count: u64) -> Value {
    json!({"code": format!("for i in range({count}): print(f'{{i:07d}}' + 'x' * 1016)")})
}

/// The number of one of these lines.
fn line_number(event: &Value) -> u64 {
    let line = event["data"].as_str().unwrap();
    assert_eq!(line.len(), 1024, "a line is whole");
    line[..7].parse().unwrap()
}

/// Reads a stream event by event, without holding it. Returns the last event.
async fn read_events(stream: &mut Response, mut see: impl FnMut(&Value)) -> Option<Value> {
    let (mut rest, mut last) = (Vec::new(), None);
    while let Ok(Some(chunk)) = stream.chunk().await {
        // Only the new bytes are searched: the last event is one line of many chunks.
        let Some(end) = chunk.iter().rposition(|&byte| byte == b'\n') else {
            rest.extend_from_slice(&chunk);
            continue;
        };
        rest.extend_from_slice(&chunk[..=end]);
        let more = chunk[end + 1..].to_vec();
        for event in events(std::str::from_utf8(&rest).unwrap()) {
            see(&event);
            last = Some(event);
        }
        rest = more;
    }
    last
}

/// Reads a stream of numbered lines. None may be missing.
async fn read_all_lines(stream: &mut Response, count: u64) -> Value {
    let (mut seq, mut lines) = (0, 0);
    let last = read_events(stream, |event| {
        seq += 1;
        assert_eq!(event["seq"], json!(seq), "numbers grow by one");
        if event["type"] == "output" {
            assert_eq!(line_number(event), lines);
            lines += 1;
        }
    });
    let last = last.await.unwrap();
    assert_eq!((lines, &last["type"]), (count, &json!("result")));
    last
}

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

#[tokio::test]
async fn a_live_stream_goes_on_beyond_what_is_kept_in_bounded_memory() {
    let Some(host) = Host::start().await else { return };
    host.run(json!({"code": "print(1)"})).await;
    let before = reset_peak(&host);
    let mut stream = host.stream(numbered_lines(40 << 10)).await;
    let id = trace_id(&stream);
    let last = read_all_lines(&mut stream, 40 << 10).await;
    let grown = status(&host, "VmHWM").saturating_sub(before);
    // 16 MiB are kept, are lines of the log, and are copied by the database.
    assert!(grown <= 100 * MIB, "{} MiB", grown / MIB);
    assert_eq!((&last["status"], &last["output_truncated"]), (&json!("success"), &json!(true)));
    assert_eq!(last["result"]["stdout"].as_str().unwrap().len() as u64, 16 * MIB);
    assert_eq!(last["result"]["stdout_dropped_bytes"], json!(24 * MIB));

    // The replay has the last 10,000 of the kept lines, and says how much it leaves out.
    let replayed = output(&host, &id, 0).await;
    let lines: Vec<_> = replayed.iter().filter(|event| event["type"] == "output").collect();
    assert_eq!((lines.len(), line_number(lines[0])), (10_000, (16 << 10) - 10_000));
    assert_eq!(lines[0]["seq"], json!((16 << 10) - 10_000 + 2));
    assert_eq!(line_number(lines[9_999]), (16 << 10) - 1);
    assert_eq!(replayed.last(), Some(&last));
    let left_out = last["stdout_omitted_bytes"].as_u64().unwrap();
    assert_eq!(left_out + 10_000 * 1024, 40 * MIB);
    assert_eq!(last.get("stderr_omitted_bytes"), None);
    let record = host.record(&id).await;
    assert_eq!(record["output_truncated"], json!(true));
    assert_eq!(record["stdout_dropped_bytes"], json!(24 * MIB));
}

/// Waits until an execution has been held up for some seconds.
async fn held_up(host: &Host, id: &str) {
    let record = host.until(id, |record| record["duration_ms"].as_u64() >= Some(3000)).await;
    assert_eq!(record["status"], "running", "the program waits for its reader");
}

#[tokio::test]
async fn a_reader_that_pauses_holds_the_program_up_and_loses_no_line() {
    let Some((host, _file)) = start_with_file("output = \"64K\"").await else { return };
    let mut stream = host.stream(numbered_lines(60 << 10)).await;
    held_up(&host, &trace_id(&stream)).await;
    let last = read_all_lines(&mut stream, 60 << 10).await;
    assert_eq!((&last["status"], &last["output_truncated"]), (&json!("success"), &json!(true)));
}

/// The stream breaks off: the client sees that it has not read all of it.
async fn assert_broken_off(mut stream: Response) {
    let last = read_events(&mut stream, |_| {}).await;
    assert_eq!(last.unwrap()["type"], "output");
}

#[tokio::test]
async fn a_reader_that_never_reads_does_not_delay_a_cancel() {
    let Some((host, _file)) = start_with_file("output = \"64K\"").await else { return };
    let stream = host.stream(numbered_lines(60 << 10)).await;
    let id = trace_id(&stream);
    held_up(&host, &id).await;
    host.cancel(&id).await;
    assert_eq!(host.finished(&id).await["status"], "cancelled");
    assert_broken_off(stream).await;
}

#[tokio::test]
async fn a_reader_that_never_reads_is_cut_off_and_the_program_goes_on() {
    let file = "output = \"64K\"\n[connections]\nwrite_seconds = 1\n";
    let Some((host, _file)) = start_with_file(file).await else { return };
    let stream = host.stream(numbered_lines(60 << 10)).await;
    let record = host.finished(&trace_id(&stream)).await;
    assert_eq!((&record["status"], &record["output_truncated"]), (&json!("success"), &json!(true)));
    assert_eq!(record["stdout_dropped_bytes"], json!(60 * MIB - (64 << 10)));
    assert_broken_off(stream).await;
}

#[tokio::test]
async fn a_reader_that_joins_a_flood_reads_what_is_printed_from_then_on() {
    let Some((host, _file)) = start_with_file("output = \"64K\"").await else { return };
    let code = "import time\nfor i in range(2000): print(f'{i:07d}' + 'x' * 1016)\n\
        print('all', flush=True)\ntime.sleep(2)\nfor i in range(3): print('later', i)";
    let id = host.background(json!({"code": code})).await;
    host.until(&id, |record| record["duration_ms"].as_u64() >= Some(1500)).await;
    let seen = output(&host, &id, 0).await;
    let numbers: Vec<_> = seen.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    let later: Vec<_> = seen.iter().filter(|event| event["data"] == "later 1\n").collect();
    // The start, 2001 lines, and `later 0` come before.
    assert_eq!((later.len(), &later[0]["seq"]), (1, &json!(2004)), "{numbers:?}");
    assert_eq!(seen.last().unwrap()["seq"], json!(2006));
    assert_eq!(output(&host, &id, 0).await.last(), seen.last());
}
