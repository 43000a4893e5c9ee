//! The contract of the tool `execute_code`: its schemas, statuses and error names.

use cloche_engine::EngineConfig;
use cloche_gateway::{GatewayConfig, McpConfig};
use cloche_model::ByteSize;
use serde_json::{Value, json};

use crate::{
    host::Host,
    mcp_client::{call, messages, python},
};

/// What the contract demands of the tool: names, types, values and defaults.
fn contract() -> Value {
    serde_json::from_str(include_str!("contract/execute_code.json")).unwrap()
}

#[tokio::test]
async fn the_schemas_match_the_contract() {
    let host = Host::for_agents("allow").await;
    let tools = host.mcp_tools().await;
    let tool = tools.iter().find(|tool| tool["name"] == "execute_code").unwrap();
    assert_eq!(tool["outputSchema"], contract()["output"]);
    let (ours, theirs) = (&tool["inputSchema"], &contract()["input"]);
    assert_eq!(ours["required"], theirs["required"]);
    assert_eq!(ours["type"], theirs["type"]);
    for (name, facts) in theirs["properties"].as_object().unwrap() {
        let mut property = ours["properties"][name].as_object().unwrap().clone();
        // The snapshot below pins the words of the description.
        let description = property.remove("description").unwrap();
        assert!(!description.as_str().unwrap().is_empty(), "{name}");
        assert_eq!(&Value::Object(property), facts, "{name}");
    }
    insta::assert_json_snapshot!("mcp_tools", tools);
}

#[tokio::test]
async fn a_call_without_a_session_returns_the_fields_of_both_contracts() {
    let host = Host::for_agents("allow").await;
    for name in ["execute_code", "sandbox.execute_code", "code_execution_sandbox.execute_code"] {
        let code =
            "import sys\nprint(sys.stdin.read().upper(), end='')\nprint('e', file=sys.stderr)";
        let mut arguments = python(code);
        arguments["stdin_data"] = json!("some input data\n");
        let result = host.ask_mcp(&call(7, name, arguments)).await["result"].clone();
        let mut output = result["structuredContent"].clone();
        assert_eq!(
            result["content"][0]["text"],
            output.to_string(),
            "the text equals the structured content"
        );
        assert!(output["duration_ms"].take().is_u64());
        assert_eq!(
            output,
            json!({"stdout": "SOME INPUT DATA\n", "stderr": "e\n", "exit_code": 0,
                   "status": "completed", "duration_ms": null, "killed": false, "oom": false,
                   "truncated": false, "output_files": []})
        );
        assert_eq!(result["isError"], false);
        let trace_id = result["_meta"]["cloche/trace_id"].as_str().unwrap();
        assert_eq!(host.finished(trace_id).await["status"], "success");
    }
}

#[tokio::test]
async fn every_kind_of_failure_has_its_status_and_error_name() {
    let host = Host::for_agents("allow").await;
    let timeout = json!({"language": "bash", "code": "echo a; sleep 9", "timeout_ms": 150});
    let mut names = contract()["errors"].as_array().unwrap().clone();
    for (arguments, status, name, exit_code) in [
        (python("raise SystemExit(3)"), "error_runtime", "RUNTIME_ERROR", 3),
        (python("1 / 0"), "error_runtime", "RUNTIME_ERROR", 1),
        (timeout, "timeout", "EXECUTION_TIMEOUT", -1),
        (python("raise SystemError('no executor')"), "error_setup", "SANDBOX_SETUP_FAILED", -1),
        (json!({"language": "ruby", "code": "1"}), "error_setup", "UNSUPPORTED_LANGUAGE", -1),
        (python(""), "error_setup", "SANDBOX_SETUP_FAILED", -1),
    ] {
        let result = host.execute_code(arguments.clone()).await;
        let output = &result["structuredContent"];
        assert_eq!(result["isError"], true, "{arguments}");
        assert_eq!(output["killed"], status == "timeout", "{arguments}");
        assert_eq!((&output["oom"], &output["truncated"]), (&json!(false), &json!(false)));
        assert_eq!(output["output_files"], json!([]), "{arguments}");
        assert_eq!((&output["status"], &output["exit_code"]), (&json!(status), &json!(exit_code)));
        assert_eq!(output["error"]["code"], name, "{arguments}");
        let text = result["content"][1]["text"].as_str().unwrap();
        assert!(text.starts_with(&format!("{name}: ")), "{text}");
        names.retain(|other| other != name);
    }
    assert!(names.is_empty(), "no failure has these names: {names:?}");
    let slow = json!({"language": "bash", "code": "echo a; sleep 9", "timeout_ms": 150});
    let output = host.execute_code(slow).await["structuredContent"].clone();
    assert_eq!(output["error"]["message"], "execution timed out after 0.15s");
    assert_eq!(output["stdout"], "a\n", "the output before the timeout is kept");
}

