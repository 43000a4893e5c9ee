//! The console's sign-ins, roles and audit log, as a browser uses them.

use reqwest::{Client, Method, RequestBuilder, Response, header};
use serde_json::{Value, json};

use crate::host::Host;

/// A browser that is signed in.
pub(crate) struct Browser {
    base: String,
    client: Client,
    pub(crate) cookie: String,
    csrf: String,
    pub(crate) session: Value,
}

pub(crate) async fn try_sign_in(host: &Host, body: &Value) -> Response {
    let url = format!("http://{}/console/api/session", host.address);
    Client::new().post(url).json(body).send().await.unwrap()
}

impl Browser {
    pub(crate) async fn sign_in(host: &Host, body: Value) -> Self {
        let response = try_sign_in(host, &body).await;
        assert_eq!(response.status(), 200, "{}", response.text().await.unwrap());
        let cookie = response.headers()[header::SET_COOKIE].to_str().unwrap().to_owned();
        assert!(cookie.contains("; HttpOnly; SameSite=Strict"), "{cookie}");
        let session: Value = response.json().await.unwrap();
        Self {
            base: format!("http://{}", host.address),
            client: Client::new(),
            cookie: cookie.split(';').next().unwrap().to_owned(),
            csrf: session["csrf_token"].as_str().unwrap().to_owned(),
            session,
        }
    }

    pub(crate) async fn operator(host: &Host) -> Self {
        Self::sign_in(host, json!({"admin_token": host.admin})).await
    }

    /// Creates a member of a team and signs in.
    pub(crate) async fn member(host: &Host, team: &str, role: &str) -> Self {
        let name = format!("{role}.of.{team}");
        let password = "correct horse battery";
        let body = json!({"name": name, "team": team, "role": role, "password": password});
        host.admin_post("members", body).await;
        Self::sign_in(host, json!({"name": name, "password": password})).await
    }

    /// A request without the token that changes need.
    pub(crate) fn plain(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.base));
        request.header(header::COOKIE, &self.cookie)
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.plain(method, path).header("x-cloche-csrf", &self.csrf)
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        answer(self.request(Method::GET, path)).await
    }

    pub(crate) async fn send(&self, method: Method, path: &str, body: Value) -> (u16, Value) {
        answer(self.request(method, path).json(&body)).await
    }
}

pub(crate) async fn answer(request: RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    (status, serde_json::from_str(&response.text().await.unwrap()).unwrap_or_default())
}

/// The id of the team `default`, and a sandbox and key of another team with their ids.
async fn another_team(host: &Host) -> [String; 3] {
    let id = |value: Value| value["id"].as_str().unwrap().to_owned();
    let team = id(host.admin_post("teams", json!({"name": "other", "plan": "pro"})).await);
    let body = json!({"team": team, "name": "default"});
    let sandbox = id(host.admin_post("sandboxes", body).await);
    let body = json!({"team": team, "sandbox": "default", "name": "theirs"});
    [team, sandbox, id(host.admin_post("keys", body).await)]
}

#[tokio::test]
async fn an_operator_signs_in_with_the_admin_token_and_out_again() {
    let host = Host::start().await;
    let browser = Browser::operator(&host).await;
    assert_eq!(browser.session["role"], "operator");
    assert_eq!(browser.session["team"], Value::Null);
    let (status, session) = browser.get("/console/api/session").await;
    assert_eq!((status, &session["csrf_token"]), (200, &browser.session["csrf_token"]));
    assert_eq!(browser.get("/v1/admin/teams").await.0, 200);
    let (status, made) =
        browser.send(Method::POST, "/v1/admin/teams", json!({"name": "new", "plan": "free"})).await;
    assert_eq!(status, 201, "{made}");
    assert_eq!(browser.send(Method::DELETE, "/console/api/session", json!({})).await.0, 204);
    assert_eq!(browser.get("/console/api/session").await.0, 401);
    assert_eq!(browser.get("/v1/admin/teams").await.0, 401);
    assert_eq!(try_sign_in(&host, &json!({"admin_token": "ck-admin-wrong"})).await.status(), 401);
    assert_eq!(try_sign_in(&host, &json!({"name": "a"})).await.status(), 400);
}

