//! The gates in front of the tool, from the view of a client of `/mcp`.

use std::time::Duration;

use cloche_engine::EngineConfig;
use cloche_gateway::{GatewayConfig, McpConfig};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    host::Host,
    mcp_client::{call, messages, python, until},
};

/// A call that requests progress notifications.
fn call_with_progress() -> Value {
    let mut message = call(5, "execute_code", python("print('ran')"));
    message["params"]["_meta"] = json!({"progressToken": "p"});
    message
}

async fn pending(host: &Host) -> String {
    let list = host.admin_request(Method::GET, "approvals").send().await.unwrap();
    let list: Value = list.json().await.unwrap();
    list["approvals"][0]["id"].as_str().unwrap_or_else(|| panic!("{list}")).to_owned()
}

async fn decide(host: &Host, verb: &str) {
    let path = format!("approvals/{}/{verb}", pending(host).await);
    let response = host.admin_request(Method::POST, &path).json(&json!({})).send().await.unwrap();
    assert_eq!(response.status(), 200, "{}", response.text().await.unwrap());
}

#[tokio::test]
async fn the_tool_is_hidden_until_the_team_enables_it() {
    let host = Host::start().await;
    let names = |tools: Vec<Value>| tools.iter().any(|tool| tool["name"] == "execute_code");
    assert!(!names(host.mcp_tools().await));
    let result = host.execute_code(python("print(1)")).await;
    let error = &result["structuredContent"]["error"];
    assert_eq!(error["reason"], "forbidden");
    assert!(
        error["message"].as_str().unwrap().contains("cloche team set default agent_sandbox=on")
    );
    assert_eq!(result["structuredContent"]["stdout"], "");
    for (policy, seen) in [("deny", false), ("ask", true), ("allow", true)] {
        let settings = json!({"agent_sandbox": true, "execute_code": policy});
        host.set_gates("default", settings).await;
        assert_eq!(names(host.mcp_tools().await), seen, "{policy}");
    }
    let (_, page) = host.get("/v1/executions").await;
    assert_eq!(page["executions"], json!([]), "no code was executed");
}

#[tokio::test]
async fn a_call_waits_for_approval_and_sends_progress() {
    let host = Host::for_agents("ask").await;
    let mut response = host.mcp(&call_with_progress()).send().await.unwrap();
    let waiting = until(&mut response, |message| message["params"]["message"].is_string()).await;
    let id = pending(&host).await;
    assert!(waiting["params"]["message"].as_str().unwrap().contains(&id));
    decide(&host, "approve").await;
    let answer = until(&mut response, |message| message["id"] == 5).await;
    assert_eq!(answer["result"]["structuredContent"]["stdout"], "ran\n");
    // The next call needs a new approval.
    let mut response = host.mcp(&call_with_progress()).send().await.unwrap();
    until(&mut response, |message| message["params"]["message"].is_string()).await;
    decide(&host, "deny").await;
    let answer = until(&mut response, |message| message["id"] == 5).await;
    let error = &answer["result"]["structuredContent"]["error"];
    assert!(error["message"].as_str().unwrap().contains("denied this call"), "{answer}");
}

#[tokio::test]
async fn an_approver_is_shown_the_input_and_the_language_under_any_name() {
    let mcp = McpConfig { approval_wait: Duration::from_millis(50), ..McpConfig::default() };
    let gateway = GatewayConfig { mcp, ..GatewayConfig::default() };
    let host = Host::start_with(EngineConfig::default(), gateway).await;
    host.set_gates("default", json!({"agent_sandbox": true})).await;
    let arguments = json!({"code": "print(input())", "stdin": "what it reads"});
    host.execute_code(arguments).await;
    let path = format!("approvals/{}", pending(&host).await);
    let shown = host.admin_request(Method::GET, &path).send().await.unwrap();
    let shown: Value = shown.json().await.unwrap();
    let shown: Value = serde_json::from_str(shown["arguments"].as_str().unwrap()).unwrap();
    let same =
        json!({"language": "python", "code": "print(input())", "stdin_data": "what it reads"});
    assert_eq!(shown, same);
    // The approval is valid for the same call under its other names.
    decide(&host, "approve").await;
    let result = host.execute_code(same).await;
    assert_eq!(result["structuredContent"]["stdout"], "what it reads\n");
}

