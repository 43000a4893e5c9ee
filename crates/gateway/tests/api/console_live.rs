//! The console's live figures, its lists, and what members do with threads, as a browser uses them.

use std::time::{Duration, SystemTime};

use cloche_test_support::eventually;
use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::{
    console::{Browser, answer, try_sign_in},
    host::Host,
};

/// Reads server-sent events until one is as it should be.
struct EventReader {
    response: Response,
    text: String,
}

impl EventReader {
    async fn open(browser: &Browser) -> Self {
        let request = browser.plain(Method::GET, "/console/api/events");
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, text: String::new() }
    }

    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let line = event.lines().find_map(|line| line.strip_prefix(name));
                    line.unwrap_or_default().trim().to_owned()
                };
                let found = (field("event:"), serde_json::from_str(&field("data:")).unwrap());
                self.text = rest.to_owned();
                return Some(found);
            }
            let chunk = tokio::time::timeout(Duration::from_secs(60), self.response.chunk());
            let chunk = chunk.await.expect("an event within a minute").unwrap()?;
            self.text.push_str(str::from_utf8(&chunk).unwrap());
        }
    }

    async fn until(&mut self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let (found, data) = self.next().await.expect("the stream goes on");
            if found == name && wanted(&data) {
                return data;
            }
        }
    }
}

#[tokio::test]
async fn a_page_sees_figures_and_executions_of_its_team_as_they_happen() {
    let mut host = Host::start().await;
    let operator = Browser::operator(&host).await;
    let viewer = Browser::member(&host, "default", "viewer").await;
    let mut all = EventReader::open(&operator).await;
    let mut own = EventReader::open(&viewer).await;
    let first = own.until("overview", |_| true).await;
    assert_eq!(first["cells_running"], Value::Null, "the host is for operators");
    assert_eq!(own.until("approvals", |_| true).await, json!({"pending": 0}));
    let seen = all.until("overview", |_| true).await;
    assert!(seen["cells_running"].is_u64() && seen["memory"]["limit_bytes"].is_u64(), "{seen}");
    let mine = host.key.clone();
    host.with_key("pro").await;
    host.run(json!({"code": "exit 1", "language": "bash"})).await;
    host.key = mine;
    host.run(json!({"code": "print(1)"})).await;
    let started = own.until("execution", |_| true).await;
    assert_eq!((&started["kind"], &started["language"]), (&json!("started"), &json!("python")));
    let ended = own.until("execution", |_| true).await;
    assert_eq!((&ended["kind"], &ended["status"]), (&json!("ended"), &json!("success")));
    assert_eq!(ended["trace_id"], started["trace_id"]);
    all.until("execution", |event| event["status"] == "failed").await;
    let own_figures = own.until("overview", |seen| seen["runs_per_minute"] != 0).await;
    assert_eq!(own_figures["runs_per_minute"], 1);
    assert_eq!(own_figures["success_rate"], 1.0);
    assert_eq!(own_figures["top_sandboxes"][0]["runs"], 1);
    let (status, history) = viewer.get("/console/api/overview?range=15m").await;
    assert_eq!((status, &history["points"][0]["runs"]), (200, &json!(1)), "{history}");
    assert_eq!(viewer.get("/console/api/overview?range=2y").await.0, 400);
    let runs = |history: &Value| -> u64 {
        let points = history["points"].as_array().unwrap();
        points.iter().map(|point| point["runs"].as_u64().unwrap()).sum()
    };
    assert_eq!(runs(&operator.get("/console/api/overview").await.1), 2);
}

#[tokio::test]
async fn a_stream_ends_when_its_session_is_revoked() {
    let host = Host::start().await;
    let operator = Browser::operator(&host).await;
    let viewer = Browser::member(&host, "default", "viewer").await;
    let mut events = EventReader::open(&viewer).await;
    events.until("overview", |_| true).await;
    let session = viewer.session["id"].as_str().unwrap();
    let path = format!("/console/api/sessions/{session}");
    assert_eq!(operator.send(Method::DELETE, &path, json!({})).await.0, 204);
    events.until("end", |_| true).await;
    assert!(events.next().await.is_none(), "the stream is over");
}

