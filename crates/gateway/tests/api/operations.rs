//! Endpoints for operators: health, metrics, and the OpenAPI description.

use reqwest::Method;
use serde_json::json;

use crate::host::Host;

#[tokio::test]
async fn health_and_readiness_need_no_key() {
    let host = Host::start().await;
    for (path, status) in [("/healthz", "ok"), ("/readyz", "ready")] {
        let answer = reqwest::get(format!("http://{}{path}", host.address)).await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.json::<serde_json::Value>().await.unwrap(), json!({"status": status}));
    }
}

#[tokio::test]
async fn metrics_count_executions_by_status_and_language() {
    let host = Host::start().await;
    host.run(json!({"code": "print(1)"})).await;
    host.run(json!({"code": "exit 1", "language": "bash"})).await;
    host.run(json!({"code": ""})).await;
    let answer = reqwest::get(format!("http://{}/metrics", host.address)).await.unwrap();
    let text = answer.text().await.unwrap();
    for line in [
        "cloche_executions_total{status=\"success\",language=\"python\"} 1",
        "cloche_executions_total{status=\"failed\",language=\"bash\"} 1",
        "cloche_executions_total{status=\"blocked\",language=\"unknown\"} 1",
        "cloche_execution_phase_seconds_count{phase=\"queue\"} 2",
        "cloche_execution_phase_seconds_count{phase=\"attach\"} 2",
        "cloche_execution_phase_seconds_count{phase=\"run\"} 2",
        "cloche_execution_phase_seconds_count{phase=\"seal\"} 2",
        "cloche_executions_running 0",
        "cloche_cells_running 0",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn the_description_is_served_with_a_self_contained_page() {
    let host = Host::start().await;
    let answer = host.request(Method::GET, "/openapi.json").send().await.unwrap();
    let served: serde_json::Value = answer.json().await.unwrap();
    assert_eq!(served, serde_json::to_value(cloche_gateway::describe_api()).unwrap());
    let page = host.request(Method::GET, "/docs").send().await.unwrap();
    assert!(page.headers().contains_key("content-security-policy"));
    let page = page.text().await.unwrap();
    assert!(page.contains("/openapi.json"));
    for foreign in ["http://", "https://", "//cdn"] {
        assert!(!page.contains(foreign), "{foreign}");
    }
}

#[test]
fn the_description_matches_its_snapshot() {
    insta::assert_json_snapshot!("openapi", cloche_gateway::describe_api());
}