#[tokio::test]
async fn each_language_and_files_work() {
    let host = Host::for_agents("allow").await;
    for (language, code) in [
        ("python", "print(open('a.txt').read())"),
        ("javascript", "console.log(require('fs').readFileSync('a.txt', 'utf8'))"),
        ("node", "console.log(require('fs').readFileSync('a.txt', 'utf8'))"),
        ("bash", "cat a.txt; echo"),
    ] {
        for file in [
            json!({"name": "a.txt", "content": "data"}),
            json!({"name": "a.txt", "content_base64": "ZGF0YQ=="}),
        ] {
            let result = host
                .execute_code(json!({"language": language, "code": code, "files": [file]}))
                .await;
            assert_eq!(result["structuredContent"]["stdout"], "data\n", "{language}: {result}");
        }
    }
}

#[tokio::test]
async fn errors_name_the_invalid_argument() {
    let host = Host::for_agents("allow").await;
    let with = |name: &str, value: Value| json!({"language": "python", "code": "1", name: value});
    for (arguments, sentence) in [
        (json!({}), "missing field `code`"),
        (json!({"language": "python"}), "missing field `code`"),
        (json!({"language": 1, "code": "1"}), "language: invalid type"),
        (with("timeout_ms", json!(0)), "timeout_ms must be between 1 and"),
        (with("timeout_ms", json!(-5)), "timeout_ms must be between 1 and"),
        (with("timeout_ms", json!(1.5)), "timeout_ms: 1.5 is not a whole number"),
        (with("timeout_ms", json!(1e300)), "timeout_ms: "),
        (with("sub_paths", json!(["/data/a/b"])), "sub_paths is not available here"),
        (with("thread_id", json!("../x")), "thread_id"),
        (with("files", json!([{"name": "../a", "content": ""}])), "files: \"../a\" is not a plain"),
        (with("files", json!([{"name": "a"}])), "files: \"a\" needs either content"),
        (with("stdin_data", json!("x".repeat((1 << 20) + 1))), "stdin must be at most 1 MB"),
        (with("stdin", json!("x".repeat((1 << 20) + 1))), "stdin must be at most 1 MB"),
        (with("stdin", json!(5)), "stdin: invalid type"),
        (
            json!({"code": "1", "stdin": "a", "stdin_data": "b"}),
            "stdin and stdin_data are two names of the same input, and they differ",
        ),
    ] {
        let result = host.execute_code(arguments.clone()).await;
        let output = &result["structuredContent"];
        assert_eq!((&result["isError"], &output["status"]), (&json!(true), &json!("error_setup")));
        let message = output["error"]["message"].as_str().unwrap();
        assert!(message.starts_with(sentence), "{message}");
        assert_eq!(output["error"]["reason"], "validation_error");
    }
    let unknown = host.ask_mcp(&call(1, "rm", json!({}))).await;
    assert_eq!(unknown["error"]["code"], -32602);
    // Arguments that a newer client might add are ignored.
    let result = host.execute_code(with("colour", json!("blue"))).await;
    assert_eq!(result["isError"], false);
}

