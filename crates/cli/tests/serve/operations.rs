//! What the real server offers to its operators: metrics, protocols, the API description.

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