#[tokio::test]
async fn changes_by_cookie_need_the_token_of_the_session() {
    let host = Host::start().await;
    let browser = Browser::operator(&host).await;
    let other = Browser::operator(&host).await;
    let body = json!({"name": "new", "plan": "free"});
    let change = || browser.plain(Method::POST, "/v1/admin/teams").json(&body);
    let theirs = other.session["csrf_token"].as_str().unwrap();
    for request in [
        change(),
        change().header("x-cloche-csrf", ""),
        change().header("x-cloche-csrf", theirs),
        browser
            .request(Method::POST, "/v1/admin/teams")
            .json(&body)
            .header("sec-fetch-site", "cross-site"),
    ] {
        let (status, refused) = answer(request).await;
        assert_eq!((status, &refused["error"]), (403, &json!("csrf")));
    }
    let code = json!({"code": "print(1)"});
    let run = browser.plain(Method::POST, "/v1/sandbox/execute?sandbox=x").json(&code);
    assert_eq!(answer(run).await.0, 403);
    // A bearer token needs none: no other page can make a browser send one.
    let with_token = browser.plain(Method::POST, "/v1/admin/teams").bearer_auth(&host.admin);
    assert_eq!(answer(with_token.json(&body)).await.0, 201);
}

#[tokio::test]
async fn guesses_are_limited_and_names_are_not_told() {
    let host = Host::start().await;
    Browser::member(&host, "default", "viewer").await;
    let guess = |name: &str| json!({"name": name, "password": "wrong password 1"});
    let wrong = try_sign_in(&host, &guess("viewer.of.default")).await.text().await.unwrap();
    let unknown = try_sign_in(&host, &guess("nobody.at.all")).await.text().await.unwrap();
    assert_eq!(wrong, unknown);
    for _ in 0..9 {
        assert_eq!(try_sign_in(&host, &guess("viewer.of.default")).await.status(), 401);
    }
    let limited = try_sign_in(&host, &guess("viewer.of.default")).await;
    assert_eq!(limited.status(), 429);
    assert!(limited.headers().contains_key(header::RETRY_AFTER));
    let right = json!({"name": "viewer.of.default", "password": "correct horse battery"});
    assert_eq!(try_sign_in(&host, &right).await.status(), 429);
    Browser::operator(&host).await;
}

#[tokio::test]
async fn a_viewer_reads_their_team_and_changes_nothing() {
    let host = Host::start().await;
    host.bash("t", "echo 1 >f").await;
    let viewer = Browser::member(&host, "default", "viewer").await;
    assert_eq!(viewer.session["team"]["name"], "default");
    let (_, keys) = viewer.get("/v1/admin/keys").await;
    let key = keys["keys"][0]["id"].as_str().unwrap().to_owned();
    let sandbox = keys["keys"][0]["sandbox_id"].as_str().unwrap().to_owned();
    for path in [
        "/v1/admin/teams",
        "/v1/admin/sandboxes",
        "/v1/admin/members",
        "/v1/admin/credentials",
        "/v1/admin/storage",
        "/v1/admin/volumes",
        "/v1/admin/images",
        "/v1/admin/approvals",
        "/v1/admin/decisions",
        "/v1/admin/usage",
        "/v1/admin/audit",
        "/v1/executions",
        "/v1/threads",
        "/v1/threads/t/history",
        "/v1/usage",
        "/console/api/sessions",
    ] {
        let (status, found) = viewer.get(path).await;
        assert_eq!(status, 200, "{path}: {found}");
    }
    let list = json!({"source": "thread", "id": "t"});
    assert_eq!(viewer.send(Method::POST, "/v1/files/list", list).await.0, 200);
    let name = json!({"name": "n"});
    for (method, path, body) in [
        (Method::POST, "/v1/admin/sandboxes".to_owned(), json!({"team": "default", "name": "n"})),
        (Method::PATCH, format!("/v1/admin/sandboxes/{sandbox}"), name.clone()),
        (Method::DELETE, format!("/v1/admin/keys/{key}"), json!({})),
        (Method::POST, "/v1/admin/teams".to_owned(), json!({"name": "n", "plan": "free"})),
        (Method::POST, "/v1/admin/images/prune".to_owned(), json!({})),
        (Method::PATCH, "/v1/admin/defaults".to_owned(), json!({})),
        (Method::GET, "/v1/admin/defaults".to_owned(), json!({})),
        (Method::DELETE, "/v1/threads/t".to_owned(), json!({})),
        (Method::POST, "/v1/threads/t/rollback".to_owned(), json!({"to": 1})),
        (Method::POST, format!("/v1/sandbox/execute?key={key}"), json!({"code": "print(1)"})),
        (Method::POST, format!("/v1/sandbox/execute?sandbox={sandbox}"), json!({"code": "1"})),
        (Method::POST, "/v1/executions/trc_a/cancel".to_owned(), json!({})),
    ] {
        let (status, refused) = viewer.send(method, &path, body).await;
        assert_eq!((status, &refused["error"]), (403, &json!("forbidden")), "{path} {refused}");
    }
    let (_, keys) = viewer.get("/v1/admin/keys").await;
    assert_eq!(keys["keys"].as_array().unwrap().len(), 1, "no key was made");
}

