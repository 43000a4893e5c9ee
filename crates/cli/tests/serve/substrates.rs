//! The substrate of a sandbox, through the admin API, the command line and executions.

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    host::Host,
    storage_connections::{operator, operator_json},
};

async fn default_sandbox(host: &Host) -> String {
    let list = host.admin_json(Method::GET, "sandboxes", json!({})).await;
    format!("sandboxes/{}", list["sandboxes"][0]["id"].as_str().unwrap())
}

#[tokio::test]
async fn a_sandbox_runs_on_the_substrate_that_it_is_set_to_and_threads_go_on() {
    let Some(host) = Host::start().await else { return };
    let sandbox = default_sandbox(&host).await;
    let shown = host.admin_json(Method::GET, &sandbox, json!({})).await;
    assert_eq!(shown["substrate"], "native");
    let code = "cat log 2>/dev/null; echo $((n++)) >> log; (: > /proc/1/mem) 2>&1 | wc -l; \
                echo $PPID";
    // The parent of a program that a runtime started is outside its pid namespace.
    for (substrate, parent) in [("oci:crun", "0"), ("native", "1")] {
        let set = host.admin_json(Method::PATCH, &sandbox, json!({"substrate": substrate})).await;
        assert_eq!(set["substrate"], substrate, "{set}");
        let run = json!({"code": code, "language": "bash", "thread_id": "t"});
        let (status, answer) = host.run(run).await;
        assert_eq!(status, 200, "{answer}");
        let said = answer["stdout"].as_str().unwrap();
        assert_eq!(said.lines().last(), Some(parent), "{substrate}: {answer}");
    }
    let (_, answer) =
        host.run(json!({"code": "cat log", "language": "bash", "thread_id": "t"})).await;
    assert_eq!(answer["stdout"], "0\n0\n", "{answer}");
}

#[tokio::test]
async fn a_substrate_that_cannot_be_used_is_refused_when_it_is_saved() {
    let Some(host) = Host::start().await else { return };
    let sandbox = default_sandbox(&host).await;
    for (change, words) in [
        (json!({"substrate": "oci:youki"}), "substrate must be one of: native, oci:crun"),
        (json!({"substrate": ""}), "substrate must be one of"),
    ] {
        let response =
            host.admin_request(Method::PATCH, &sandbox).json(&change).send().await.unwrap();
        assert_eq!(response.status(), 400, "{change}");
        let answer: Value = response.json().await.unwrap();
        assert!(answer["message"].as_str().unwrap().contains(words), "{answer}");
    }
    let shown = host.admin_json(Method::GET, &sandbox, json!({})).await;
    assert_eq!((&shown["substrate"], &shown["profile"]), (&json!("native"), &json!("standard")));
}

#[tokio::test]
async fn what_only_native_cells_have_is_refused_when_it_is_saved_and_when_it_is_used() {
    let Some(host) = Host::start().await else { return };
    let sandbox = default_sandbox(&host).await;
    let refused = |words: &[&str], sentence: &str| {
        let ended = operator(&host, words, "");
        assert!(ended.code != 0 && ended.stderr.contains(sentence), "{words:?}: {ended:?}");
    };
    let storage = "storage mounts need the substrate native";
    operator_json(&host, &["volume", "create", "work", "--quota", "8M"], "");
    operator_json(&host, &["sandbox", "create", "oci", "--substrate", "oci:crun"], "");
    refused(&["storage", "bind", "work", "--sandbox", "oci"], storage);
    refused(&["sandbox", "set", "default/oci", "--storage", "work"], storage);
    let both = ["sandbox", "create", "x", "--substrate", "oci:crun", "--storage", "work"];
    refused(&both, storage);
    refused(
        &["sandbox", "set", "default/oci", "--network", "unrestricted"],
        "needs the substrate native",
    );
    operator_json(&host, &["storage", "bind", "work", "--sandbox", "default"], "");
    refused(&["sandbox", "set", "default/default", "--substrate", "oci:crun"], storage);
    // A key can be bound too, and its sandbox can be moved later: then it is refused when used.
    let set = json!({"substrate": "oci:crun", "storage": []});
    let set = host.admin_json(Method::PATCH, &sandbox, set).await;
    assert_eq!(set["substrate"], "oci:crun", "{set}");
    let keys = host.admin_json(Method::GET, "keys", json!({})).await;
    let key = keys["keys"][0]["id"].as_str().unwrap();
    operator_json(&host, &["storage", "bind", "work", "--key", key], "");
    let (status, answer) = host.run(json!({"code": "echo ran", "language": "bash"})).await;
    assert_eq!(status, 400, "{answer}");
    assert!(answer.to_string().contains(storage), "{answer}");
    operator_json(&host, &["storage", "unbind", "work", "--key", key], "");
    let (status, answer) = host.run(json!({"code": "echo ran", "language": "bash"})).await;
    assert_eq!((status, &answer["stdout"]), (200, &json!("ran\n")), "{answer}");
}

/// Injected credentials are there on every runtime, as in a native cell.
#[tokio::test]
async fn injected_credentials_reach_programs_on_every_substrate() {
    let Some(host) = Host::start().await else { return };
    let sandbox = default_sandbox(&host).await;
    let value = "a value that only the program may read";
    let create = ["credential", "create", "deploy", "--file", "deploy.pem", "--sandbox", "default"];
    operator_json(&host, &create, value);
    let create = ["credential", "create", "db", "--env", "DATABASE_URL", "--sandbox", "default"];
    operator_json(&host, &create, "db://x");
    let code = "import os\np = '/run/secrets/deploy.pem'\ns = os.stat(p)\n\
        print(open(p).read(), oct(s.st_mode & 0o777), s.st_uid, os.environ['DATABASE_URL'])";
    for substrate in ["native", "oci:crun", "oci:runc", "oci:runsc"] {
        host.admin_json(Method::PATCH, &sandbox, json!({"substrate": substrate})).await;
        let (status, answer) = host.run(json!({"code": code, "thread_id": "kept"})).await;
        assert_eq!(status, 200, "{substrate}: {answer}");
        let expected = format!("{value} 0o400 1000 db://x\n");
        assert_eq!(answer["stdout"], expected, "{substrate}: {answer}");
        let left = "grep -rl 'only the program[ ]may' ~ /tmp | wc -l";
        let left = json!({"code": left, "language": "bash", "thread_id": "kept"});
        assert_eq!(host.run(left).await.1["stdout"], "0\n", "{substrate}");
    }
}
