//! Runs in: test.
//!
//! Storage budgets of the real binary: history, uploads, imports, exports, output files, records,
//! and a full disk.

use std::{fs, path::Path, process::Command, sync::Arc};

use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    host::{Host, trace_id},
    support::{binary, can_sandbox, ended, eventually, skip},
    threads::bash,
};

/// A server with this `[storage]` section, and a client of a team on the free plan.
async fn start(storage: &str) -> Option<(Host, TempDir)> {
    let directory = TempDir::new().unwrap();
    let config = directory.path().join("cloche.toml");
    fs::write(&config, storage).unwrap();
    let host = Host::start_with(&["--config", config.to_str().unwrap()]).await?;
    Some((as_free_team(host).await, directory))
}

async fn as_free_team(host: Host) -> Host {
    host.admin_json(Method::POST, "teams", json!({"name": "small", "plan": "free"})).await;
    let sandbox = json!({"name": "s", "team": "small"});
    let sandbox = host.admin_json(Method::POST, "sandboxes", sandbox).await;
    let key = json!({"name": "k", "team": "small", "sandbox": sandbox["id"]});
    let key = host.admin_json(Method::POST, "keys", key).await;
    host.with_key(key["key"].as_str().unwrap())
}

/// Bytes of all files below a directory.
fn bytes_below(path: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(path) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => bytes_below(&entry.path()),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        })
        .sum()
}

fn stored(host: &Host) -> u64 {
    bytes_below(&host.data().join("layers/blobs")) + bytes_below(&host.data().join("layers/new"))
}

async fn used(host: &Host) -> u64 {
    let team = host.admin_json(Method::GET, "teams/small", json!({})).await;
    team["storage_used_bytes"].as_u64().unwrap()
}

/// A program that writes this many incompressible bytes.
fn write_random(bytes: u64, path: &str) -> String {
    format!("head -c {bytes} /dev/urandom >{path}; echo done")
}

async fn run_on(host: &Host, thread: &str, code: &str) -> (u16, Value) {
    host.run(json!({"code": code, "language": "bash", "thread_id": thread})).await
}

/// Uploads random bytes by a signed URL. Returns the status and the response.
async fn put(host: &Host, thread: &str, content: Vec<u8>) -> (u16, Value) {
    put_at(host, thread, "f", content).await
}

