//! The contract of `POST /execute`, `GET /healthz` and `GET /metrics`, over plain HTTP.

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    executor::{KEY, Sidecar, command},
    host::events,
    processes::{mark, sleepers, wait_for},
    support::{ended, eventually},
};

#[tokio::test(flavor = "multi_thread")]
async fn the_response_has_the_fields_of_the_contract() {
    let Some(sidecar) = Sidecar::start().await else { return };
    let code = "import sys\nprint(sys.stdin.read())\nprint(open('data.csv').read())\nprint('no', file=sys.stderr)\nsys.exit(4)";
    let (status, answer) = sidecar
        .run(json!({
            "code": code,
            "stdin": "in",
            "files": [{"name": "data.csv", "content": "1,2"}],
            "something_else": [1, 2, 3],
        }))
        .await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["stdout"], "in\n1,2\n");
    assert_eq!(answer["stderr"], "no\n");
    assert_eq!(answer["exit_code"], 4);
    assert!(answer["duration_ms"].is_u64());
    assert_eq!((&answer["killed"], &answer["oom"]), (&json!(false), &json!(false)));
    assert_eq!(answer["truncated"], false);
    assert!(answer["output_files"].is_array());
    for (body, stdout) in [
        (json!({"code": "console.log(6 * 7)", "language": "node"}), "42\n"),
        (json!({"code": "console.log(6 * 7)", "language": "javascript"}), "42\n"),
        (json!({"code": "echo $((6 * 7))", "language": "bash"}), "42\n"),
        (
            json!({"code": "print(open('a').read())", "files": [{"name": "a", "content_base64": "w6Q="}]}),
            "ä\n",
        ),
        (
            json!({"code": "print(1)", "language": null, "stdin": null, "timeout_ms": null, "files": null}),
            "1\n",
        ),
    ] {
        let (status, answer) = sidecar.run(body).await;
        assert_eq!((status, &answer["stdout"]), (200, &json!(stdout)), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_not_json_is_refused_as_such() {
    let Some(sidecar) = Sidecar::start().await else { return };
    for body in ["{", "{\"code\": \"1\"", "{code: 1}"] {
        let request = sidecar.post(&json!({})).body(body);
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 400, "{body}");
        let answer: Value = answer.json().await.unwrap();
        let message = answer["message"].as_str().unwrap();
        assert!(message.starts_with("the body is not JSON: "), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reached_limits_are_reported_and_the_timeout_is_capped() {
    let arguments =
        ["--default-timeout-ms", "400", "--max-timeout-ms", "500", "--max-memory", "64M"];
    let Some(sidecar) = Sidecar::start_with(&arguments).await else { return };
    for (asked, least) in [(Value::Null, 400), (json!(3_600_000), 500), (json!(100.0), 100)] {
        let (status, answer) =
            sidecar.run(json!({"code": "print(1)\nwhile True: pass", "timeout_ms": asked})).await;
        assert_eq!((status, &answer["killed"]), (200, &json!(true)), "{answer}");
        assert_eq!(answer["exit_code"], json!(-1), "{answer}");
        // Within a tenth of a second, a busy host may not have started the interpreter.
        assert!(answer["stdout"] == json!("1\n") || least < 400, "{answer}");
        assert!(answer["duration_ms"].as_u64().unwrap() >= least, "{asked}: {answer}");
    }
    let (status, answer) =
        sidecar.run(json!({"code": "x = b'x' * (1 << 28)", "timeout_ms": 500})).await;
    assert_eq!((status, &answer["oom"], &answer["killed"]), (200, &json!(true), &json!(false)));
}

#[tokio::test(flavor = "multi_thread")]
async fn large_output_keeps_its_head_and_is_flagged() {
    let Some(sidecar) = Sidecar::start_with(&["--max-output", "1000"]).await else { return };
    let (_, answer) = sidecar.run(json!({"code": "print('x' * 5000)"})).await;
    assert_eq!(answer["truncated"], true);
    assert_eq!(answer["stdout"], "x".repeat(1000));
    assert_eq!(answer["stdout_bytes"], 5001);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_for_the_next_job_and_no_job_sees_a_secret() {
    let Some(sidecar) = Sidecar::start().await else { return };
    let code = "import os\nopen('/tmp/left', 'w').write('x')\nopen('left', 'w').write('x')\nprint(sorted(os.listdir('.')), sorted(os.listdir('/tmp')))";
    let (_, first) = sidecar.run(json!({"code": code})).await;
    let (_, second) = sidecar.run(json!({"code": code})).await;
    assert_eq!(first["stdout"], "['left', 'main.py'] ['left']\n", "{first}");
    assert_eq!(second["stdout"], first["stdout"]);
    let look = "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; env";
    let (_, seen) = sidecar.run(json!({"code": look, "language": "bash"})).await;
    assert!(!seen["stdout"].as_str().unwrap().contains(KEY), "{seen}");
    assert!(!seen["stdout"].as_str().unwrap().contains("SANDBOX_EXECUTOR"), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_key_is_accepted_in_any_supported_header() {
    let Some(sidecar) = Sidecar::start().await else { return };
    let bearer = format!("Bearer {KEY}");
    let ask = |headers: &[(&str, &str)]| {
        let mut request = sidecar.request(Method::POST, "/execute").json(&json!({"code": "1"}));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        async move { request.send().await.unwrap() }
    };
    for good in
        [("x-service-api-key", KEY), ("x-service-api-key", &bearer), ("authorization", &bearer)]
    {
        assert_eq!(ask(&[good]).await.status(), 200, "{good:?}");
    }
    let longer = format!("{KEY}x");
    for bad in [
        &[][..],
        &[("x-service-api-key", "")],
        &[("x-service-api-key", "Bearer")],
        &[("x-service-api-key", &KEY[1..])],
        &[("x-service-api-key", &longer)],
        &[("authorization", KEY)],
        &[("authorization", "Basic Y29ycmVjdA==")],
        // A wrong key is refused even if another header has the right one.
        &[("x-service-api-key", "wrong"), ("authorization", &bearer)],
    ] {
        let response = ask(bad).await;
        assert_eq!(response.status(), 401, "{bad:?}");
        let body: Value = response.json().await.unwrap();
        assert_eq!(body["error"], "unauthorized");
        assert!(!body.to_string().contains(KEY));
    }
    let health = |key: &'static str| {
        sidecar.request(Method::GET, "/healthz").header("x-service-api-key", key).send()
    };
    assert_eq!(sidecar.health().await, json!({"status": "ok", "running": 0, "capacity": 4}));
    assert_eq!(health(KEY).await.unwrap().status(), 200);
    assert_eq!(health("wrong").await.unwrap().status(), 401);
}

#[test]
fn without_a_key_it_starts_only_in_development_environments() {
    let refused = |variables: &[(&str, &str)]| {
        let mut command = command();
        command.args(["--listen", "127.0.0.1:0"]).envs(variables.iter().copied());
        ended(command, b"")
    };
    for variables in [
        &[][..],
        &[("SANDBOX_EXECUTOR_SERVICE_API_KEY", "")],
        &[("SANDBOX_EXECUTOR_ENVIRONMENT", "staging")],
        &[("SANDBOX_EXECUTOR_ENVIRONMENT", "")],
        // An unrelated variable must not count as a key.
        &[("ENVIRONMENT", "test")],
    ] {
        let ended = refused(variables);
        assert_eq!(ended.code, 1, "{variables:?}");
        assert!(ended.stderr.contains("SANDBOX_EXECUTOR_SERVICE_API_KEY is empty"), "{ended:?}");
    }
    let ended = refused(&[
        ("SANDBOX_EXECUTOR_SERVICE_API_KEY", "k"),
        ("SANDBOX_EXECUTOR_DEFAULT_TIMEOUT_MS", "61000"),
    ]);
    assert!(ended.code == 1 && ended.stderr.contains("61000 ms is more than"), "{ended:?}");
    let ended = refused(&[("SANDBOX_EXECUTOR_MAX_CONCURRENT_JOBS", "none")]);
    assert!(ended.code == 2 && ended.stderr.contains("--max-concurrent-jobs"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_beyond_the_host_s_memory_is_refused() {
    let arguments = ["--capacity-memory", "1536MiB"];
    let Some(sidecar) = Sidecar::start_with(&arguments).await else { return };
    let mark = mark();
    let body = json!({"code": sleepers(&mark), "language": "bash"});
    let request = sidecar.post(&body).header("accept", "application/x-ndjson");
    let held = request.send().await.unwrap();
    let response = sidecar.post(&json!({"code": "1"})).send().await.unwrap();
    assert_eq!(response.status(), 429);
    assert!(response.headers().contains_key("retry-after"));
    assert!(response.text().await.unwrap().contains("promised to other jobs"));
    let small = json!({"code": "1", "limits": {"memory_bytes": 256 << 20}});
    assert_eq!(sidecar.run(small).await.0, 200);
    assert!(sidecar.metrics().await.contains("jobs_refused_total{reason=\"full\"} 1"));
    drop(held);
    wait_for(&mark, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_beyond_the_limit_are_refused_and_not_queued() {
    let Some(sidecar) = Sidecar::start_with(&["--max-concurrent-jobs", "2"]).await else { return };
    let mark = mark();
    let body = json!({"code": sleepers(&mark), "language": "bash"});
    let stream = |_| sidecar.post(&body).header("accept", "application/x-ndjson").send();
    let held = [stream(0).await.unwrap(), stream(1).await.unwrap()];
    let response = sidecar.post(&json!({"code": "1"})).send().await.unwrap();
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "1");
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["error"], "rate_limited");
    assert!(body["message"].as_str().unwrap().contains("2 jobs at once"), "{body}");
    // Dropping a stream stops its job and frees its place.
    wait_for(&mark, 4);
    drop(held);
    wait_for(&mark, 0);
    sidecar.until_running(0).await;
    assert_eq!(sidecar.run(json!({"code": "1"})).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_ends_when_its_client_disconnects() {
    let Some(sidecar) = Sidecar::start().await else { return };
    let mark = mark();
    let body = json!({"code": sleepers(&mark), "language": "bash"});
    let waiting = tokio::spawn(sidecar.post(&body).send());
    wait_for(&mark, 2);
    waiting.abort();
    wait_for(&mark, 0);
    sidecar.until_running(0).await;
    let text = sidecar.metrics().await;
    assert!(
        text.contains("sandbox_executor_jobs_total{language=\"bash\",result=\"cancelled\"} 1"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_can_be_cancelled_by_its_id_only_with_the_key() {
    let Some(sidecar) = Sidecar::start().await else { return };
    let mark = mark();
    let body = json!({"code": sleepers(&mark), "language": "bash"});
    let mut stream =
        sidecar.post(&body).header("accept", "application/x-ndjson").send().await.unwrap();
    assert_eq!(stream.headers()["content-type"], "application/x-ndjson");
    let first = stream.chunk().await.unwrap().unwrap();
    let first: Value = serde_json::from_slice(&first).unwrap();
    assert_eq!(first["type"], "started");
    let path = format!("/execute/{}/cancel", first["id"].as_str().unwrap());
    wait_for(&mark, 2);
    assert_eq!(sidecar.request(Method::POST, &path).send().await.unwrap().status(), 401);
    let cancel =
        |path: &str| sidecar.request(Method::POST, path).header("x-service-api-key", KEY).send();
    for nothing in ["/execute/trc_nothing/cancel", "/execute/%00/cancel", "/execute/x/cancel"] {
        assert_eq!(cancel(nothing).await.unwrap().status(), 404, "{nothing}");
    }
    assert_eq!(cancel(&path).await.unwrap().status(), 202);
    let rest = events(&stream.text().await.unwrap());
    let last = rest.last().unwrap();
    assert_eq!((&last["type"], &last["ending"]), (&json!("result"), &json!("cancelled")));
    assert_eq!(rest[0], json!({"type": "output", "stream": "stdout", "data": "dXAK"}));
    wait_for(&mark, 0);
    assert_eq!(cancel(&path).await.unwrap().status(), 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_sidecar_lets_jobs_finish_within_the_grace_period() {
    let Some(mut sidecar) = Sidecar::start_with(&["--grace", "2"]).await else { return };
    let mark = mark();
    let post = |code: String| {
        tokio::spawn(sidecar.post(&json!({"code": code, "language": "bash"})).send())
    };
    let short = post("sleep 0.5; echo done".to_owned());
    let long = post(sleepers(&mark));
    wait_for(&mark, 2);
    sidecar.until_running(2).await;
    sidecar.signal(Signal::TERM);
    let short: Value = short.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(short["stdout"], "done\n");
    let long = long.await.unwrap().unwrap();
    assert_eq!(long.status(), 503);
    assert_eq!(long.headers()["retry-after"], "1");
    let body: Value = long.json().await.unwrap();
    assert!(body["message"].as_str().unwrap().contains("stopped"), "{body}");
    assert!(sidecar.ended().await.success());
    wait_for(&mark, 0);
}

/// Every name that `docs/SIDECAR.md` lists, and no other.
#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_are_the_documented_ones() {
    let Some(sidecar) = Sidecar::start().await else { return };
    sidecar.run(json!({"code": "print(1)"})).await;
    sidecar.run(json!({"code": ""})).await;
    sidecar.run(json!({"code": 1})).await;
    let text = eventually("the metrics have parked cells", async || {
        let text = sidecar.metrics().await;
        if text.contains("pool_parked{") { Ok(text) } else { Err(text) }
    })
    .await;
    for line in [
        "sandbox_executor_jobs_total{language=\"python\",result=\"success\"} 1",
        "sandbox_executor_jobs_refused_total{reason=\"invalid\"} 1",
        "sandbox_executor_jobs_refused_total{reason=\"body\"} 1",
        "sandbox_executor_jobs_running 0",
        "sandbox_executor_jobs_capacity 4",
        "sandbox_executor_job_seconds_count 1",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let served: Vec<_> = types.filter_map(|line| line.split(' ').next()).collect();
    let page = include_str!("../../../../docs/SIDECAR.md");
    let listed: Vec<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `sandbox_executor_"))
        .map(|line| format!("sandbox_executor_{}", line.split(['`', '{']).next().unwrap()))
        .map(|name| name.trim_end_matches("_total").to_owned())
        .collect();
    assert_eq!(served, listed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_without_a_key_refuses_requests_of_foreign_web_pages() {
    let Some(sidecar) = Sidecar::start_without_key().await else { return };
    let send = async |path: &str, headers: &[(&str, &str)]| {
        let request = reqwest::Client::new().post(format!("{}/{path}", sidecar.url));
        let request = request.json(&json!({"code": "print(1)"}));
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let port = sidecar.url.rsplit(':').next().unwrap();
    let rebound = format!("evil.example:{port}");
    let (local, address) = (format!("localhost:{port}"), format!("127.0.0.1:{port}"));
    for (headers, status) in [
        (vec![("host", rebound.as_str())], 403),
        (vec![("host", rebound.as_str()), ("origin", "http://evil.example")], 403),
        (vec![("origin", "https://evil.example")], 403),
        (vec![("origin", "null")], 403),
        (vec![("host", local.as_str()), ("origin", "http://localhost:3000")], 200),
        (vec![("host", address.as_str())], 200),
    ] {
        let (got, text) = send("execute", &headers).await;
        assert_eq!(got, status, "{headers:?}: {text}");
    }
    let client = reqwest::Client::new();
    let metrics = client.get(format!("{}/metrics", sidecar.url)).header("host", &rebound);
    assert_eq!(metrics.send().await.unwrap().status(), 403);
    // With a key, any host name may be used.
    let Some(sidecar) = Sidecar::start().await else { return };
    let request =
        sidecar.post(&json!({"code": "print(1)"})).header("host", "sandbox-executor:9099");
    assert_eq!(request.send().await.unwrap().status(), 200);
}
