//! The contract's table "Delivery modes".

use reqwest::Method;
use serde_json::{Value, json};

use crate::host::{Host, events, trace_id};

#[tokio::test]
async fn delivery_modes() {
    let host = Host::start().await;
    let body = json!({"code": "print('hi')"});

    let inline = host.post(body.clone()).await;
    assert_eq!(inline.status(), 200);
    assert_eq!(inline.headers()["content-type"], "application/json");
    let id = trace_id(&inline);
    assert_eq!(inline.json::<Value>().await.unwrap()["stdout"], "hi\n");
    assert_eq!(host.get(&format!("/v1/executions/{id}")).await.1["delivery_mode"], "inline");

    let stream = host.stream(body.clone()).await;
    assert_eq!(stream.status(), 200);
    assert_eq!(stream.headers()["content-type"], "application/x-ndjson");
    let id = trace_id(&stream);
    let events = events(&stream.text().await.unwrap());
    assert_eq!(events.last().unwrap()["result"]["stdout"], "hi\n");
    assert_eq!(host.get(&format!("/v1/executions/{id}")).await.1["delivery_mode"], "streaming");

    let id = host.background(body).await;
    let record = host.finished(&id).await;
    assert_eq!((&record["delivery_mode"], &record["stdout"]), (&json!("webhook"), &json!("hi\n")));
    assert_eq!(record["webhook_delivery_status"], Value::Null);
}

#[tokio::test]
async fn headers_are_matched_in_any_case_with_parameters_and_weights() {
    let host = Host::start().await;
    let mode = async |headers: &[(&str, &str)]| {
        let mut request = host.request(Method::POST, "/v1/sandbox/execute");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.json(&json!({"code": "print('hi')"})).send().await.unwrap();
        let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
        (response.status().as_u16(), kind)
    };
    let (json, ndjson) = ("application/json".to_owned(), "application/x-ndjson".to_owned());
    for accept in
        ["Application/X-NDJSON; charset=utf-8", "application/json;q=0.5, application/x-ndjson"]
    {
        assert_eq!(mode(&[("accept", accept)]).await, (200, ndjson.clone()), "{accept}");
    }
    for accept in [
        "application/x-ndjson;q=0",
        "application/json, application/x-ndjson;q=0.5",
        "text/html",
        "*/*",
    ] {
        assert_eq!(mode(&[("accept", accept)]).await, (200, json.clone()), "{accept}");
    }
    let two_lines = [("prefer", "handling=lenient"), ("prefer", "Respond-Async, wait=10")];
    assert_eq!(mode(&two_lines).await, (202, json.clone()));
    let quoted = [("prefer", "note=\"a, respond-async\"")];
    assert_eq!(mode(&quoted).await, (200, json));
}

#[tokio::test]
async fn an_execution_continues_after_its_client_disconnects() {
    let host = Host::start().await;
    let body = json!({"code": "import time\nfor i in range(5):\n  print(i, flush=True)\n  time.sleep(.1)"});
    let mut stream = host.stream(body.clone()).await;
    let id = trace_id(&stream);
    assert!(stream.chunk().await.unwrap().is_some());
    drop(stream);
    assert_eq!(host.finished(&id).await["stdout"], "0\n1\n2\n3\n4\n");
    // The same for a client that waits inline and times out.
    let request = host.request(Method::POST, "/v1/sandbox/execute").json(&body);
    let gone = request.timeout(std::time::Duration::from_millis(200)).send().await;
    assert!(gone.unwrap_err().is_timeout());
    let (_, page) = host.get("/v1/executions?limit=1").await;
    let id = page["executions"][0]["trace_id"].as_str().unwrap().to_owned();
    assert_eq!(host.finished(&id).await["stdout"], "0\n1\n2\n3\n4\n");
}

#[tokio::test]
async fn http_2_is_served_without_tls() {
    let host = Host::start().await;
    let client = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    let url = format!("http://{}/v1/sandbox/execute", host.address);
    let response = client
        .post(url)
        .bearer_auth(&host.key)
        .json(&json!({"code": "print(2)"}))
        .send()
        .await
        .unwrap();
    assert_eq!(response.version(), reqwest::Version::HTTP_2);
    assert_eq!(response.json::<Value>().await.unwrap()["stdout"], "2\n");
}