async fn put_at(host: &Host, thread: &str, path: &str, content: Vec<u8>) -> (u16, Value) {
    let length = content.len();
    let body = json!({"source": "thread", "id": thread, "path": path, "content_length": length});
    let signed = host.request(Method::POST, "/v1/files/upload_url").json(&body);
    let signed: Value = signed.send().await.unwrap().json().await.unwrap();
    let put = reqwest::Client::new().put(signed["url"].as_str().unwrap()).body(content);
    let answer = put.send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

fn random(bytes: usize) -> Vec<u8> {
    use std::io::Read;
    let mut content = vec![0; bytes];
    fs::File::open("/dev/urandom").unwrap().read_exact(&mut content).unwrap();
    content
}

const MIB: u64 = 1 << 20;

#[tokio::test]
async fn rewrites_of_a_large_file_are_pruned_and_stay_within_the_budget() {
    let Some((host, _config)) = start("[storage.free]\nbytes = \"8M\"\nkeep = 2\n").await else {
        return;
    };
    for _ in 0..7 {
        bash(&host, "t", &write_random(2 * MIB, "f")).await;
        assert!(stored(&host) <= 9 * MIB, "{} bytes", stored(&host));
    }
    let used = used(&host).await;
    assert!((2 * MIB..=8 * MIB).contains(&used), "{used}");
    assert_eq!(bash(&host, "t", "stat -c %s f").await, "2097152\n");
    let points = host.get("/v1/threads/t/history").await.1;
    assert!(points["points"].as_array().unwrap().len() < 8, "{points}");
    // Rollback to a kept snapshot still works.
    let oldest = points["points"].as_array().unwrap().last().unwrap()["seq"].clone();
    let back = host.request(Method::POST, "/v1/threads/t/rollback").json(&json!({"to": oldest}));
    assert_eq!(back.send().await.unwrap().status(), 200);
    assert_eq!(bash(&host, "t", "stat -c %s f").await, "2097152\n");
}

#[tokio::test]
async fn an_outcome_over_budget_is_recorded_and_the_home_is_unchanged() {
    let Some((host, _config)) = start("[storage.free]\nbytes = \"3M\"\n").await else { return };
    bash(&host, "t", "echo old >f").await;
    let before = stored(&host);
    let body = json!({"code": write_random(5 * MIB, "f"), "language": "bash", "thread_id": "t"});
    let response = host.execute(&body).send().await.unwrap();
    let (status, trace) = (response.status(), trace_id(&response));
    let answer: Value = response.json().await.unwrap();
    assert_eq!((status.as_u16(), &answer["stdout"]), (200, &json!("done\n")), "{answer}");
    assert_eq!(answer["error"], "disk quota exceeded", "{answer}");
    let record = host.record(&trace).await;
    assert_eq!((&record["status"], &record["stdout"]), (&json!("success"), &json!("done\n")));
    assert_eq!(stored(&host), before, "the refused layer is gone at once");
    assert_eq!(bash(&host, "t", "cat f").await, "old\n");
}

#[tokio::test]
async fn parallel_uploads_do_not_overshoot_the_budget() {
    let Some((host, _config)) = start("[storage.free]\nbytes = \"7M\"\n").await else { return };
    let threads = ["a", "b", "c", "d", "e"];
    let uploads = threads.map(|thread| put(&host, thread, random(3 << 20)));
    let answers = futures::future::join_all(uploads).await;
    let good = answers.iter().filter(|(status, _)| *status == 200).count();
    assert_eq!(good, 2, "{answers:?}");
    for (status, answer) in answers.iter().filter(|(status, _)| *status != 200) {
        assert_eq!((*status, &answer["error"]), (413, &json!("quota_exceeded")), "{answer}");
        assert!(answer["message"].as_str().unwrap().contains("7 MiB"), "{answer}");
    }
    assert!(stored(&host) <= 7 * MIB && used(&host).await <= 7 * MIB, "{}", stored(&host));
    // Deleted space can be used again.
    for thread in threads {
        host.request(Method::DELETE, &format!("/v1/threads/{thread}")).send().await.unwrap();
    }
    assert_eq!(put(&host, "f", random(3 << 20)).await.0, 200);
}

#[tokio::test]
async fn parallel_uploads_into_one_home_do_not_overshoot_its_quota() {
    let Some((host, _config)) = start("[threads]\nbytes = \"5M\"\n").await else { return };
    let uploads = ["a", "b", "c", "d", "e"].map(|path| put_at(&host, "t", path, random(3 << 20)));
    let answers = futures::future::join_all(uploads).await;
    let good = answers.iter().filter(|(status, _)| *status == 200).count();
    assert_eq!(good, 1, "{answers:?}");
    assert_eq!(host.get("/v1/threads/t").await.1["bytes"], 3 * MIB);
    assert!(stored(&host) <= 4 * MIB, "{}", stored(&host));
}

async fn export(host: &Host, thread: &str) -> reqwest::Response {
    let path = format!("/v1/threads/{thread}/export");
    host.request(Method::GET, &path).send().await.unwrap()
}

#[tokio::test]
async fn a_refused_import_leaves_nothing_behind() {
    let section = "[threads]\nbytes = \"4M\"\n[storage.free]\nbytes = \"9M\"\n";
    let Some((host, _config)) = start(section).await else { return };
    bash(&host, "a", &write_random(3 * MIB, "f")).await;
    let small = export(&host, "a").await.bytes().await.unwrap();
    // More than the budget has left, and more than a home may hold.
    bash(&host, "b", &write_random(3 * MIB, "f")).await;
    let before = stored(&host);
    let import = |name: &str, tar: Vec<u8>| {
        let path = format!("/v1/threads/{name}/import");
        host.request(Method::POST, &path).body(tar).send()
    };
    let refused = import("new", random_image(3 << 20)).await.unwrap();
    let (status, answer) = (refused.status(), refused.json::<Value>().await.unwrap());
    assert_eq!((status.as_u16(), &answer["error"]), (413, &json!("quota_exceeded")), "{answer}");
    assert_eq!(stored(&host), before);
    assert_eq!(bytes_below(&host.data().join("scratch")), 0);
    // A layer that a thread of the team already has costs nothing.
    host.request(Method::DELETE, "/v1/threads/b").send().await.unwrap();
    assert_eq!(import("twin", small.to_vec()).await.unwrap().status(), 201);
    let large = import("large", random_image(5 << 20)).await.unwrap();
    assert_eq!(large.status(), 413);
    assert_eq!(bytes_below(&host.data().join("scratch")), 0);
    assert_eq!(host.get("/v1/threads/large").await.0, 404);
}

/// A tar of an image with one file of random bytes, packed by other tools.
fn random_image(size: usize) -> Vec<u8> {
    use sha2::{Digest, Sha256};
    let tar_of = |files: &[(&str, Vec<u8>)]| {
        let mut archive = tar::Builder::new(Vec::new());
        for (name, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, name, content.as_slice()).unwrap();
        }
        archive.into_inner().unwrap()
    };
    let hex = |bytes: &[u8]| hex::encode(Sha256::digest(bytes));
    let layer = tar_of(&[("f", random(size))]);
    let id = format!("sha256:{}", hex(&layer));
    let config = json!({"architecture": "amd64", "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [id]}});
    let config = serde_json::to_vec(&config).unwrap();
    let described = |kind: &str, bytes: &[u8]| {
        json!({"mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": format!("sha256:{}", hex(bytes)), "size": bytes.len()})
    };
    let manifest = json!({"schemaVersion": 2, "config": described("config.v1+json", &config),
        "layers": [described("layer.v1.tar", &layer)]});
    let manifest = serde_json::to_vec(&manifest).unwrap();
    let index =
        json!({"schemaVersion": 2, "manifests": [described("manifest.v1+json", &manifest)]});
    let blob = |bytes: &[u8]| format!("blobs/sha256/{}", hex(bytes));
    tar_of(&[
        ("oci-layout", br#"{"imageLayoutVersion": "1.0.0"}"#.to_vec()),
        ("index.json", serde_json::to_vec(&index).unwrap()),
        (&blob(&manifest), manifest.clone()),
        (&blob(&config), config.clone()),
        (&blob(&layer), layer.clone()),
    ])
}

#[tokio::test]
async fn unread_exports_take_no_disk_and_their_number_is_limited() {
    let Some((host, _config)) = start("[storage]\nexports = 3\n").await else { return };
    bash(&host, "t", &write_random(8 * MIB, "f")).await;
    let before = bytes_below(&host.data().join("layers/blobs"));
    let mut unread = Vec::new();
    for _ in 0..3 {
        let response = export(&host, "t").await;
        assert_eq!(response.status(), 200);
        unread.push(response);
    }
    assert_eq!(bytes_below(&host.data().join("scratch")), 0);
    assert_eq!(bytes_below(&host.data().join("layers/blobs")), before);
    assert_eq!(export(&host, "t").await.status(), 429);
    let whole = unread.pop().unwrap().bytes().await.unwrap();
    assert!(whole.len() as u64 > 8 * MIB && whole.ends_with(&[0; 1024]));
    drop(unread);
    // An export with a renamed directory is one squashed layer, which is removed with the export.
    bash(&host, "t", "mkdir d; mv f d/f").await;
    bash(&host, "t", "mv d e").await;
    let before = bytes_below(&host.data().join("layers/blobs"));
    let response = eventually("dropped exports are no longer counted", async || {
        Some(export(&host, "t").await).filter(|response| response.status() == 200)
    })
    .await;
    assert!(response.bytes().await.unwrap().ends_with(&[0; 1024]));
    eventually("the layer of the export is removed", async || {
        bytes_below(&host.data().join("layers/blobs")) == before
    })
    .await;
}

#[tokio::test]
async fn output_files_and_records_of_threadless_runs_count() {
    let Some((host, _config)) = start("[storage.free]\nbytes = \"3M\"\n").await else { return };
    let body = json!({"code": write_random(2 * MIB, "out"), "language": "bash"});
    let first = host.execute(&body).send().await.unwrap();
    let kept = format!("/v1/executions/{}/files/out", trace_id(&first));
    let answer: Value = first.json().await.unwrap();
    assert_eq!(answer["output_files"][0]["truncated"], false, "{answer}");
    let second = host.execute(&body).send().await.unwrap();
    let dropped = format!("/v1/executions/{}/files/out", trace_id(&second));
    let answer: Value = second.json().await.unwrap();
    assert_eq!(
        (&answer["stdout"], &answer["error"]),
        (&json!("done\n"), &json!("disk quota exceeded"))
    );
    assert_eq!(answer["output_files"][0]["truncated"], true, "{answer}");
    for (path, expected) in [(kept, 200), (dropped, 404)] {
        let file = host.request(Method::GET, &path).send().await.unwrap();
        assert_eq!(file.status(), expected, "{path}");
    }
    // Output is recorded whatever its size. After that no execution is started.
    let much = json!({"code": "head -c 2000000 /dev/zero | tr '\\0' x", "language": "bash"});
    assert_eq!(host.run(much).await.0, 200);
    let refused = host.execute(&json!({"code": ":", "language": "bash"})).send().await.unwrap();
    assert_eq!(refused.status(), 429);
    assert!(!refused.headers().contains_key("retry-after"));
    let answer: Value = refused.json().await.unwrap();
    assert_eq!(answer["error"], "rate_limited");
    assert!(answer["message"].as_str().unwrap().contains("storage budget"), "{answer}");
    // The operator can raise the budget, and sees the usage.
    let more = json!({"storage_bytes": 64 * MIB});
    let team = host.admin_json(Method::PATCH, "teams/small", more).await;
    assert_eq!(team["storage_bytes"], 64 * MIB);
    assert_eq!(host.run(json!({"code": ":", "language": "bash"})).await.0, 200);
    let team = host.admin_json(Method::GET, "teams/small", json!({})).await;
    assert_eq!(team["storage_budget_bytes"], 64 * MIB);
    assert!(team["storage_row_bytes"].as_u64().unwrap() > 2_000_000, "{team}");
    let metrics = host.metrics().await;
    assert!(metrics.contains("cloche_team_storage_bytes{"), "{metrics}");
}

#[tokio::test]
async fn the_commands_prune_a_thread_and_recount_storage() {
    let Some((host, _config)) = start("").await else { return };
    for n in 0..5 {
        bash(&host, "t", &format!("rm -f f; {}", write_random(MIB, &format!("f{n}")))).await;
    }
    let cloche = |words: &[&str]| {
        let mut command = Command::new(binary());
        command.args(words).arg("--json").arg("--data-dir").arg(host.data());
        let ended = ended(command, b"");
        assert_eq!(ended.code, 0, "{ended:?} {}", host.said("log"));
        ended.json()
    };
    let before = used(&host).await;
    let pruned = cloche(&["thread", "prune", "t", "--keep", "2", "--team", "small"]);
    assert_eq!(pruned["points"], 3, "{pruned}");
    let none = cloche(&["thread", "prune", "t", "--older-than", "1", "--team", "small"]);
    assert_eq!(none["points"], 0, "{none}");
    let after = used(&host).await;
    assert_eq!(before - after, pruned["freed_bytes"].as_u64().unwrap());
    let counted = cloche(&["team", "recount"]);
    let sums: Vec<_> =
        counted["teams"].as_array().unwrap().iter().map(|it| &it["used_bytes"]).collect();
    assert!(sums.contains(&&json!(after)), "{counted} {after}");
    assert_eq!(cloche(&["team", "show", "small"])["storage_used_bytes"], after);
    assert_eq!(bash(&host, "t", "ls f* | wc -l").await, "5\n", "the home is as it was");
}

#[tokio::test]
async fn below_the_reserve_only_new_data_is_refused() {
    let Some((host, config)) = start("").await else { return };
    bash(&host, "t", "echo 1 >f").await;
    bash(&host, "t", "echo 2 >f").await;
    let image = export(&host, "t").await.bytes().await.unwrap();
    fs::write(config.path().join("cloche.toml"), "[storage]\nreserve = \"1000000G\"\n").unwrap();
    let host = host.stop_and_start(&[]).await;
    let short = |status: u16, answer: &Value| {
        assert_eq!((status, &answer["error"]), (507, &json!("insufficient_storage")), "{answer}");
        assert!(answer["message"].as_str().unwrap().contains("disk space"), "{answer}");
    };
    let (status, answer) = run_on(&host, "t", ":").await;
    short(status, &answer);
    let (status, answer) = put(&host, "t", b"x".to_vec()).await;
    short(status, &answer);
    for (path, body) in
        [("fork", json!({"thread_id": "u"}).to_string().into_bytes()), ("import", image.to_vec())]
    {
        let thread = if path == "fork" { "t" } else { "u" };
        let request = host.request(Method::POST, &format!("/v1/threads/{thread}/{path}"));
        let answer =
            request.header("content-type", "application/json").body(body).send().await.unwrap();
        let status = answer.status().as_u16();
        short(status, &answer.json().await.unwrap());
    }
    let body = json!({"code": "echo out >o; echo said", "language": "bash"});
    let response = host.execute(&body).send().await.unwrap();
    let trace = trace_id(&response);
    let answer: Value = response.json().await.unwrap();
    assert_eq!(
        (&answer["stdout"], &answer["error"]),
        (&json!("said\n"), &json!("disk quota exceeded"))
    );
    assert_eq!(answer["output_files"], json!([{"name": "o", "size": 4, "truncated": true}]));
    assert_eq!(host.record(&trace).await["stdout"], "said\n");
    assert_eq!(host.get("/v1/threads/t/diff").await.0, 200);
    assert_eq!(export(&host, "t").await.status(), 200);
    let prune = host.request(Method::POST, "/v1/threads/t/prune").json(&json!({"keep": 1}));
    assert_eq!(prune.send().await.unwrap().status(), 200);
    let delete = host.request(Method::DELETE, "/v1/threads/t").send().await.unwrap();
    assert_eq!(delete.status(), 204);
}

/// A small file system for a data directory. Dropping it unmounts it.
pub(crate) struct SmallDisk {
    pub(crate) directory: Arc<TempDir>,
}

impl SmallDisk {
    pub(crate) fn mount(megabytes: u32) -> Option<Self> {
        let directory = Arc::new(TempDir::new().unwrap());
        let data = directory.path().join("data");
        fs::create_dir(&data).unwrap();
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", &format!("size={megabytes}m,mode=0700"), "tmpfs"])
            .arg(&data);
        let mounted = mount.status().is_ok_and(|status| status.success());
        (mounted || skip("no file system can be mounted here")).then_some(Self { directory })
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.directory.path().join("data")).status();
    }
}

#[tokio::test]
async fn outcomes_are_recorded_on_a_full_disk() {
    if !can_sandbox() {
        return;
    }
    let Some(disk) = SmallDisk::mount(48) else { return };
    let config = disk.directory.path().join("cloche.toml");
    fs::write(&config, "[storage]\nreserve = \"8M\"\nreserve_inodes = 10\n").unwrap();
    let arguments = vec!["--config".to_owned(), config.to_str().unwrap().to_owned()];
    let host = Host::start_on(Arc::clone(&disk.directory), arguments).await;
    bash(&host, "t", "echo 1 >f").await;
    let ballast = host.data().join("ballast");
    assert_eq!(fs::metadata(&ballast).unwrap().len(), 2 * MIB);
    // Nearly full: writes in the meantime must not need the ballast yet.
    let filler = host.data().join("filler");
    fill(&filler);
    let length = fs::metadata(&filler).unwrap().len();
    fs::File::options().write(true).open(&filler).unwrap().set_len(length - 4 * MIB).unwrap();
    eventually("the full disk is noticed", async || run_on(&host, "t", "echo 2 >f").await.0 == 507)
        .await;
    // Only the ballast is left, which the ledger gets.
    fill(&host.data().join("filler-2"));
    let mut traces = Vec::new();
    for n in 0..20 {
        let code = format!("head -c 100000 /dev/urandom | base64; echo end {n} >&2");
        let response =
            host.execute(&json!({"code": code, "language": "bash"})).send().await.unwrap();
        assert_eq!(
            response.status(),
            200,
            "{n}: {} {}",
            response.text().await.unwrap(),
            host.said("log")
        );
        traces.push(trace_id(&response));
        let answer: Value = response.json().await.unwrap();
        assert_eq!(answer["stderr"], format!("end {n}\n"), "{answer}");
    }
    assert!(!ballast.exists(), "the ballast was released");
    for trace in &traces {
        assert_eq!(host.record(trace).await["status"], "success", "{}", host.said("log"));
    }
    assert_eq!(host.get("/v1/threads/t").await.0, 200);
    assert_eq!(host.request(Method::DELETE, "/v1/threads/t").send().await.unwrap().status(), 204);
    for name in ["filler", "filler-2"] {
        fs::remove_file(host.data().join(name)).unwrap();
    }
    eventually("the free space is noticed", async || {
        let is_so = run_on(&host, "t", "echo 3 >f").await.0 == 200 && ballast.exists();
        is_so.then_some(()).ok_or_else(|| host.said("log"))
    })
    .await;
    let host = host.stop_and_start(&[]).await;
    assert_eq!(host.record(&traces[19]).await["status"], "success");
    drop(host);
}

/// Writes until the disk is full.
fn fill(path: &Path) {
    use std::io::Write;
    let mut file = fs::File::create(path).unwrap();
    for size in [1 << 16, 1 << 12, 1] {
        let zeros = vec![0; size];
        while file.write_all(&zeros).is_ok() {}
    }
}
