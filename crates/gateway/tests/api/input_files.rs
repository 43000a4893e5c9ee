//! Input and output of executions: standard input, input files, output files.

use reqwest::Method;
use serde_json::{Value, json};

use crate::host::{Host, events, trace_id};

#[tokio::test]
async fn a_program_reads_its_standard_input_and_its_files() {
    let host = Host::start().await;
    let files = json!([
        {"name": "a.txt", "content": "text ü\n"},
        {"name": "b.bin", "content_base64": "AP8K"},
        {"name": "c", "content": "", "content_base64": null}
    ]);
    let code = "cat; cat a.txt; od -An -tx1 b.bin; wc -c <c";
    let body = json!({"code": code, "language": "bash", "stdin": "in\n", "files": files});
    let (status, answer) = host.run(body).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["stdout"], "in\ntext ü\n 00 ff 0a\n0\n");
    assert_eq!(answer["output_files"], json!([]), "unmodified input files are not output files");
}

#[tokio::test]
async fn a_file_must_have_exactly_one_content_and_a_plain_name() {
    let host = Host::start().await;
    for (file, part) in [
        (json!({"name": "a"}), "exactly one"),
        (json!({"name": "a", "content": "x", "content_base64": "eA=="}), "exactly one"),
        (json!({"name": "a", "content_base64": "?"}), "not base64"),
        (json!({"name": "../a", "content": ""}), "not a plain file name"),
        (json!({"name": "main.py", "content": ""}), "the program itself"),
        (json!({"content": ""}), "name"),
    ] {
        let (status, answer) = host.run(json!({"code": "1", "files": [file]})).await;
        assert_eq!((status, &answer["error"]), (400, &json!("validation_error")), "{answer}");
        assert!(answer["message"].as_str().unwrap().contains(part), "{answer}");
    }
    let many: Vec<_> = (0..33).map(|n| json!({"name": n.to_string(), "content": ""})).collect();
    assert_eq!(host.run(json!({"code": "1", "files": many})).await.0, 400);
    let large = "A".repeat((8 << 20) / 3 * 4 + 8);
    let files = json!([{"name": "a", "content_base64": large}]);
    let (status, answer) = host.run(json!({"code": "1", "files": files})).await;
    assert_eq!(status, 400, "the body is accepted, and the file is refused for its size: {answer}");
    let fits = "A".repeat((8 << 20) / 3 * 4);
    let files = json!([{"name": "a", "content_base64": fits}]);
    let (status, answer) =
        host.run(json!({"code": "wc -c <a", "language": "bash", "files": files})).await;
    assert_eq!((status, &answer["stdout"]), (200, &json!("8388606\n")), "{answer}");
}

#[tokio::test]
async fn output_files_are_in_the_response_the_record_and_the_stream() {
    let host = Host::start().await;
    let code = "mkdir d; printf 12345 >d/out.txt; printf 1 >a; cat in";
    let files = json!([{"name": "in", "content": "i"}]);
    let body = json!({"code": code, "language": "bash", "files": files});
    let response = host.post(body.clone()).await;
    let trace = trace_id(&response);
    let answer: Value = response.json().await.unwrap();
    let expected = json!([
        {"name": "a", "size": 1, "truncated": false},
        {"name": "d/out.txt", "size": 5, "truncated": false}
    ]);
    assert_eq!(answer["output_files"], expected);
    let (_, record) = host.get(&format!("/v1/executions/{trace}")).await;
    assert_eq!(record["output_files"], expected);
    let (_, list) = host.get(&format!("/v1/executions/{trace}/files")).await;
    assert_eq!(list, json!({"files": expected, "omitted": 0}));
    let stream = host.stream(body).await;
    let id = trace_id(&stream);
    let text = stream.text().await.unwrap();
    assert_eq!(events(&text).last().unwrap()["result"]["output_files"], expected);
    let again = host.request(Method::GET, &format!("/v1/executions/{id}/output"));
    assert_eq!(again.send().await.unwrap().text().await.unwrap(), text);
}

#[tokio::test]
async fn an_output_file_can_be_read_while_its_record_exists() {
    let host = Host::start().await;
    let code = "mkdir 'd e'; printf 0123456789 >'d e/ü.txt'";
    let body = json!({"code": code, "language": "bash", "thread_id": "t"});
    let trace = trace_id(&host.post(body).await);
    host.bash("t", "rm -r 'd e'").await;
    host.send(Method::DELETE, "/v1/threads/t", Value::Null).await;
    let path = format!("/v1/executions/{trace}/files/d%20e/%C3%BC.txt");
    let file = host.request(Method::GET, &path).send().await.unwrap();
    assert_eq!(trace_id(&file), trace);
    assert_eq!(file.text().await.unwrap(), "0123456789");
    let part = host.request(Method::GET, &path).header("range", "bytes=2-3").send().await.unwrap();
    assert_eq!((part.status().as_u16(), part.text().await.unwrap()), (206, "23".to_owned()));
    for wrong in ["none", "d%20e", "..%2f..%2fetc%2fpasswd", "%2e%2e/x", "d%20e//x", "%FF"] {
        let path = format!("/v1/executions/{trace}/files/{wrong}");
        assert_eq!(host.request(Method::GET, &path).send().await.unwrap().status(), 404, "{wrong}");
    }
}
