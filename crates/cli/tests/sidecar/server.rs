//! `cloche serve` with sidecars, and without any executor.

use std::{
    fs::{self, File},
    process::{Command, Stdio},
};

use reqwest::Client;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    browser::{has_browser, run_browser_tests},
    executor::{KEY, Sidecar},
    faults::answering,
    host::{Host, events},
    processes::{mark, sleepers, wait_for},
    support::{binary, can_sandbox, ended, eventually},
};

/// A server whose code runs on this sidecar, which needs no key.
async fn with_sidecar(sidecar: &Sidecar) -> Host {
    Host::start_with(&["--executor-url", &sidecar.url]).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_execute_api_is_the_same_over_a_sidecar() {
    let Some(sidecar) = Sidecar::start_without_key().await else { return };
    let host = with_sidecar(&sidecar).await;
    let (status, answer) = host
        .run(json!({"code": "import os; print(os.environ['A'])", "env_vars": {"A": "b"}}))
        .await;
    assert_eq!((status, &answer["stdout"]), (200, &json!("b\n")), "{answer}");
    let (status, answer) = host.run(json!({"code": "while True: pass", "timeout": 1})).await;
    assert_eq!((status, &answer["error"]), (504, &json!("execution timed out after 1s")));
    let stream = host.stream(json!({"code": "seq 1 500", "language": "bash"})).await;
    let seen = events(&stream.text().await.unwrap());
    assert_eq!(seen.last().unwrap()["result"]["success"], true);
    assert_eq!(seen.iter().filter(|event| event["type"] == "output").count(), 500);
    // A live stream has no limit here either; what is kept and what is left out is the same.
    let code = "for i in range(20 << 10): print(f'{i:07d}' + 'x' * 1016)";
    let stream = host.stream(json!({"code": code})).await;
    let seen = events(&stream.text().await.unwrap());
    let lines = seen.iter().filter(|event| event["type"] == "output");
    for (number, line) in lines.enumerate() {
        assert_eq!(line["seq"], json!(number + 2));
        assert!(line["data"].as_str().unwrap().starts_with(&format!("{number:07}x")));
    }
    assert_eq!(seen.len(), 2 + (20 << 10));
    let last = seen.last().unwrap();
    assert_eq!((&last["status"], &last["output_truncated"]), (&json!("success"), &json!(true)));
    assert_eq!(last["result"]["stdout_dropped_bytes"], json!(4 << 20));
    let mark = mark();
    let id = host.background(json!({"code": sleepers(&mark), "language": "bash"})).await;
    wait_for(&mark, 2);
    host.cancel(&id).await;
    assert_eq!(host.finished(&id).await["status"], "cancelled");
    wait_for(&mark, 0);
}

/// One call of an MCP method without a session. Returns the result.
pub(crate) async fn mcp(host: &Host, method: &str, params: Value) -> Value {
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let request = host.request(reqwest::Method::POST, "/mcp").json(&message);
    let answer: Value = request.send().await.unwrap().json().await.unwrap();
    assert!(answer["result"].is_object(), "{answer}");
    answer["result"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_are_not_offered_threads_on_sidecars() {
    let Some(sidecar) = Sidecar::start_without_key().await else { return };
    let host = with_sidecar(&sidecar).await;
    let gates = json!({"agent_sandbox": true, "execute_code": "allow"});
    host.admin_json(reqwest::Method::PATCH, "defaults", gates).await;
    let listed = mcp(&host, "tools/list", json!({})).await;
    let tools = listed["tools"].as_array().unwrap();
    let names: Vec<_> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["execute_code"]);
    let properties = tools[0]["inputSchema"]["properties"].as_object().unwrap();
    assert!(properties.contains_key("files") && !properties.contains_key("thread_id"));
    assert!(!tools[0].to_string().contains("thread"), "{}", tools[0]);
    let templates = mcp(&host, "resources/templates/list", json!({})).await;
    assert_eq!(templates["resourceTemplates"], json!([]));

    let call = |tool: &str, arguments: Value| {
        mcp(&host, "tools/call", json!({"name": tool, "arguments": arguments}))
    };
    let code = json!({"language": "javascript", "code": "console.log(6 * 7)"});
    let ran = call("execute_code", code.clone()).await;
    assert_eq!(ran["structuredContent"]["stdout"], "42\n", "{ran}");
    let mut threaded = code;
    threaded["thread_id"] = "plots".into();
    let refused = call("execute_code", threaded).await["structuredContent"].clone();
    assert_eq!(refused["status"], "error_setup");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("thread_id is not available here: "), "{message}");
    let refused = call("list_files", json!({"thread_id": "plots"})).await;
    assert!(refused["content"][0]["text"].as_str().unwrap().contains("keep nothing"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_sidecar_fails_the_execution_and_the_server_returns_503() {
    let Some(sidecar) = Sidecar::start_without_key().await else { return };
    let host = with_sidecar(&sidecar).await;
    let address = sidecar.address();
    let mark = mark();
    let id = host.background(json!({"code": sleepers(&mark), "language": "bash"})).await;
    wait_for(&mark, 2);
    // The line has reached the server: what is on its way is lost with the sidecar.
    let output = host.request(reqwest::Method::GET, &format!("/v1/executions/{id}/output"));
    let mut output = output.send().await.unwrap();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("up") {
        seen.extend(output.chunk().await.unwrap().unwrap());
    }
    drop(output);
    sidecar.crash();
    let record = host.finished(&id).await;
    assert_eq!(
        (&record["status"], &record["error"]),
        (&json!("failed"), &json!("the sandbox failed to run the code"))
    );
    assert_eq!(record["stdout"], "up\n");
    let (status, answer) = host.run(json!({"code": "1"})).await;
    assert_eq!((status, &answer["error"]), (503, &json!("service_unavailable")), "{answer}");
    assert_eq!(host.get("/readyz").await.0, 503);
    let _back = Sidecar::start_without_key_at(&address).await;
    eventually("the server is ready", async || host.get("/readyz").await.0 == 200).await;
    assert_eq!(host.run(json!({"code": "1"})).await.0, 200);
}

/// The sidecar chooses the text of an error, but not the status.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_a_sidecar_refuses_is_a_400_whatever_its_text() {
    if !can_sandbox() {
        return;
    }
    let refusal = b"HTTP/1.1 422 No\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n\
        {\"error\":\"unprocessable\",\"message\":\"no executor is available to run the code\"}";
    let url = answering(refusal, false).await;
    let host = Host::start_with(&["--executor-url", &url]).await.unwrap();
    let (status, answer) = host.run(json!({"code": "1"})).await;
    assert_eq!((status, &answer["error"]), (400, &json!("validation_error")), "{answer}");
    assert_eq!(answer["message"], "no executor is available to run the code");
}

/// The key and the address come from environment variables with the names of the contract.
#[tokio::test(flavor = "multi_thread")]
async fn the_variables_of_the_contract_connect_a_server_to_a_sidecar() {
    let Some(sidecar) = Sidecar::start().await else { return };
    let variables = [("SANDBOX_EXECUTOR_URL", &*sidecar.url), ("SANDBOX_EXECUTOR_API_KEY", KEY)];
    let server = Bare::start(&[], &variables).await;
    let (status, answer) = server.run(json!({"code": "print(6 * 7)"})).await;
    assert_eq!((status, &answer["stdout"]), (200, &json!("42\n")), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_see_the_executors_of_a_fleet_in_the_console() {
    if !has_browser() {
        return;
    }
    let Some(sidecar) = Sidecar::start_without_key().await else { return };
    let urls = ["--executor-url", &sidecar.url, "--executor-url", "http://127.0.0.1:9"];
    let host = Host::start_with(&urls).await.unwrap();
    run_browser_tests(&host, "nodes", &[("CLOCHE_NODE", &sidecar.url)]).await;
}

#[test]
fn an_invalid_address_is_an_error_at_start() {
    let directory = TempDir::new().unwrap();
    let mut command = Command::new(binary());
    command.args([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--executor-url",
        "sandbox-executor:9099",
        "--data-dir",
    ]);
    let ended = ended(
        {
            command.arg(directory.path());
            command
        },
        b"",
    );
    assert!(ended.code == 1 && ended.stderr.contains("http://sandbox-executor:9099"), "{ended:?}");
}

/// A server without an executor of its own, used as soon as it listens.
pub(crate) struct Bare {
    process: std::process::Child,
    pub(crate) url: String,
    pub(crate) key: String,
    pub(crate) admin: String,
    directory: TempDir,
}

impl Bare {
    pub(crate) async fn start(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        cloche_test_support::install_crypto();
        let directory = TempDir::new().unwrap();
        let data = directory.path().join("data");
        let out = directory.path().join("stdout");
        let process = Command::new(binary())
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(&data)
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(File::create(&out).unwrap())
            .stderr(File::create(directory.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let [url, key, admin] = [String::new(), String::new(), String::new()];
        let mut server = Self { process, url, key, admin, directory };
        eventually("the server prints its greeting", async || {
            let ended = server.process.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}");
            fs::read_to_string(&out).unwrap().contains("Try it")
        })
        .await;
        let text = fs::read(data.join("bootstrap.json")).unwrap();
        let bootstrap: Value = serde_json::from_slice(&text).unwrap();
        server.url = bootstrap["url"].as_str().unwrap().to_owned();
        server.key = bootstrap["api_key"].as_str().unwrap().to_owned();
        server.admin = bootstrap["admin_token"].as_str().unwrap().to_owned();
        server
    }

    pub(crate) async fn run(&self, body: Value) -> (u16, Value) {
        let request = Client::new().post(format!("{}/v1/sandbox/execute", self.url));
        let response = request.bearer_auth(&self.key).json(&body).send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    /// What it printed when it started.
    pub(crate) fn greeting(&self) -> String {
        fs::read_to_string(self.directory.path().join("stdout")).unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> u16 {
        Client::new().get(format!("{}{path}", self.url)).send().await.unwrap().status().as_u16()
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