/// The code of an authenticator app at this moment, and what the moments after it have.
fn one_time_code(secret: &str) -> String {
    use hmac::{Hmac, Mac};
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let mut bits = String::new();
    for letter in secret.bytes() {
        let value = LETTERS.iter().position(|known| *known == letter).unwrap();
        bits.push_str(&format!("{value:05b}"));
    }
    let bytes: Vec<u8> = (0..bits.len() / 8)
        .map(|byte| u8::from_str_radix(&bits[byte * 8..byte * 8 + 8], 2).unwrap())
        .collect();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let mut mac = <Hmac<sha1::Sha1> as Mac>::new_from_slice(&bytes).unwrap();
    mac.update(&(now.as_secs() / 30).to_be_bytes());
    let digest = mac.finalize().into_bytes();
    let start = usize::from(digest[19] & 15);
    let number = u32::from_be_bytes(digest[start..start + 4].try_into().unwrap()) & 0x7fff_ffff;
    format!("{:06}", number % 1_000_000)
}

#[tokio::test]
async fn a_second_factor_is_asked_for_and_no_code_is_taken_twice() {
    let host = Host::start().await;
    let owner = Browser::member(&host, "default", "owner").await;
    let (status, setup) = owner.send(Method::POST, "/console/api/totp", json!({})).await;
    assert_eq!(status, 200);
    let secret = setup["secret"].as_str().unwrap();
    assert!(setup["uri"].as_str().unwrap().starts_with("otpauth://totp/Cloche:owner.of.default?"));
    let confirm = "/console/api/totp/confirm";
    assert_eq!(owner.send(Method::POST, confirm, json!({"code": "abcdef"})).await.0, 400);
    let code = one_time_code(secret);
    assert_eq!(owner.send(Method::POST, confirm, json!({"code": code})).await.0, 204);
    let (name, password) = ("owner.of.default", "correct horse battery");
    let without = try_sign_in(&host, &json!({"name": name, "password": password})).await;
    assert_eq!(without.status(), 401);
    assert_eq!(without.json::<Value>().await.unwrap()["error"], "code_required");
    let wrong = try_sign_in(&host, &json!({"name": name, "password": "wrong", "code": code})).await;
    assert_eq!(wrong.json::<Value>().await.unwrap()["error"], "unauthorized");
    let again = json!({"name": name, "password": password, "code": code});
    assert_eq!(try_sign_in(&host, &again).await.status(), 401, "the code was used");
    let path = format!("members/{name}");
    let reset = host.admin_request(Method::PATCH, &path).json(&json!({"remove_totp": true}));
    assert_eq!(answer(reset).await.1["totp"], false);
    let password = json!({"current": password, "new": "another horse battery"});
    assert_eq!(owner.send(Method::POST, "/console/api/password", password).await.0, 204);
    let new = json!({"name": name, "password": "another horse battery"});
    Browser::sign_in(&host, new).await;
}

