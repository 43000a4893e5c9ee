//! The Agent API of the real binary, with scripted models.

use reqwest::{Method, Response};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    host::{Host, MODEL_KEY},
    models::{Models, SECRET},
    support::eventually,
};

/// A server with two providers, `open` and `anthro`, which are the same model server.
pub(crate) struct Agent {
    pub(crate) host: Host,
    models: Models,
    _config: TempDir,
}

/// The tool definition for requests.
pub(crate) fn sandbox() -> Value {
    json!([{"type": "sandbox"}])
}

/// A turn in which the model runs code.
pub(crate) fn runs(code: &str) -> Value {
    json!({"calls": [{"name": "sandbox", "arguments": {"code": code, "timeout_seconds": 20}}]})
}

impl Agent {
    /// Starts with open gates.
    pub(crate) async fn start() -> Option<Self> {
        let agent = Self::start_closed().await?;
        agent.gates(json!({"agent_sandbox": true, "execute_code": "allow"})).await;
        Some(agent)
    }

    async fn start_closed() -> Option<Self> {
        Self::start_with("").await
    }

    /// Starts with closed gates and these lines in front of its configuration.
    pub(crate) async fn start_with(settings: &str) -> Option<Self> {
        assert_eq!(MODEL_KEY.1, SECRET);
        let models = Models::start().await;
        let config = TempDir::new().unwrap();
        let mut text = settings.to_owned();
        for (name, protocol) in [("open", "openai"), ("anthro", "anthropic")] {
            text.push_str(&format!(
                "[agent.providers.{name}]\nprotocol = \"{protocol}\"\nbase_url = \"{}\"\n\
                 api_key_env = \"{}\"\ninput_price = 2.0\noutput_price = 10.0\n",
                models.base_url(),
                MODEL_KEY.0
            ));
        }
        let path = config.path().join("cloche.toml");
        std::fs::write(&path, text).unwrap();
        let arguments = ["--config", path.to_str().unwrap(), "--grace", "0"];
        let host = Host::start_with(&arguments).await?;
        Some(Self { host, models, _config: config })
    }

    pub(crate) async fn gates(&self, gates: Value) {
        self.host.admin_json(Method::PATCH, "defaults", gates).await;
    }

    pub(crate) async fn post(&self, mut body: Value, script: Value) -> Response {
        body["input"] = script.to_string().into();
        if body["model"].is_null() {
            body["model"] = "open/small".into();
        }
        self.host.request(Method::POST, "/v1/responses").json(&body).send().await.unwrap()
    }

    pub(crate) async fn ask(&self, body: Value, script: Value) -> Value {
        let response = self.post(body, script).await;
        let status = response.status();
        let body: Value = response.json().await.unwrap();
        assert_eq!(status, 200, "{body} {}", self.host.said("log"));
        body
    }

    async fn get(&self, id: &Value) -> Value {
        let (status, body) = self.host.get(&path(id)).await;
        assert_eq!(status, 200, "{body}");
        body
    }

    pub(crate) async fn until(&self, id: &Value, done: impl Fn(&Value) -> bool) -> Value {
        eventually("the response is as it should be", async || {
            let response = self.get(id).await;
            if done(&response) { Ok(response) } else { Err(response) }
        })
        .await
    }

    /// A key of a new team on this plan, whose agents may do what the fleet allows.
    pub(crate) async fn key_of_plan(&self, plan: &str) -> String {
        let team = json!({"name": format!("team-{plan}"), "plan": plan});
        let team = self.host.admin_json(Method::POST, "teams", team).await;
        let named = json!({"team": team["id"], "name": "default"});
        self.host.admin_json(Method::POST, "sandboxes", named).await;
        let key = json!({"team": team["id"], "sandbox": "default", "name": plan});
        let key = self.host.admin_json(Method::POST, "keys", key).await;
        key["key"].as_str().unwrap().to_owned()
    }

    async fn cancel(&self, id: &Value) -> Value {
        let path = format!("{}/cancel", path(id));
        self.host.request(Method::POST, &path).send().await.unwrap().json().await.unwrap()
    }
}

fn path(id: &Value) -> String {
    format!("/v1/responses/{}", id.as_str().unwrap())
}

