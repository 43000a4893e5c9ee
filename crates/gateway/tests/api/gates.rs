//! The gates in front of agent tools over HTTP: settings, approvals and the record of decisions.

use cloche_engine::{Caller, GateDecision, ToolCall};
use cloche_model::{AgentTool, DeliveryMode, ExecuteRequest};
use reqwest::Method;
use serde_json::{Value, json};

use crate::host::Host;

async fn admin(host: &Host, method: Method, path: &str, body: Value) -> (u16, Value) {
    let response = host.admin_request(method, path).json(&body).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap_or_default())
}

async fn post(host: &Host, path: &str, body: Value) -> (u16, Value) {
    let response = host.request(Method::POST, path).json(&body).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap_or_default())
}

/// Another key of the team `default`.
async fn key(host: &Host, may_approve: bool) -> String {
    let body =
        json!({"team": "default", "sandbox": "default", "name": "k", "may_approve": may_approve});
    let made = host.admin_post("keys", body).await;
    assert_eq!(made["may_approve"], may_approve);
    made["key"].as_str().unwrap().to_owned()
}

fn call(code: &str) -> ToolCall {
    ToolCall::new(AgentTool::ExecuteCode, &json!({"code": code}))
}

async fn agent(host: &Host) -> Caller {
    host.engine.tenancy().find_caller(&host.key).await.unwrap()
}

/// An agent with the host's key makes a call that needs an approval; returns its id.
async fn request_approval(host: &Host, code: &str) -> String {
    match host.engine.approvals().decide_call(&agent(host).await, &call(code)).await {
        GateDecision::Ask(approval) => approval.id.to_string(),
        other => panic!("no approval was requested: {other:?}"),
    }
}

async fn open(host: &Host) {
    let (status, gates) =
        admin(host, Method::PATCH, "defaults", json!({"agent_sandbox": true})).await;
    assert_eq!(status, 200);
    assert_eq!(
        gates,
        json!({
            "agent_sandbox": true, "execute_code": null, "elicitation": null,
            "pending_approval": null, "web_search": null,
            "fetch_url": null, "people_search": null
        })
    );
}

#[tokio::test]
async fn gates_are_set_for_a_team_and_for_the_fleet() {
    let host = Host::start().await;
    let caller = agent(&host).await;
    let offered = || host.engine.approvals().tool_offered(&caller, AgentTool::ExecuteCode);
    assert!(!offered().await);
    let (_, team) = admin(&host, Method::GET, "teams/default", json!({})).await;
    assert_eq!((&team["agent_sandbox"], &team["execute_code"]), (&Value::Null, &Value::Null));
    open(&host).await;
    assert!(offered().await);
    let change = json!({"agent_sandbox": false, "execute_code": "allow"});
    let (status, team) = admin(&host, Method::PATCH, "teams/default", change).await;
    assert_eq!((status, &team["agent_sandbox"]), (200, &json!(false)));
    assert!(!offered().await);
    let (_, team) =
        admin(&host, Method::PATCH, "teams/default", json!({"agent_sandbox": null})).await;
    assert_eq!((&team["agent_sandbox"], &team["execute_code"]), (&Value::Null, &json!("allow")));
    assert!(offered().await);
    assert_eq!(admin(&host, Method::GET, "defaults", json!({})).await.1["agent_sandbox"], true);
    for wrong in
        [json!({"execute_code": "maybe"}), json!({"agent_sandbox": "on"}), json!({"plan": "free"})]
    {
        let (status, answer) = admin(&host, Method::PATCH, "defaults", wrong.clone()).await;
        assert_eq!((status, &answer["error"]), (400, &json!("validation_error")), "{wrong}");
    }
}

#[tokio::test]
async fn the_rest_api_is_not_behind_the_gates() {
    let host = Host::start().await;
    let deny = json!({"agent_sandbox": false, "execute_code": "deny"});
    admin(&host, Method::PATCH, "defaults", deny).await;
    assert_eq!(host.run(json!({"code": "print(1)"})).await.0, 200);
}

