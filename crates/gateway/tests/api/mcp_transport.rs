//! Streamable HTTP: authentication, isolation of sessions, and cancellation.

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    host::Host,
    mcp_client::{call, messages, python, until},
};

fn list() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
}

#[tokio::test]
async fn every_request_requires_a_key() {
    let mut host = Host::for_agents("allow").await;
    let session = host.session(json!({})).await.id;
    host.key = "sk-us-wrong".to_owned();
    for method in [Method::POST, Method::GET, Method::DELETE, Method::OPTIONS] {
        let request = host.request(method.clone(), "/mcp").header("mcp-session-id", &session);
        let response = request.json(&list()).send().await.unwrap();
        assert_eq!(response.status(), 401, "{method}");
        assert_eq!(response.headers()["www-authenticate"], "Bearer");
    }
}

#[tokio::test]
async fn requests_from_foreign_web_pages_are_refused() {
    let mut host = Host::for_agents("allow").await;
    for (origin, status) in
        [("http://evil.example", 403), ("null", 403), ("http://localhost:6274", 200)]
    {
        let response = host.mcp(&list()).header("origin", origin).send().await.unwrap();
        assert_eq!(response.status(), status, "{origin}");
    }
    // The origin is checked before the key.
    host.key = String::new();
    let response = host.mcp(&list()).header("origin", "http://evil.example").send().await.unwrap();
    assert_eq!(response.status(), 403);
}

#[tokio::test]
async fn a_session_can_be_used_only_with_its_key() {
    let mut host = Host::for_agents("allow").await;
    let session = host.session(json!({})).await.id;
    let ask = |host: &Host, method: Method, id: &str| {
        let request = host.request(method, "/mcp").header("mcp-session-id", id).json(&list());
        request.header("accept", "application/json, text/event-stream").send()
    };
    assert_eq!(ask(&host, Method::POST, &session).await.unwrap().status(), 200);
    host.with_key("pro").await;
    for method in [Method::POST, Method::GET] {
        let theirs = ask(&host, method.clone(), &session).await.unwrap();
        let missing = ask(&host, method, "no-such-session").await.unwrap();
        assert_eq!(
            (theirs.status(), missing.status()),
            (404.try_into().unwrap(), 404.try_into().unwrap())
        );
        assert_eq!(theirs.text().await.unwrap(), missing.text().await.unwrap());
    }
}

#[tokio::test]
async fn a_deleted_session_is_not_found() {
    let host = Host::for_agents("allow").await;
    let session = host.session(json!({})).await;
    let end = host.request(Method::DELETE, "/mcp").header("mcp-session-id", &session.id);
    assert!(end.send().await.unwrap().status().is_success());
    assert_eq!(session.send(&list()).await.status(), 404);
}

#[tokio::test]
async fn every_protocol_version_is_supported() {
    let host = Host::for_agents("allow").await;
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let response = host.mcp(&list()).header("mcp-protocol-version", version).send().await;
        assert_eq!(response.unwrap().status(), 200, "{version}");
    }
    let response = host.mcp(&list()).header("mcp-protocol-version", "1999-01-01").send().await;
    assert_eq!(response.unwrap().status(), 400);
    let mut message = call(1, "execute_code", python("print(1)"));
    message["params"]["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let request = host.mcp(&message).header("mcp-protocol-version", "2026-07-28");
    let request = request.header("mcp-method", "tools/call").header("mcp-name", "execute_code");
    let text = request.send().await.unwrap().text().await.unwrap();
    let answer = messages(&text).pop().unwrap();
    assert_eq!(answer["result"]["structuredContent"]["stdout"], "1\n", "{text}");
    assert_eq!(answer["result"]["resultType"], "complete");
}

#[tokio::test]
async fn an_invalid_message_is_refused() {
    let host = Host::for_agents("allow").await;
    let deep = format!("{{\"jsonrpc\":\"2.0\",\"x\":{}", "[".repeat(100_000));
    for (body, code) in [
        ("", -32700),
        ("{", -32700),
        ("null", -32600),
        ("[]", -32600),
        ("{}", -32600),
        ("{\"jsonrpc\": \"1.0\", \"id\": 1, \"method\": \"ping\"}", -32600),
        (&deep, -32700),
    ] {
        let request = host.request(Method::POST, "/mcp").header("content-type", "application/json");
        let response = request.body(body.to_owned()).send().await.unwrap();
        assert_eq!(response.status(), 400, "{:.40}", body);
        assert_eq!(response.json::<Value>().await.unwrap()["error"]["code"], code, "{body:.40}");
    }
    let large = "x".repeat(33 << 20);
    let request = host.request(Method::POST, "/mcp").header("content-type", "application/json");
    let answer = request.body(large).send().await;
    // The server responds and closes while the client still sends; either may be seen first.
    if let Ok(answer) = answer {
        assert_eq!(answer.status(), 413);
    }
}

/// A call whose code runs for a while after its first output.
fn long_call() -> Value {
    let code = "import time\nprint('begun', flush=True)\ntime.sleep(30)";
    let mut message = call(5, "execute_code", python(code));
    message["params"]["arguments"]["timeout_ms"] = json!(60_000);
    message["params"]["_meta"] = json!({"progressToken": "p"});
    message
}

async fn running(host: &Host) -> String {
    let (_, page) = host.get("/v1/executions?status=running").await;
    page["executions"][0]["trace_id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn cancelling_a_call_kills_its_program() {
    let host = Host::for_agents("allow").await;
    let session = host.session(json!({})).await;
    let mut response = session.send(&long_call()).await;
    until(&mut response, |message| message["params"]["message"] == "begun").await;
    let id = running(&host).await;
    session.notify("notifications/cancelled", json!({"requestId": 5})).await;
    assert_eq!(host.finished(&id).await["status"], "cancelled");
}

#[tokio::test]
async fn a_disconnect_cancels_the_execution() {
    let host = Host::for_agents("allow").await;
    let mut response = host.mcp(&long_call()).send().await.unwrap();
    until(&mut response, |message| message["params"]["message"] == "begun").await;
    let id = running(&host).await;
    drop(response);
    assert_eq!(host.finished(&id).await["status"], "cancelled");
}

#[tokio::test]
async fn deleting_a_session_cancels_its_executions() {
    let host = Host::for_agents("allow").await;
    let session = host.session(json!({})).await;
    let mut response = session.send(&long_call()).await;
    until(&mut response, |message| message["params"]["message"] == "begun").await;
    let id = running(&host).await;
    let end = host.request(Method::DELETE, "/mcp").header("mcp-session-id", &session.id);
    assert!(end.send().await.unwrap().status().is_success());
    assert_eq!(host.finished(&id).await["status"], "cancelled");
}

#[tokio::test]
async fn shutdown_does_not_wait_for_open_event_streams() {
    let mut host = Host::for_agents("allow").await;
    let session = host.session(json!({})).await.id;
    let listen = host.request(Method::GET, "/mcp").header("mcp-session-id", session);
    let mut stream = listen.header("accept", "text/event-stream").send().await.unwrap();
    assert_eq!(stream.status(), 200);
    host.stop().await;
    while let Ok(Some(_)) = stream.chunk().await {}
}
