//! Runs in: test. One log line for each request, without secrets; traces at a collector.

use std::{collections::BTreeMap, sync::Arc};

use axum::{Router, body::Bytes, extract::State, routing::post};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest, common::v1::any_value::Value as Attribute,
    trace::v1::Span,
};
use prost::Message;
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::{
    host::Host,
    storage_connections::operator_json,
    support::eventually,
    threads::{bash, put},
};

/// The lines about requests and executions, once `done` accepts them.
async fn request_lines(host: &Host, done: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    eventually("the lines are in the log", async || {
        let log = host.said("log");
        let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let lines: Vec<Value> = lines.filter(|line| line["target"] == "cloche::requests").collect();
        if done(&lines) { Ok(lines) } else { Err(log) }
    })
    .await
}

#[tokio::test]
async fn each_request_has_one_line_with_its_caller_status_and_phases() {
    let Some(host) = Host::start_with(&["--log-format", "json"]).await else { return };
    let answer = host.execute(&json!({"code": "print(1)"})).send().await.unwrap();
    let trace_id = answer.headers()["x-trace-id"].to_str().unwrap().to_owned();
    answer.bytes().await.unwrap();
    let late = host.background(json!({"code": "import time; time.sleep(1)"})).await;
    host.finished(&late).await;
    let wrong = reqwest::Client::new().get(format!("{}/v1/threads", host.url));
    wrong.bearer_auth("sk-us-wrong").send().await.unwrap();
    host.admin_request(Method::GET, "teams").send().await.unwrap().bytes().await.unwrap();
    let of_teams = |line: &Value| line["fields"]["route"] == "/v1/admin/teams";
    let of_late = |line: &Value| {
        line["fields"]["message"] == "execution" && line["fields"]["trace_id"] == late
    };
    let lines =
        request_lines(&host, |lines| lines.iter().any(of_teams) && lines.iter().any(of_late)).await;
    let with = |name: &str, value: &str| -> Vec<&Value> {
        let fields = lines.iter().map(|line| &line["fields"]);
        fields.filter(|fields| fields[name] == value).collect()
    };
    let key = host.admin_json(Method::GET, "keys", json!({})).await["keys"][0].clone();
    let [line] = with("trace_id", &trace_id)[..] else { panic!("{lines:?}") };
    assert_eq!((&line["message"], &line["status"]), (&json!("request"), &json!(200)), "{line}");
    assert_eq!((&line["key"], &line["team"]), (&key["id"], &key["team_id"]), "{line}");
    assert_eq!(line["route"], "/v1/sandbox/execute");
    let phase = |name: &str| line[name].as_f64().unwrap_or_else(|| panic!("{name} {line}"));
    let names = ["admission_ms", "ledger_ms", "pool_ms", "run_ms", "commit_ms"];
    let sum: f64 = names.iter().map(|name| phase(name)).sum();
    assert!(sum > 0.0 && sum <= phase("ms") && phase("run_ms") > 0.0, "{line}");
    // The request of a webhook is over before its execution, which has a line of its own.
    let [accepted, ended] = with("trace_id", &late)[..] else { panic!("{lines:?}") };
    assert_eq!((&accepted["status"], &ended["status"]), (&json!(202), &json!("success")));
    assert!(ended["run_ms"].as_f64().unwrap() >= 1000.0, "{ended}");
    let [refused] = with("route", "/v1/threads")[..] else { panic!("{lines:?}") };
    assert_eq!((&refused["status"], &refused["key"]), (&json!(401), &Value::Null));
    assert_eq!(with("route", "/v1/admin/teams")[0]["key"], "admin");
    assert!(with("route", "/readyz").is_empty(), "probes are logged at the level debug");
}

