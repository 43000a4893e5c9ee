//! Runs in: test. Secrets at rest: what the files of a data directory reveal, and with which key a
//! server starts on them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use hmac::{Hmac, Mac};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use sha2::Sha256;

use crate::{
    host::Host,
    support::{binary, ended},
};

const WEBHOOK: &str = "webhook-secret-of-the-default-key";
const VARIABLE: &str = "variable-that-only-the-program-may-read";

fn database(data: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = fs::read_dir(data).unwrap().map(|file| file.unwrap().path());
    let files =
        files.filter(|path| path.is_file() && path.display().to_string().contains("cloche.db"));
    files.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

fn assert_absent(data: &Path, text: &str) {
    for (path, bytes) in database(data) {
        let found = bytes.windows(text.len()).any(|part| part == text.as_bytes());
        assert!(!found, "{text} is in {}", path.display());
    }
}

/// Whether any 64 hex digits of the database are the key that signed this URL.
fn can_forge(data: &Path, url: &str) -> bool {
    let token = url.rsplit('/').next().unwrap();
    let (text, code) = token.split_once('.').unwrap();
    let (text, code) =
        (URL_SAFE_NO_PAD.decode(text).unwrap(), URL_SAFE_NO_PAD.decode(code).unwrap());
    database(data).iter().any(|(_, bytes)| {
        bytes.windows(64).filter(|part| part.iter().all(u8::is_ascii_hexdigit)).any(|digits| {
            let key = hex::decode(digits).unwrap();
            let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
            mac.update(&text);
            mac.verify_slice(&code).is_ok()
        })
    })
}

/// Sets a secret of each kind. Returns the path of the sandbox and a signed URL.
async fn set_secrets(host: &Host) -> (String, String) {
    let (_, written) =
        host.run(json!({"language": "bash", "code": "echo kept > f", "thread_id": "t"})).await;
    assert_eq!(written["exit_code"], 0, "{written}");
    let keys = host.admin_json(Method::GET, "keys", Value::Null).await;
    let key = &keys["keys"][0];
    let key_path = format!("keys/{}", key["id"].as_str().unwrap());
    host.admin_json(Method::PATCH, &key_path, json!({"webhook_secret": WEBHOOK})).await;
    let sandbox = format!("sandboxes/{}", key["sandbox_id"].as_str().unwrap());
    let env = json!({"TOKEN": {"value": "an-earlier-value", "secret": true}, "OPEN": "seen"});
    host.admin_json(Method::PATCH, &sandbox, json!({"env_vars": env})).await;
    // The command reads the value from a file, because every user of the host can read arguments.
    let mut set = Command::new(binary());
    let id = key["sandbox_id"].as_str().unwrap();
    set.args(["sandbox", "set", id, "--secret-env", "TOKEN=-", "--json", "--data-dir"]);
    set.arg(host.data());
    let record = ended(set, VARIABLE.as_bytes()).json();
    assert_eq!(record["env_vars"], json!({"TOKEN": "********", "OPEN": "seen"}));
    assert_eq!(record["secret_env_vars"], json!(["TOKEN"]));
    let body = json!({"source": "thread", "id": "t", "path": "f"});
    let answer =
        host.request(Method::POST, "/v1/files/download_url").json(&body).send().await.unwrap();
    let signed: Value = answer.json().await.unwrap();
    (sandbox, signed["url"].as_str().unwrap_or_else(|| panic!("{signed}")).to_owned())
}

async fn assert_variable(host: &Host) {
    // Encoded, because the ledger stores what programs print.
    let code = "printf %s $TOKEN | base64 -w0; echo \" $OPEN\"";
    let (_, ran) = host.run(json!({"language": "bash", "code": code})).await;
    assert_eq!(ran["stdout"], format!("{} seen\n", STANDARD.encode(VARIABLE)), "{ran}");
}

#[tokio::test]
async fn secrets_are_in_no_file_of_the_database_and_work_after_a_restart() {
    let Some(host) = Host::start().await else { return };
    let (sandbox, url) = set_secrets(&host).await;
    assert_variable(&host).await;
    for text in [WEBHOOK, VARIABLE] {
        assert_absent(&host.data(), text);
    }
    assert!(!can_forge(&host.data(), &url), "the key that signs URLs is in the database");

    // A shown record can be sent back: stars keep the stored value.
    let shown = host.admin_json(Method::GET, &sandbox, Value::Null).await["env_vars"].clone();
    host.admin_json(Method::PATCH, &sandbox, json!({"env_vars": shown})).await;

    let host = host.stop_and_start(&[]).await;
    assert_variable(&host).await;
    let path = url.split_once("/v1/").unwrap().1;
    let again = reqwest::get(format!("{}/v1/{path}", host.url)).await.unwrap();
    assert_eq!(again.text().await.unwrap(), "kept\n");
    assert!(!host.said("log").contains(VARIABLE) && !host.said("log").contains(WEBHOOK));
    assert_absent(&host.data(), VARIABLE);
}

#[tokio::test]
async fn a_server_does_not_start_with_another_secret_key() {
    let Some(mut host) = Host::start().await else { return };
    set_secrets(&host).await;
    host.signal(Signal::TERM);
    host.ended().await;
    let before = database(&host.data());
    let other = "09".repeat(32);
    let mut server = Command::new(binary());
    server.args(["serve", "--listen", "127.0.0.1:0", "--no-local-executor", "--data-dir"]);
    server.arg(host.data()).env("CLOCHE_SECRET_KEY", &other);
    let refused = ended(server, b"");
    let said = refused.stderr;
    assert_ne!(refused.code, 0, "{said}");
    assert!(said.contains("the secrets in the database were sealed with the key"), "{said}");
    assert!(!said.contains(&other), "{said}");
    // SQLite may leave an empty log.
    let mut after = database(&host.data());
    after.retain(|(_, bytes)| !bytes.is_empty());
    assert_eq!(after, before);

    // With the key of the file in the environment, and without the file, the server starts.
    let file = host.data().join("secret.key");
    let key = fs::read_to_string(&file).unwrap();
    fs::remove_file(&file).unwrap();
    let host = host.stop_and_start(&[("CLOCHE_SECRET_KEY", key.trim())]).await;
    assert_variable(&host).await;
    assert!(!file.exists());
    let (_, ran) = host.run(json!({"language": "bash", "code": "env; cat /proc/1/environ"})).await;
    assert!(!ran["stdout"].as_str().unwrap().contains(key.trim()), "{ran}");
}
