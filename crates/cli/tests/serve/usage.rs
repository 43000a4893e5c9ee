//! Runs in: test.
//!
//! Credits, `cloche usage` and monthly allowances, with real programs.

use std::{fs, process::Command};

use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    host::Host,
    support::{Ended, binary, ended},
};

fn usage(host: &Host, words: &[&str]) -> Ended {
    let mut command = Command::new(binary());
    command.arg("usage").args(words).arg("--data-dir").arg(host.data());
    ended(command, b"")
}

fn usage_json(host: &Host, words: &[&str]) -> Value {
    let ended = usage(host, &[words, &["--json"]].concat());
    assert_eq!(ended.code, 0, "{ended:?}");
    ended.json()
}

#[tokio::test]
async fn an_operator_sees_what_each_team_used() {
    let Some(host) = Host::start().await else { return };
    let (status, _) = host.run(json!({"code": "sum(range(3_000_000))"})).await;
    assert_eq!(status, 200);
    let total = usage_json(&host, &[]);
    assert_eq!((&total["executions"], &total["team_id"]), (&json!(1), &Value::Null), "{total}");
    assert!(total["cpu_seconds"].as_f64().unwrap() > 0.01, "{total}");
    for field in ["bytes_stored", "bytes_received", "bytes_sent"] {
        assert!(total[field].as_u64().unwrap() > 0, "{field} in {total}");
    }
    let team = usage_json(&host, &["--team", "default", "--by", "day"]);
    assert_eq!(team["days"][0]["credits"], total["credits"], "{team}");
    let key = host.admin_json(Method::GET, "keys", json!({})).await["keys"][0]["id"].clone();
    let of_key = usage_json(&host, &["--key", key.as_str().unwrap()]);
    assert_eq!((&of_key["key_id"], &of_key["executions"]), (&key, &json!(1)), "{of_key}");

    let table = usage(&host, &["--by", "day"]).stdout;
    let head: Vec<_> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(head[..3], ["DATE", "EXECUTIONS", "CREDITS"], "{table}");
    assert_eq!(table.lines().count(), 2, "{table}");
    let record = usage(&host, &[]).stdout;
    assert!(record.lines().any(|line| line.starts_with("credits  ")), "{record}");
    for (words, reason) in [
        (["--from", "soon"], "from must be a date"),
        (["--team", "missing"], "no such team"),
        (["--by", "hour"], "possible values: day"),
    ] {
        let refused = usage(&host, &words);
        assert!(refused.code != 0 && refused.stderr.contains(reason), "{refused:?}");
    }
    let metrics = host.metrics().await;
    assert!(metrics.contains("cloche_team_month_executions{team="), "{metrics}");
    assert!(metrics.contains("direction=\"sent\""), "{metrics}");
}

/// The credits of one run with so many processors and so much memory, by second of its time.
async fn credits_per_second(host: &Host, cpus: &str, memory: &str) -> f64 {
    let name = format!("s-{}", memory.to_lowercase());
    let admin = |words: &[&str]| {
        let mut command = Command::new(binary());
        command.args(words).args(["--json", "--data-dir"]).arg(host.data());
        let ended = ended(command, b"");
        assert_eq!(ended.code, 0, "{ended:?}");
        ended.json()
    };
    admin(&["sandbox", "create", &name, "--cpus", cpus, "--memory", memory]);
    let key = admin(&["key", "create", &name, "--sandbox", &name])["key"].clone();
    let body = json!({"code": "import time; time.sleep(0.5)"});
    let request = reqwest::Client::new().post(format!("{}/v1/sandbox/execute", host.url));
    let request = request.bearer_auth(key.as_str().unwrap()).json(&body);
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200);
    let trace = response.headers()["x-trace-id"].to_str().unwrap().to_owned();
    let record = host.record(&trace).await;
    let seconds = record["usage"]["wall_ms"].as_f64().unwrap() / 1e3;
    record["usage"]["credits"].as_f64().unwrap() / seconds
}

#[tokio::test]
async fn twice_the_resources_cost_twice_the_credits() {
    let Some(host) = Host::start().await else { return };
    for (cpus, memory, per_minute) in [("1", "1G", 1.0), ("2", "2G", 2.0), ("1", "512M", 0.75)] {
        let credits = 60.0 * credits_per_second(&host, cpus, memory).await;
        // The time of a record is rounded to milliseconds.
        assert!((credits - per_minute).abs() < 0.01 * per_minute, "{cpus} {memory}: {credits}");
    }
}

#[tokio::test]
async fn an_allowance_of_the_settings_file_ends_the_month() {
    let files = TempDir::new().unwrap();
    let settings = files.path().join("cloche.toml");
    fs::write(&settings, "[plans.enterprise]\nmonthly_credits = 0.000001\n").unwrap();
    let settings = settings.display().to_string();
    let Some(host) = Host::start_with(&["--config", &settings]).await else { return };
    assert_eq!(host.run(json!({"code": "print(1)"})).await.0, 200);
    let (status, answer) = host.run(json!({"code": "print(1)"})).await;
    assert_eq!((status, &answer["error"]), (429, &json!("rate_limited")), "{answer}");
    let message = answer["message"].as_str().unwrap();
    assert!(message.contains("it renews at "), "{message}");
    // A restart does not renew it.
    let host = host.restart_with(&["--config", &settings]).await;
    assert_eq!(host.run(json!({"code": "print(1)"})).await.0, 429);
    // The operator can raise it.
    let mut command = Command::new(binary());
    command.args(["team", "set", "default", "--monthly-credits", "10", "--data-dir"]);
    command.arg(host.data());
    let raised = ended(command, b"");
    assert_eq!(raised.code, 0, "{raised:?}");
    assert_eq!(host.run(json!({"code": "print(1)"})).await.0, 200);
}
