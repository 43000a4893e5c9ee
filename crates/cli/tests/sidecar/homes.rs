//! Runs in: test.
//!
//! Threads through sidecars that share the layer store of their server, and the refusal of threads
//! and time limits that no sidecar takes.

use std::{fs, path::Path};

use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    executor::{KEY, Sidecar},
    host::{Host, MODEL_KEY, trace_id},
    models::Models,
    moto::Moto,
    processes::{mark, sleepers, wait_for},
    server::mcp,
    support::{binary, ended, eventually},
    unavailable::{MODES, assert_unavailable, send},
};

/// A server that keeps its layers in this directory and runs its code on these sidecars.
async fn start_server(store: &Path, sidecars: &[&Sidecar], more: &[&str]) -> Host {
    let urls: Vec<_> = sidecars.iter().map(|sidecar| sidecar.url.as_str()).collect();
    let urls = urls.join(",");
    let mut arguments = vec!["--layers-dir", store.to_str().unwrap(), "--executor-url", &urls];
    arguments.extend(more);
    Host::start_with(&arguments).await.unwrap()
}

fn in_thread(thread: &str, code: &str) -> Value {
    json!({"code": code, "language": "bash", "thread_id": thread})
}

/// Runs a program in a thread. Returns what it printed.
async fn bash(host: &Host, thread: &str, code: &str) -> String {
    let (status, answer) = host.run(in_thread(thread, code)).await;
    assert_eq!((status, &answer["success"]), (200, &json!(true)), "{answer} {}", host.said("log"));
    answer["stdout"].as_str().unwrap().to_owned()
}