fn text(response: &Value) -> &str {
    let last = response["output"].as_array().unwrap().last().unwrap();
    last["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{response}"))
}

/// Compares amounts of money.
fn costs(value: &Value, dollars: f64) -> bool {
    (value.as_f64().unwrap() - dollars).abs() < 1e-9
}

#[tokio::test]
async fn a_model_runs_code_and_answers_with_its_result() {
    let Some(agent) = Agent::start().await else { return };
    for model in ["open/small", "anthro/small"] {
        let body = json!({"model": model, "tools": sandbox(), "instructions": "Compute."});
        let script = json!([runs("print(6 * 7)"), {"told": true}]);
        let response = agent.ask(body, script).await;
        assert_eq!((&response["status"], &response["model"]), (&json!("completed"), &json!(model)));
        assert_eq!(response["object"], "response");
        let item = response["output"][0].as_object().unwrap();
        let fields: Vec<_> = item.keys().map(String::as_str).collect();
        let contract = ["call_id", "code", "container_id", "language", "results", "status", "type"];
        assert_eq!(fields, contract);
        assert_eq!(item["type"], "sandbox_results");
        assert_eq!((&item["language"], &item["status"]), (&json!("python"), &json!("completed")));
        assert_eq!(item["code"], "print(6 * 7)");
        let run = item["results"][0].as_object().unwrap();
        let fields: Vec<_> = run.keys().map(String::as_str).collect();
        assert_eq!(fields, ["duration_ms", "exit_code", "status", "stderr", "stdout"]);
        assert_eq!((&run["stdout"], &run["exit_code"]), (&json!("42\n"), &json!(0)));
        let told: Value = serde_json::from_str(text(&response)).unwrap();
        assert_eq!((&told["stdout"], &told["status"]), (&json!("42\n"), &json!("completed")));

        let usage = &response["usage"];
        let tokens = ["input_tokens", "output_tokens", "total_tokens"].map(|name| &usage[name]);
        assert_eq!(tokens, [200, 40, 240].map(|n| json!(n)).each_ref());
        let used = &usage["tool_calls_details"]["sandbox"];
        assert_eq!(used["invocation"], 1);
        let cost = &usage["cost"];
        assert!(costs(&used["cost_usd"], 0.03) && costs(&cost["tool_calls_cost"], 0.03), "{usage}");
        assert!(
            costs(&cost["input_cost"], 0.0004) && costs(&cost["output_cost"], 0.0004),
            "{usage}"
        );
        assert!(costs(&cost["total_cost"], 0.0308) && cost["currency"] == "USD", "{usage}");

        assert_eq!(agent.get(&response["id"]).await, response);
        let found =
            format!("/v1/executions?metadata.response_id={}", response["id"].as_str().unwrap());
        let (_, page) = agent.host.get(&found).await;
        assert_eq!(page["executions"][0]["thread_id"], item["container_id"]);
    }
    let log = agent.host.said("log") + &agent.host.said("stdout");
    assert!(!log.contains(SECRET), "{log}");
}

