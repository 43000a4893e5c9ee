//! Runs in: test. Credentials through the real binary: commands, bindings, injected values, and the
//! places where a value must not be.

use std::{fs, path::Path, process::Command};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use cloche_test_support::command::Ended;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    host::Host,
    support::{binary, ended},
};

const FIRST: &str = "first-value-of-the-credential";
const SECOND: &str = "second-value-of-the-credential";

/// Runs `cloche credential`, with a value on standard input.
fn credential(host: &Host, arguments: &[&str], value: &str) -> Ended {
    let mut command = Command::new(binary());
    command.arg("credential").args(arguments).args(["--json", "--data-dir"]).arg(host.data());
    ended(command, value.as_bytes())
}

fn files_with(directory: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with(&path, text));
        } else if let Ok(bytes) = fs::read(&path)
            && bytes.windows(text.len()).any(|part| part == text.as_bytes())
        {
            found.push(path.display().to_string());
        }
    }
    found
}

async fn output(host: &Host, body: Value) -> String {
    let (_, ran) = host.run(body).await;
    assert_eq!(ran["exit_code"], 0, "{ran}");
    ran["stdout"].as_str().unwrap().to_owned()
}

/// Prints a value encoded, because the ledger stores what programs print.
const READ: [(&str, &str); 3] = [
    (
        "python",
        "import base64, os, stat\n\
         path = '/run/secrets/key.pem'\n\
         made = os.stat(path)\n\
         print(base64.b64encode(open(path, 'rb').read()).decode(), oct(stat.S_IMODE(made.st_mode)), \
         made.st_uid == os.getuid(), base64.b64encode(os.environb[b'TOKEN']).decode())",
    ),
    (
        "node",
        "const fs = require('fs'), path = '/run/secrets/key.pem', made = fs.statSync(path);\n\
         const mode = '0o' + (made.mode & 0o777).toString(8);\n\
         const is_own = made.uid === process.getuid() ? 'True' : 'False';\n\
         console.log(fs.readFileSync(path).toString('base64'), mode, is_own, \
         Buffer.from(process.env.TOKEN).toString('base64'))",
    ),
    (
        "bash",
        "own=False; [ -O /run/secrets/key.pem ] && own=True\n\
         echo \"$(base64 -w0 /run/secrets/key.pem) 0o$(stat -c %a /run/secrets/key.pem) $own \
         $(printf %s \"$TOKEN\" | base64 -w0)\"",
    ),
];

#[tokio::test]
async fn injected_credentials_reach_programs_of_every_language_and_no_file_of_the_host() {
    let Some(host) = Host::start().await else { return };
    let bound = ["--sandbox", "default"];
    let file = [&["create", "key", "--file", "key.pem"][..], &bound].concat();
    let made = credential(&host, &file, &format!("{FIRST}\nline two\n")).json();
    assert_eq!((&made["kind"], &made["visible_to_code"]), (&json!("injected"), &json!(true)));
    assert_eq!(made["file"], "/run/secrets/key.pem");
    let env = [&["create", "token", "--env", "TOKEN"][..], &bound].concat();
    credential(&host, &env, FIRST).json();

    let expected = format!(
        "{} 0o400 True {}\n",
        STANDARD.encode(format!("{FIRST}\nline two")),
        STANDARD.encode(FIRST)
    );
    for (language, code) in READ {
        for thread in [Value::Null, json!("kept")] {
            let body = json!({"language": language, "code": code, "thread_id": thread});
            assert_eq!(output(&host, body).await, expected, "{language} {thread}");
        }
    }
    // The value ends with the run: it is in no home and no layer.
    let left = json!({"language": "bash", "thread_id": "kept",
        "code": "grep -rl first-value ~ /tmp | grep -v main; ls -A ~/.. /run"});
    let listed = output(&host, left).await;
    assert_eq!(listed, "/home/baponi/..:\nbaponi\n\n/run:\ncloche\nsecrets\ntrust\n", "{listed}");
    assert_eq!(files_with(&host.data(), FIRST), [""; 0]);
    assert!(!host.said("log").contains(FIRST));

    // A new value is used from the next execution on, without a restart.
    credential(&host, &["set", "default/token", "--value-file", "-"], SECOND).json();
    let code = "printf %s \"$TOKEN\" | base64 -w0";
    let now = output(&host, json!({"language": "bash", "code": code})).await;
    assert_eq!(now, STANDARD.encode(SECOND));
    assert_eq!(files_with(&host.data(), SECOND), [""; 0]);

    let list = credential(&host, &["list"], "").stdout;
    assert!(list.contains("last_used_at\": \"2") && !list.contains(SECOND), "{list}");
    assert_eq!(credential(&host, &["unbind", "default/token", "--sandbox", "default"], "").code, 0);
    assert_eq!(output(&host, json!({"language": "bash", "code": code})).await, "");
    assert_eq!(credential(&host, &["rm", "default/key"], "").code, 0);
    let gone = json!({"language": "bash", "code": "ls -A /run/secrets"});
    assert_eq!(output(&host, gone).await, "");
}

