//! Runs in: test. An approval is valid for the home that the approver was shown. Changes of a
//! thread in the meantime are shown, and invalidate the approval.

use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{
    agent::{Agent, runs, sandbox},
    approvals::{admin, admin_json, pending},
    host::Host,
    support::eventually,
    threads::put,
};

/// A server whose agents need approval.
async fn asking() -> Option<Host> {
    let host = Host::start().await?;
    let gates = json!({"agent_sandbox": true, "execute_code": "ask"});
    host.admin_json(Method::PATCH, "defaults", gates).await;
    Some(host)
}

/// The result of an MCP tool call.
fn call(host: &Host, tool: &str, arguments: Value) -> JoinHandle<Value> {
    let params = json!({"name": tool, "arguments": arguments});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let request = host.request(Method::POST, "/mcp").json(&message);
    tokio::spawn(async move {
        let answer: Value = request.send().await.unwrap().json().await.unwrap();
        answer["result"].clone()
    })
}

fn python(code: &str) -> Value {
    json!({"language": "python", "code": code, "thread_id": "t"})
}

/// The open question other than this one.
async fn question(host: &Host, call: &JoinHandle<Value>, other: &str) -> String {
    eventually("the call waits for an approval", async || {
        assert!(!call.is_finished(), "{}", host.said("log"));
        pending(host).into_iter().find(|id| id != other)
    })
    .await
}

/// The directory where this host's Python looks for the user's modules.
async fn site_packages(host: &Host) -> String {
    let code = "import site; print(site.getusersitepackages())";
    let (_, answer) = host.run(json!({"code": code})).await;
    let path = answer["stdout"].as_str().unwrap().trim();
    path.strip_prefix("/home/baponi/").unwrap_or_else(|| panic!("{answer}")).to_owned()
}

const PLANTED: &str = "print('planted code runs')\n";