#[tokio::test]
async fn errors_of_code_are_results_and_limits_are_failures() {
    let Some(agent) = Agent::start().await else { return };
    let slow = json!({"code": "print('so far', flush=True)\nimport time\ntime.sleep(60)", "timeout_seconds": 1});
    let calls = json!({"calls": [
        {"name": "sandbox", "arguments": {"code": "import sys; sys.exit('no such column')"}},
        {"name": "sandbox", "arguments": slow},
        {"name": "sandbox", "arguments": {"code": "echo $0", "language": "bash"}},
        {"name": "sandbox", "arguments": {"code": "1", "language": "cobol"}},
        {"name": "sandbox", "arguments": "{\"code\": "},
        {"name": "web_search", "arguments": {"query": "x"}},
    ]});
    let body = json!({"tools": sandbox()});
    let response = agent.ask(body.clone(), json!([calls, {"told": true}])).await;
    assert_eq!(response["status"], "completed");
    let output = response["output"].as_array().unwrap();
    let stands = |at: usize| {
        let run = &output[at]["results"][0];
        assert_eq!(output[at]["status"], run["status"]);
        (run["status"].as_str().unwrap(), run["exit_code"].as_i64().unwrap())
    };
    assert_eq!(output.len(), 6, "{response}");
    assert_eq!(stands(0), ("completed", 1));
    assert_eq!(output[0]["results"][0]["stderr"], "no such column\n");
    assert_eq!(stands(1), ("timed_out", -1));
    assert_eq!(output[1]["results"][0]["stdout"], "so far\n");
    // Standard error is the program's own, and this program wrote nothing there.
    assert_eq!(output[1]["results"][0]["stderr"], "");
    assert_eq!((stands(2), &output[2]["language"]), (("completed", 0), &json!("bash")));
    assert_eq!(stands(3), ("failed", -1));
    assert_eq!(output[3]["results"][0]["stderr"], "language must be one of: python, bash");
    assert_eq!((&output[3]["language"], &output[3]["code"]), (&json!("cobol"), &json!("1")));
    assert_eq!(stands(4), ("failed", -1));
    assert_eq!(output[4]["code"], "{\"code\": ");
    assert_eq!(text(&response), "there is no tool of that name");
    // One container, one session; only executed code counts as an invocation.
    assert!((0..5).all(|at| output[at]["container_id"] == output[0]["container_id"]));
    let used = &response["usage"]["tool_calls_details"]["sandbox"];
    assert!(used["invocation"] == 3 && costs(&used["cost_usd"], 0.03), "{used}");

    agent.host.admin_json(Method::PATCH, "teams/default", json!({"max_concurrency": 1})).await;
    let id = agent.host.background(json!({"code": "import time; time.sleep(60)"})).await;
    let response = agent.ask(body, json!([runs("1")])).await;
    assert_eq!(response["status"], "failed");
    assert_eq!(response["error"]["code"], "rate_limited");
    let message = response["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("concurrent execution limit reached (1/1)"), "{message}");
    agent.host.cancel(&id).await;
}

#[tokio::test]
async fn another_model_is_used_when_one_fails() {
    let Some(agent) = Agent::start().await else { return };
    let models = json!({"models": ["open/gone", "anthro/good"], "model": "open/ignored"});
    let script = json!([{"text": "hello", "models": ["good"]}]);
    let response = agent.ask(models, script).await;
    assert_eq!((text(&response), &response["model"]), ("hello", &json!("anthro/good")));

    let passing = json!([{"http": 429, "times": 2, "retry_after": "0", "text": "at last"}]);
    assert_eq!(text(&agent.ask(json!({}), passing).await), "at last");

    for (entry, code) in [
        (json!({"http": 429, "retry_after": "3600"}), "model_rate_limited"),
        (json!({"http": 400}), "model_refused"),
        (json!({"text": "well", "garbage": true}), "model_malformed"),
        (json!({"text": "well", "break": true}), "model_unavailable"),
        (json!({"cut": true}), "max_output_tokens"),
    ] {
        let response = agent.ask(json!({}), json!([entry])).await;
        assert_eq!(response["status"], "failed", "{response}");
        assert_eq!(response["error"]["code"], code, "{response}");
    }
    let response = agent.ask(json!({"max_output_tokens": 30}), json!([{"text": "a"}])).await;
    assert_eq!(response["status"], "completed");
    assert_eq!(agent.models.requests().last().unwrap()["max_completion_tokens"], 30);
    let body = json!({"tools": sandbox(), "max_steps": 1});
    let response = agent.ask(body, json!([runs("1"), runs("2"), runs("3")])).await;
    assert_eq!(response["error"]["code"], "max_steps");
    assert_eq!(agent.models.requests().last().unwrap()["tool_choice"], "none");
}

#[tokio::test]
async fn functions_are_called_by_the_client_and_a_chain_shares_its_container() {
    let Some(agent) = Agent::start().await else { return };
    for model in ["open/small", "anthro/small"] {
        let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
        let tools = json!([{"type": "sandbox"},
            {"type": "function", "name": "weather", "description": "Now", "parameters": parameters}]);
        let body = json!({"model": model, "tools": tools});
        let both = json!({"calls": [
            {"name": "sandbox", "arguments": {"code": "print('here')"}},
            {"name": "weather", "arguments": {"city": "Oslo"}},
        ]});
        let first = agent.ask(body.clone(), json!([both, {"told": true}])).await;
        assert_eq!(first["status"], "requires_action");
        let call = &first["output"][1];
        assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("weather")));
        assert_eq!(call["arguments"], "{\"city\":\"Oslo\"}");

        let next = |input: Value| {
            let mut body = body.clone();
            body["previous_response_id"] = first["id"].clone();
            body["input"] = input;
            agent.host.request(Method::POST, "/v1/agent").json(&body).send()
        };
        let refused = next(json!("and?")).await.unwrap();
        assert_eq!(refused.status(), 400);
        assert!(refused.text().await.unwrap().contains("needs its function_call_output"));
        let output = json!([
            {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"},
        ]);
        let second: Value = next(output).await.unwrap().json().await.unwrap();
        assert_eq!((&second["status"], text(&second)), (&json!("completed"), "sunny"));
        assert_eq!(second["previous_response_id"], first["id"]);

        let mut body = body.clone();
        body["previous_response_id"] = second["id"].clone();
        let third = agent.ask(body, json!([runs("print('again')"), {"text": "ok"}])).await;
        let container = |response: &Value| response["output"][0]["container_id"].clone();
        assert_eq!(container(&third), container(&first));
        // The session was billed with the first response.
        let used = &third["usage"]["tool_calls_details"]["sandbox"];
        assert!(used["invocation"] == 1 && costs(&used["cost_usd"], 0.0), "{used}");
    }
}