#[tokio::test]
async fn a_credential_is_bound_to_one_key_and_to_no_other_team() {
    let Some(host) = Host::start().await else { return };
    let keys = host.admin_json(Method::GET, "keys", Value::Null).await;
    let own = keys["keys"][0]["id"].as_str().unwrap().to_owned();
    let sandbox = keys["keys"][0]["sandbox_id"].clone();
    let made =
        credential(&host, &["create", "token", "--env", "TOKEN", "--key", &own], FIRST).json();
    assert_eq!(made["keys"], json!([own]));
    let code = json!({"language": "bash", "code": "printf %s \"$TOKEN\" | wc -c"});
    assert_eq!(output(&host, code.clone()).await, format!("{}\n", FIRST.len()));
    let body = json!({"team": "default", "sandbox": sandbox, "name": "other"});
    let other = host.admin_json(Method::POST, "keys", body).await;
    let with_other = host.with_key(other["key"].as_str().unwrap().to_owned());
    assert_eq!(output(&with_other, code.clone()).await, "0\n");

    let host = with_other;
    host.admin_json(Method::POST, "teams", json!({"name": "strangers", "plan": "pro"})).await;
    let create = ["create", "theirs", "--team", "strangers", "--env", "TOKEN"];
    credential(&host, &create, SECOND).json();
    let bind = credential(&host, &["bind", "strangers/theirs", "--key", &own], "");
    assert!(bind.code != 0 && bind.stderr.contains("no such key"), "{}", bind.stderr);
    let bind = credential(&host, &["bind", "strangers/theirs", "--sandbox", "default"], "");
    assert!(bind.code != 0 && bind.stderr.contains("no such sandbox"), "{}", bind.stderr);
}

#[tokio::test]
async fn a_wrong_credential_is_refused_with_a_sentence_that_does_not_show_it() {
    let Some(host) = Host::start().await else { return };
    let value = "wrong-value\r\nX-Injected: 1";
    for (arguments, sentence) in [
        (&["create", "a", "--host", "api.example.com"][..], "without line breaks"),
        (&["create", "a", "--host", "https://api.example.com/v1"], "not a URL"),
        (&["create", "a", "--host", "10.0.0.1"], "an exact name such as api.example.com"),
        (&["create", "a", "--host", "*.example.com"], "wildcards are not allowed"),
        (
            &["create", "a", "--host", "a.example", "--form", "header Host"],
            "belongs to the connection",
        ),
        (&["create", "a", "--host", "a.example", "--path", "/a/../b"], "dot segments"),
        (
            &["create", "a", "--host", "a.example", "--method", "TRACE"],
            "never carries a credential",
        ),
        (&["create", "a", "--env", "LD_PRELOAD"], "reserved by the system"),
        (&["create", "a", "--file", "../x"], "plain file name"),
        (&["create", "A", "--env", "TOKEN"], "lower-case letters"),
        (&["create", "a"], "at least one host"),
    ] {
        let refused = credential(&host, arguments, value);
        assert!(refused.code != 0 && refused.stderr.contains(sentence), "{}", refused.stderr);
        assert!(!refused.stderr.contains("wrong-value"), "{}", refused.stderr);
    }
    let list = host.admin_json(Method::GET, "credentials", Value::Null).await;
    assert_eq!(list["credentials"], json!([]));
    assert!(!host.said("log").contains("wrong-value"));
}
