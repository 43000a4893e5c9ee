//! `cloche approval` and the gates in `cloche team set`, against a running server.

use std::process::Command;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{
    host::Host,
    support::{Ended, binary, ended, eventually},
};

pub(crate) fn admin(host: &Host, words: &[&str]) -> Ended {
    let mut command = Command::new(binary());
    command.args(words).arg("--data-dir").arg(host.data()).env_remove("USER");
    ended(command, b"")
}

pub(crate) fn admin_json(host: &Host, words: &[&str]) -> Value {
    let ended = admin(host, &[words, &["--json"]].concat());
    assert_eq!(ended.code, 0, "{ended:?}");
    ended.json()
}

/// A call of an agent that waits for approval: the id of the approval, and the result of the call.
async fn asked(host: &Host, code: &str) -> (String, JoinHandle<Value>) {
    let known = pending(host);
    let arguments = json!({"language": "python", "code": code});
    let params = json!({"name": "execute_code", "arguments": arguments});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let request = host.request(Method::POST, "/mcp").json(&message);
    let call = tokio::spawn(async move {
        let answer: Value = request.send().await.unwrap().json().await.unwrap();
        answer["result"]["structuredContent"].clone()
    });
    let new = eventually("the call waits for an approval", async || {
        assert!(!call.is_finished(), "it was answered without one");
        pending(host).into_iter().find(|id| !known.contains(id))
    });
    (new.await, call)
}