/// Asserts that every delivery mode refuses this body with a 400 whose message has this word, and
/// that the ledger has it as refused.
async fn assert_invalid(host: &Host, body: &Value, word: &str) {
    for mode in MODES {
        let response = send(host, mode, body).await;
        let (status, id) = (response.status().as_u16(), trace_id(&response));
        let answer: Value = response.json().await.unwrap();
        assert_eq!((status, &answer["error"]), (400, &json!("validation_error")), "{answer}");
        assert!(answer["message"].as_str().unwrap().contains(word), "{answer}");
        assert_eq!(host.record(&id).await["status"], "blocked", "{mode:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thread_goes_on_across_two_sidecars_and_its_files_are_the_server_s() {
    let store = TempDir::new().unwrap();
    let (Some(one), Some(two)) =
        (Sidecar::start_sharing(store.path()).await, Sidecar::start_sharing(store.path()).await)
    else {
        return;
    };
    let host = start_server(store.path(), &[&one, &two], &[]).await;
    for turn in 1..=6 {
        assert_eq!(bash(&host, "t", "echo x >>log; wc -l <log").await, format!("{turn}\n"));
    }
    assert!(one.jobs_over().await > 0 && two.jobs_over().await > 0, "both have run parts of it");
    // Deletions and links travel as well.
    bash(&host, "t", "mkdir d; echo one >d/f; ln d/f hard; rm log").await;
    assert_eq!(
        bash(&host, "t", "echo two >>hard; cat d/f; ls").await,
        "one\ntwo\nd\nhard\nmain.sh\n"
    );
    let (_, thread) = host.get("/v1/threads/t").await;
    assert!(thread["head"].as_u64().is_some_and(|head| head >= 8), "{thread}");
    let body = json!({"id": "t", "path": "hard"});
    let signed = host.request(Method::POST, "/v1/files/download_url").json(&body);
    let signed: Value = signed.send().await.unwrap().json().await.unwrap();
    let got = reqwest::get(signed["url"].as_str().unwrap()).await.unwrap();
    assert_eq!(got.text().await.unwrap(), "one\ntwo\n");
    // Another thread has a home of its own, and the thread is busy while one execution has it.
    assert_eq!(bash(&host, "u", "ls").await, "main.sh\n");
    let mark = mark();
    let id = host.background(in_thread("t", &sleepers(&mark))).await;
    wait_for(&mark, 2);
    assert_eq!(host.run(in_thread("t", ":")).await.0, 409);
    host.cancel(&id).await;
    assert_eq!(host.finished(&id).await["status"], "cancelled");
    assert_eq!(bash(&host, "t", "cat hard").await, "one\ntwo\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_that_does_not_share_the_layers_is_never_chosen_for_a_thread() {
    let (store, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (Some(sharing), Some(plain), Some(elsewhere)) = (
        Sidecar::start_sharing(store.path()).await,
        Sidecar::start_without_key().await,
        Sidecar::start_sharing(other.path()).await,
    ) else {
        return;
    };
    let host = start_server(store.path(), &[&plain, &sharing, &elsewhere], &[]).await;
    for turn in 1..=6 {
        assert_eq!(bash(&host, "t", "echo x >>log; wc -l <log").await, format!("{turn}\n"));
    }
    assert_eq!((plain.jobs_over().await, elsewhere.jobs_over().await), (0, 0));
    assert_eq!(sharing.jobs_over().await, 6);
    let address = sharing.address();
    sharing.crash();
    for mode in MODES {
        assert_unavailable(&host, mode, &in_thread("t", "cat log")).await;
    }
    let (status, answer) = host.run(json!({"code": "print(1)"})).await;
    assert_eq!((status, &answer["stdout"]), (200, &json!("1\n")), "the others run on: {answer}");
    // It comes back with an empty disk of its own, and the thread is in the store.
    let arguments = ["--layers-dir", store.path().to_str().unwrap()];
    let _back = Sidecar::start_without_key_at_with(&address, &arguments).await;
    let answer = eventually("the thread can be used again", async || {
        let (status, answer) = host.run(in_thread("t", "wc -l <log")).await;
        if status == 200 { Ok(answer) } else { Err(answer) }
    })
    .await;
    assert_eq!(answer["stdout"], "6\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thread_is_a_400_if_no_sidecar_is_configured_to_share_the_layers() {
    let store = TempDir::new().unwrap();
    let Some(plain) = Sidecar::start_without_key().await else { return };
    let host = start_server(store.path(), &[&plain], &[]).await;
    assert_invalid(&host, &in_thread("t", "echo x >f"), "thread_id").await;
    assert_eq!(plain.jobs_over().await, 0);
    assert_eq!(host.get("/v1/threads/t").await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_limit_goes_to_a_sidecar_that_allows_it_or_is_a_400() {
    let store = TempDir::new().unwrap();
    let long = ["--max-timeout-ms", "90000"];
    let (Some(short), Some(long)) =
        (Sidecar::start_sharing(store.path()).await, Sidecar::start_without_key_with(&long).await)
    else {
        return;
    };
    let more = ["--executor-timeout", "100"];
    let host = start_server(store.path(), &[&short, &long], &more).await;
    for _ in 0..3 {
        let (status, answer) = host.run(json!({"code": "print(1)", "timeout": 90})).await;
        assert_eq!((status, &answer["stdout"]), (200, &json!("1\n")), "{answer}");
    }
    assert_eq!((short.jobs_over().await, long.jobs_over().await), (0, 3));
    assert_invalid(&host, &json!({"code": "1", "timeout": 91}), "91s exceeds the 90s").await;
    assert_invalid(&host, &json!({"code": "1", "timeout": 101}), "101s exceeds the 100s").await;
    // Only the one with the shorter limit could run a thread.
    let threaded = json!({"code": "1", "timeout": 61, "thread_id": "t"});
    assert_invalid(&host, &threaded, "61s exceeds the 60s").await;
    assert_eq!((short.jobs_over().await, long.jobs_over().await), (0, 3), "nothing has run");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_that_dies_leaves_the_thread_as_it_was() {
    let store = TempDir::new().unwrap();
    let Some(one) = Sidecar::start_sharing(store.path()).await else { return };
    let Some(two) = Sidecar::start_sharing(store.path()).await else { return };
    let host = start_server(store.path(), &[&one], &[]).await;
    bash(&host, "t", "echo kept >f").await;
    let mark = mark();
    let code = format!("echo lost >f; {}", sleepers(&mark));
    let id = host.background(in_thread("t", &code)).await;
    wait_for(&mark, 2);
    one.crash();
    assert_eq!(host.finished(&id).await["status"], "failed");
    let arguments =
        ["--layers-dir", store.path().to_str().unwrap(), "--executor-url", two.url.as_str()];
    let host = host.restart_with(&arguments).await;
    assert_eq!(bash(&host, "t", "cat f").await, "kept\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_a_run_without_a_thread_can_be_read_later() {
    let store = TempDir::new().unwrap();
    let Some(sidecar) = Sidecar::start_sharing(store.path()).await else { return };
    let host = start_server(store.path(), &[&sidecar], &[]).await;
    let response = host.execute(&json!({"code": "open('out', 'w').write('result')"}));
    let response = response.send().await.unwrap();
    let id = trace_id(&response);
    let answer: Value = response.json().await.unwrap();
    assert_eq!(answer["success"], true, "{answer}");
    let file = host.request(Method::GET, &format!("/v1/executions/{id}/files/out"));
    let file = file.send().await.unwrap();
    assert_eq!((file.status().as_u16(), file.text().await.unwrap().as_str()), (200, "result"));
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_have_threads_and_containers_on_sidecars_that_share_the_layers() {
    let (store, directory) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (Some(one), Some(two)) =
        (Sidecar::start_sharing(store.path()).await, Sidecar::start_sharing(store.path()).await)
    else {
        return;
    };
    let models = Models::start().await;
    let file = directory.path().join("cloche.toml");
    let text = format!(
        "[agent.providers.open]\nprotocol = \"openai\"\nbase_url = \"{}\"\napi_key_env = \"{}\"\n",
        models.base_url(),
        MODEL_KEY.0
    );
    fs::write(&file, text).unwrap();
    let more = ["--config", file.to_str().unwrap()];
    let host = start_server(store.path(), &[&one, &two], &more).await;
    let gates = json!({"agent_sandbox": true, "execute_code": "allow"});
    host.admin_json(Method::PATCH, "defaults", gates).await;

    let listed = mcp(&host, "tools/list", json!({})).await;
    let tools = listed["tools"].as_array().unwrap();
    let execute = tools.iter().find(|tool| tool["name"] == "execute_code").unwrap();
    assert!(execute["inputSchema"]["properties"].get("thread_id").is_some(), "{execute}");
    assert!(tools.iter().any(|tool| tool["name"] == "list_files"), "{listed}");

    let mut body = json!({"model": "open/small", "tools": [{"type": "sandbox"}]});
    for (code, wanted) in [
        ("open('n', 'w').write('1')", ""),
        ("n = int(open('n').read()) + 1; open('n', 'w').write(str(n)); print(n)", "2\n"),
        ("print(int(open('n').read()) + 1)", "3\n"),
    ] {
        let call = json!({"calls": [{"name": "sandbox", "arguments": {"code": code}}]});
        body["input"] = json!([call, {"text": "done"}]).to_string().into();
        let request = host.request(Method::POST, "/v1/responses").json(&body);
        let response: Value = request.send().await.unwrap().json().await.unwrap();
        assert_eq!(response["status"], "completed", "{response}");
        let output = response["output"].as_array().unwrap();
        let ran = output.iter().find(|item| item.get("results").is_some());
        let ran = ran.unwrap_or_else(|| panic!("no result of a program: {response}"));
        assert_eq!(ran["results"][0]["stdout"], wanted, "{response}");
        body["previous_response_id"] = response["id"].clone();
    }
    assert!(one.jobs_over().await > 0 && two.jobs_over().await > 0, "both have run parts of it");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_extension_is_for_holders_of_the_key_and_its_fields_are_checked() {
    let store = TempDir::new().unwrap();
    let arguments = ["--layers-dir", store.path().to_str().unwrap()];
    let Some(sidecar) = Sidecar::start_with(&arguments).await else { return };
    let plain = sidecar.health().await;
    let fields: Vec<_> = plain.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["capacity", "running", "status"]);
    let request = sidecar.request(Method::GET, "/healthz").header("X-Service-API-Key", KEY);
    let offer: Value = request.send().await.unwrap().json().await.unwrap();
    let id = offer["layer_store"].as_str().unwrap();
    assert!(id.len() == 32 && offer["max_timeout_ms"] == 60_000, "{offer}");

    let limits = json!({"layer_store": id});
    let digest = format!("sha256:{}", "a".repeat(64));
    let home = |layers: Value| json!({"layers": layers, "bytes": 1 << 20, "inodes": 100});
    let other = json!({"layer_store": "0".repeat(32)});
    for (limits, home, status, word) in [
        (json!({}), home(json!([])), 400, "layer_store"),
        (other, home(json!([])), 409, "layer store"),
        (limits.clone(), home(json!(["sha256:../../etc"])), 400, "64 hex digits"),
        (limits.clone(), home(json!(vec![digest.as_str(); 501])), 400, "at most 500"),
        (limits.clone(), json!({"layers": [], "bytes": 1, "inodes": 1, "path": "/"}), 400, "path"),
        (json!({"layer_store": "x"}), Value::Null, 400, "32 hex digits"),
    ] {
        let body = json!({"code": "print(1)", "limits": limits, "home": home});
        let (got, answer) = sidecar.run(body).await;
        assert!(got == status && answer["message"].as_str().unwrap().contains(word), "{answer}");
    }
    // A layer that is not in the store is an error, and the program does not run.
    let body = json!({"code": "print(1)", "limits": limits, "home": home(json!([digest]))});
    assert_eq!(sidecar.run(body).await.0, 500);

    // A client of the contract sees nothing of it, and leaves nothing in the store.
    let write = "open('f', 'w').write('x')";
    let (status, answer) = sidecar.run(json!({"code": write})).await;
    assert_eq!((status, answer["output_files"][0]["name"].as_str()), (200, Some("f")), "{answer}");
    assert!(answer.get("layer").is_none(), "{answer}");
    let blobs = || fs::read_dir(store.path().join("sha256")).unwrap().count();
    assert_eq!(blobs(), 0);
    let body = json!({"code": write, "limits": limits, "home": home(json!([]))});
    let (status, answer) = sidecar.run(body).await;
    let layer = answer["layer"].as_str().unwrap();
    assert!(status == 200 && layer.starts_with("sha256:") && blobs() == 1, "{answer}");
    let body = json!({"code": "print(open('f').read())", "limits": limits,
        "home": home(json!([layer]))});
    assert_eq!(sidecar.run(body).await.1["stdout"], "x\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn threads_go_on_across_sidecars_that_share_a_bucket() {
    let Some(moto) = Moto::start() else { return };
    let endpoint = format!("http://{}", moto.address);
    let bucket = [
        "--layers-bucket",
        "layers",
        "--layers-endpoint",
        &endpoint,
        "--layers-prefix",
        "some/where",
    ];
    let (Some(one), Some(two)) = (
        Sidecar::start_without_key_with(&bucket).await,
        Sidecar::start_without_key_with(&bucket).await,
    ) else {
        return;
    };
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("cloche.toml");
    let keys = format!("access_key_env = {0:?}\nsecret_key_env = {0:?}\n", MODEL_KEY.0);
    fs::write(&file, format!("[layers]\n{keys}")).unwrap();
    let urls = format!("{},{}", one.url, two.url);
    let mut arguments = vec!["--executor-url", &urls, "--config", file.to_str().unwrap()];
    arguments.extend(bucket);
    let host = Host::start_with(&arguments).await.unwrap();
    for turn in 1..=4 {
        assert_eq!(bash(&host, "t", "echo x >>log; wc -l <log").await, format!("{turn}\n"));
    }
    assert!(one.jobs_over().await > 0 && two.jobs_over().await > 0, "both have run parts of it");
    assert!(!host.data().join("layers/blobs").exists(), "nothing is kept on the disk");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_does_not_start_on_a_shared_directory() {
    let (store, data) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let Some(sidecar) = Sidecar::start_sharing(store.path()).await else { return };
    let _host = start_server(store.path(), &[&sidecar], &[]).await;
    let mut second = std::process::Command::new(binary());
    second.args(["serve", "--listen", "127.0.0.1:0", "--no-local-executor", "--layers-dir"]);
    second.arg(store.path()).arg("--data-dir").arg(data.path().join("data"));
    let ended = ended(second, b"");
    assert!(ended.code == 1 && ended.stderr.contains("in use by another server"), "{ended:?}");
}
