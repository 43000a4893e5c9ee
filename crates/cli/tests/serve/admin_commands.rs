//! `cloche team|sandbox|key`, end to end.

use std::process::Command;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::{
    host::Host,
    support::{Ended, binary, cloche, ended},
    tls::{TlsListener, read_request},
};

/// Runs a command for the server with this data directory.
fn admin(host: &Host, words: &[&str]) -> Ended {
    let mut command = Command::new(binary());
    command.args(words).arg("--data-dir").arg(host.data());
    ended(command, b"")
}

fn admin_json(host: &Host, words: &[&str]) -> Value {
    let ended = admin(host, &[words, &["--json"]].concat());
    assert_eq!(ended.code, 0, "{ended:?}");
    ended.json()
}

#[tokio::test]
async fn a_team_with_a_sandbox_and_a_key_runs_code() {
    let Some(host) = Host::start().await else { return };
    let team = admin_json(&host, &["team", "create", "acme", "--plan", "free"]);
    assert_eq!((&team["name"], &team["plan"]), (&json!("acme"), &json!("free")));
    let words = ["sandbox", "create", "small", "--team", "acme", "--memory", "256M"];
    let more = ["--cpus", "0.5", "--env", "A=sandbox", "--env", "B=sandbox"];
    let sandbox = admin_json(&host, &[&words[..], &more].concat());
    assert_eq!((&sandbox["memory_mb"], &sandbox["cpu"]), (&json!(256), &json!(0.5)));
    let words = ["key", "create", "k", "--team", "acme", "--sandbox", "small", "--env", "B=key"];
    let key = admin_json(&host, &words);
    let id = key["id"].as_str().unwrap();
    let host = host.with_key(key["key"].as_str().unwrap());
    let code = json!({"code": "echo $A $B", "language": "bash"});
    let (status, answer) = host.run(code.clone()).await;
    assert_eq!(
        (status, &answer["stdout"]),
        (200, &json!("sandbox key\n")),
        "{answer} {}",
        host.said("log")
    );

    let words = ["key", "set", id, "--env", "C=1", "--unset", "B"];
    assert_eq!(admin_json(&host, &words)["env_vars"], json!({"C": "1"}));
    let (status, answer) = host.run(code.clone()).await;
    assert_eq!(answer["stdout"], "sandbox sandbox\n", "{status} {answer} {}", host.said("log"));
    let long = json!({"code": ":", "language": "bash", "timeout": 100});
    assert_eq!(host.run(long.clone()).await.0, 429);
    assert_eq!(admin_json(&host, &["team", "set", "acme", "--plan", "pro"])["plan"], "pro");
    assert_eq!(host.run(long).await.0, 200);

    let revoked = admin_json(&host, &["key", "revoke", id]);
    assert!(revoked["revoked_at"].is_string());
    assert_eq!(host.run(code).await.0, 401);
    assert_eq!(admin(&host, &["sandbox", "rm", "acme/small"]).printed(), "removed acme/small\n");
    assert_eq!(admin(&host, &["team", "rm", "acme", "--json"]).printed(), "");
    let names = admin_json(&host, &["team", "list"]);
    assert_eq!(names["teams"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn tables_are_printed_and_a_secret_is_shown_once() {
    let Some(host) = Host::start().await else { return };
    let made = admin(&host, &["key", "create", "laptop"]).printed();
    let secret = made.split_whitespace().find(|word| word.starts_with("sk-us-")).unwrap();
    assert!(made.ends_with("the key is shown only now: store it\n"), "{made}");
    let list = admin(&host, &["key", "list", "--team", "default"]).printed();
    assert!(list.starts_with("ID "), "{list}");
    assert_eq!(list.lines().count(), 3, "{list}");
    assert!(list.contains("laptop") && !list.contains(secret), "{list}");
    let id = list.lines().find(|line| line.contains("laptop")).unwrap();
    let id = id.split_whitespace().next().unwrap();
    let shown = admin(&host, &["key", "show", id]).printed();
    assert!(shown.contains("sandbox_id  ") && !shown.contains(secret), "{shown}");
    let host = host.with_key(secret);
    assert_eq!(host.run(json!({"code": "1"})).await.0, 200);
    let shown = admin(&host, &["sandbox", "show", "default/default"]).printed();
    assert!(shown.contains("network          blocked"), "{shown}");
    let list = admin(&host, &["team", "list"]).printed();
    assert!(list.contains("enterprise"), "{list}");
}

#[tokio::test]
async fn a_webhook_secret_is_read_from_a_file() {
    let Some(host) = Host::start().await else { return };
    let file = host.directory().join("secret");
    std::fs::write(&file, "s3cret\n").unwrap();
    let hook = ["--webhook-url", "https://192.0.2.1/hook", "--webhook-secret-file"];
    let words = ["key", "create", "hooked"];
    let refused = admin(&host, &[&words[..], &hook, &[file.to_str().unwrap()]].concat());
    // The address is reserved for documentation, so the server may refuse it, with a message.
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("webhook_url"), "{refused:?}");
    let words = ["key", "create", "signed", "--webhook-secret-file"];
    let key = admin_json(&host, &[&words[..], &[file.to_str().unwrap()]].concat());
    assert_eq!(key["webhook_signed"], true);
    assert!(!key.to_string().contains("s3cret"));
    let id = key["id"].as_str().unwrap();
    assert_eq!(admin_json(&host, &["key", "set", id, "--no-webhook"])["webhook_signed"], false);
}

#[tokio::test]
async fn an_error_is_one_line() {
    let Some(mut host) = Host::start().await else { return };
    let wrong = |words: &[&str], said: &str| {
        let ended = admin(&host, words);
        assert_eq!(ended.code, 1, "{words:?} {ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
        assert!(ended.stderr.starts_with("cloche: ") && ended.stderr.contains(said), "{ended:?}");
        assert_eq!(ended.stdout, "");
    };
    wrong(&["team", "show", "nobody"], "no such team");
    wrong(&["key", "revoke", "../teams/default"], "no such key");
    wrong(&["sandbox", "show", "default/none"], "team \"default\" has no sandbox \"none\"");
    wrong(&["team", "create", "default", "--plan", "free"], "default");
    wrong(&["team", "create", "x", "--plan", "gold"], "plan");
    wrong(&["sandbox", "set", "default/default", "--network", "allowlist"], "at least one rule");
    let listed =
        ["sandbox", "create", "listed", "--network", "allowlist", "--allow", "PyPI.example"];
    let listed = [&listed[..], &["--allow", "*.example.com:443", "--network-limit"]].concat();
    admin(&host, &[&listed[..], &["connections=8"]].concat()).printed();
    let shown = admin(&host, &["sandbox", "show", "default/listed", "--json"]).json();
    assert_eq!(shown["network_allow"], serde_json::json!(["pypi.example", "*.example.com:443"]));
    assert_eq!(shown["network_limits"]["connections"], 8, "{shown}");
    assert_eq!(admin(&host, &["team", "create"]).code, 2);
    assert_eq!(admin(&host, &["sandbox", "create", "x", "--memory", "lots"]).code, 2);

    let mut command = Command::new(binary());
    command.args(["team", "list", "--url", &host.url]).env("CLOCHE_ADMIN_TOKEN", "wrong");
    let said = ended(command, b"");
    assert_eq!((said.code, said.stderr.lines().count()), (1, 1));
    assert!(said.stderr.contains("does not accept this admin token"), "{said:?}");
    let mut command = Command::new(binary());
    command.args(["team", "list", "--url", &host.url]).env("CLOCHE_ADMIN_TOKEN", &host.admin);
    assert!(ended(command, b"").printed().contains("default"));

    host.signal(rustix::process::Signal::KILL);
    host.ended().await;
    let said = admin(&host, &["team", "list"]);
    assert_eq!((said.code, said.stderr.lines().count()), (1, 1));
    assert!(said.stderr.contains("is it running?"), "{said:?}");
}

#[test]
fn a_missing_data_directory_is_an_error_with_advice() {
    let empty = tempfile::tempdir().unwrap();
    let said = cloche(["key", "list", "--data-dir", empty.path().to_str().unwrap()]);
    assert_eq!((said.code, said.stderr.lines().count()), (1, 1));
    assert!(said.stderr.contains("--data-dir"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_behind_tls_needs_a_trusted_certificate() {
    let listener = TlsListener::bind().await;
    let files = tempfile::tempdir().unwrap();
    let authority = files.path().join("ca.pem");
    std::fs::write(&authority, &listener.pem).unwrap();
    let url = listener.url();
    let asked = tokio::spawn(async move {
        let mut stream = listener.accept().await;
        let (head, _) = read_request(&mut stream).await.unwrap();
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n{\"teams\":[]}";
        stream.write_all(answer.as_bytes()).await.unwrap();
        head
    });
    let mut command = Command::new(binary());
    command.args(["team", "list", "--url", &url]).env("CLOCHE_ADMIN_TOKEN", "t0ken");
    let said = ended(command, b"");
    assert_eq!((said.code, said.stderr.lines().count()), (1, 1), "{said:?}");
    assert!(said.stderr.contains("certificate"), "{said:?}");
    let mut command = Command::new(binary());
    command.args(["team", "list", "--json", "--url", &url]).env("CLOCHE_ADMIN_TOKEN", "t0ken");
    command.env("SSL_CERT_FILE", &authority);
    let said = ended(command, b"");
    assert_eq!(said.json(), json!({"teams": []}), "{said:?}");
    let head = asked.await.unwrap();
    assert!(head.starts_with("get /v1/admin/teams http/1.1"), "{head}");
    assert!(head.contains("authorization: bearer t0ken"), "{head}");
}