pub(crate) fn pending(host: &Host) -> Vec<String> {
    let list = admin_json(host, &["approval", "list"]);
    let list = list["approvals"].as_array().unwrap();
    list.iter().map(|approval| approval["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_reads_a_call_and_answers() {
    let Some(host) = Host::start().await else { return };
    admin(&host, &["team", "set", "default", "agent_sandbox=on"]).printed();
    let (one, first) = asked(&host, "import os\nprint('\u{1b}[2J')").await;
    let (two, second) = asked(&host, "print('two')").await;
    let list = admin(&host, &["approval", "list", "--team", "default"]).printed();
    assert!(list.contains(&one) && list.contains(&two), "{list}");
    let shown = admin(&host, &["approval", "show", &one]).printed();
    assert!(shown.contains("code:\n    import os\n    print('\\u{1b}[2J')\n"), "{shown}");
    assert!(shown.contains("language  python"), "{shown}");

    let said = admin(&host, &["approval", "approve", &one, "--as", "ada", "--always"]).printed();
    assert_eq!(said, format!("approved {one}\n"));
    assert_eq!(first.await.unwrap()["stdout"], "\u{1b}[2J\n");
    assert_eq!(admin_json(&host, &["team", "show", "default"])["execute_code"], "allow");
    let said = admin(&host, &["approval", "deny", &two, "--reason", "not today"]).printed();
    assert_eq!(said, format!("denied {two}\n"));
    let denied = second.await.unwrap();
    assert_eq!(denied["status"], "error_setup");
    assert_eq!(denied["error"]["message"], "admin denied this call: not today");
    let again = admin(&host, &["approval", "approve", &two]);
    assert_eq!(again.code, 1, "{again:?}");
    assert_eq!(again.stderr, "cloche: it was denied already, by admin\n");
    let unknown = admin(&host, &["approval", "approve", "apr_none"]);
    assert_eq!(unknown.stderr, "cloche: no such approval\n");

    assert_eq!(admin_json(&host, &["approval", "list"]), json!({"approvals": []}));
    let all = admin_json(&host, &["approval", "list", "--state", "all"]);
    assert_eq!(all["approvals"].as_array().unwrap().len(), 2);
    let history = admin_json(&host, &["approval", "history", "--approval", &one]);
    let decisions = history["decisions"].as_array().unwrap();
    let kinds: Vec<_> = decisions.iter().map(|it| it["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["used", "approved", "asked"]);
    assert_eq!(decisions[1]["by"], "admin (ada)");
    let ran = decisions[0]["trace_id"].as_str().unwrap();
    assert_eq!(host.record(ran).await["stdout"], "\u{1b}[2J\n");
    let history = admin(&host, &["approval", "history", "--team", "default"]).printed();
    assert!(history.contains("denied") && history.contains("not today"), "{history}");
    assert!(history.contains("execute_code=allow"), "{history}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_approval_is_reported_as_expired() {
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), "[gates]\napproval_seconds = 2\n").unwrap();
    let arguments = ["--config", config.path().to_str().unwrap()];
    let Some(host) = Host::start_with(&arguments).await else { return };
    admin(&host, &["team", "set", "default", "agent_sandbox=on"]).printed();
    let (unanswered, call) = asked(&host, "print(1)").await;
    let message = call.await.unwrap()["error"]["message"].clone();
    assert!(message.as_str().unwrap().contains("was not answered in time"), "{message}");
    let late = admin(&host, &["approval", "approve", &unanswered]);
    assert_eq!(late.stderr, "cloche: it has expired: no answer came in time\n", "{late:?}");

    // The agent has disconnected, so the approval is not used.
    let (unused, call) = asked(&host, "print(2)").await;
    call.abort();
    let _ = call.await;
    admin(&host, &["approval", "approve", &unused]).printed();
    eventually("the approval expires", async || {
        admin_json(&host, &["approval", "show", &unused])["state"] == "expired"
    })
    .await;
    let late = admin(&host, &["approval", "approve", &unused]);
    let said = "cloche: it has expired: admin approved it, and it was not used in time\n";
    assert_eq!(late.stderr, said, "{late:?}");
}

#[tokio::test]
async fn gates_of_default_apply_to_the_fleet_and_an_id_to_one_team() {
    let Some(host) = Host::start().await else { return };
    let words = ["team", "set", "default", "agent_sandbox=on", "execute_code=ask"];
    let fleet = admin(&host, &words).printed();
    assert!(fleet.contains("every team without settings of its own"), "{fleet}");
    let fleet = json!({
        "agent_sandbox": true, "execute_code": "ask", "elicitation": null, "pending_approval": null,
        "web_search": null, "fetch_url": null, "people_search": null,
    });
    assert_eq!(admin_json(&host, &["team", "defaults"]), fleet);
    let team = admin_json(&host, &["team", "show", "default"]);
    assert_eq!((&team["agent_sandbox"], &team["execute_code"]), (&Value::Null, &Value::Null));
    let id = team["id"].as_str().unwrap();
    let team = admin_json(&host, &["team", "set", id, "agent_sandbox=off", "elicitation=off"]);
    assert_eq!((&team["agent_sandbox"], &team["elicitation"]), (&json!(false), &json!(false)));
    assert_eq!(admin_json(&host, &["team", "defaults"]), fleet);
    admin_json(&host, &["team", "create", "acme", "--plan", "free"]);
    let words = ["team", "set", "acme", "--plan", "pro", "execute_code=deny"];
    let acme = admin_json(&host, &words);
    assert_eq!((&acme["plan"], &acme["execute_code"]), (&json!("pro"), &json!("deny")));
    assert_eq!(
        admin_json(&host, &["team", "set", "acme", "execute_code=none"])["execute_code"],
        Value::Null
    );
    let mixed = admin(&host, &["team", "set", "default", "--plan", "pro", "agent_sandbox=on"]);
    assert_eq!((mixed.code, mixed.stderr.lines().count()), (1, 1), "{mixed:?}");
    assert!(mixed.stderr.contains("two commands"), "{mixed:?}");
    assert_eq!(admin_json(&host, &["team", "set", "default", "--plan", "pro"])["plan"], "pro");
    let words = ["team", "set", "acme", "pending_approval=requires_action"];
    assert_eq!(admin_json(&host, &words)["pending_approval"], "requires_action");
    let words = ["team", "set", "acme", "pending_approval=none"];
    assert_eq!(admin_json(&host, &words)["pending_approval"], Value::Null);
    for wrong in [
        "agent_sandbox=yes",
        "execute_code=on",
        "pending_approval=on",
        "sandbox=on",
        "agent_sandbox",
    ] {
        let said = admin(&host, &["team", "set", "default", wrong]);
        assert_eq!(said.code, 2, "{said:?}");
    }
    let key = admin_json(&host, &["key", "create", "judge", "--may-approve"]);
    assert_eq!(key["may_approve"], true);
    let id = key["id"].as_str().unwrap();
    assert_eq!(
        admin_json(&host, &["key", "set", id, "--may-approve", "false"])["may_approve"],
        false
    );
}
