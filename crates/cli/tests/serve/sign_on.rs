//! Sign-on by an OpenID provider, against the real binary: a provider from outside in a browser, and
//! one of these tests that lies in every way that matters.

use std::{
    process::{Child, Command, Stdio},
    sync::Arc,
};

use cloche_test_support::eventually;
use reqwest::{Client, Method, Response, redirect::Policy};
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use url::Url;

use crate::{
    browser::{has_browser, run_browser_tests},
    host::Host,
    lying_provider::{CLIENT_ID, CLIENT_SECRET, LyingProvider},
    python_client::{tool, top},
    support::{binary, ended},
};

/// Where browsers think that the server is.
const PUBLIC_URL: &str = "https://cloche.example.test";
const SECRET_VARIABLE: &str = "CLOCHE_TEST_OIDC_SECRET";
const RULES: &str = "[console.oidc.rules.a-operators]\ngroup = \"ops\"\nrole = \"operator\"\n\
    [console.oidc.rules.b-everyone]\ndomain = \"example.com\"\nteam = \"default\"\nrole = \"developer\"\n";

fn settings(issuer: &str, public_url: &str) -> String {
    format!(
        "[console]\npublic_url = \"{public_url}\"\n[console.oidc]\nissuer = \"{issuer}\"\n\
         client_id = \"{CLIENT_ID}\"\nclient_secret_env = \"{SECRET_VARIABLE}\"\n\
         name = \"Example\"\ntimeout_seconds = 2\n{RULES}"
    )
}

fn written(text: &str) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

/// A server, a provider, and a browser without a window.
struct SignOn {
    host: Host,
    provider: Arc<LyingProvider>,
    browser: Client,
    _settings: NamedTempFile,
}

/// A browser at the provider.
struct AtProvider {
    url: Url,
    cookie: String,
}

impl SignOn {
    async fn start() -> Option<Self> {
        let provider = LyingProvider::start().await;
        let settings = written(&settings(&provider.issuer, PUBLIC_URL));
        let path = settings.path().display().to_string();
        let secret = [(SECRET_VARIABLE, CLIENT_SECRET)];
        let host = Host::start_with_env(&["--config", &path], &secret).await?;
        let browser = Client::builder().redirect(Policy::none()).build().unwrap();
        Some(Self { host, provider, browser, _settings: settings })
    }

    async fn get(&self, path: &str, cookie: &str) -> Response {
        let request = self.browser.get(format!("{}{path}", self.host.url));
        request.header("cookie", cookie).send().await.unwrap()
    }

    /// Goes to the provider.
    async fn leave(&self, query: &str) -> AtProvider {
        let answer = self.get(&format!("/console/api/oidc/start{query}"), "").await;
        assert_eq!(answer.status(), 303);
        let cookie = cookie_of(&answer, "cloche_oidc").unwrap();
        assert!(cookie.1.contains("HttpOnly; SameSite=Lax; Max-Age=600; Secure"), "{cookie:?}");
        AtProvider { url: location(&answer).parse().unwrap(), cookie: cookie.0 }
    }

    /// Comes back with an answer.
    async fn come_back(&self, at: &AtProvider, query: &str) -> Response {
        self.get(&format!("/console/api/oidc/callback?{query}"), &at.cookie).await
    }

    /// The whole way, for someone with these claims.
    async fn sign_in(&self, claims: Value) -> Response {
        let at = self.leave("").await;
        let query = self.provider.let_in(&at.url, claims);
        self.come_back(&at, &query).await
    }

    /// The whole way, which must fail at the end.
    async fn fails(&self, claims: Value, why: &str) {
        let answer = self.sign_in(claims).await;
        assert_refused(&answer, why);
    }

    async fn who(&self, answer: &Response) -> Value {
        let (cookie, attributes) = cookie_of(answer, "cloche_session").unwrap();
        assert!(attributes.contains("HttpOnly; SameSite=Strict; Secure"), "{attributes}");
        let session = self.get("/console/api/session", &cookie).await;
        assert_eq!(session.status(), 200);
        session.json().await.unwrap()
    }

