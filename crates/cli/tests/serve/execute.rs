//! Inline execution in real sandboxes.

use std::{process::Command, time::Duration};

use reqwest::Method;
use serde_json::json;

use crate::{
    host::{Host, trace_id},
    support::{binary, ended, skip},
};

#[tokio::test]
async fn python_node_and_bash_run() {
    let Some(host) = Host::start().await else { return };
    for (language, code) in
        [("python", "print(6 * 7)"), ("node", "console.log(6 * 7)"), ("bash", "echo $((6 * 7))")]
    {
        let (status, answer) = host.run(json!({"code": code, "language": language})).await;
        assert_eq!((status, &answer["stdout"]), (200, &json!("42\n")), "{language}: {answer}");
        assert_eq!((&answer["success"], &answer["error"]), (&json!(true), &json!(null)));
    }
}

#[tokio::test]
async fn a_failure_of_the_code_is_a_normal_response() {
    let Some(host) = Host::start().await else { return };
    let (status, answer) = host.run(json!({"code": "raise ValueError('oh')"})).await;
    assert_eq!((status, &answer["exit_code"]), (200, &json!(1)));
    assert_eq!(answer["error"], json!(null));
    let expected = "Traceback (most recent call last):\n  File \"/home/baponi/main.py\", line 1, in \
                    <module>\n    raise ValueError('oh')\nValueError: oh\n";
    assert_eq!(answer["stderr"], expected);
}

#[tokio::test]
async fn a_thread_runs_one_execution_at_a_time() {
    let Some(host) = Host::start().await else { return };
    let id =
        host.background(json!({"code": "sleep 60", "language": "bash", "thread_id": "t"})).await;
    let (status, answer) = host.run(json!({"code": "1", "thread_id": "t"})).await;
    assert_eq!((status, &answer["error"]), (409, &json!("conflict")), "{answer}");
    assert_eq!(host.run(json!({"code": "1", "thread_id": "u"})).await.0, 200);
    host.cancel(&id).await;
    host.finished(&id).await;
    assert_eq!(host.run(json!({"code": "1", "thread_id": "t"})).await.0, 200);
}

#[tokio::test]
async fn a_timeout_is_a_504_with_the_output_so_far() {
    let Some(host) = Host::start().await else { return };
    let code = "print('so far', flush=True)\nwhile True: pass";
    let response = host.execute(&json!({"code": code, "timeout": 1})).send().await.unwrap();
    assert_eq!(response.status(), 504);
    let id = trace_id(&response);
    let answer: serde_json::Value = response.json().await.unwrap();
    let sentence = json!("execution timed out after 1s");
    assert_eq!((&answer["error"], &answer["message"]), (&sentence, &sentence));
    assert_eq!((&answer["success"], &answer["exit_code"]), (&json!(false), &json!(-1)));
    assert_eq!((&answer["stdout"], &answer["stderr"]), (&json!("so far\n"), &json!("")));
    let record = host.record(&id).await;
    assert_eq!((&record["status"], &record["error"]), (&json!("timeout"), &sentence));
}

#[tokio::test]
async fn running_out_of_memory_is_reported_as_oom() {
    let Some(host) = Host::start().await else { return };
    let list = host.admin_json(Method::GET, "sandboxes", json!({})).await;
    let sandbox = format!("sandboxes/{}", list["sandboxes"][0]["id"].as_str().unwrap());
    host.admin_json(Method::PATCH, &sandbox, json!({"memory_mb": 64})).await;
    let code = "x = b'x' * (1 << 30)";
    let response = host.execute(&json!({"code": code})).send().await.unwrap();
    assert_eq!(response.status(), 200);
    let record = host.record(&trace_id(&response)).await;
    assert_eq!(record["status"], "oom", "{record}");
    let answer: serde_json::Value = response.json().await.unwrap();
    assert_eq!(answer["success"], false);
    assert_eq!(host.run(json!({"code": "print(1)"})).await.1["stdout"], "1\n");
}

#[tokio::test]
async fn metadata_is_in_the_ledger_and_not_in_the_sandbox() {
    let Some(host) = Host::start().await else { return };
    let code = "env; cat /proc/self/environ /proc/1/environ 2>/dev/null; true";
    let body = json!({"code": code, "language": "bash", "metadata": {"user": "usr_9x"},
        "env_vars": {"SEEN": "yes"}});
    let response = host.execute(&body).send().await.unwrap();
    let id = trace_id(&response);
    let text = response.text().await.unwrap();
    assert!(text.contains("SEEN=yes") && !text.contains("usr_9x"), "{text}");
    let (_, page) = host.get("/v1/executions?metadata.user=usr_9x").await;
    assert_eq!(page["executions"][0]["trace_id"], json!(id));
}

#[tokio::test]
async fn invalid_utf_8_in_output_is_replaced() {
    let Some(host) = Host::start().await else { return };
    let (status, answer) = host.run(json!({"code": "printf 'a\\xffb'", "language": "bash"})).await;
    assert_eq!((status, &answer["stdout"]), (200, &json!("a\u{fffd}b")), "{answer}");
    assert_eq!(answer["invalid_utf8"], true);
}

#[tokio::test]
async fn a_spawner_of_another_pid_namespace_takes_no_cgroups_away() {
    let Some(host) = Host::start().await else { return };
    let body = json!({"language": "bash", "code": "echo 1"});
    let (_, answer) = host.run(body.clone()).await;
    assert_eq!(answer["stdout"], "1\n", "{answer}");
    // Cgroups for the next cells are prepared when it has been quiet for a while.
    tokio::time::sleep(Duration::from_millis(500)).await;
    // It sees no process of the server, whose directories it could take for those of a dead one.
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", binary(), "run", "-c", "print(1)"]);
    let inside = ended(command, b"");
    if inside.stderr.starts_with("unshare") {
        skip(&inside.stderr);
        return;
    }
    assert_eq!(inside.stdout, "1\n", "{inside:?}");
    // More runs than cells are parked.
    let runs = (0..10).map(|_| host.run(body.clone()));
    for (_, answer) in futures::future::join_all(runs).await {
        assert_eq!(answer["stdout"], "1\n", "{answer} {}", host.said("log"));
    }
}