#[tokio::test]
async fn a_response_can_be_cancelled_in_any_state() {
    let Some(agent) = Agent::start().await else { return };
    let background = json!({"background": true, "tools": sandbox()});
    let sleeping = json!([runs("import time; time.sleep(60)"), {"text": "never"}]);
    let silent = json!([{"text": "hm", "silent": true}]);
    for (script, there) in [(sleeping, "sandbox_results"), (silent, "message")] {
        let queued = agent.ask(background.clone(), script).await;
        assert!(["queued", "in_progress"].contains(&queued["status"].as_str().unwrap()));
        let id = &queued["id"];
        agent.until(id, |response| response["output"][0]["type"] == there).await;
        let cancelling = json!({"response_id": id, "status": "cancelling"});
        assert_eq!(agent.cancel(id).await, cancelling);
        let over = agent.until(id, |response| response["status"] == "cancelled").await;
        assert_eq!(over["error"], Value::Null);
        assert_eq!(agent.cancel(id).await, json!({"response_id": id, "status": "cancelled"}));
    }
    let (_, page) = agent.host.get("/v1/executions?status=running").await;
    assert_eq!(page["executions"], json!([]));
    let done = agent.ask(json!({}), json!([{"text": "done"}])).await;
    assert_eq!(agent.cancel(&done["id"]).await["status"], "completed");
    assert_eq!(agent.cancel(&json!("resp_nobody")).await["error"], "not_found");
}

#[tokio::test]
async fn a_restart_ends_open_responses() {
    let Some(mut agent) = Agent::start().await else { return };
    let background = json!({"background": true, "tools": sandbox()});
    for (signal, code) in [(Signal::KILL, "server_restarted"), (Signal::TERM, "server_shutdown")] {
        let script = json!([runs("print(1)"), {"silent": true}]);
        let queued = agent.ask(background.clone(), script).await;
        let id = &queued["id"];
        agent.until(id, |response| response["output"][0]["status"] == "completed").await;
        let wanted = agent.models.requests().len();
        assert!(wanted > 0);
        agent.host.signal(signal);
        agent.host.ended().await;
        let Agent { host, models, _config } = agent;
        agent = Agent { host: host.again().await, models, _config };
        let failed = agent.get(id).await;
        assert_eq!((&failed["status"], &failed["error"]["code"]), (&json!("failed"), &json!(code)));
        assert_eq!(agent.cancel(id).await["status"], "failed");
    }
}

