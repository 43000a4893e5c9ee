//! Runs in: test. Concurrent changes of different fields through the admin API of the real server:
//! none is lost.

use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::host::Host;

const ROUNDS: u32 = 15;

/// Sends all changes of a round at once, and checks that all of them are stored.
async fn change_at_once(
    host: &Host,
    path: &str,
    round: impl Fn(u32) -> Vec<(&'static str, Value)>,
) {
    for number in 0..ROUNDS {
        let changes = round(number);
        let requests = changes
            .iter()
            .map(|(name, value)| host.admin_json(Method::PATCH, path, json!({*name: value})));
        join_all(requests).await;
        let request = host.admin_request(Method::GET, path);
        let now: Value = request.send().await.unwrap().json().await.unwrap();
        for (name, value) in &changes {
            assert_eq!(&now[*name], value, "round {number}: the change of {name} is lost: {now}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_patches_of_different_fields_are_all_kept() {
    let Some(host) = Host::start().await else { return };
    let list = async |what: &str| {
        let answer = host.admin_request(Method::GET, what).send().await.unwrap();
        let answer: Value = answer.json().await.unwrap();
        answer[what][0]["id"].as_str().unwrap().to_owned()
    };
    let sandbox = format!("sandboxes/{}", list("sandboxes").await);
    change_at_once(&host, &sandbox, |round| {
        vec![
            ("memory_mb", json!(256 + round)),
            ("disk_mb", json!(128 + round)),
            ("pids", json!(64 + round)),
            ("retention_days", json!(1 + round)),
            ("template", json!(round % 2 == 0)),
            ("env_vars", json!({"ROUND": round.to_string()})),
        ]
    })
    .await;
    let key = format!("keys/{}", list("keys").await);
    change_at_once(&host, &key, |round| {
        vec![
            ("name", json!(format!("k-{round}"))),
            ("may_approve", json!(round % 2 == 0)),
            ("env_vars", json!({"ROUND": round.to_string()})),
        ]
    })
    .await;
    change_at_once(&host, "teams/default", |round| {
        vec![
            ("plan", json!(if round % 2 == 0 { "pro" } else { "enterprise" })),
            ("max_concurrency", json!(10 + round)),
            ("max_timeout_seconds", json!(10 + round)),
            ("agent_sandbox", json!(round % 2 == 0)),
            ("execute_code", json!(if round % 2 == 0 { "ask" } else { "deny" })),
        ]
    })
    .await;
    change_at_once(&host, "defaults", |round| {
        vec![
            ("agent_sandbox", json!(round % 2 == 0)),
            ("execute_code", json!(if round % 2 == 0 { "ask" } else { "deny" })),
            ("elicitation", json!(round % 2 == 1)),
            (
                "pending_approval",
                json!(if round % 2 == 0 { "in_progress" } else { "requires_action" }),
            ),
        ]
    })
    .await;
}
