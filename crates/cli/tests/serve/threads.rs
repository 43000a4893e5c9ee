//! Threads of the real binary: real sandboxes, real homes, and the `cloche thread` commands.

use std::{path::Path, process::Command};

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    host::{Host, trace_id},
    support::{Ended, binary, ended, skip},
};

/// Runs Bash on a thread, which must succeed. Returns its output.
pub(crate) async fn bash(host: &Host, thread: &str, code: &str) -> String {
    let body = json!({"code": code, "language": "bash", "thread_id": thread});
    let (status, answer) = host.run(body).await;
    assert_eq!((status, &answer["success"]), (200, &json!(true)), "{answer} {}", host.said("log"));
    answer["stdout"].as_str().unwrap().to_owned()
}

/// Uploads a file by a signed URL. Returns the status, if there was a response.
pub(crate) async fn put(host: &Host, thread: &str, path: &str, content: &str) -> Option<u16> {
    let body =
        json!({"source": "thread", "id": thread, "path": path, "content_length": content.len()});
    let signed = host.request(Method::POST, "/v1/files/upload_url").json(&body);
    let signed: Value = signed.send().await.unwrap().json().await.unwrap();
    let put = reqwest::Client::new().put(signed["url"].as_str().unwrap()).body(content.to_owned());
    put.send().await.ok().map(|answer| answer.status().as_u16())
}

fn thread(host: &Host, words: &[&str]) -> Ended {
    let mut command = Command::new(binary());
    command.arg("thread").args(words).arg("--data-dir").arg(host.data());
    ended(command, b"")
}

fn thread_json(host: &Host, words: &[&str]) -> Value {
    let ended = thread(host, &[words, &["--json"]].concat());
    assert_eq!(ended.code, 0, "{ended:?} {}", host.said("log"));
    ended.json()
}

#[tokio::test]
async fn only_the_home_survives_a_run() {
    let Some(host) = Host::start().await else { return };
    let code = "mkdir -p d/empty; echo 1 >d/f; ln d/f hard; ln -s d/f soft; chmod 750 d/f; \
                touch -d 2001-02-03T04:05:06Z d/f; truncate -s 1M sparse; echo x >/tmp/t; mv d e";
    bash(&host, "t", code).await;
    let said = bash(&host, "t", "stat -c %h hard; cat soft 2>&-; mv e/f e/g; rm soft").await;
    assert_eq!(said, "2\n", "two names of one file, and a link that leads nowhere since the move");
    let code =
        "cat e/g hard; stat -c '%a %s' e/g sparse; ls e; ls /tmp | wc -l; ls -d soft d; true";
    let said = bash(&host, "t", code).await;
    assert_eq!(said, "1\n1\n750 2\n644 1048576\nempty\ng\n0\n");
    assert_eq!(bash(&host, "u", "ls -d e hard; true").await, "");
    assert_eq!(bash(&host, "t", "date -u -d @$(stat -c %Y e/g) +%F").await, "2001-02-03\n");
}

#[tokio::test]
async fn a_link_in_a_home_does_not_lead_out_of_it() {
    let Some(host) = Host::start().await else { return };
    bash(&host, "t", "ln -s /etc/passwd file; ln -s / root; ln -s inner within; echo 1 >inner")
        .await;
    let ask = |what: &'static str, path: &'static str| {
        let body = json!({"id": "t", "path": path, "content_length": 1});
        let request = host.request(Method::POST, &format!("/v1/files/{what}")).json(&body);
        async { request.send().await.unwrap().status().as_u16() }
    };
    for path in ["file", "root/etc/passwd", "within"] {
        assert_eq!(ask("download_url", path).await, 404, "{path}");
    }
    assert_eq!(ask("download_url", "inner").await, 200);
    assert_eq!(ask("upload_url", "root/tmp/x").await, 400);
    // An uploaded file replaces a link, and the link's target is unchanged.
    assert_eq!(put(&host, "t", "within", "new").await, Some(200));
    assert_eq!(bash(&host, "t", "cat within; cat inner").await, "new1\n");
}

#[tokio::test]
async fn a_busy_thread_refuses_uploads_and_runs() {
    let Some(host) = Host::start().await else { return };
    bash(&host, "t", "echo before >f").await;
    let body = json!({"source": "thread", "id": "t", "path": "f", "content_length": 5});
    let signed = host.request(Method::POST, "/v1/files/upload_url").json(&body);
    let signed: Value = signed.send().await.unwrap().json().await.unwrap();
    let code = "echo during >f; echo written; sleep 60";
    let long = json!({"code": code, "language": "bash", "thread_id": "t"});
    let mut stream = host.stream(long.clone()).await;
    let running = trace_id(&stream);
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("written") {
        seen.extend(stream.chunk().await.unwrap().expect("it runs for a minute"));
    }
    let upload = || reqwest::Client::new().put(signed["url"].as_str().unwrap()).body("after");
    let refused = upload().send().await.unwrap();
    assert_eq!(refused.status().as_u16(), 409);
    assert_eq!(refused.json::<Value>().await.unwrap()["error"], "conflict");
    assert_eq!(host.run(long).await.0, 409);
    assert_eq!(put(&host, "other", "f", "x").await, Some(200), "other threads are free");
    host.cancel(&running).await;
    host.finished(&running).await;
    assert_eq!(bash(&host, "t", "cat f").await, "during\n", "what a cancelled run wrote is kept");
    assert_eq!(upload().send().await.unwrap().status().as_u16(), 200);
    assert_eq!(bash(&host, "t", "cat f").await, "after");
}

