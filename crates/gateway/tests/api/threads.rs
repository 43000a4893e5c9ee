//! Threads: persistence, history, rollback, forks, leases and quotas.

use std::time::Duration;

use cloche_engine::{EngineConfig, HomesConfig};
use cloche_gateway::GatewayConfig;
use cloche_model::{ByteSize, HomeQuota};
use cloche_test_support::eventually;
use reqwest::Method;
use serde_json::{Value, json};

use crate::host::{Host, trace_id};

#[tokio::test]
async fn a_thread_keeps_its_home_and_other_threads_do_not_see_it() {
    let host = Host::start().await;
    host.bash("t", "mkdir -p d/e; echo one >d/e/f; echo two >g; echo e >d/e/h").await;
    host.bash("t", "echo three >>g; rm d/e/f").await;
    let answer = host.bash("t", "cat g; ls d/e | wc -l").await;
    assert_eq!(answer["stdout"], "two\nthree\n1\n");
    let answer = host.bash("u", "ls | grep -v main || true").await;
    assert_eq!(answer["stdout"], "");
    let (_, answer) = host.run(json!({"code": "ls | grep -c g", "language": "bash"})).await;
    assert_eq!(answer["stdout"], "0\n");
}

#[tokio::test]
async fn files_of_a_failed_execution_are_kept() {
    let host = Host::start().await;
    let body = json!({"code": "echo kept >f; exit 3", "language": "bash", "thread_id": "t"});
    let (status, answer) = host.run(body).await;
    assert_eq!((status, &answer["exit_code"], &answer["error"]), (200, &json!(3), &Value::Null));
    let slow = json!({"code": "echo too >g; sleep 60", "language": "bash", "thread_id": "t", "timeout": 1});
    assert_eq!(host.run(slow).await.0, 504);
    assert_eq!(host.bash("t", "cat f g").await["stdout"], "kept\ntoo\n");
}

#[tokio::test]
async fn every_execution_creates_a_snapshot_that_can_be_compared() {
    let host = Host::start().await;
    host.bash("t", "echo 1 >a; echo 1 >b").await;
    let body = json!({"code": "echo 22 >a; rm b; echo 1 >c", "language": "bash", "thread_id": "t"});
    let response = host.post(body).await;
    let trace = trace_id(&response);
    host.bash("t", ":").await;
    let (status, history) = host.get("/v1/threads/t/history").await;
    assert_eq!(status, 200);
    let points = history["points"].as_array().unwrap();
    let seen: Vec<_> = points.iter().map(|point| (&point["seq"], &point["kind"])).collect();
    let run = json!("run");
    assert_eq!(seen, [(&json!(3), &run), (&json!(2), &run), (&json!(1), &run)]);
    assert_eq!((&points[1]["trace_id"], &points[1]["bytes_added"]), (&json!(trace), &json!(5)));
    assert_eq!((&points[0]["layer"], &points[0]["files_changed"]), (&Value::Null, &json!(0)));
    let expected = json!({"from": 1, "to": 2, "added": ["c"], "changed": ["a"], "removed": ["b"],
        "omitted": 0});
    for query in [format!("from=1&to={trace}"), "to=2".to_owned(), "from=1".to_owned()] {
        let (status, diff) = host.get(&format!("/v1/threads/t/diff?{query}")).await;
        let to = if query == "from=1" { 3 } else { 2 };
        let mut expected = expected.clone();
        expected["to"] = json!(to);
        assert_eq!((status, diff), (200, expected), "{query}");
    }
    let (_, diff) = host.get("/v1/threads/t/diff?from=0&to=1").await;
    assert_eq!(diff["added"], json!(["a", "b"]));
    assert_eq!(host.get("/v1/threads/t/diff?from=9").await.0, 404);
    assert_eq!(host.get("/v1/threads/t/diff?from=x").await.0, 400);
    let (_, page) = host.get("/v1/threads/t/history?limit=2").await;
    let cursor = page["next_cursor"].as_str().unwrap();
    let (_, page) = host.get(&format!("/v1/threads/t/history?limit=2&cursor={cursor}")).await;
    assert_eq!((&page["points"][0]["seq"], &page["next_cursor"]), (&json!(1), &Value::Null));
}

#[tokio::test]
async fn a_thread_is_rolled_back_and_a_fork_is_independent() {
    let host = Host::start().await;
    host.bash("t", "echo old >f").await;
    host.bash("t", "echo new >f; echo more >g").await;
    let fork = json!({"thread_id": "twin", "at": 1});
    let (status, made) = host.send(Method::POST, "/v1/threads/t/fork", fork.clone()).await;
    assert_eq!((status, &made["thread_id"]), (201, &json!("twin")), "{made}");
    assert_eq!(host.send(Method::POST, "/v1/threads/t/fork", fork).await.0, 409);
    assert_eq!(host.bash("twin", "cat f; ls g || echo no g").await["stdout"], "old\nno g\n");
    let (status, now) = host.send(Method::POST, "/v1/threads/t/rollback", json!({"to": "1"})).await;
    assert_eq!((status, &now["head"]), (200, &json!(3)), "{now}");
    assert_eq!(host.bash("t", "cat f").await["stdout"], "old\n");
    host.send(Method::POST, "/v1/threads/t/rollback", json!({"to": 2})).await;
    assert_eq!(host.bash("t", "cat f g").await["stdout"], "new\nmore\n");
    for (path, body) in [
        ("/v1/threads/t/rollback", json!({"to": 99})),
        ("/v1/threads/none/rollback", json!({"to": 1})),
        ("/v1/threads/none/fork", json!({"thread_id": "x"})),
        ("/v1/threads/t/fork", json!({"thread_id": "x", "at": "trc_unknown"})),
    ] {
        assert_eq!(host.send(Method::POST, path, body).await.0, 404, "{path}");
    }
    let wrong = json!({"thread_id": "a/b"});
    assert_eq!(host.send(Method::POST, "/v1/threads/t/fork", wrong).await.0, 400);
}