    async fn audit(&self) -> Vec<Value> {
        let answer = self.host.admin_request(Method::GET, "audit").send().await.unwrap();
        let body: Value = answer.json().await.unwrap();
        let entries = body["entries"].as_array().unwrap().clone();
        let is_own = |entry: &Value| entry["action"] == "GET /console/api/oidc/callback";
        entries.into_iter().filter(is_own).collect()
    }
}

fn location(answer: &Response) -> String {
    answer.headers()["location"].to_str().unwrap().to_owned()
}

/// A cookie that an answer sets: to be sent, and its attributes.
fn cookie_of(answer: &Response, name: &str) -> Option<(String, String)> {
    let lines = answer.headers().get_all("set-cookie").iter().map(|line| line.to_str().unwrap());
    let line = lines.into_iter().find(|line| line.starts_with(&format!("{name}=")))?;
    let (pair, attributes) = line.split_once("; ").unwrap();
    Some((pair.to_owned(), attributes.to_owned()))
}

fn assert_refused(answer: &Response, why: &str) {
    assert_eq!(answer.status(), 303);
    assert_eq!(location(answer), format!("/console/?sso={why}"));
    assert!(cookie_of(answer, "cloche_session").is_none());
}

fn ada(change: Value) -> Value {
    let mut claims = json!({"sub": "ada-1", "email": "Ada@Example.com", "email_verified": true});
    claims.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    claims
}

#[tokio::test]
async fn someone_whom_a_rule_names_comes_in_and_back_to_their_page() {
    let Some(test) = SignOn::start().await else { return };
    let ways: Value = test.get("/console/api/sign-in", "").await.json().await.unwrap();
    assert_eq!(ways["oidc"]["name"], "Example");
    let at = test.leave("?return_to=%2Fconsole%2Fexecutions%3Fstatus%3Dfailed").await;
    let asked =
        |name: &str| at.url.query_pairs().find(|pair| pair.0 == name).unwrap().1.into_owned();
    assert_eq!(asked("redirect_uri"), format!("{PUBLIC_URL}/console/api/oidc/callback"));
    assert_eq!(
        (asked("response_type"), asked("scope")),
        ("code".into(), "openid email profile".into())
    );
    assert_eq!(asked("code_challenge_method"), "S256");
    let query = test.provider.let_in(&at.url, ada(json!({})));
    let answer = test.come_back(&at, &query).await;
    assert_eq!(location(&answer), "/console/executions?status=failed");
    let who = test.who(&answer).await;
    assert_eq!((&who["name"], &who["role"]), (&json!("ada@example.com"), &json!("developer")));
    assert_eq!((&who["team"]["name"], &who["has_password"]), (&json!("default"), &json!(false)));
    let entry = &test.audit().await[0];
    assert_eq!(
        (&entry["actor"]["name"], &entry["status"]),
        (&json!("ada@example.com"), &json!(200))
    );
    assert_eq!(entry["target"], who["member_id"]);
    // The rules decide again: another group, then none that counts.
    let answer = test.sign_in(ada(json!({"groups": ["staff", "ops"]}))).await;
    let promoted = test.who(&answer).await;
    assert_eq!(
        (&promoted["role"], &promoted["member_id"]),
        (&json!("operator"), &who["member_id"])
    );
    test.fails(ada(json!({"email": "ada@elsewhere.test"})), "unknown").await;
    // Nothing secret is in the log.
    let log = test.host.said("log");
    assert!(!log.contains(CLIENT_SECRET) && !log.contains("code="), "{log}");
}

#[tokio::test]
async fn strangers_unverified_emails_and_disabled_members_stay_outside() {
    let Some(test) = SignOn::start().await else { return };
    test.fails(ada(json!({"email": "eve@example.com.evil.test"})), "unknown").await;
    test.fails(ada(json!({"email_verified": false})), "no_email").await;
    test.fails(json!({"sub": "ada-1", "email": "ada@example.com"}), "no_email").await;
    test.fails(json!({"sub": "ada-1", "email_verified": true}), "no_email").await;
    let entry = &test.audit().await[3];
    assert_eq!(entry["actor"]["name"], "eve@example.com.evil.test");
    assert_eq!((&entry["status"], &entry["actor"]["kind"]), (&json!(403), &json!("anonymous")));
    let members = test.host.admin_json(
        Method::POST,
        "members",
        json!({"name": "bob", "team": "default",
        "role": "viewer", "email": "bob@elsewhere.test"}),
    );
    let bob = members.await["id"].as_str().unwrap().to_owned();
    let claims = json!({"sub": "bob-1", "email": "bob@elsewhere.test", "email_verified": true});
    // Made by hand, so no rule is needed, and none changes the role.
    let answer = test.sign_in(claims.clone()).await;
    assert_eq!(test.who(&answer).await["role"], "viewer");
    // The address went to another account of the provider, which does not inherit the member.
    let other = json!({"sub": "bob-2", "email": "bob@elsewhere.test", "email_verified": true});
    test.fails(other, "taken").await;
    let path = format!("members/{bob}");
    test.host.admin_json(Method::PATCH, &path, json!({"disabled": true})).await;
    test.fails(claims, "disabled").await;
}