#[tokio::test]
async fn a_killed_server_loses_no_finished_step() {
    let Some(mut agent) = Agent::start().await else { return };
    let background = json!({"background": true, "tools": sandbox()});
    let calls = json!({"text": "Let me see.", "calls": [
        {"name": "sandbox", "arguments": {"code": "open('a', 'w').write('1'); print(1)"}},
        {"name": "sandbox", "arguments": {"code": "import time; time.sleep(60)"}},
    ]});
    let queued = agent.ask(background, json!([calls, {"text": "never"}])).await;
    let id = &queued["id"];
    agent.until(id, |response| response["output"][2]["status"] == "in_progress").await;
    // The second program runs, so everything before it was stored.
    eventually("the second program runs", async || {
        agent.host.get("/v1/executions?status=running").await.1["executions"] != json!([])
    })
    .await;
    agent.host.signal(Signal::KILL);
    agent.host.ended().await;
    let Agent { host, models, _config } = agent;
    agent = Agent { host: host.again().await, models, _config };
    let failed = agent.get(id).await;
    assert_eq!(failed["status"], "failed");
    assert_eq!(failed["error"]["code"], "server_restarted");
    let output = failed["output"].as_array().unwrap();
    assert_eq!(output[0]["content"][0]["text"], "Let me see.");
    assert_eq!(output[1]["results"][0]["stdout"], "1\n", "{failed}");
    assert_eq!((&output[2]["status"], &output[2]["results"]), (&json!("failed"), &json!([])));
    assert_eq!(output[2]["code"], "import time; time.sleep(60)");
    let usage = &failed["usage"];
    assert_eq!((&usage["input_tokens"], &usage["output_tokens"]), (&json!(100), &json!(20)));
    assert_eq!(usage["tool_calls_details"]["sandbox"]["invocation"], 1);
    let (_, files) = agent.host.get(&format!("{}/files", path(id))).await;
    assert!(files.to_string().contains("\"a\""), "{files}");
}

#[tokio::test]
async fn a_closed_gate_is_named_and_an_approval_opens_it() {
    let Some(agent) = Agent::start_closed().await else { return };
    let script = json!([runs("print('approved')"), {"told": true}]);
    let body = json!({"tools": sandbox()});
    let refused = agent.post(body.clone(), script.clone()).await;
    assert_eq!(refused.status(), 403);
    let said = refused.text().await.unwrap();
    assert!(said.contains("an operator of this server can turn it on"), "{said}");
    assert_eq!(text(&agent.ask(json!({}), json!([{"text": "no tool"}])).await), "no tool");

    agent.gates(json!({"agent_sandbox": true, "execute_code": "ask"})).await;
    for (decision, stderr) in [("approve", ""), ("deny", "admin denied this call")] {
        let waiting = agent.ask(body.clone(), script.clone()).await;
        assert_eq!(waiting["status"], "requires_action", "{waiting}");
        let approval = waiting["required_action"]["approval_id"].as_str().unwrap();
        agent
            .host
            .admin_json(Method::POST, &format!("approvals/{approval}/{decision}"), json!({}))
            .await;
        let over = agent.until(&waiting["id"], |response| response["status"] == "completed").await;
        assert_eq!(over["required_action"], Value::Null);
        let run = &over["output"][0]["results"][0];
        assert!(run["stderr"].as_str().unwrap().starts_with(stderr), "{over}");
        assert_eq!(run["status"] == "completed", decision == "approve", "{over}");
    }
    let waiting = agent.ask(body, script).await;
    agent.cancel(&waiting["id"]).await;
    agent.until(&waiting["id"], |response| response["status"] == "cancelled").await;
}

/// The names and the data of the events of a stream.
fn events(text: &str) -> Vec<(String, Value)> {
    let event = |event: &str| {
        let (name, data) = event.split_once('\n').unwrap();
        let data = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        (name.strip_prefix("event: ").unwrap().to_owned(), data)
    };
    text.split("\n\n").filter(|event| !event.is_empty()).map(event).collect()
}

