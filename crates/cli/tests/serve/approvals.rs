//! `cloche approval` and the gates in `cloche team set`, against a running server.

use std::process::Command;

use cloche_model::{
    Approval, ApprovalId, ApprovalState, Decision, DecisionId, DecisionKind, Moment, Tool,
};
use cloche_store::{Asked, Gates, Sqlite, Store};
use serde_json::{Value, json};

use crate::{
    host::Host,
    support::{Ended, binary, ended},
};

fn admin(host: &Host, words: &[&str]) -> Ended {
    let mut command = Command::new(binary());
    command.args(words).arg("--data-dir").arg(host.data()).env_remove("USER");
    ended(command, b"")
}

fn admin_json(host: &Host, words: &[&str]) -> Value {
    let ended = admin(host, &[words, &["--json"]].concat());
    assert_eq!(ended.code, 0, "{ended:?}");
    ended.json()
}

/// A call that waits, as an agent's door writes it.
async fn asked(host: &Host, n: u8) -> String {
    let key = admin_json(host, &["key", "list"])["keys"][0].clone();
    let word = |name: &str| key[name].as_str().unwrap().to_owned();
    let arguments = json!({"code": "import os\nprint('\u{1b}[2J')", "language": "python"});
    let approval = Approval {
        id: ApprovalId::from_random([n; 20]),
        team: word("team_id").parse().unwrap(),
        key: word("id").parse().unwrap(),
        tool: Tool::ExecuteCode,
        digest: n.to_string(),
        arguments_bytes: arguments.to_string().len() as u64,
        arguments: Some(arguments.to_string()),
        state: ApprovalState::Pending,
        created_at: Moment(i64::from(n)),
        expires_at: Moment(i64::MAX),
        decided_at: None,
        decided_by: None,
        reason: None,
    };
    let decision = Decision {
        id: DecisionId::from_random([n; 20]),
        kind: DecisionKind::Asked,
        by: word("id"),
        at: Moment(i64::from(n)),
        team: Some(approval.team.clone()),
        key: None,
        tool: Some(Tool::ExecuteCode),
        digest: None,
        approval: Some(approval.id.clone()),
        execution: None,
        note: None,
    };
    let store = Sqlite::open(&host.data().join("cloche.db")).await.unwrap();
    let id = approval.id.to_string();
    assert_eq!(store.ask(approval, 9, decision).await.unwrap(), Asked::New);
    store.close().await;
    id
}

#[tokio::test]
async fn a_person_reads_a_call_and_answers() {
    let Some(host) = Host::start().await else { return };
    let (one, two) = (asked(&host, 1).await, asked(&host, 2).await);
    let list = admin(&host, &["approval", "list", "--team", "default"]).printed();
    assert!(list.contains(&one) && list.contains(&two), "{list}");
    let shown = admin(&host, &["approval", "show", &one]).printed();
    assert!(shown.contains("code:\n    import os\n    print('\\u{1b}[2J')\n"), "{shown}");
    assert!(shown.contains("language  python"), "{shown}");

    let said = admin(&host, &["approval", "approve", &one, "--as", "ada", "--always"]).printed();
    assert_eq!(said, format!("approved {one}\n"));
    assert_eq!(admin_json(&host, &["team", "show", "default"])["execute_code"], "allow");
    let said = admin(&host, &["approval", "deny", &two, "--reason", "not today"]).printed();
    assert_eq!(said, format!("denied {two}\n"));
    let again = admin(&host, &["approval", "approve", &two]);
    assert_eq!(again.code, 1, "{again:?}");
    assert_eq!(again.stderr, "cloche: it was denied already, by admin\n");
    let unknown = admin(&host, &["approval", "approve", "apr_none"]);
    assert_eq!(unknown.stderr, "cloche: no such approval\n");

    assert_eq!(admin_json(&host, &["approval", "list"]), json!({"approvals": []}));
    let all = admin_json(&host, &["approval", "list", "--state", "all"]);
    assert_eq!(all["approvals"].as_array().unwrap().len(), 2);
    let history = admin_json(&host, &["approval", "history", "--approval", &one]);
    assert_eq!(history["decisions"][0]["by"], "admin (ada)");
    assert_eq!(history["decisions"][1]["kind"], "asked");
    let history = admin(&host, &["approval", "history", "--team", "default"]).printed();
    assert!(history.contains("denied") && history.contains("not today"), "{history}");
    assert!(history.contains("execute_code=allow"), "{history}");
}

#[tokio::test]
async fn default_is_the_fleet_and_an_id_is_one_team() {
    let Some(host) = Host::start().await else { return };
    let words = ["team", "set", "default", "agent_sandbox=on", "execute_code=ask"];
    let fleet = admin(&host, &words).printed();
    assert!(fleet.contains("every team that has no setting of its own"), "{fleet}");
    let fleet = json!({"agent_sandbox": true, "execute_code": "ask", "elicitation": null});
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
    for wrong in ["agent_sandbox=yes", "execute_code=on", "sandbox=on", "agent_sandbox"] {
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