#[tokio::test]
async fn an_operator_lists_and_answers_approvals() {
    let host = Host::start().await;
    open(&host).await;
    let id = request_approval(&host, "print(1)").await;
    let path = |rest: &str| format!("approvals/{id}{rest}");
    let (_, list) =
        admin(&host, Method::GET, "approvals?state=pending&team=default", json!({})).await;
    assert_eq!(
        (&list["approvals"][0]["id"], &list["approvals"][0]["arguments"]),
        (&json!(id), &Value::Null)
    );
    let (_, one) = admin(&host, Method::GET, &path(""), json!({})).await;
    assert_eq!(
        (&one["state"], &one["arguments"]),
        (&json!("pending"), &json!(r#"{"code":"print(1)"}"#))
    );
    let (status, _) = admin(&host, Method::POST, &path("/approve"), json!({"by": "a\u{7}"})).await;
    assert_eq!(status, 400);
    let (status, one) = admin(&host, Method::POST, &path("/approve"), json!({"by": "ada"})).await;
    assert_eq!((status, &one["decided_by"]), (200, &json!("admin (ada)")));
    let (status, late) = admin(&host, Method::POST, &path("/deny"), json!({})).await;
    assert_eq!((status, &late["error"]), (409, &json!("conflict")));
    for path in ["approvals/apr_x", "approvals/x%2Fy"] {
        assert_eq!(admin(&host, Method::GET, path, json!({})).await.0, 404);
    }
    assert_eq!(admin(&host, Method::GET, "approvals?state=odd", json!({})).await.0, 400);
    assert_eq!(admin(&host, Method::GET, "approvals?team=none", json!({})).await.0, 404);
    let (_, list) = admin(&host, Method::GET, &format!("decisions?approval={id}"), json!({})).await;
    let kinds: Vec<_> =
        list["decisions"].as_array().unwrap().iter().map(|it| &it["kind"]).collect();
    assert_eq!(kinds, ["approved", "asked"]);
    let refused = host.request(Method::GET, "/v1/admin/approvals").send().await.unwrap();
    assert_eq!(refused.status(), 401);
}

#[tokio::test]
async fn a_key_answers_only_for_other_keys_of_its_team() {
    let mut host = Host::start().await;
    open(&host).await;
    let id = request_approval(&host, "1").await;
    let (approve, deny) =
        (format!("/v1/approvals/{id}/approve"), format!("/v1/approvals/{id}/deny"));
    let (status, answer) = post(&host, &approve, json!({})).await;
    assert_eq!((status, &answer["error"]), (403, &json!("forbidden")));
    let asker = host.key.clone();
    host.key = key(&host, false).await;
    assert_eq!(post(&host, &deny, json!({})).await.0, 403);
    host.with_key("pro").await;
    let (status, unseen) = post(&host, &approve, json!({})).await;
    let (_, nothing) = post(&host, "/v1/approvals/apr_nothing/approve", json!({})).await;
    assert_eq!((status, unseen), (404, nothing));
    assert_eq!(host.get(&format!("/v1/approvals/{id}")).await.0, 404);
    assert_eq!(host.get("/v1/approvals").await.1, json!({"approvals": []}));
    host.key = key(&host, true).await;
    assert_eq!(host.get("/v1/approvals?state=pending").await.1["approvals"][0]["id"], json!(id));
    let (status, denied) = post(&host, &deny, json!({"reason": "no"})).await;
    assert_eq!((status, &denied["state"]), (200, &json!("denied")));
    host.key = asker;
    let gate = host.engine.approvals().decide_call(&agent(&host).await, &call("1")).await;
    assert!(matches!(gate, GateDecision::Closed(_)), "{gate:?}");
}

#[tokio::test]
async fn an_execution_shows_the_decision_that_allowed_it() {
    let mut host = Host::start().await;
    open(&host).await;
    let id = request_approval(&host, "print(1)").await;
    admin(&host, Method::POST, &format!("approvals/{id}/approve"), json!({"by": "ada"})).await;
    let caller = agent(&host).await;
    let GateDecision::Open(permit) =
        host.engine.approvals().decide_call(&caller, &call("print(1)")).await
    else {
        panic!("the approved call was refused");
    };
    let request = ExecuteRequest { code: "print(1)".to_owned(), ..ExecuteRequest::default() };
    let started = host
        .engine
        .executions()
        .start_execution(&caller, request, DeliveryMode::Inline)
        .await
        .unwrap();
    host.engine.approvals().note_execution(&permit, &started.trace_id).await.unwrap();
    let trace = started.trace_id.to_string();
    started.wait_until_over().await.unwrap();
    let (_, record) = host.get(&format!("/v1/executions/{trace}")).await;
    assert_eq!(
        (&record["stdout"], &record["decision"]["by"]),
        (&json!("1\n"), &json!("admin (ada)"))
    );
    assert_eq!(record["decision"]["approval_id"], json!(id));
    let (_, list) = admin(&host, Method::GET, "decisions?limit=1", json!({})).await;
    assert_eq!(list["decisions"][0]["trace_id"], json!(trace));
    host.with_key("free").await;
    assert_eq!(host.get(&format!("/v1/executions/{trace}")).await.0, 404);
}
