//! Runs in: test.
//!
//! Time, output and request limits of the Agent API, and how a pending approval is shown.

use reqwest::{Client, Method};
use serde_json::{Value, json};

use crate::{
    agent::{Agent, runs, sandbox},
    approvals::admin,
};

#[tokio::test]
async fn a_response_whose_time_is_up_while_code_runs_has_timed_out_on_entry_and_item() {
    let Some(agent) = Agent::start_with("[agent]\nmax_seconds = 2\n").await else { return };
    agent.gates(json!({"agent_sandbox": true, "execute_code": "allow"})).await;
    let code = "print('so far', flush=True)\nimport time\ntime.sleep(60)";
    let body = json!({"tools": sandbox()});
    let response = agent.ask(body.clone(), json!([runs("1"), runs(code), {"text": "no"}])).await;
    assert_eq!(response["status"], "failed", "{response}");
    assert_eq!(response["error"]["code"], "timeout");
    assert_eq!(response["error"]["message"], "the response took longer than 2s");
    let item = &response["output"][1];
    let result = &item["results"][0];
    assert_eq!((&item["status"], &result["status"]), (&json!("timed_out"), &json!("timed_out")));
    assert_eq!((&result["stdout"], &result["stderr"]), (&json!("so far\n"), &json!("")));
    assert_eq!(response["output"][0]["status"], "completed", "it ended in time");
    let stored = agent.until(&response["id"], |_| true).await;
    assert_eq!(stored["output"], response["output"]);

    // The time is also up for a call that a person did not answer. It ran nothing.
    agent.gates(json!({"execute_code": "ask"})).await;
    let waiting = agent.ask(body, json!([runs("1")])).await;
    let over = agent.until(&waiting["id"], |response| response["status"] == "failed").await;
    let item = &over["output"][0];
    assert_eq!(
        (&item["status"], &item["results"][0]["exit_code"]),
        (&json!("timed_out"), &json!(-1))
    );
    assert_eq!(item["results"][0]["stderr"], "the response took longer than 2s");
}

#[tokio::test]
async fn long_output_is_what_the_program_wrote_and_truncation_stands_beside_it() {
    let Some(agent) = Agent::start_with("").await else { return };
    agent.gates(json!({"agent_sandbox": true, "execute_code": "allow"})).await;
    let code = "import sys\nsys.stdout.write('\u{e4}' * 200_000)\nsys.stderr.write('e')";
    let script = json!([runs(code), runs("print('short')"), {"told": true}]);
    let response = agent.ask(json!({"tools": sandbox()}), script).await;
    let result = &response["output"][0]["results"][0];
    let stdout = result["stdout"].as_str().unwrap();
    assert_eq!(stdout, "\u{e4}".repeat(128 << 10));
    assert_eq!((&result["truncated"], &result["stderr"]), (&json!(true), &json!("e")));
    assert_eq!(result["stdout_dropped_bytes"], 400_000 - stdout.len());
    assert_eq!(result["stderr_dropped_bytes"], 0);
    let record = agent.host.record(result["trace_id"].as_str().unwrap()).await;
    assert_eq!(record["stdout"], "\u{e4}".repeat(200_000));
    let short = response["output"][1]["results"][0].as_object().unwrap();
    let fields: Vec<_> = short.keys().map(String::as_str).collect();
    assert_eq!(fields, ["duration_ms", "exit_code", "status", "stderr", "stdout"]);
}

#[tokio::test]
async fn requests_are_limited_by_plan_and_polling_is_not() {
    let settings = "[agent.requests_per_minute]\nfree = 2\nenterprise = 4\n";
    let Some(agent) = Agent::start_with(settings).await else { return };
    let hello = json!([{"text": "hello"}]);
    let key = agent.key_of_plan("free").await;
    let enterprise = agent.host.key.clone();
    for (key, limit, plan) in [(key, 2, "Free"), (enterprise, 4, "Enterprise")] {
        let request = |method: Method, path: &str| {
            Client::new().request(method, format!("{}{path}", agent.host.url)).bearer_auth(&key)
        };
        let ask = async || {
            let body = json!({"model": "open/small", "input": hello.to_string()});
            request(Method::POST, "/v1/agent").json(&body).send().await.unwrap()
        };
        let mut last = Value::Null;
        for _ in 0..limit {
            let response = ask().await;
            assert_eq!(response.status(), 200);
            last = response.json().await.unwrap();
        }
        let refused = ask().await;
        assert_eq!(refused.status(), 429);
        let after: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((1..=60).contains(&after), "{after}");
        let body: Value = refused.json().await.unwrap();
        assert_eq!(body["error"], "rate_limited");
        let sentence = format!(
            "request limit reached: {limit} requests a minute for new responses on the {plan} \
             plan; try again in {after}s"
        );
        assert_eq!(body["message"], sentence);
        let path = format!("/v1/responses/{}", last["id"].as_str().unwrap());
        for _ in 0..10 {
            assert_eq!(request(Method::GET, &path).send().await.unwrap().status(), 200);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_polls_waits_for_a_person_unless_the_team_says_otherwise() {
    let Some(agent) = Agent::start_with("").await else { return };
    agent.gates(json!({"agent_sandbox": true, "execute_code": "ask"})).await;
    let script = json!([runs("print('approved')"), {"told": true}]);
    let background = json!({"tools": sandbox(), "background": true});
    for (setting, status) in [
        ("none", "in_progress"),
        ("requires_action", "requires_action"),
        ("in_progress", "in_progress"),
    ] {
        let word = format!("pending_approval={setting}");
        admin(&agent.host, &["team", "set", "default", &word]).printed();
        let queued = agent.ask(background.clone(), script.clone()).await;
        let asks = |response: &Value| response["required_action"]["approval_id"].is_string();
        let waiting = agent.until(&queued["id"], asks).await;
        assert_eq!(waiting["status"], status, "{setting}");
        assert_eq!(waiting["required_action"]["type"], "approval");
        let approval = waiting["required_action"]["approval_id"].as_str().unwrap();
        admin(&agent.host, &["approval", "approve", approval]).printed();
        let over = agent.until(&queued["id"], |response| response["status"] == "completed").await;
        assert_eq!(over["output"][0]["results"][0]["stdout"], "approved\n");
        assert_eq!(over["required_action"], Value::Null);
    }
    // With `in_progress`, a caller that waits for the answer waits for the person as well.
    let post = agent.post(json!({"tools": sandbox()}), script);
    let approve = async {
        let pending = async || crate::approvals::pending(&agent.host).pop();
        let approval = cloche_test_support::eventually("the call waits", pending).await;
        admin(&agent.host, &["approval", "approve", &approval]).printed();
    };
    let (response, ()) = tokio::join!(post, approve);
    let response: Value = response.json().await.unwrap();
    assert_eq!(response["status"], "completed", "{response}");
}