#[tokio::test]
async fn output_is_limited_and_the_left_out_bytes_are_counted() {
    let mcp = McpConfig { output: ByteSize::kib(1), ..McpConfig::default() };
    let gateway = GatewayConfig { mcp, ..GatewayConfig::default() };
    let host = Host::start_with(EngineConfig::default(), gateway).await;
    host.set_gates("default", json!({"agent_sandbox": true, "execute_code": "allow"})).await;
    let result = host.execute_code(python("print('a' * 5_000_000 + 'end')")).await;
    let output = &result["structuredContent"];
    let stdout = output["stdout"].as_str().unwrap();
    assert_eq!(stdout, "a".repeat(768), "the head is kept as it was written");
    assert_eq!(output["truncated"], true);
    assert_eq!(output["stdout_left_out_bytes"], 5_000_004 - 768);
    let tail = output["stdout_tail"].as_str().unwrap();
    assert!(tail.ends_with("aaaend\n") && tail.len() == 256, "{tail}");
    assert!(result["content"][1]["text"].as_str().unwrap().contains("4999236 bytes"));
    assert_eq!((&output["stderr"], &output["stderr_tail"]), (&json!(""), &Value::Null));
}

#[tokio::test]
async fn the_names_of_the_sidecar_contract_work_too() {
    let host = Host::for_agents("allow").await;
    let code = "open('out.csv', 'w').write('1,2')\nprint(input() + open('data.csv').read())";
    let files = json!([{"name": "data.csv", "content": "3"}]);
    for stdin in [
        json!({"stdin": "in"}),
        json!({"stdin": "in", "stdin_data": "in"}),
        json!({"stdin_data": "in"}),
    ] {
        let mut arguments = json!({"code": code, "files": files});
        arguments.as_object_mut().unwrap().extend(stdin.as_object().unwrap().clone());
        let output = host.execute_code(arguments).await["structuredContent"].clone();
        assert_eq!((&output["stdout"], &output["exit_code"]), (&json!("in3\n"), &json!(0)));
        let written = json!([{"name": "out.csv", "size": 3, "truncated": false}]);
        assert_eq!(output["output_files"], written);
    }
    let many = "for n in range(150): open(f'{n:03}', 'w').write('x')";
    let output = host.execute_code(json!({"code": many})).await["structuredContent"].clone();
    assert_eq!(output["output_files"].as_array().unwrap().len(), 100);
    assert_eq!(output["output_files_omitted"], 50);
}

#[tokio::test]
async fn inert_output_escapes_terminal_sequences() {
    let host = Host::for_agents("allow").await;
    let mut arguments = python("print('\\x1b]0;owned\\x07\\x1b[2J\\x9b1mx')");
    let plain = host.execute_code(arguments.clone()).await;
    assert_eq!(
        plain["structuredContent"]["stdout"], "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}1mx\n",
        "unchanged unless inert_output is set"
    );
    arguments["inert_output"] = json!(true);
    let inert = host.execute_code(arguments).await;
    assert_eq!(inert["structuredContent"]["stdout"], "\\u{1b}]0;owned\\u{7}\\u{1b}[2J\\u{9b}1mx\n");
}

#[tokio::test]
async fn output_lines_are_sent_as_progress_if_the_plan_has_streaming() {
    let mut host = Host::for_agents("allow").await;
    let mut message = call(1, "execute_code", python("for i in range(3): print(i, flush=True)"));
    message["params"]["_meta"] = json!({"progressToken": "p"});
    let text = host.mcp(&message).send().await.unwrap().text().await.unwrap();
    let seen = messages(&text);
    let lines: Vec<_> = seen[..3].iter().map(|seen| seen["params"].clone()).collect();
    for (position, line) in lines.iter().enumerate() {
        assert_eq!(line["message"], position.to_string());
        assert_eq!(line["progressToken"], "p");
        assert_eq!(line["progress"].as_f64(), Some(position as f64 + 1.0));
    }
    assert_eq!(seen[3]["result"]["structuredContent"]["stdout"], "0\n1\n2\n");
    host.with_key("free").await;
    host.set_gates("team-free-0", json!({"agent_sandbox": true, "execute_code": "allow"})).await;
    let text = host.mcp(&message).send().await.unwrap().text().await.unwrap();
    let seen = messages(&text);
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(seen[0]["result"]["structuredContent"]["stdout"], "0\n1\n2\n");
}