#[tokio::test]
async fn files_of_a_thread_are_read_at_any_snapshot_and_written() {
    let host = Host::start().await;
    host.bash("t", "mkdir d; echo one >d/f").await;
    host.bash("t", "echo two >d/f; echo new >g").await;
    let developer = Browser::member(&host, "default", "developer").await;
    let viewer = Browser::member(&host, "default", "viewer").await;
    let names = |list: &Value| -> Vec<String> {
        let files = list["files"].as_array().unwrap();
        files.iter().map(|file| file["path"].as_str().unwrap().to_owned()).collect()
    };
    let (_, first) = viewer.get("/v1/threads/t/files?at=1").await;
    assert_eq!(names(&first), ["d/f"]);
    let (_, now) = viewer.get("/v1/threads/t/files").await;
    assert_eq!(names(&now), ["d/f", "g"]);
    assert_eq!(names(&viewer.get("/v1/threads/t/files?at=0").await.1), [""; 0]);
    let read = async |path: &str| {
        let response = viewer.plain(Method::GET, path).send().await.unwrap();
        let policy = response.headers().get("content-security-policy").cloned();
        (response.status().as_u16(), policy, response.text().await.unwrap())
    };
    let (status, policy, text) = read("/v1/threads/t/files/d/f?at=1").await;
    assert_eq!((status, text.as_str()), (200, "one\n"));
    assert_eq!(policy.unwrap(), "sandbox; default-src 'none'");
    assert_eq!(read("/v1/threads/t/files/d/f").await.2, "two\n");
    assert_eq!(read("/v1/threads/t/files/g?at=1").await.0, 404);
    let put = |browser: &Browser| {
        browser.request(Method::PUT, "/v1/threads/t/files/d/up").body("uploaded")
    };
    assert_eq!(answer(put(&viewer)).await.0, 403);
    let (status, uploaded) = answer(put(&developer)).await;
    assert_eq!((status, &uploaded["size"]), (200, &json!(8)), "{uploaded}");
    assert_eq!(host.bash("t", "cat d/up").await["stdout"], "uploaded");
}

#[tokio::test]
async fn executions_are_found_by_words_sandbox_and_key() {
    let host = Host::start().await;
    host.run(json!({"code": "print('needle in hay')"})).await;
    host.run(json!({"code": "print('hay')"})).await;
    let operator = Browser::operator(&host).await;
    let count = async |query: &str| {
        let (status, page) = operator.get(&format!("/v1/executions?{query}")).await;
        assert_eq!(status, 200, "{page}");
        page["executions"].as_array().unwrap().len()
    };
    // The index is fed in the background.
    eventually("both are indexed", async || match count("q=hay").await {
        2 => Ok(()),
        found => Err(found),
    })
    .await;
    assert_eq!(count("q=needle").await, 1);
    assert_eq!(count("q=%22in+hay%22").await, 1);
    assert_eq!(count("q=%22hay+in%22").await, 0);
    let (_, page) = operator.get("/v1/executions").await;
    let of = |name: &str| page["executions"][0][name].as_str().unwrap().to_owned();
    assert_eq!(count(&format!("key={}&sandbox={}", of("key_id"), of("sandbox_id"))).await, 2);
    assert_eq!(count("key=key_none").await, 0);
    assert_eq!(operator.get("/v1/executions?q=%2A%2A").await.0, 400);
    assert_eq!(operator.get("/v1/executions?key=x").await.0, 400);
    let (_, record) = operator.get(&format!("/v1/executions/{}", of("trace_id"))).await;
    let names: Vec<_> =
        record["phases"].as_array().unwrap().iter().map(|phase| &phase["name"]).collect();
    assert_eq!(names, ["queue", "cell", "attach", "run", "store"]);
}

#[tokio::test]
async fn usage_is_listed_by_day_and_key_and_as_a_table() {
    let host = Host::start().await;
    host.run(json!({"code": "print(1)"})).await;
    let viewer = Browser::member(&host, "default", "viewer").await;
    let (_, usage) = viewer.get("/v1/admin/usage/days").await;
    let row = &usage["rows"][0];
    assert_eq!((&row["executions"], &row["key_name"]), (&json!(1), &json!("default")));
    let table = viewer.plain(Method::GET, "/v1/admin/usage/days?format=csv").send().await.unwrap();
    assert_eq!(table.headers()["content-type"], "text/csv; charset=utf-8");
    let table = table.text().await.unwrap();
    let lines: Vec<_> = table.lines().collect();
    assert!(lines[0].starts_with("day,key_id,key_name,executions,credits,"));
    assert!(lines[1].contains(",default,1,"), "{table}");
    assert_eq!(viewer.get("/v1/admin/usage/days?format=xml").await.0, 400);
    assert_eq!(viewer.get("/v1/responses").await.1, json!({"responses": [], "next_cursor": null}));
}