#[tokio::test]
async fn a_provider_that_lies_gets_nobody_in() {
    let Some(test) = SignOn::start().await else { return };
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    for lie in [
        json!({"nonce": "another"}),
        json!({"nonce": null}),
        json!({"aud": "another-client"}),
        json!({"aud": [CLIENT_ID, "another-client"]}),
        json!({"iss": "https://evil.test"}),
        json!({"exp": now - 120}),
        json!({"exp": null}),
        json!({"iat": now + 600}),
        json!({"sub": null}),
    ] {
        let at = test.leave("").await;
        let query = test.provider.let_in(&at.url, ada(lie.clone()));
        let answer = test.come_back(&at, &query).await;
        assert_eq!(location(&answer), "/console/?sso=untrusted", "{lie}");
    }
    assert!(test.host.said("log").contains("nonce is not the one"), "{}", test.host.said("log"));
    // Nine attempts failed. The tenth does, too, and then this address has to wait.
    test.provider.sign_with("none");
    test.fails(ada(json!({})), "untrusted").await;
    test.provider.sign_with("ES256");
    test.fails(ada(json!({})), "limited").await;
}

#[tokio::test]
async fn other_algorithms_foreign_keys_and_large_answers_are_refused() {
    let Some(test) = SignOn::start().await else { return };
    for algorithm in ["none", "HS256", "foreign"] {
        test.provider.sign_with(algorithm);
        test.fails(ada(json!({})), "untrusted").await;
    }
    test.provider.sign_with("ES256");
    assert_eq!(location(&test.sign_in(ada(json!({}))).await), "/console/");
    // New keys are found without a restart.
    test.provider.rotate();
    assert_eq!(location(&test.sign_in(ada(json!({}))).await), "/console/");
    test.provider.answer_with("huge");
    test.fails(ada(json!({})), "unavailable").await;
    test.provider.answer_with("slow");
    let begun = std::time::Instant::now();
    test.fails(ada(json!({})), "unavailable").await;
    assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn an_answer_is_good_once_in_the_browser_that_asked() {
    let Some(test) = SignOn::start().await else { return };
    let at = test.leave("").await;
    let query = test.provider.let_in(&at.url, ada(json!({})));
    let other = test.leave("").await;
    assert_refused(&test.come_back(&other, &query).await, "stale");
    assert_refused(&test.come_back(&at, &query).await, "stale");
    assert_refused(&test.get(&format!("/console/api/oidc/callback?{query}"), "").await, "stale");
    assert_refused(&test.come_back(&at, "code=a&state=guessed").await, "stale");
    assert_refused(&test.come_back(&at, "").await, "stale");
    let at = test.leave("").await;
    let query = test.provider.let_in(&at.url, ada(json!({})));
    assert_eq!(location(&test.come_back(&at, &query).await), "/console/");
    assert_refused(&test.come_back(&at, &query).await, "stale");
    // The person said no, or an answer of another issuer was mixed in.
    let at = test.leave("").await;
    let state = test.provider.state_of(&at.url);
    let query = format!("error=access_denied&state={state}");
    assert_refused(&test.come_back(&at, &query).await, "cancelled");
    assert_refused(&test.come_back(&at, "error=access_denied").await, "cancelled");
    let at = test.leave("").await;
    let query = test.provider.let_in(&at.url, ada(json!({})));
    let mixed = test.come_back(&at, &format!("{query}&iss=https%3A%2F%2Fevil.test")).await;
    assert_refused(&mixed, "untrusted");
}

#[tokio::test]
async fn nobody_is_led_elsewhere() {
    let Some(test) = SignOn::start().await else { return };
    for page in [
        "https://evil.test/",
        "//evil.test",
        "/\\evil.test",
        "/console//evil.test",
        "/v1/admin/keys",
        "/console/../v1",
        "javascript:alert(1)",
        "/console/\r\nset-cookie: a=b",
    ] {
        let page: String = url::form_urlencoded::byte_serialize(page.as_bytes()).collect();
        let at = test.leave(&format!("?return_to={page}")).await;
        let query = test.provider.let_in(&at.url, ada(json!({})));
        assert_eq!(location(&test.come_back(&at, &query).await), "/console/", "{page}");
    }
}

#[tokio::test]
async fn without_a_provider_there_is_no_sign_on() {
    let Some(host) = Host::start().await else { return };
    for path in ["start", "callback?code=a&state=b"] {
        let url = format!("{}/console/api/oidc/{path}", host.url);
        assert_eq!(reqwest::get(url).await.unwrap().status(), 404);
    }
}

#[test]
fn the_settings_of_sign_on_are_checked_and_show_no_secret() {
    let run = |text: &str, words: &[&str], secret: Option<&str>| {
        let file = written(text);
        let mut command = Command::new(binary());
        command.args(words).arg(file.path()).env_remove(SECRET_VARIABLE);
        command.envs(secret.map(|secret| (SECRET_VARIABLE, secret)));
        ended(command, b"")
    };
    let good = settings("https://login.example.com", PUBLIC_URL);
    let shown = run(&good, &["config", "show", "--config"], Some("hidden-secret"));
    let said = format!("{shown:?}");
    assert!(said.contains("console.oidc.issuer") && !said.contains("hidden-secret"), "{said}");
    assert_eq!(run(&good, &["config", "check"], Some("hidden-secret")).code, 0);
    let missing = run(&good, &["config", "check"], None);
    let said = format!("{missing:?}");
    assert!(missing.code != 0 && said.contains(SECRET_VARIABLE), "{said}");
    let unsafe_issuer = settings("http://login.example.com", PUBLIC_URL);
    let refused = run(&unsafe_issuer, &["config", "check"], Some("hidden-secret"));
    assert!(refused.code != 0 && format!("{refused:?}").contains("https URL"), "{refused:?}");
}

/// A provider from outside.
struct OutsideProvider(Child);

impl Drop for OutsideProvider {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

async fn start_outside_provider(issuer: &str, port: u16) -> Option<OutsideProvider> {
    let program = tool("oidc-provider-mock")?;
    cloche_test_support::install_crypto();
    let mut command = Command::new(program);
    command.args(["--require-nonce", "--port", &port.to_string()]).current_dir(top());
    let claims = [
        json!({"sub": "ada", "email": "ada@example.com", "email_verified": true, "groups": ["ops"]}),
        json!({"sub": "eve", "email": "eve@elsewhere.test", "email_verified": true}),
    ];
    for claims in claims {
        command.arg("--user-claims").arg(claims.to_string());
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let provider = OutsideProvider(command.spawn().unwrap());
    let url = format!("{issuer}/.well-known/openid-configuration");
    eventually("the provider answers", async || {
        let answer = reqwest::get(&url).await;
        answer.map_err(|error| error.to_string()).map(|answer| assert_eq!(answer.status(), 200))
    })
    .await;
    Some(provider)
}

#[tokio::test]
async fn people_sign_in_by_a_provider_from_outside() {
    if !has_browser() {
        return;
    }
    let (port, own_port) = (free_port(), free_port());
    // Another site than that of the server, whose address is a number.
    let issuer = format!("http://localhost:{port}");
    let Some(_provider) = start_outside_provider(&issuer, port).await else { return };
    let settings = written(&settings(&issuer, &format!("http://127.0.0.1:{own_port}")));
    let path = settings.path().display().to_string();
    let (listen, secret) = (format!("127.0.0.1:{own_port}"), [(SECRET_VARIABLE, CLIENT_SECRET)]);
    let arguments = ["--listen", &listen, "--config", &path];
    let Some(host) = Host::start_with_env(&arguments, &secret).await else { return };
    run_browser_tests(&host, "sign-on", &[("CLOCHE_OIDC_ISSUER", &issuer)]).await;
}
