//! What the real server offers to its operators: metrics, protocols, the API description.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use reqwest::{Client, Version};
use serde_json::json;

use crate::host::Host;

#[tokio::test]
async fn metrics_count_executions_and_show_the_pool() {
    let Some(host) = Host::start().await else { return };
    assert_eq!(host.run(json!({"code": "print(1)"})).await.0, 200);
    assert_eq!(host.run(json!({"code": "exit 3", "language": "bash"})).await.0, 200);
    let text = reqwest::get(format!("{}/metrics", host.url)).await.unwrap().text().await.unwrap();
    let has = |words: &[&str]| {
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.any(|line| words.iter().all(|word| line.contains(word)))
    };
    for words in [
        &["executions", "success", "python", " 1"][..],
        &["executions", "failed", "bash", " 1"],
        &["bucket", "queue"],
        &["bucket", "attach"],
        &["bucket", "run"],
        &["pool", "python"],
        &["cells"],
    ] {
        assert!(has(words), "{words:?} in {text}");
    }
}

#[tokio::test]
async fn metrics_that_name_teams_need_a_token() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("cloche.toml");
    let variable = "CLOCHE_TEST_METRICS_TOKEN";
    let section = |open| format!("[metrics]\nopen = {open}\ntoken_env = {variable:?}\n");
    fs::write(&file, section(true)).unwrap();
    let arguments = ["--config", file.to_str().unwrap()];
    let variables = [(variable, "scrape-token")];
    let Some(host) = Host::start_with_env(&arguments, &variables).await else { return };
    assert_eq!(host.run(json!({"code": "print(1)"})).await.0, 200);
    let read = async |host: &Host, token: Option<&str>| {
        let request = Client::new().get(format!("{}/metrics", host.url));
        let request = match token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let (status, open) = read(&host, None).await;
    assert!(status == 200 && open.contains("cloche_executions_total{"), "{open}");
    assert!(!open.contains("team=") && open.ends_with("# EOF\n"), "{open}");
    for token in ["scrape-token", &host.admin] {
        let (status, all) = read(&host, Some(token)).await;
        assert!(status == 200 && all.contains("cloche_team_month_executions{team="), "{all}");
        assert_eq!(all.matches("# EOF").count(), 1, "{all}");
    }
    for token in ["wrong", &host.key] {
        assert_eq!(read(&host, Some(token)).await.0, 401);
    }
    fs::write(&file, section(false)).unwrap();
    let host = host.stop_and_start(&variables).await;
    assert_eq!(read(&host, None).await.0, 401);
    assert_eq!(read(&host, Some("scrape-token")).await.0, 200);
}

/// The names of metrics in a text: words that begin with `cloche_`.
fn metric_names(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| word.starts_with("cloche_")).map(str::to_owned).collect()
}

#[tokio::test]
async fn every_metric_is_explained_and_every_alert_names_one_that_exists() {
    let Some(host) = Host::start().await else { return };
    assert_eq!(host.run(json!({"code": "print(1)"})).await.0, 200);
    let text = host.metrics().await;
    // Families without a sample are absent, such as those of agents.
    let mut described = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|it| it.split_once(' ')) {
            described.insert(name.to_owned(), kind.to_owned());
        }
    }
    let samples = |(name, kind): (&String, &String)| match kind.as_str() {
        "counter" => vec![format!("{name}_total")],
        "histogram" => ["", "_bucket", "_sum", "_count"].map(|end| format!("{name}{end}")).into(),
        _ => vec![name.clone()],
    };
    let known: BTreeSet<String> = described.iter().flat_map(samples).collect();
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let alerts = metric_names(&fs::read_to_string(docs.join("alerts.yml")).unwrap());
    assert!(alerts.len() > 8, "{alerts:?}");
    let unknown: Vec<_> = alerts.difference(&known).collect();
    assert!(unknown.is_empty(), "{unknown:?} of alerts.yml are not in {known:?}");
    let page = metric_names(&fs::read_to_string(docs.join("OPERATIONS.md")).unwrap());
    let is_explained = |name: &&String| {
        let ends = ["", "_total"].map(|end| format!("{name}{end}"));
        ends.iter().any(|name| page.contains(name))
    };
    let missing: Vec<_> = described.keys().filter(|name| !is_explained(name)).collect();
    assert!(missing.is_empty(), "{missing:?} are not in OPERATIONS.md");
}

#[tokio::test]
async fn http_1_and_2_are_served_on_the_same_port() {
    let Some(host) = Host::start().await else { return };
    for (client, version) in [
        (Client::builder().http1_only(), Version::HTTP_11),
        (Client::builder().http2_prior_knowledge(), Version::HTTP_2),
    ] {
        let request = client.build().unwrap().post(format!("{}/v1/sandbox/execute", host.url));
        let request = request.bearer_auth(&host.key).json(&json!({"code": "print(1)"}));
        let response = request.send().await.unwrap();
        assert_eq!((response.version(), response.status().as_u16()), (version, 200));
    }
}

#[tokio::test]
async fn the_api_description_and_its_page_are_served() {
    let Some(host) = Host::start().await else { return };
    for (path, mark) in [("/openapi.json", "\"openapi\""), ("/docs", "<html"), ("/healthz", "")] {
        let answer = reqwest::get(format!("{}{path}", host.url)).await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        assert!(answer.text().await.unwrap().contains(mark), "{path}");
    }
}