#[tokio::test]
async fn a_thread_in_use_cannot_be_changed() {
    let host = Host::start().await;
    host.bash("t", "echo 1 >f").await;
    let body = json!({"code": "sleep 60", "language": "bash", "thread_id": "t"});
    let running = host.background(body.clone()).await;
    let (status, answer) = host.run(body).await;
    assert_eq!((status, &answer["error"]), (409, &json!("conflict")));
    let upload = json!({"source": "thread", "id": "t", "path": "x", "content_length": 1});
    let (_, signed) = host.send(Method::POST, "/v1/files/upload_url", upload).await;
    let put = reqwest::Client::new().put(signed["url"].as_str().unwrap()).body("x");
    assert_eq!(put.send().await.unwrap().status(), 409);
    let back = host.send(Method::POST, "/v1/threads/t/rollback", json!({"to": 1})).await;
    let deleted = host.send(Method::DELETE, "/v1/threads/t", Value::Null).await;
    assert_eq!((back.0, deleted.0), (409, 409), "{back:?} {deleted:?}");
    // The thread can still be read and forked.
    assert_eq!(host.get("/v1/threads/t/history").await.0, 200);
    let fork = json!({"thread_id": "u"});
    assert_eq!(host.send(Method::POST, "/v1/threads/t/fork", fork).await.0, 201);
    let cancel = format!("/v1/executions/{running}/cancel");
    host.request(Method::POST, &cancel).send().await.unwrap();
    host.finished(&running).await;
    assert_eq!(host.send(Method::DELETE, "/v1/threads/t", Value::Null).await.0, 204);
}

#[tokio::test]
async fn an_execution_longer_than_its_lease_keeps_its_thread() {
    let config = EngineConfig { lease: Duration::from_millis(300), ..EngineConfig::default() };
    let host = Host::start_with(config, GatewayConfig::default()).await;
    let body = json!({"code": "sleep 2; echo mine >f", "language": "bash", "thread_id": "t"});
    let running = host.background(body.clone()).await;
    // This one begins later and ends after the lease of the first, which is renewed meanwhile.
    host.bash("other", "sleep 0.6").await;
    assert_eq!(host.run(body).await.0, 409);
    assert_eq!(host.finished(&running).await["error"], Value::Null);
    assert_eq!(host.bash("t", "cat f").await["stdout"], "mine\n");
}

#[tokio::test]
async fn exceeding_the_quota_is_reported_and_the_outcome_is_kept() {
    let room = HomeQuota { bytes: ByteSize(1000), inodes: 100 };
    let homes = HomesConfig { cap: room, ..HomesConfig::default() };
    let config = EngineConfig { homes, ..EngineConfig::default() };
    let host = Host::start_with(config, GatewayConfig::default()).await;
    // A file that is overwritten repeatedly counts once.
    for _ in 0..4 {
        host.bash("t", "head -c 400 /dev/urandom >f").await;
    }
    let body = json!({"code": "head -c 700 /dev/zero >g; echo out; exit 4", "language": "bash", "thread_id": "t"});
    let (status, answer) = host.run(body).await;
    assert_eq!((status, &answer["error"]), (200, &json!("disk quota exceeded")), "{answer}");
    assert_eq!((&answer["stdout"], &answer["exit_code"]), (&json!("out\n"), &json!(4)));
    let upload = json!({"source": "thread", "id": "t", "path": "x", "content_length": 601});
    let (status, answer) = host.send(Method::POST, "/v1/files/upload_url", upload).await;
    assert_eq!((status, &answer["error"]), (413, &json!("quota_exceeded")), "{answer}");
    assert!(answer["message"].as_str().unwrap().starts_with("disk quota exceeded"), "{answer}");
    let (_, thread) = host.get("/v1/threads/t").await;
    assert_eq!((&thread["bytes"], &thread["entries"]), (&json!(400), &json!(1)));
}