#[tokio::test]
async fn a_stream_has_all_events_in_order_and_can_be_replayed() {
    let Some(agent) = Agent::start().await else { return };
    let body = json!({"tools": sandbox(), "stream": true});
    let response = agent.post(body, json!([runs("print(1)"), {"text": "one!"}])).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let whole = response.text().await.unwrap();
    let seen = events(&whole);
    let names: Vec<_> =
        seen.iter().map(|(name, _)| name.strip_prefix("response.").unwrap()).collect();
    assert_eq!(
        names,
        [
            "created",
            "in_progress",
            "output_item.added",
            "output_item.done",
            "output_item.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "output_item.done",
            "completed",
        ]
    );
    for (at, (name, data)) in seen.iter().enumerate() {
        assert_eq!((&data["sequence_number"], &data["type"]), (&json!(at), &json!(name)));
    }
    assert_eq!(seen[2].1["item"]["status"], "in_progress");
    assert_eq!(seen[3].1["item"]["results"][0]["stdout"], "1\n");
    assert_eq!((&seen[5].1["delta"], &seen[6].1["delta"]), (&json!("one"), &json!("!")));
    let response = &seen[9].1["response"];
    assert_eq!(*response, agent.get(&response["id"]).await);
    let again = format!("{}?stream=true&starting_after=8", path(&response["id"]));
    let again = agent.host.request(Method::GET, &again).send().await.unwrap().text().await.unwrap();
    assert!(whole.ends_with(&again) && events(&again).len() == 1, "{again}");

    let body = json!({"stream": true, "background": true});
    let response = agent.post(body, json!([{"http": 400}])).await;
    let seen = events(&response.text().await.unwrap());
    let (name, last) = seen.last().unwrap();
    assert_eq!(
        (name.as_str(), &last["error"]["code"]),
        ("response.failed", &json!("model_refused"))
    );
}

#[tokio::test]
async fn responses_that_are_not_stored_or_of_another_team_are_not_found() {
    let Some(agent) = Agent::start().await else { return };
    let hidden = agent.ask(json!({"store": false}), json!([{"text": "psst"}])).await;
    assert_eq!((text(&hidden), &hidden["store"]), ("psst", &json!(false)));
    let missing = agent.host.get("/v1/responses/resp_nobody").await;
    assert_eq!(missing.0, 404);
    assert_eq!(agent.host.get(&path(&hidden["id"])).await, missing);
    let next = json!({"previous_response_id": hidden["id"]});
    let next = agent.ask(next, json!([{"text": "go on"}])).await;
    assert_eq!(text(&next), "go on");

    for (body, status, message) in [
        (
            json!({"tools": [{"type": "code_interpreter"}]}),
            400,
            "people_search, function; got \"code_interpreter\"",
        ),
        (json!({"tools": [{"type": "web_search"}]}), 400, "does not offer web_search"),
        (
            json!({"model": "nobody/small"}),
            404,
            "there is no provider \"nobody\", only: anthro, open",
        ),
        (json!({"model": "small"}), 400, "a model must be provider/model"),
        (json!({"max_steps": 101}), 400, "max_steps must be between 1 and 100, got 101"),
        (json!({"background": true, "store": false}), 400, "background needs store"),
        (json!({"previous_response_id": "resp_nobody"}), 404, "no such response"),
        (json!({"preset": "pro"}), 400, "preset is not supported"),
    ] {
        let refused = agent.post(body.clone(), json!([])).await;
        assert_eq!(refused.status(), status, "{body}");
        let said = refused.text().await.unwrap();
        assert!(said.replace("\\\"", "\"").contains(message), "{said}");
    }

    let team =
        agent.host.admin_json(Method::POST, "teams", json!({"name": "b", "plan": "pro"})).await;
    let named = json!({"team": team["id"], "name": "default"});
    agent.host.admin_json(Method::POST, "sandboxes", named).await;
    let key = json!({"team": team["id"], "sandbox": "default", "name": "b"});
    let key = agent.host.admin_json(Method::POST, "keys", key).await;
    let Agent { host, models: _models, _config } = agent;
    let host = host.with_key(key["key"].as_str().unwrap());
    let id = &next["id"];
    assert_eq!(host.get(&path(id)).await, missing);
    for what in ["/files", "/files/file_x/content", "?stream=true"] {
        assert_eq!(host.get(&format!("{}{what}", path(id))).await.0, 404, "{what}");
    }
    let cancelled =
        host.request(Method::POST, &format!("{}/cancel", path(id))).send().await.unwrap();
    assert_eq!(cancelled.status(), 404);
    let body = json!({"model": "open/small", "input": "[]", "previous_response_id": id});
    let taken = host.request(Method::POST, "/v1/responses").json(&body).send().await.unwrap();
    assert_eq!(taken.status(), 404);
}
