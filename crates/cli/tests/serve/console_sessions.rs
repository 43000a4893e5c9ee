//! What someone who is signed in to the console can do beyond the API of keys, and what operators
//! set for them.

use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};

use crate::host::Host;

/// A sign-in with the admin token.
struct Signed {
    client: Client,
    cookie: String,
    record: Value,
}

impl Signed {
    async fn into(host: &Host) -> Self {
        let client = Client::new();
        let body = json!({"admin_token": host.admin});
        let url = format!("{}/console/api/session", host.url);
        let answer = client.post(url).json(&body).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        let cookie = answer.headers()["set-cookie"].to_str().unwrap();
        let cookie = cookie.split(';').next().unwrap().to_owned();
        Self { client, cookie, record: answer.json().await.unwrap() }
    }

    fn request(&self, method: Method, url: String) -> RequestBuilder {
        let token = self.record["csrf_token"].as_str().unwrap();
        let request = self.client.request(method, url).header("cookie", &self.cookie);
        request.header("x-cloche-csrf", token)
    }
}

#[tokio::test]
async fn a_person_of_the_free_plan_watches_their_own_run() {
    let Some(host) = Host::start().await else { return };
    let team = json!({"name": "small", "plan": "free"});
    host.admin_json(Method::POST, "teams", team).await;
    let sandbox = json!({"team": "small", "name": "box"});
    let sandbox = host.admin_json(Method::POST, "sandboxes", sandbox).await;
    let key = json!({"team": "small", "sandbox": "box", "name": "program"});
    let key = host.admin_json(Method::POST, "keys", key).await;
    let signed = Signed::into(&host).await;
    let url = format!("{}/v1/sandbox/execute", host.url);
    let body = json!({"code": "print('seen')"});
    let of_program = Client::new().post(&url).bearer_auth(key["key"].as_str().unwrap());
    let refused = of_program.header("accept", "application/x-ndjson").json(&body).send().await;
    assert_eq!(refused.unwrap().status(), 429);
    let own = format!("{url}?sandbox={}", sandbox["id"].as_str().unwrap());
    let own = signed.request(Method::POST, own).header("accept", "application/x-ndjson");
    let answer = own.json(&body).send().await.unwrap();
    let (status, text) = (answer.status(), answer.text().await.unwrap());
    assert!(status == 200 && text.contains("seen"), "{status} {text}");
}

#[tokio::test]
async fn a_sign_in_lasts_as_long_as_the_settings_say() {
    let settings = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(settings.path(), "[console]\nsession_hours = 0.5\naudit_days = 30\n").unwrap();
    let path = settings.path().display().to_string();
    let Some(host) = Host::start_with(&["--config", &path]).await else { return };
    let signed = Signed::into(&host).await;
    let time = |name: &str| {
        let text = signed.record[name].as_str().unwrap().to_owned();
        cloche_engine::parse_rfc3339(&text).unwrap().0
    };
    assert_eq!((time("expires_at") - time("created_at")) / 1_000_000, 1800);
}

#[tokio::test]
async fn readiness_is_logged_when_it_changes_and_not_when_it_is_asked() {
    let Some(host) = Host::start().await else { return };
    // The start asked until the pool was full.
    let log = host.said("log");
    assert!(!log.contains("a request failed"), "{log}");
    assert!(log.matches("not ready yet").count() <= 1, "{log}");
    assert_eq!(log.matches("the server is ready").count(), log.matches("not ready yet").count());
}
