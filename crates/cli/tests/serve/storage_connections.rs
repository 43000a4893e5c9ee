//! Runs in: test. Connections of teams to a real S3 server: made, tried, bound, changed and removed
//! with the commands of an operator.

use std::process::Command;

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    host::Host,
    moto::Moto,
    support::{Ended, binary, ended},
};

pub(crate) const BUCKET: &str = "layers";
const SECRET: &str = "a-secret-access-key-that-nobody-may-see";

/// Runs a command of an operator with this standard input.
pub(crate) fn operator(host: &Host, words: &[&str], input: &str) -> Ended {
    let mut command = Command::new(binary());
    command.args(words).arg("--data-dir").arg(host.data());
    ended(command, input.as_bytes())
}

/// The same, which must succeed, as JSON.
pub(crate) fn operator_json(host: &Host, words: &[&str], input: &str) -> Value {
    let ended = operator(host, &[words, &["--json"]].concat(), input);
    assert_eq!(ended.code, 0, "{ended:?}");
    ended.json()
}

/// Makes a connection to the bucket of a server, with further arguments.
pub(crate) fn connect(host: &Host, moto: &Moto, name: &str, more: &[&str]) -> Value {
    let endpoint = format!("http://{}", moto.address);
    let words = ["storage", "create", name, "--bucket", BUCKET, "--endpoint", &endpoint];
    let access = ["--allow-private-endpoint", "--access-key-id", "AKIATEST", "--secret-file", "-"];
    operator_json(host, &[&words[..], &access, more].concat(), SECRET)
}

/// Puts an object into the bucket.
pub(crate) async fn put_object(moto: &Moto, key: &str, content: &str) {
    cloche_test_support::install_crypto();
    let url = format!("http://{}/{BUCKET}/{key}", moto.address);
    let put = reqwest::Client::new().put(url).body(content.to_owned()).send().await.unwrap();
    assert!(put.status().is_success(), "{put:?}");
}

#[tokio::test]
async fn a_connection_is_tried_before_it_is_saved_and_on_request() {
    let Some(moto) = Moto::start() else { return };
    let Some(host) = Host::start().await else { return };
    let made = connect(&host, &moto, "company-data", &["--prefix", "reports"]);
    assert_eq!((&made["kind"], &made["prefix"]), (&json!("s3"), &json!("reports/")));
    assert_eq!(made["credentials"], json!(["access_key_id", "secret_access_key"]));
    let check = operator_json(&host, &["storage", "check", "company-data"], "");
    let steps = check["steps"].as_array().unwrap();
    let names: Vec<_> = steps.iter().map(|step| step["step"].as_str().unwrap()).collect();
    assert_eq!(names, ["list", "write", "read", "delete"], "{check}");
    assert_eq!(check["ok"], true);
    // Nothing of the probe is left.
    let listing = reqwest::get(format!("http://{}/{BUCKET}", moto.address)).await.unwrap();
    assert!(!listing.text().await.unwrap().contains("cloche-probe"));

    let list = operator(&host, &["storage", "list"], "").printed();
    assert!(list.contains("company-data") && list.contains("s3"), "{list}");
    let shown = operator(&host, &["storage", "show", "company-data"], "").printed();
    for text in [&list, &shown, &host.said("log")] {
        assert!(!text.contains(SECRET), "{text}");
    }
    for file in std::fs::read_dir(host.data()).unwrap() {
        let path = file.unwrap().path();
        if let Ok(bytes) = std::fs::read(&path) {
            let found = bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes());
            assert!(!found, "{}", path.display());
        }
    }
}

/// A store that refuses every request, as S3 does for a wrong key. It ends with the test.
fn start_denying_store() -> String {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 8192]);
            let body = "<Error><Code>InvalidAccessKeyId</Code><Message>no</Message></Error>";
            let length = body.len();
            let head = "HTTP/1.1 403 Forbidden\r\nContent-Type: application/xml\r\n";
            let _ =
                write!(stream, "{head}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}");
        }
    });
    address
}