#[tokio::test]
async fn no_secret_is_in_any_log_line() {
    let secrets =
        ["s3cret-env-value", "s3cret-credential", "s3cret-hook", "s3cret-in-code", "s3cret-pw"];
    for format in ["text", "json"] {
        let arguments = ["--log-format", format, "--log-level", "trace"];
        let Some(mut host) = Host::start_with(&arguments).await else { return };
        let sandboxes = operator_json(&host, &["sandbox", "list"], "");
        let id = sandboxes["sandboxes"][0]["id"].as_str().unwrap();
        operator_json(&host, &["sandbox", "set", id, "--secret-env", "TOKEN=-"], secrets[0]);
        let body = json!({"name": "c", "team": "default", "value": secrets[1],
            "kind": "injected", "env": "CREDENTIAL"});
        host.admin_request(Method::POST, "credentials").json(&body).send().await.unwrap();
        let made = operator_json(&host, &["key", "create", "other"], "");
        let other = made["key"].as_str().unwrap().to_owned();
        let body = json!({"webhook_url": "https://127.0.0.1:1/x", "webhook_secret": secrets[2]});
        let path = format!("keys/{}", made["id"].as_str().unwrap());
        host.admin_request(Method::PATCH, &path).json(&body).send().await.unwrap();
        bash(&host, "t", &format!("echo {} $TOKEN >f", secrets[3])).await;
        assert_eq!(put(&host, "t", "up", "content").await, Some(200));
        let signed = host.request(Method::POST, "/v1/files/download_url");
        let signed = signed.json(&json!({"id": "t", "path": "up"})).send().await.unwrap();
        let signed: Value = signed.json().await.unwrap();
        let url = signed["url"].as_str().unwrap();
        reqwest::get(url).await.unwrap().bytes().await.unwrap();
        // Refused, because of the address.
        let body = json!({"code": "print(1)", "webhook_url": "https://u:s3cret-pw@127.0.0.1:1/"});
        let refused = host.execute(&body).header("prefer", "respond-async").send().await.unwrap();
        assert_eq!(refused.status(), 400);
        host.signal(Signal::TERM);
        host.ended().await;
        let log = host.said("log");
        assert!(log.contains("/v1/sandbox/execute") && log.lines().count() > 20, "{log}");
        let signature = url.rsplit(['/', '=', '?']).next().unwrap();
        assert!(signature.len() > 20, "{url}");
        let given = [&host.key, &host.admin, &other].map(String::as_str);
        let key = std::fs::read_to_string(host.data().join("secret.key")).unwrap();
        for secret in secrets.into_iter().chain(given).chain([signature, key.trim()]) {
            assert!(!log.contains(secret), "{secret} is in the log: {log}");
        }
    }
}

type Received = Arc<Mutex<Vec<Span>>>;

/// A collector that keeps the spans it gets.
async fn start_collector() -> (String, Received) {
    async fn keep_spans(State(received): State<Received>, body: Bytes) {
        let request = ExportTraceServiceRequest::decode(&body[..]).unwrap();
        for resource in request.resource_spans {
            let attributes = resource.resource.unwrap().attributes;
            let name = attributes.iter().find(|it| it.key == "service.name").unwrap();
            let Some(Attribute::StringValue(name)) = name.value.clone().unwrap().value else {
                panic!("{name:?}")
            };
            assert_eq!(name, "cloche");
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            received.lock().await.extend(spans);
        }
    }
    let received = Received::default();
    let app = Router::new().route("/v1/traces", post(keep_spans)).with_state(received.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (address, received)
}

#[tokio::test]
async fn traces_reach_a_collector_with_a_span_for_each_phase() {
    let (collector, received) = start_collector().await;
    let variables =
        [("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector), ("OTEL_BSP_SCHEDULE_DELAY", "100")];
    let Some(mut host) = Host::start_with_env(&[], &variables).await else { return };
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let request = host.execute(&json!({"code": "print(1)", "thread_id": "t"}));
    let answer = request.header("traceparent", parent).send().await.unwrap();
    let trace_id = answer.headers()["x-trace-id"].to_str().unwrap().to_owned();
    answer.bytes().await.unwrap();
    // The end of the server sends what is left.
    host.signal(Signal::TERM);
    host.ended().await;
    let spans = received.lock().await;
    let own: Vec<&Span> = spans
        .iter()
        .filter(|span| hex::encode(&span.trace_id) == "0af7651916cd43dd8448eb211c80319c")
        .collect();
    let root = own.iter().find(|span| span.name == "POST /v1/sandbox/execute").expect("a root");
    assert_eq!(hex::encode(&root.parent_span_id), "b7ad6b7169203331");
    let attributes: BTreeMap<&str, &Attribute> = root
        .attributes
        .iter()
        .map(|it| (&*it.key, it.value.as_ref().unwrap().value.as_ref().unwrap()))
        .collect();
    assert_eq!(attributes["cloche.trace_id"], &Attribute::StringValue(trace_id));
    assert_eq!(attributes["http.response.status_code"], &Attribute::IntValue(200));
    let mut before = root.start_time_unix_nano;
    for phase in ["admission", "ledger", "pool", "run", "commit"] {
        let span = own.iter().find(|span| span.name == phase).unwrap_or_else(|| panic!("{phase}"));
        assert_eq!(span.parent_span_id, root.span_id, "{phase}");
        assert!(span.start_time_unix_nano >= before, "{phase} begins too early");
        assert!(span.end_time_unix_nano <= root.end_time_unix_nano + 1_000_000, "{phase}");
        before = span.start_time_unix_nano;
    }
    assert!(!format!("{spans:?}").contains(&host.key));
}