#[tokio::test]
async fn another_teams_rows_look_like_missing_ones_to_an_owner() {
    let host = Host::start().await;
    let [team, sandbox, key] = another_team(&host).await;
    let owner = Browser::member(&host, "default", "owner").await;
    let operator = json!({"name": "root", "role": "operator"});
    let operator = host.admin_post("members", operator).await["id"].as_str().unwrap().to_owned();
    for (theirs, none) in [
        (format!("/v1/admin/teams/{team}"), "/v1/admin/teams/team_none"),
        (format!("/v1/admin/sandboxes/{sandbox}"), "/v1/admin/sandboxes/sbx_none"),
        (format!("/v1/admin/keys/{key}"), "/v1/admin/keys/key_none"),
        (format!("/v1/admin/members/{operator}"), "/v1/admin/members/mbr_none"),
        (format!("/v1/admin/keys?team={team}"), "/v1/admin/keys?team=team_none"),
        ("/v1/admin/audit?team=other".to_owned(), "/v1/admin/audit?team=none"),
    ] {
        let (theirs, none) = (owner.get(&theirs).await, owner.get(none).await);
        assert_eq!(theirs, none);
        assert_eq!(theirs.0, 404);
    }
    for (method, path, body) in [
        (Method::PATCH, format!("/v1/admin/sandboxes/{sandbox}"), json!({"name": "mine"})),
        (Method::DELETE, format!("/v1/admin/sandboxes/{sandbox}"), json!({})),
        (Method::DELETE, format!("/v1/admin/keys/{key}"), json!({})),
        (
            Method::POST,
            "/v1/admin/keys".to_owned(),
            json!({"team": "other", "sandbox": "default", "name": "mine"}),
        ),
        (Method::POST, format!("/v1/sandbox/execute?key={key}"), json!({"code": "print(1)"})),
        (Method::POST, format!("/v1/sandbox/execute?sandbox={sandbox}"), json!({"code": "1"})),
    ] {
        let (status, refused) = owner.send(method, &path, body).await;
        assert_eq!((status, &refused["error"]), (404, &json!("not_found")), "{path} {refused}");
    }
    let grant = json!({"name": "friend", "role": "operator"});
    assert_eq!(owner.send(Method::POST, "/v1/admin/members", grant).await.0, 403);
    let (_, sandboxes) = owner.get("/v1/admin/sandboxes").await;
    assert_eq!(sandboxes["sandboxes"].as_array().unwrap().len(), 1);
    let (_, teams) = owner.get("/v1/admin/teams").await;
    assert_eq!(teams["teams"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_developer_runs_code_in_a_sandbox_and_with_a_key() {
    let host = Host::start().await;
    let developer = Browser::member(&host, "default", "developer").await;
    let (_, keys) = developer.get("/v1/admin/keys").await;
    let (key, sandbox) = (&keys["keys"][0]["id"], &keys["keys"][0]["sandbox_id"]);
    let code = json!({"code": "print(6 * 7)", "metadata": {"from": "console"}});
    for choice in [
        format!("key={}", key.as_str().unwrap()),
        format!("sandbox={}", sandbox.as_str().unwrap()),
        format!("sandbox={}", sandbox.as_str().unwrap()),
    ] {
        let path = format!("/v1/sandbox/execute?{choice}");
        let (status, result) = developer.send(Method::POST, &path, code.clone()).await;
        assert_eq!((status, &result["stdout"]), (200, &json!("42\n")), "{result}");
    }
    let (_, listed) = developer.get("/v1/executions?metadata.from=console").await;
    let listed = listed["executions"].as_array().unwrap();
    assert_eq!(listed.len(), 3);
    let trace = listed[0]["trace_id"].as_str().unwrap();
    let (status, record) = developer.get(&format!("/v1/executions/{trace}")).await;
    assert_eq!((status, &record["code"]), (200, &json!("print(6 * 7)")));
    assert_eq!(listed[0]["key_id"], listed[1]["key_id"], "the key of the console is used again");
    let (status, _) = developer.send(Method::POST, "/v1/sandbox/execute", code).await;
    assert_eq!(status, 400);
}

#[tokio::test]
async fn sessions_are_listed_and_revoked_and_end_with_their_member() {
    let host = Host::start().await;
    let operator = Browser::operator(&host).await;
    let owner = Browser::member(&host, "default", "owner").await;
    let viewer = Browser::member(&host, "default", "viewer").await;
    let (_, mine) = owner.get("/console/api/sessions").await;
    assert_eq!(mine["sessions"].as_array().unwrap().len(), 1);
    assert_eq!(mine["sessions"][0]["current"], true);
    let (_, all) = operator.get("/console/api/sessions").await;
    assert_eq!(all["sessions"].as_array().unwrap().len(), 3);
    let id = |browser: &Browser| browser.session["id"].as_str().unwrap().to_owned();
    let revoke = |browser: &Browser| format!("/console/api/sessions/{}", id(browser));
    assert_eq!(owner.send(Method::DELETE, &revoke(&viewer), json!({})).await.0, 404);
    assert_eq!(operator.send(Method::DELETE, &revoke(&viewer), json!({})).await.0, 204);
    assert_eq!(viewer.get("/v1/admin/keys").await.0, 401);
    let member = owner.session["member_id"].as_str().unwrap();
    let disable = format!("/v1/admin/members/{member}");
    assert_eq!(operator.send(Method::PATCH, &disable, json!({"disabled": true})).await.0, 200);
    assert_eq!(owner.get("/console/api/session").await.0, 401);
    let again = json!({"name": "owner.of.default", "password": "correct horse battery"});
    assert_eq!(try_sign_in(&host, &again).await.status(), 401);
}

#[tokio::test]
async fn changes_are_in_the_audit_log_with_who_what_and_from_where() {
    let host = Host::start().await;
    let owner = Browser::member(&host, "default", "owner").await;
    let body = json!({"team": "default", "name": "audited", "env_vars": {"SECRET": "hunter2"}});
    let (status, made) = owner.send(Method::POST, "/v1/admin/sandboxes", body).await;
    assert_eq!(status, 201, "{made}");
    let sandbox = made["id"].as_str().unwrap();
    let path = format!("/v1/admin/sandboxes/{sandbox}");
    host.admin_request(Method::PATCH, &format!("sandboxes/{sandbox}"))
        .json(&json!({"retain_code": false}))
        .send()
        .await
        .unwrap();
    assert_eq!(owner.send(Method::DELETE, &path, json!({})).await.0, 204);
    host.bash("t", "echo 1 >f").await;
    assert_eq!(host.send(Method::DELETE, "/v1/threads/t", Value::Null).await.0, 204);
    try_sign_in(&host, &json!({"name": "mallory", "password": "x"})).await;
    let (_, log) = owner.get("/v1/admin/audit").await;
    let entries = log["entries"].as_array().unwrap();
    let seen: Vec<_> = entries
        .iter()
        .map(|entry| {
            let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
            (entry["actor"]["kind"].as_str().unwrap(), text("action"), text("target"))
        })
        .collect();
    let thing = sandbox.to_owned();
    assert_eq!(
        seen[..4],
        [
            ("key", "DELETE /v1/threads/{thread_id}".to_owned(), "t".to_owned()),
            ("member", "DELETE /v1/admin/sandboxes/{id}".to_owned(), thing.clone()),
            ("operator", "PATCH /v1/admin/sandboxes/{id}".to_owned(), thing.clone()),
            ("member", "POST /v1/admin/sandboxes".to_owned(), thing),
        ]
    );
    assert_eq!(entries[3]["fields"], json!(["env_vars", "name", "team"]));
    assert_eq!((&entries[3]["address"], &entries[3]["status"]), (&json!("127.0.0.1"), &json!(201)));
    assert!(!log.to_string().contains("hunter2"));
    let response = host.admin_request(Method::GET, "audit?actor=mallory").send().await.unwrap();
    let all: Value = response.json().await.unwrap();
    assert_eq!(all["entries"][0]["status"], 401);
    let (_, page) = owner.get("/v1/admin/audit?limit=1").await;
    let next = page["next_cursor"].as_str().unwrap();
    let (_, page) = owner.get(&format!("/v1/admin/audit?limit=1&cursor={next}")).await;
    assert_eq!(page["entries"][0], entries[1]);
}

#[tokio::test]
async fn the_console_has_a_strict_policy_and_says_how_to_get_it() {
    let host = Host::start().await;
    for path in ["/console/", "/console/executions/trc_a"] {
        let page = reqwest::get(format!("http://{}{path}", host.address)).await.unwrap();
        let policy = page.headers()["content-security-policy"].to_str().unwrap().to_owned();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"));
        assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"));
        assert_eq!(page.headers()["x-content-type-options"], "nosniff");
        let built = page.status() == 200;
        let text = page.text().await.unwrap();
        assert!(built || text.contains("make console") && text.contains("npm"), "{text}");
    }
    for path in ["/console/api/none", "/console/assets/none-123.js"] {
        let missing = reqwest::get(format!("http://{}{path}", host.address)).await.unwrap();
        assert_eq!(missing.status(), 404, "{path}");
        assert_eq!(missing.headers()["content-type"], "application/json", "{path}");
    }
}