#[tokio::test]
async fn the_wait_for_approval_is_limited() {
    let mcp = McpConfig { approval_wait: Duration::from_millis(50), ..McpConfig::default() };
    let gateway = GatewayConfig { mcp, ..GatewayConfig::default() };
    let host = Host::start_with(EngineConfig::default(), gateway).await;
    host.set_gates("default", json!({"agent_sandbox": true})).await;
    let result = host.execute_code(python("print('ran')")).await;
    let message = result["structuredContent"]["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("cloche approval approve"), "{message}");
    // After approval the same call succeeds.
    decide(&host, "approve").await;
    let result = host.execute_code(python("print('ran')")).await;
    assert_eq!(result["structuredContent"]["stdout"], "ran\n");
}

#[tokio::test]
async fn the_person_at_an_older_client_is_asked_while_the_call_waits() {
    let host = Host::for_agents("ask").await;
    let session = host.session(json!({"elicitation": {}})).await;
    for (answer, runs) in [
        (json!({"action": "accept", "content": {"approve": true}}), true),
        (json!({"action": "decline"}), false),
    ] {
        let code = format!("print('ran {runs}')");
        let mut response = session.send(&call(5, "execute_code", python(&code))).await;
        let question =
            until(&mut response, |message| message["method"] == "elicitation/create").await;
        let text = question["params"]["message"].as_str().unwrap();
        assert!(text.contains(&code), "{text}");
        let reply = json!({"jsonrpc": "2.0", "id": question["id"], "result": answer});
        assert_eq!(session.send(&reply).await.status(), 202);
        let answer = until(&mut response, |message| message["id"] == 5).await;
        let output = &answer["result"]["structuredContent"];
        assert_eq!(output["stdout"] == "ran true\n", runs, "{output}");
        assert_eq!(output["error"].is_null(), runs);
    }
}

#[tokio::test]
async fn a_newer_client_asks_its_person_and_repeats_the_call() {
    let host = Host::for_agents("ask").await;
    let mut message = call(5, "execute_code", python("print('ran')"));
    message["params"]["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    });
    let send = async |message: &Value| {
        let request = host.mcp(message).header("mcp-protocol-version", "2026-07-28");
        let request = request.header("mcp-method", "tools/call").header("mcp-name", "execute_code");
        let text = request.send().await.unwrap().text().await.unwrap();
        messages(&text).pop().unwrap()["result"].clone()
    };
    let question = send(&message).await;
    assert_eq!(question["resultType"], "input_required", "{question}");
    let requests = question["inputRequests"].as_object().unwrap();
    let (name, request) = requests.iter().next().unwrap();
    assert_eq!((requests.len(), &request["method"]), (1, &json!("elicitation/create")));
    // An answer to another question does not count.
    let yes = json!({"action": "accept", "content": {"approve": true}});
    message["params"]["inputResponses"] = json!({"apr_other": yes});
    assert_eq!(send(&message).await["resultType"], "input_required");
    message["params"]["inputResponses"] = json!({name: yes});
    let result = send(&message).await;
    assert_eq!(result["structuredContent"]["stdout"], "ran\n", "{result}");
    // An answer is valid for one call only.
    assert_eq!(send(&message).await["resultType"], "input_required");
}

#[tokio::test]
async fn a_team_can_disable_elicitation() {
    let mcp = McpConfig { approval_wait: Duration::from_millis(50), ..McpConfig::default() };
    let gateway = GatewayConfig { mcp, ..GatewayConfig::default() };
    let host = Host::start_with(EngineConfig::default(), gateway).await;
    host.set_gates("default", json!({"agent_sandbox": true, "elicitation": false})).await;
    let session = host.session(json!({"elicitation": {}})).await;
    let response = session.send(&call(5, "execute_code", python("1"))).await;
    let seen = messages(&response.text().await.unwrap());
    assert!(seen.iter().all(|message| message["method"] != "elicitation/create"), "{seen:?}");
    assert_eq!(seen.last().unwrap()["result"]["structuredContent"]["status"], "error_setup");
}

#[tokio::test]
async fn the_form_shows_files_and_stdin_of_a_call_in_full() {
    let host = Host::for_agents("ask").await;
    let session = host.session(json!({"elicitation": {}})).await;
    let arguments = json!({
        "language": "python", "code": "import helper\u{200b}", "stdin_data": "in\u{e0041}put",
        "files": [
            {"name": "helper.py", "content": "print('unseen')\u{202e}"},
            {"name": "b.bin", "content_base64": "AP8="},
        ],
    });
    let mut response = session.send(&call(5, "execute_code", arguments)).await;
    let question = until(&mut response, |message| message["method"] == "elicitation/create").await;
    let text = question["params"]["message"].as_str().unwrap();
    for part in [
        "code:\n    import helper\\u{200b}\n",
        "stdin_data:\n    in\\u{e0041}put\n",
        "file helper.py, 18 bytes:\n    print('unseen')\\u{202e}\n",
        "file b.bin, 2 bytes: !! BINARY, NOT SHOWN, sha256 06eb7d6a69ee19e5",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

#[tokio::test]
async fn a_call_that_does_not_fit_into_the_form_is_not_decided_there() {
    let mcp = McpConfig { approval_wait: Duration::from_millis(50), ..McpConfig::default() };
    let gateway = GatewayConfig { mcp, ..GatewayConfig::default() };
    let host = Host::start_with(EngineConfig::default(), gateway).await;
    host.set_gates("default", json!({"agent_sandbox": true})).await;
    let session = host.session(json!({"elicitation": {}})).await;
    let code = format!("#{}\nprint('ran')", "x".repeat(20 << 10));
    let message = call(5, "execute_code", python(&code));
    let text = session.send(&message).await.text().await.unwrap();
    assert!(!text.contains("elicitation/create"), "{}", &text[..1000]);
    let answer = messages(&text).pop().unwrap();
    let text = answer["result"]["structuredContent"]["error"]["message"].as_str().unwrap();
    assert!(
        text.contains("do not fit into the form") && text.contains("cloche approval"),
        "{text}"
    );
    // The admin API shows the whole call, and an answer from the client does not count.
    let id = pending(&host).await;
    let record = host.admin_request(Method::GET, &format!("approvals/{id}")).send().await.unwrap();
    let record: Value = record.json().await.unwrap();
    assert!(record["arguments"].as_str().unwrap().contains("print('ran')"), "{record}");
    let mut newer = message.clone();
    newer["params"]["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    });
    let yes = json!({"action": "accept", "content": {"approve": true}});
    newer["params"]["inputResponses"] = json!({&id: yes});
    let request = host.mcp(&newer).header("mcp-protocol-version", "2026-07-28");
    let request = request.header("mcp-method", "tools/call").header("mcp-name", "execute_code");
    let text = request.send().await.unwrap().text().await.unwrap();
    let answer = messages(&text).pop().unwrap();
    assert!(answer["result"]["structuredContent"]["error"]["message"].is_string(), "{answer}");
    decide(&host, "approve").await;
    assert_eq!(host.execute_code(python(&code)).await["structuredContent"]["stdout"], "ran\n");
}

#[tokio::test]
async fn resources_and_prompts_are_hidden_when_the_gate_is_closed() {
    let host = Host::for_agents("allow").await;
    let wrote = host.execute_code(python("open('a.txt', 'w').write('secret')")).await;
    let content = wrote["content"].as_array().unwrap();
    let uri = content.iter().find_map(|block| block["uri"].as_str()).unwrap().to_owned();
    let ask = async |method: &str, params: Value| {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        host.ask_mcp(&message).await
    };
    let prompt = json!({"name": "solve_with_code", "arguments": {"task": "6 * 7"}});
    let length = |answer: &Value, name: &str| answer["result"][name].as_array().unwrap().len();
    for (on, count) in [(true, [1, 2, 1]), (false, [0, 0, 0])] {
        host.set_gates("default", json!({"agent_sandbox": on})).await;
        let resources = ask("resources/list", json!({})).await;
        let templates = ask("resources/templates/list", json!({})).await;
        let prompts = ask("prompts/list", json!({})).await;
        let seen = [
            length(&resources, "resources"),
            length(&templates, "resourceTemplates"),
            length(&prompts, "prompts"),
        ];
        assert_eq!(seen, count, "{on}");
        let read = ask("resources/read", json!({"uri": uri})).await;
        let got = ask("prompts/get", prompt.clone()).await;
        assert_eq!(read.to_string().contains("secret"), on, "{read}");
        assert_eq!((read["error"].is_null(), got["error"].is_null()), (on, on), "{got}");
        if !on {
            let message = read["error"]["message"].as_str().unwrap();
            assert!(message.contains("cloche team set default agent_sandbox=on"), "{message}");
        }
    }
}