#[tokio::test]
async fn the_commands_show_and_change_the_history() {
    let Some(host) = Host::start().await else { return };
    bash(&host, "t", "echo old >f; echo x >g").await;
    bash(&host, "t", "echo newer >f; rm g; echo y >h").await;
    assert_eq!(thread_json(&host, &["list"])["threads"][0]["thread_id"], "t");
    let points = thread_json(&host, &["history", "t"]);
    assert_eq!(points["points"].as_array().unwrap().len(), 2);
    let table = thread(&host, &["history", "t"]).printed();
    assert!(table.starts_with("SEQ") && table.contains("trc_"), "{table}");
    assert_eq!(thread(&host, &["diff", "t"]).printed(), "+ h\n~ f\n- g\n");
    assert_eq!(
        thread(&host, &["diff", "t", "--from", "2", "--to", "1"]).printed(),
        "+ g\n~ f\n- h\n"
    );
    assert_eq!(thread_json(&host, &["fork", "t", "twin", "--at", "1"])["thread_id"], "twin");
    assert_eq!(bash(&host, "twin", "cat f g").await, "old\nx\n");
    thread_json(&host, &["rollback", "t", "1"]);
    assert_eq!(bash(&host, "t", "cat f g").await, "old\nx\n");
    assert_eq!(thread(&host, &["rm", "twin"]).printed(), "removed twin\n");
    let none = thread(&host, &["history", "twin"]);
    assert_ne!(none.code, 0);
    // A team's key is enough, and sees only the threads of that team.
    let mut command = Command::new(binary());
    command.args(["thread", "list", "--json", "--url", &host.url]).env("CLOCHE_API_KEY", &host.key);
    assert_eq!(ended(command, b"").json()["threads"][0]["thread_id"], "t");
}

#[tokio::test]
async fn an_export_is_an_image_that_skopeo_reads_and_that_can_be_imported() {
    let Some(host) = Host::start().await else { return };
    bash(&host, "t", "mkdir d; echo one >d/f; ln -s d/f link").await;
    bash(&host, "t", "echo two >>d/f").await;
    let image = host.directory().join("image");
    let to = image.to_str().unwrap();
    assert_eq!(thread(&host, &["export", "t", to]).code, 0);
    assert_ne!(thread(&host, &["export", "t", to]).code, 0, "what is there is not written over");
    for name in ["oci-layout", "index.json", "blobs/sha256"] {
        assert!(image.join(name).exists(), "{name}");
    }
    skopeo_reads(&image);
    thread_json(&host, &["import", "back", to]);
    assert_eq!(bash(&host, "back", "cat link").await, "one\ntwo\n");
    let archive = host.directory().join("image.tar");
    let to = archive.to_str().unwrap();
    assert_eq!(thread(&host, &["export", "t", to, "--at", "1"]).code, 0);
    thread_json(&host, &["import", "first", to]);
    assert_eq!(bash(&host, "first", "cat link").await, "one\n");
    let taken = thread(&host, &["import", "first", to]);
    assert_ne!(taken.code, 0, "{taken:?}");
}

fn skopeo_reads(image: &Path) {
    let mut command = Command::new("skopeo");
    command.arg("inspect").arg(format!("oci:{}", image.display()));
    match command.output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let value: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(value["Layers"].as_array().unwrap().len(), 2);
        }
        Err(_) => {
            skip("there is no skopeo on this host: run scripts/setup-tests");
        }
    }
}

#[tokio::test]
async fn output_files_of_a_threadless_run_can_be_downloaded() {
    let Some(host) = Host::start().await else { return };
    let body = json!({"code": "mkdir out; printf 0123456789 >out/f; cat; cat in", "language": "bash",
        "stdin": "s", "files": [{"name": "in", "content_base64": "aQ=="}]});
    let response = host.execute(&body).send().await.unwrap();
    let trace = trace_id(&response);
    let answer: Value = response.json().await.unwrap();
    assert_eq!(answer["stdout"], "si", "{answer}");
    assert_eq!(answer["output_files"], json!([{"name": "out/f", "size": 10, "truncated": false}]));
    let file = host.request(Method::GET, &format!("/v1/executions/{trace}/files/out/f"));
    let file = file.header("range", "bytes=3-5").send().await.unwrap();
    assert_eq!((file.status().as_u16(), file.text().await.unwrap().as_str()), (206, "345"));
}