#[tokio::test(flavor = "multi_thread")]
async fn write_file_needs_the_same_approval_as_code() {
    let Some(host) = asking().await else { return };
    let path = format!("{}/usercustomize.py", site_packages(&host).await);
    let arguments = json!({"thread_id": "t", "path": path, "content": PLANTED});
    let write = call(&host, "write_file", arguments);
    let id = question(&host, &write, "").await;
    let shown = admin(&host, &["approval", "show", &id]).printed();
    assert!(shown.contains("tool              write_file"), "{shown}");
    assert!(shown.contains("RUNS BY ITSELF: Python runs it at every start"), "{shown}");
    assert!(shown.contains("content:\n    print('planted code runs')\n"), "{shown}");
    let denied = admin(&host, &["approval", "deny", &id, "--reason", "no hooks"]);
    assert_eq!(denied.code, 0, "{denied:?}");
    let result = write.await.unwrap();
    assert_eq!(result["isError"], true, "{result}");
    let said = result["content"][0]["text"].as_str().unwrap();
    assert!(said.contains("denied this call: no hooks"), "{said}");
    assert_eq!(host.get("/v1/threads/t").await.0, 404, "nothing was written");

    let arguments = json!({"thread_id": "t", "path": "notes.txt", "content": "x"});
    let write = call(&host, "write_file", arguments.clone());
    let id = question(&host, &write, "").await;
    admin(&host, &["approval", "approve", &id]).printed();
    let result = write.await.unwrap();
    assert_ne!(result["isError"], true, "{result}");
    host.admin_json(Method::PATCH, "defaults", json!({"execute_code": "deny"})).await;
    let refused = call(&host, "write_file", arguments).await.unwrap();
    let said = refused["content"][0]["text"].as_str().unwrap();
    assert!(said.contains("denies execute_code"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_planted_in_a_thread_is_shown_to_the_approver() {
    let Some(host) = asking().await else { return };
    let path = format!("{}/usercustomize.py", site_packages(&host).await);
    assert_eq!(put(&host, "t", &path, PLANTED).await, Some(200));
    assert_eq!(put(&host, "t", "plain.txt", "a\u{200b}b").await, Some(200));
    let run = call(&host, "execute_code", python("print(1+1)"));
    let id = question(&host, &run, "").await;
    let shown = admin(&host, &["approval", "show", &id]).printed();
    let loud =
        format!("added {path} !! RUNS BY ITSELF: Python runs it at every start, 27 bytes:\n");
    assert!(shown.contains(&format!("{loud}    print('planted code runs')\n")), "{shown}");
    assert!(shown.contains("added plain.txt, 5 bytes:\n    a\\u{200b}b\n"), "{shown}");
    let record = admin_json(&host, &["approval", "show", &id]);
    assert_eq!((&record["thread_id"], &record["changes"]["since"]), (&json!("t"), &Value::Null));
    let first = &record["changes"]["paths"][0];
    assert_eq!((&first["path"], &first["content"]), (&json!(path), &json!(PLANTED)), "{record}");
    assert_eq!(first["warning"], "Python runs it at every start");
    admin(&host, &["approval", "approve", &id]).printed();
    let result = run.await.unwrap();
    assert_eq!(result["structuredContent"]["stdout"], "planted code runs\n2\n", "{result}");

    // The next approver is shown the changes since: here those of another key's execution.
    let code = "open('json.py', 'w').write('evil = 1')";
    host.run(json!({"code": code, "thread_id": "t"})).await;
    let run = call(&host, "execute_code", python("print(2+2)"));
    let next = question(&host, &run, "").await;
    let shown = admin(&host, &["approval", "show", &next]).printed();
    assert!(shown.contains(&format!("changes of the home since {id} was approved")), "{shown}");
    assert!(shown.contains("json.py !! RUNS BY ITSELF: Python imports it in place"), "{shown}");
    assert!(shown.contains("    evil = 1\n") && !shown.contains("plain.txt"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_after_the_question_needs_a_new_approval() {
    let Some(host) = asking().await else { return };
    let run = call(&host, "execute_code", python("print(1+1)"));
    let first = question(&host, &run, "").await;
    assert_eq!(put(&host, "t", ".bashrc", "evil").await, Some(200));
    let late = admin(&host, &["approval", "approve", &first]);
    let said = "cloche: it no longer counts: the thread changed after approval was requested; the \
                call has to be asked about again\n";
    assert_eq!((late.code, late.stderr.as_str()), (1, said), "{late:?}");
    // The waiting call asks again, with the changes.
    let second = question(&host, &run, &first).await;
    let shown = admin(&host, &["approval", "show", &second]).printed();
    assert!(shown.contains(".bashrc !! RUNS BY ITSELF: Bash runs it at start"), "{shown}");
    admin(&host, &["approval", "approve", &second]).printed();
    assert_eq!(run.await.unwrap()["structuredContent"]["stdout"], "2\n");
    let first = admin_json(&host, &["approval", "show", &first]);
    assert_eq!(first["state"], "expired");
    assert_eq!(first["reason"], "the thread changed after approval was requested");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_after_the_approval_needs_a_new_approval() {
    let Some(host) = asking().await else { return };
    for (turn, change) in ["upload", "run", "rollback"].into_iter().enumerate() {
        let code = format!("print('turn {turn}')");
        let run = call(&host, "execute_code", python(&code));
        let first = question(&host, &run, "").await;
        run.abort();
        let _ = run.await;
        admin(&host, &["approval", "approve", &first]).printed();
        match change {
            "upload" => assert_eq!(put(&host, "t", "a.py", "x").await, Some(200)),
            "run" => {
                let code = "open('b.py', 'w').write('x')";
                assert_eq!(host.run(json!({"code": code, "thread_id": "t"})).await.0, 200);
            }
            _ => {
                let body = json!({"to": 1});
                let rolled = host.request(Method::POST, "/v1/threads/t/rollback").json(&body);
                assert_eq!(rolled.send().await.unwrap().status(), 200);
            }
        }
        let run = call(&host, "execute_code", python(&code));
        let second = question(&host, &run, &first).await;
        let shown = admin(&host, &["approval", "show", &second]).printed();
        let note =
            format!("!! the thread changed after {first} was approved, so the call is asked");
        assert!(shown.contains(&note), "{change}: {shown}");
        assert_eq!(admin_json(&host, &["approval", "show", &first])["state"], "expired");
        admin(&host, &["approval", "approve", &second]).printed();
        let result = run.await.unwrap();
        assert_eq!(result["structuredContent"]["stdout"], format!("turn {turn}\n"), "{result}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_too_large_to_show_is_refused() {
    let Some(host) = asking().await else { return };
    let data = "x".repeat(3 << 20);
    let files = json!([{"name": "data.txt", "content": data}]);
    let arguments = json!({"language": "python", "code": "print(1)", "files": files});
    let result = call(&host, "execute_code", arguments).await.unwrap();
    let said = result["structuredContent"]["error"]["message"].as_str().unwrap();
    assert!(said.contains("a person can be shown at most"), "{said}");
    assert_eq!(pending(&host), Vec::<String>::new());
}

#[tokio::test]
async fn a_changed_container_of_the_agent_api_needs_a_new_approval() {
    let Some(agent) = Agent::start().await else { return };
    agent.gates(json!({"agent_sandbox": true, "execute_code": "ask"})).await;
    let script = json!([runs("print('approved')"), {"told": true}]);
    let waiting = agent.ask(json!({"tools": sandbox()}), script).await;
    let first = waiting["required_action"]["approval_id"].as_str().unwrap().to_owned();
    let container = waiting["output"][0]["container_id"].as_str().unwrap();
    assert_eq!(put(&agent.host, container, "sitecustomize.py", PLANTED).await, Some(200));
    let path = format!("approvals/{first}/approve");
    let late = agent.host.admin_request(Method::POST, &path).json(&json!({})).send().await.unwrap();
    assert_eq!(late.status(), 409, "{}", late.text().await.unwrap());
    let is_next = |response: &Value| {
        response["required_action"]["approval_id"].as_str().is_some_and(|id| id != first)
    };
    let again = agent.until(&waiting["id"], is_next).await;
    let second = again["required_action"]["approval_id"].as_str().unwrap();
    let request = agent.host.admin_request(Method::GET, &format!("approvals/{second}"));
    let record: Value = request.send().await.unwrap().json().await.unwrap();
    let planted = &record["changes"]["paths"][0];
    assert_eq!(
        (&planted["path"], &planted["content"]),
        (&json!("sitecustomize.py"), &json!(PLANTED))
    );
    let path = format!("approvals/{second}/approve");
    agent.host.admin_json(Method::POST, &path, json!({})).await;
    agent.until(&waiting["id"], |response| response["status"] == "completed").await;
    // With the gate closed, files that the agent's code wrote are not returned either.
    agent.gates(json!({"agent_sandbox": false})).await;
    let files = format!("/v1/responses/{}/files", waiting["id"].as_str().unwrap());
    assert_eq!(agent.host.get(&files).await.0, 403);
}