#[tokio::test]
async fn a_check_says_what_is_wrong_with_a_connection() {
    let Some(moto) = Moto::start() else { return };
    let Some(host) = Host::start().await else { return };
    let good = format!("http://{}", moto.address);
    // A port that was free a moment ago.
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dead_address = format!("http://{}", dead.local_addr().unwrap());
    drop(dead);
    let denying = start_denying_store();
    for (endpoint, bucket, sentence) in [
        (&good, "no-such-bucket", "the bucket does not exist"),
        (&denying, BUCKET, "the storage refuses these credentials"),
        (&dead_address, BUCKET, "could not be reached"),
    ] {
        let words =
            ["storage", "create", "x", "--bucket", bucket, "--endpoint", endpoint, "--secret-file"];
        let access = ["-", "--access-key-id", "AKIA", "--allow-private-endpoint"];
        let refused = operator(&host, &[&words[..], &access].concat(), SECRET);
        assert_eq!(refused.code, 1, "{refused:?}");
        let said = &refused.stderr;
        assert!(said.contains(sentence) && said.contains("list failed"), "{said}");
        assert!(!said.contains(SECRET), "{said}");
    }
    // A private address needs the operator's word, and the metadata service is never allowed.
    for (endpoint, allow) in [(good.as_str(), false), ("http://169.254.169.254", true)] {
        let mut words = vec!["storage", "create", "x", "--bucket", BUCKET, "--endpoint", endpoint];
        if allow {
            words.push("--allow-private-endpoint");
        }
        let refused = operator(&host, &words, "");
        assert_eq!(refused.code, 1, "{endpoint}: {refused:?}");
    }
    let listed = operator_json(&host, &["storage", "list"], "");
    assert_eq!(listed["storage"], json!([]), "nothing of these was saved");
    // Saved on request without a check, it fails when it is tried.
    let words = ["storage", "create", "later", "--bucket", "no-such-bucket", "--no-check"];
    let access = ["--endpoint", &good, "--allow-private-endpoint"];
    operator_json(&host, &[&words[..], &access].concat(), "");
    let failed = operator(&host, &["storage", "check", "later"], "");
    assert_eq!(failed.code, 1);
    assert!(failed.stderr.contains("the bucket does not exist"), "{failed:?}");
}

#[tokio::test]
async fn a_connection_in_use_is_removed_only_after_it_is_unbound() {
    let Some(moto) = Moto::start() else { return };
    let Some(host) = Host::start().await else { return };
    connect(&host, &moto, "company-data", &[]);
    let bound =
        operator_json(&host, &["storage", "bind", "company-data", "--sandbox", "default"], "");
    assert_eq!(bound["bindings"][0]["user"], "sandbox default");
    assert_eq!(bound["bindings"][0]["read_only"], true);
    let refused = operator(&host, &["storage", "rm", "company-data"], "");
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("is used by sandbox default"), "{refused:?}");
    operator_json(&host, &["storage", "unbind", "company-data", "--sandbox", "default"], "");
    let removed = operator(&host, &["storage", "rm", "company-data"], "");
    assert_eq!(removed.printed(), "removed company-data\n");
}

#[tokio::test]
async fn storage_of_another_team_is_as_if_it_did_not_exist() {
    let Some(host) = Host::start().await else { return };
    operator_json(&host, &["team", "create", "other", "--plan", "pro"], "");
    operator_json(&host, &["sandbox", "create", "theirs", "--team", "other"], "");
    operator_json(&host, &["volume", "create", "work", "--quota", "8M", "--team", "other"], "");
    // A sandbox of one team cannot be bound to the volume of another, in either direction.
    let refused = operator(
        &host,
        &["storage", "bind", "work", "--team", "other", "--sandbox", "default"],
        "",
    );
    assert!(refused.stderr.contains("no such sandbox"), "{refused:?}");
    let body = json!({"team": "default", "name": "mine", "storage": ["work"]});
    let answer = host.admin_request(Method::POST, "sandboxes").json(&body).send().await.unwrap();
    assert_eq!(answer.status(), 400);
    let refused = operator(&host, &["team", "rm", "other"], "");
    assert!(refused.stderr.contains("the team still has volumes: work"), "{refused:?}");
    for name in ["work", "missing"] {
        let body = json!({"source": "volume", "id": name});
        let request = host.request(Method::POST, "/v1/files/list").json(&body);
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 404);
        let answer: Value = answer.json().await.unwrap();
        assert_eq!(answer, json!({"error": "not_found", "message": "no such volume"}));
    }
}
