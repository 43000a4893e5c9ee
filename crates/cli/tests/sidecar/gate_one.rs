//! Runs in: test.
//!
//! Gate 1: an address that is set but empty turns code execution off; without an address this host
//! runs the code.

use reqwest::{Client, Method};
use serde_json::{Value, json};

use crate::{
    host::{Host, MODEL_KEY},
    models::Models,
    server::Bare,
    unavailable::MODES,
};

/// One request with a key or token. Returns the status and the body.
async fn call(server: &Bare, method: Method, path: &str, body: Value) -> (u16, Value) {
    let token = if path.starts_with("/v1/admin") { &server.admin } else { &server.key };
    let request = Client::new().request(method, format!("{}{path}", server.url));
    let request = request.header("accept", "application/json, text/event-stream");
    let response = request.bearer_auth(token).json(&body).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_address_turns_code_execution_off_and_no_agent_sees_the_tool() {
    let models = Models::start().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("cloche.toml");
    // The variable is empty, so the address of the file does not count.
    let text = format!(
        "[remote]\nurls = [\"http://127.0.0.1:9\"]\n[agent.providers.open]\nprotocol = \
         \"openai\"\nbase_url = \"{}\"\napi_key_env = \"{}\"\n",
        models.base_url(),
        MODEL_KEY.0
    );
    std::fs::write(&file, text).unwrap();
    let variables = [("SANDBOX_EXECUTOR_URL", ""), MODEL_KEY];
    let server = Bare::start(&["--config", file.to_str().unwrap()], &variables).await;
    let greeting = server.greeting();
    assert!(greeting.contains("code execution is turned off"), "{greeting}");
    assert_eq!((server.get("/healthz").await, server.get("/readyz").await), (200, 503));

    for (name, value) in MODES {
        let request = Client::new().post(format!("{}/v1/sandbox/execute", server.url));
        let request = request.bearer_auth(&server.key).header(name, value);
        let response = request.json(&json!({"code": "print(1)"})).send().await.unwrap();
        assert_eq!(response.status(), 503, "{value}");
        assert!(response.headers().get("retry-after").is_none(), "asking again does not help");
        let id = response.headers()["x-trace-id"].to_str().unwrap().to_owned();
        let answer: Value = response.json().await.unwrap();
        assert_eq!(answer["error"], "service_unavailable");
        assert!(answer["message"].as_str().unwrap().contains("turned off"), "{answer}");
        let (_, record) =
            call(&server, Method::GET, &format!("/v1/executions/{id}"), json!({})).await;
        assert_eq!(record["status"], "blocked", "{record}");
    }

    let open = json!({"agent_sandbox": true, "execute_code": "allow"});
    assert_eq!(call(&server, Method::PATCH, "/v1/admin/defaults", open).await.0, 200);
    let mcp = |method: &str, params: Value| {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        call(&server, Method::POST, "/mcp", message)
    };
    let (_, listed) = mcp("tools/list", json!({})).await;
    assert_eq!(listed["result"]["tools"], json!([]), "{listed}");
    let code = json!({"language": "python", "code": "print(1)"});
    let (_, refused) = mcp("tools/call", json!({"name": "execute_code", "arguments": code})).await;
    assert!(refused.to_string().contains("nothing that can run code"), "{refused}");
    let ask = json!({"model": "open/small", "input": "[{\"text\": \"hi\"}]",
        "tools": [{"type": "sandbox"}]});
    let (status, refused) = call(&server, Method::POST, "/v1/responses", ask).await;
    assert_eq!(status, 503, "{refused}");
    assert!(refused.to_string().contains("nothing that can run code"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_address_this_host_runs_the_code_and_the_greeting_says_so() {
    let Some(host) = Host::start().await else { return };
    let greeting = host.said("stdout");
    assert!(greeting.contains("code runs on this host, because SANDBOX_EXECUTOR_URL is not set"));
    let (status, answer) = host.run(json!({"code": "print(6 * 7)"})).await;
    assert_eq!((status, &answer["stdout"]), (200, &json!("42\n")), "{answer}");
    let off = Bare::start(&["--no-local-executor"], &[]).await;
    assert!(off.greeting().contains("code execution is turned off"), "{}", off.greeting());
    assert_eq!(off.run(json!({"code": "print(1)"})).await.0, 503);
}
