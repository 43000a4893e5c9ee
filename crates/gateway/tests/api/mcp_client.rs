//! A minimal client of `/mcp`: tests control every message.

use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};

use crate::host::Host;

/// The arguments of a call that runs this Python code.
pub(crate) fn python(code: &str) -> Value {
    json!({"language": "python", "code": code})
}

/// A request that calls a tool.
pub(crate) fn call(id: u64, tool: &str, arguments: Value) -> Value {
    let params = json!({"name": tool, "arguments": arguments});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
}

/// The messages of a response, in either of its two formats.
pub(crate) fn messages(text: &str) -> Vec<Value> {
    if text.starts_with('{') {
        return vec![serde_json::from_str(text).unwrap()];
    }
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter_map(|data| serde_json::from_str(data).ok()).collect()
}

/// A session of an older protocol version.
pub(crate) struct Session<'a> {
    host: &'a Host,
    pub(crate) id: String,
}

impl Host {
    /// A server whose first team has this policy for `execute_code`.
    pub(crate) async fn for_agents(policy: &str) -> Self {
        let host = Self::start().await;
        host.set_gates("default", json!({"agent_sandbox": true, "execute_code": policy})).await;
        host
    }

    pub(crate) async fn set_gates(&self, team: &str, settings: Value) {
        let request = self.admin_request(Method::PATCH, &format!("teams/{team}"));
        let response = request.json(&settings).send().await.unwrap();
        assert_eq!(response.status(), 200, "{}", response.text().await.unwrap());
    }

    pub(crate) fn mcp(&self, message: &Value) -> RequestBuilder {
        let request = self.request(Method::POST, "/mcp").json(message);
        request.header("accept", "application/json, text/event-stream")
    }

    /// Sends one message without a session; returns its response.
    pub(crate) async fn ask_mcp(&self, message: &Value) -> Value {
        let response = self.mcp(message).send().await.unwrap();
        let text = response.text().await.unwrap();
        messages(&text).pop().unwrap_or_else(|| panic!("no answer in {text:?}"))
    }

    pub(crate) async fn mcp_tools(&self) -> Vec<Value> {
        let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
        self.ask_mcp(&list).await["result"]["tools"].as_array().unwrap().clone()
    }

    /// The result of one call of `execute_code`.
    pub(crate) async fn execute_code(&self, arguments: Value) -> Value {
        let answer = self.ask_mcp(&call(1, "execute_code", arguments)).await;
        assert!(answer["result"].is_object(), "{answer}");
        answer["result"].clone()
    }

    /// Starts a session of a client with these capabilities.
    pub(crate) async fn session(&self, capabilities: Value) -> Session<'_> {
        let params = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": capabilities,
            "clientInfo": {"name": "test", "version": "1"},
        });
        let message = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
        let response = self.mcp(&message).send().await.unwrap();
        assert_eq!(response.status(), 200);
        let id = response.headers()["mcp-session-id"].to_str().unwrap().to_owned();
        let answer = messages(&response.text().await.unwrap()).pop().unwrap();
        assert_eq!(answer["result"]["serverInfo"]["name"], "code_execution_sandbox");
        assert_eq!(answer["result"]["protocolVersion"], "2025-11-25");
        let session = Session { host: self, id };
        session.notify("notifications/initialized", json!({})).await;
        session
    }
}

impl Session<'_> {
    pub(crate) async fn send(&self, message: &Value) -> Response {
        self.host.mcp(message).header("mcp-session-id", &self.id).send().await.unwrap()
    }

    pub(crate) async fn notify(&self, method: &str, params: Value) {
        let message = json!({"jsonrpc": "2.0", "method": method, "params": params});
        assert_eq!(self.send(&message).await.status(), 202);
    }
}

/// Reads a stream until a message matches.
pub(crate) async fn until(response: &mut Response, wanted: impl Fn(&Value) -> bool) -> Value {
    let mut text = String::new();
    while let Some(chunk) = response.chunk().await.unwrap() {
        text.push_str(&String::from_utf8_lossy(&chunk));
        // Only complete lines are messages.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        if let Some(found) = messages(whole).into_iter().find(&wanted) {
            return found;
        }
    }
    panic!("the stream ended: {text}");
}
