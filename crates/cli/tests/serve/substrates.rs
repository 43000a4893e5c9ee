//! The substrate of a sandbox, through the admin API, the command line and executions.

use reqwest::Method;
use serde_json::{Value, json};

use crate::host::Host;

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
