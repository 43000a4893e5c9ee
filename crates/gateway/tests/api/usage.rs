//! Runs in: test.
//!
//! Credits, totals of usage, and monthly allowances.

use cloche_engine::{CreditAllowances, EngineConfig, format_utc_day, now};
use cloche_gateway::GatewayConfig;
use reqwest::{Client, Method};
use serde_json::{Value, json};

use crate::host::Host;

async fn get(host: &Host, path: &str) -> (u16, Value) {
    let response = host.request(Method::GET, path).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

async fn admin_get(host: &Host, query: &str) -> (u16, Value) {
    let request = host.admin_request(Method::GET, &format!("usage?{query}"));
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

fn bytes(usage: &Value, field: &str) -> u64 {
    usage[field].as_u64().unwrap_or_else(|| panic!("{field} in {usage}"))
}

#[tokio::test]
async fn a_team_sees_what_its_executions_used() {
    let host = Host::start().await;
    let (status, before) = get(&host, "/v1/usage").await;
    assert_eq!((status, &before["executions"]), (200, &json!(0)), "{before}");
    for _ in 0..2 {
        assert_eq!(host.run(json!({"code": "print('x' * 5000)"})).await.0, 200);
    }
    // A refused one is in the ledger but used nothing.
    assert_eq!(host.run(json!({"code": ""})).await.0, 400);
    let (_, usage) = get(&host, "/v1/usage?by=day").await;
    assert_eq!(usage["executions"], 2, "{usage}");
    assert!(usage["credits"].as_f64().unwrap() > 0.0, "{usage}");
    assert_eq!(usage["allowance"], Value::Null);
    assert!(bytes(&usage, "bytes_stored") > 10_000, "{usage}");
    assert!(bytes(&usage, "bytes_sent") > 10_000, "{usage}");
    assert!(bytes(&usage, "bytes_received") > 60, "{usage}");
    let both = bytes(&usage, "bytes_received") + bytes(&usage, "bytes_sent");
    assert_eq!(bytes(&usage, "bytes_transferred"), both);
    let today = format_utc_day(now().utc_day());
    assert_eq!(usage["to"], json!(today));
    let days = usage["days"].as_array().unwrap();
    assert_eq!((days.len(), &days[0]["executions"]), (1, &json!(2)), "{usage}");
    assert_eq!(days[0]["date"], json!(today));

    // The sum of the records is the total.
    let (_, page) = get(&host, "/v1/executions").await;
    let records = page["executions"].as_array().unwrap().iter();
    let credits: f64 = records.filter_map(|record| record["usage"]["credits"].as_f64()).sum();
    assert!((credits - usage["credits"].as_f64().unwrap()).abs() < 1e-9, "{page} {usage}");
}

#[tokio::test]
async fn the_admin_sees_teams_keys_and_days() {
    let mut host = Host::start().await;
    assert_eq!(host.run(json!({"code": "1"})).await.0, 200);
    host.with_key("pro").await;
    assert_eq!(host.run(json!({"code": "1"})).await.0, 200);
    let (_, own) = get(&host, "/v1/usage").await;
    let (status, team) = admin_get(&host, "team=team-pro-0").await;
    assert_eq!((status, &team["executions"]), (200, &json!(1)), "{team}");
    assert_eq!(team["team_id"], own["team_id"]);
    let (_, all) = admin_get(&host, "team=&key=&from=&to=&by=day").await;
    assert_eq!((&all["executions"], &all["team_id"]), (&json!(2), &Value::Null), "{all}");
    let keys = host.admin_request(Method::GET, "keys?team=default").send().await.unwrap();
    let keys: Value = keys.json().await.unwrap();
    let key = keys["keys"][0]["id"].as_str().unwrap();
    let (_, one) = admin_get(&host, &format!("key={key}")).await;
    assert_eq!((&one["executions"], &one["bytes_stored"]), (&json!(1), &Value::Null), "{one}");
    assert_eq!(one["key_id"], json!(key));
    let (_, none) = admin_get(&host, "from=2020-01-01&to=2020-12-31T00:00:00Z&by=day").await;
    assert_eq!((&none["executions"], &none["to"]), (&json!(0), &json!("2020-12-30")), "{none}");
    assert_eq!(none["days"], json!([]));
}

#[tokio::test]
async fn a_bad_question_about_usage_has_a_clear_answer() {
    let host = Host::start().await;
    for (query, status, part) in [
        ("from=yesterday", 400, "from must be a date such as 2026-03-16"),
        ("to=2026-02-30", 400, "to must be a date"),
        ("by=hour", 400, "by must be day"),
        ("from=2026-03-02&to=2026-03-01", 400, "from must not be after to"),
        ("from=2020-01-01&by=day", 400, "at most 366 days"),
        ("team=missing", 404, "no such team"),
        ("key=key_none", 404, "no such key"),
    ] {
        let (found, answer) = admin_get(&host, query).await;
        let message = answer["message"].as_str().unwrap();
        assert!(found == status && message.contains(part), "{query}: {found} {answer}");
    }
    let response = host.request(Method::GET, "/v1/admin/usage").send().await.unwrap();
    assert_eq!(response.status(), 401, "a key is not the admin token");
    assert_eq!(get(&host, "/v1/usage?from=never").await.0, 400);
}

#[tokio::test]
async fn a_used_up_allowance_is_named_with_the_time_it_renews() {
    let allowances = CreditAllowances { free: Some(1), ..CreditAllowances::default() };
    let config = EngineConfig { allowances, ..EngineConfig::default() };
    let mut host = Host::start_with(config, GatewayConfig::default()).await;
    // The plan of the first team has no allowance.
    for _ in 0..2 {
        assert_eq!(host.run(json!({"code": "1"})).await.0, 200);
    }
    host.with_key("free").await;
    assert_eq!(host.run(json!({"code": "1"})).await.0, 200);
    let response = host.post(json!({"code": "1"})).await;
    assert_eq!(response.status(), 429);
    assert!(!response.headers().contains_key("retry-after"), "asking again soon does not help");
    let answer: Value = response.json().await.unwrap();
    let (_, usage) = get(&host, "/v1/usage").await;
    let renews = usage["allowance"]["renews_at"].as_str().unwrap();
    assert!(renews.ends_with("-01T00:00:00.000Z"), "{usage}");
    assert_eq!(answer["error"], "rate_limited");
    let message = answer["message"].as_str().unwrap();
    assert!(message.contains("0.000001 credits a month on the Free plan"), "{message}");
    assert!(message.contains(renews), "{message}");
    assert_eq!(usage["executions"], 1, "{usage}");

    // A team of its own may have more, or none at all.
    let team = host.admin_request(Method::PATCH, "teams/team-free-0");
    let team = team.json(&json!({"monthly_credits": 2.5})).send().await.unwrap();
    assert_eq!(team.json::<Value>().await.unwrap()["monthly_credits"], 2.5);
    assert_eq!(host.run(json!({"code": "1"})).await.0, 200);
    let none = host.admin_request(Method::PATCH, "teams/team-free-0");
    none.json(&json!({"monthly_credits": 0})).send().await.unwrap();
    assert_eq!(host.run(json!({"code": "1"})).await.0, 429);
    for wrong in [json!(-1), json!(1e10), json!("many")] {
        let team = host.admin_request(Method::PATCH, "teams/team-free-0");
        let answer = team.json(&json!({"monthly_credits": wrong})).send().await.unwrap();
        assert_eq!(answer.status(), 400, "{wrong}");
    }
}

#[tokio::test]
async fn files_over_signed_urls_are_transferred_bytes_of_their_key() {
    const SIZE: usize = 3 << 20;
    let host = Host::start().await;
    let place = json!({"source": "thread", "id": "t", "path": "big", "content_length": SIZE});
    let (_, signed) = host.send(Method::POST, "/v1/files/upload_url", place.clone()).await;
    let url = signed["url"].as_str().unwrap();
    let put = Client::new().put(url).body(vec![b'x'; SIZE]).send().await.unwrap();
    assert_eq!(put.status(), 200);
    let (_, usage) = get(&host, "/v1/usage").await;
    let (received, sent) = (bytes(&usage, "bytes_received"), bytes(&usage, "bytes_sent"));
    let range = SIZE as u64..SIZE as u64 + 4096;
    assert!(range.contains(&received) && sent < 8192, "{usage}");
    assert!(bytes(&usage, "bytes_stored") > 0, "{usage}");

    let place = json!({"source": "thread", "id": "t", "path": "big"});
    let (_, signed) = host.send(Method::POST, "/v1/files/download_url", place).await;
    let file = Client::new().get(signed["url"].as_str().unwrap()).send().await.unwrap();
    assert_eq!(file.content_length(), Some(SIZE as u64), "a counted body keeps its length");
    assert_eq!(file.bytes().await.unwrap().len(), SIZE);
    let (_, usage) = get(&host, "/v1/usage").await;
    assert!(range.contains(&bytes(&usage, "bytes_sent")), "{usage}");

    // What was counted is written when the server stops.
    let host = host.restart().await;
    let (_, usage) = get(&host, "/v1/usage").await;
    assert!(bytes(&usage, "bytes_transferred") > 2 * SIZE as u64, "{usage}");
}
