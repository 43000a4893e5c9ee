//! The metrics of agents.

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    agent::{Agent, runs, sandbox},
    host::Host,
};

async fn metrics(host: &Host) -> String {
    reqwest::get(format!("{}/metrics", host.url)).await.unwrap().text().await.unwrap()
}

async fn call_tool(host: &Host, tool: &str, arguments: Value) {
    let params = json!({"name": tool, "arguments": arguments});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let request = host.request(Method::POST, "/mcp").json(&message);
    assert_eq!(request.send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn actions_of_agents_are_counted() {
    let Some(agent) = Agent::start().await else { return };
    let body = json!({"tools": sandbox()});
    agent.ask(body.clone(), json!([runs("print(1)"), {"text": "one"}])).await;
    agent.ask(json!({"model": "anthro/small"}), json!([{"http": 400}])).await;
    let code = |code: &str| json!({"language": "bash", "code": code, "timeout_ms": 500});
    call_tool(&agent.host, "execute_code", code("true")).await;
    call_tool(&agent.host, "sandbox.execute_code", code("sleep 20")).await;
    call_tool(&agent.host, "list_files", json!({"thread_id": "none"})).await;
    agent.gates(json!({"execute_code": "ask"})).await;
    let waiting = agent.ask(body, json!([runs("print(2)")])).await;
    assert_eq!(waiting["status"], "requires_action");
    let text = metrics(&agent.host).await;
    for line in [
        "cloche_approvals_pending 1",
        "cloche_decisions_total{kind=\"allowed\"} 3",
        "cloche_decisions_total{kind=\"asked\"} 1",
        "cloche_decisions_total{kind=\"changed\"} 2",
        "cloche_agent_responses_total{status=\"completed\"} 1",
        "cloche_agent_responses_total{status=\"failed\"} 1",
        "cloche_model_calls_total{provider=\"open\",result=\"ok\"} 3",
        "cloche_model_calls_total{provider=\"anthro\",result=\"refused\"} 1",
        "cloche_model_tokens_total{provider=\"open\",direction=\"input\"} 300",
        "cloche_model_tokens_total{provider=\"open\",direction=\"output\"} 60",
        "cloche_mcp_calls_total{tool=\"execute_code\",status=\"completed\"} 1",
        "cloche_mcp_calls_total{tool=\"execute_code\",status=\"timeout\"} 1",
        "cloche_mcp_calls_total{tool=\"list_files\",status=\"error\"} 1",
    ] {
        assert!(text.lines().any(|said| said == line), "{line} is not in\n{text}");
    }
    let approval = waiting["required_action"]["approval_id"].as_str().unwrap();
    let path = format!("approvals/{approval}/deny");
    agent.host.admin_json(Method::POST, &path, json!({})).await;
    let text = metrics(&agent.host).await;
    for line in ["cloche_approvals_pending 0", "cloche_decisions_total{kind=\"denied\"} 1"] {
        assert!(text.lines().any(|said| said == line), "{line} is not in\n{text}");
    }
}