#[tokio::test]
async fn a_deep_stack_is_squashed_and_its_history_is_kept() {
    let homes = HomesConfig { squash_depth: 3, ..HomesConfig::default() };
    let config = EngineConfig { homes, ..EngineConfig::default() };
    let host = Host::start_with(config, GatewayConfig::default()).await;
    for n in 1..=5 {
        host.bash("t", &format!("echo {n} >f; echo {n} >f{n}; rm -f f{}", n - 1)).await;
    }
    eventually("the stack is squashed", async || {
        let (_, history) = host.get("/v1/threads/t/history").await;
        let points = history["points"].as_array().unwrap();
        let is_so = points.iter().any(|point| point["kind"] == "squash");
        if is_so { Ok(()) } else { Err(history) }
    })
    .await;
    assert_eq!(host.bash("t", "cat f; ls f?").await["stdout"], "5\nf5\n");
    let (_, history) = host.get("/v1/threads/t/history").await;
    let runs = history["points"].as_array().unwrap().iter().filter(|point| point["kind"] == "run");
    let seqs: Vec<_> = runs.map(|point| point["seq"].clone()).collect();
    let second = seqs[seqs.len() - 2].clone();
    host.send(Method::POST, "/v1/threads/t/rollback", json!({"to": second})).await;
    assert_eq!(host.bash("t", "cat f; ls f?").await["stdout"], "2\nf2\n");
}

#[tokio::test]
async fn threads_are_listed_deleted_and_recreated_empty() {
    let host = Host::start().await;
    for thread in ["b", "a", "c"] {
        host.bash(thread, "echo 12345 >f").await;
    }
    let (_, page) = host.get("/v1/threads?limit=2").await;
    let names = |page: &Value| -> Vec<String> {
        let threads = page["threads"].as_array().unwrap();
        threads.iter().map(|thread| thread["thread_id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!((names(&page), &page["next_cursor"]), (vec!["a".into(), "b".into()], &json!("b")));
    let (_, page) = host.get("/v1/threads?limit=2&cursor=b").await;
    assert_eq!(names(&page), ["c"]);
    assert_eq!(host.send(Method::DELETE, "/v1/threads/a", Value::Null).await.0, 204);
    assert_eq!(host.send(Method::DELETE, "/v1/threads/a", Value::Null).await.0, 404);
    assert_eq!(host.get("/v1/threads/a").await.0, 404);
    assert_eq!(host.bash("a", "ls f || echo gone").await["stdout"], "gone\n");
    let (_, thread) = host.get("/v1/threads/b").await;
    assert_eq!((&thread["head"], &thread["bytes"]), (&json!(1), &json!(6)));
}

#[tokio::test]
async fn unreferenced_layers_are_swept_and_layers_of_records_are_kept() {
    let short = Duration::from_millis(50);
    let homes = HomesConfig { grace: short, sweep_every: short, ..HomesConfig::default() };
    let config = EngineConfig { homes, ..EngineConfig::default() };
    let host = Host::start_with(config, GatewayConfig::default()).await;
    let body = json!({"code": "echo kept >f", "language": "bash", "thread_id": "t"});
    let trace = trace_id(&host.post(body).await);
    let put = |thread: &'static str, path: &'static str| {
        let body = json!({"source": "thread", "id": thread, "path": path, "content_length": 1});
        async {
            let (_, signed) = host.send(Method::POST, "/v1/files/upload_url", body).await;
            let put = reqwest::Client::new().put(signed["url"].as_str().unwrap()).body("x");
            assert_eq!(put.send().await.unwrap().status(), 200);
        }
    };
    put("t", "x").await;
    let layers = crate::host::layers(host.directory()).await;
    let until_blobs = async |wanted| {
        eventually(format!("there are {wanted} blobs"), async || {
            let blobs = layers.measure_usage().await.unwrap().blobs;
            if blobs == wanted { Ok(()) } else { Err(blobs) }
        })
        .await;
    };
    // The sweep that removes a younger layer has seen the older ones, and left them alone.
    put("younger", "y").await;
    until_blobs(3).await;
    host.send(Method::DELETE, "/v1/threads/younger", Value::Null).await;
    until_blobs(2).await;
    assert_eq!(host.bash("t", "cat f x").await["stdout"], "kept\nx");
    host.send(Method::DELETE, "/v1/threads/t", Value::Null).await;
    until_blobs(1).await;
    let file = host.request(Method::GET, &format!("/v1/executions/{trace}/files/f"));
    assert_eq!(file.send().await.unwrap().text().await.unwrap(), "kept\n");
}

#[tokio::test]
async fn the_admin_token_acts_for_the_named_team() {
    let mut host = Host::start().await;
    host.bash("t", "echo 1 >f").await;
    let url = format!("http://{}/v1/threads", host.address);
    let ask = |query: &str| {
        let request = reqwest::Client::new().get(format!("{url}{query}")).bearer_auth(&host.admin);
        async { request.send().await.unwrap() }
    };
    assert_eq!(ask("/t").await.status(), 200);
    assert_eq!(ask("/t?team=default").await.status(), 200);
    assert_eq!(ask("/t?team=missing").await.status(), 404);
    let key = host.key.clone();
    host.with_key("pro").await;
    let ask = reqwest::Client::new().get(format!("{url}/t?team=default")).bearer_auth(&host.key);
    assert_eq!(ask.send().await.unwrap().status(), 404, "a key acts for its own team only");
    assert_ne!(key, host.key);
}
