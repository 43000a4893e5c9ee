//! The contract's tables "Timeout limits by plan tier" and "Plan limits that affect this endpoint".

use cloche_test_support::eventually;
use reqwest::Method;
use serde_json::json;

use crate::host::Host;

#[tokio::test]
async fn timeout_limits_by_plan_tier() {
    let mut host = Host::start().await;
    host.with_key("free").await;
    let response = host.post(json!({"code": "1", "timeout": 61})).await;
    assert_eq!(response.status(), 429);
    assert!(!response.headers().contains_key("retry-after"), "no wait helps");
    let answer: serde_json::Value = response.json().await.unwrap();
    assert_eq!(answer["error"], "rate_limited");
    assert_eq!(
        answer["message"],
        "timeout of 61s exceeds the Free plan's maximum of 60s. Upgrade to Pro for timeouts up to 3600s."
    );
    assert_eq!(host.run(json!({"code": "1", "timeout": 60})).await.0, 200);
    host.with_key("pro").await;
    assert_eq!(host.run(json!({"code": "1", "timeout": 3600})).await.0, 200);
    assert_eq!(host.run(json!({"code": "1", "timeout": 3601})).await.0, 429);
    host.with_key("enterprise").await;
    assert_eq!(host.run(json!({"code": "1", "timeout": 7200})).await.0, 200);
    let limit = json!({"max_timeout_seconds": 100});
    host.admin_request(Method::PATCH, "teams/team-enterprise-2").json(&limit).send().await.unwrap();
    assert_eq!(host.run(json!({"code": "1", "timeout": 101})).await.0, 429);
}

#[tokio::test]
async fn streaming_and_async_delivery_by_plan() {
    let mut host = Host::start().await;
    host.with_key("free").await;
    let response = host.stream(json!({"code": "1"})).await;
    assert_eq!(response.status(), 429);
    assert!(!response.headers().contains_key("retry-after"), "no wait helps");
    let answer: serde_json::Value = response.json().await.unwrap();
    assert_eq!(
        answer["message"],
        "Streaming execution requires a Pro or Enterprise plan. Upgrade at https://baponi.ai/pricing"
    );
    let request = host.request(Method::POST, "/v1/sandbox/execute").json(&json!({"code": "1"}));
    let response = request.header("prefer", "respond-async").send().await.unwrap();
    assert_eq!(response.status(), 429);
    assert!(!response.headers().contains_key("retry-after"), "no wait helps");
    host.with_key("pro").await;
    assert_eq!(host.stream(json!({"code": "1"})).await.status(), 200);
}

#[tokio::test]
async fn concurrent_executions_by_plan() {
    let mut host = Host::start().await;
    host.with_key("free").await;
    let sleeping = json!({"code": "import time; time.sleep(30)"});
    let running: Vec<_> = (0..5)
        .map(|_| {
            tokio::spawn(host.request(Method::POST, "/v1/sandbox/execute").json(&sleeping).send())
        })
        .collect();
    let ids = eventually("five executions run", async || {
        let (_, page) = host.get("/v1/executions?status=running").await;
        let running = page["executions"].as_array().unwrap().iter();
        let ids = running.map(|e| e["trace_id"].as_str().unwrap().to_owned());
        Some(ids.collect::<Vec<_>>()).filter(|ids| ids.len() == 5)
    })
    .await;
    let response = host.post(json!({"code": "1"})).await;
    assert_eq!(response.status(), 429);
    assert!(response.headers().contains_key("retry-after"));
    let answer: serde_json::Value = response.json().await.unwrap();
    assert_eq!(
        answer["message"],
        "concurrent execution limit reached (5/5). Upgrade to Pro for 100 concurrent executions."
    );
    for id in ids {
        host.request(Method::POST, &format!("/v1/executions/{id}/cancel")).send().await.unwrap();
    }
    for run in running {
        let answer: serde_json::Value = run.await.unwrap().unwrap().json().await.unwrap();
        assert_eq!(answer["error"], "Cancelled by user");
    }
    assert_eq!(host.run(json!({"code": "1"})).await.0, 200);
}

#[tokio::test]
async fn max_cpu_and_ram_per_sandbox() {
    let host = Host::start().await;
    for (plan, memory, cpu) in [("free", 1024, 1.0), ("pro", 4096, 4.0)] {
        let team =
            host.admin_post("teams", json!({"name": plan, "plan": plan})).await["id"].clone();
        let within = json!({"team": team, "name": "fits", "memory_mb": memory, "cpu": cpu});
        host.admin_post("sandboxes", within).await;
        for over in [
            json!({"team": team, "name": "a", "memory_mb": memory + 1}),
            json!({"team": team, "name": "b", "cpu": cpu + 0.5}),
        ] {
            let response =
                host.admin_request(Method::POST, "sandboxes").json(&over).send().await.unwrap();
            assert_eq!(response.status(), 400, "{over}");
        }
    }
}
