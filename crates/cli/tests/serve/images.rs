//! `cloche image`, end to end: a real registry, real tools, the real binary.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    sync::atomic::Ordering,
};

use cloche_test_support::eventually;
use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{
    host::Host,
    registry::{ACCOUNT, HoldingProxy, Layouts, Registry, RegistryOptions, run},
    support::{Ended, binary, ended},
};

/// A command for the server of a host, without the logins of this machine.
pub(crate) fn command(host: &Host, words: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(words).arg("--data-dir").arg(host.data());
    command.env("HOME", host.directory()).env_remove("DOCKER_CONFIG");
    command.env_remove("XDG_RUNTIME_DIR").env_remove("REGISTRY_AUTH_FILE");
    command
}

pub(crate) fn image(host: &Host, words: &[&str]) -> Ended {
    ended(command(host, &[&["image"], words].concat()), b"")
}

pub(crate) fn image_json(host: &Host, words: &[&str]) -> Value {
    let ended = image(host, &[words, &["--json"]].concat());
    assert_eq!(ended.code, 0, "{ended:?} {}", host.said("log"));
    ended.json()
}

pub(crate) fn refuse(host: &Host, words: &[&str], reason: &str) {
    let ended = image(host, words);
    assert_ne!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains(reason), "{reason}: {ended:?}");
}

/// The files of layers, and unfinished downloads.
pub(crate) fn stored(host: &Host) -> (usize, Vec<PathBuf>) {
    let list = |path: &str| fs::read_dir(host.data().join(path)).unwrap();
    let partial = list("images/partial").map(|entry| entry.unwrap().path()).collect();
    (list("layers/blobs/sha256").count(), partial)
}

#[tokio::test]
async fn an_image_is_pulled_used_and_removed() {
    let Some(host) = Host::start().await else { return };
    let Some(registry) = Registry::start(RegistryOptions::default()) else { return };
    let layouts = Layouts::make(100_000).unwrap();
    registry.push(&layouts.source("one"), "tool:1");
    let name = format!("{}/tool:1", registry.address);
    let pulled = image_json(&host, &["pull", &name, "--plain-http"]);
    assert_eq!(pulled["names"], json!([name]));
    assert_eq!(pulled["env_vars"]["COLOR"], "blue");
    let sh = pulled["interpreters"].as_array().unwrap().iter().find(|it| it["language"] == "sh");
    assert_eq!(sh.unwrap()["path"], "/usr/bin/sh");
    assert_eq!(stored(&host), (2, Vec::new()));

    // The second image shares the base.
    registry.push(&layouts.source("two"), "tool:2");
    let other = format!("{}/tool:2", registry.address);
    let second = image_json(&host, &["pull", &other, "--plain-http"]);
    assert_eq!(stored(&host).0, 3);
    assert_eq!(second["layers"][0]["layer"], pulled["layers"][0]["layer"]);

    // A sandbox gets the digest that the tag has now.
    let words = ["sandbox", "create", "box", "--image", &name, "--json"];
    let sandbox = ended(command(&host, &words), b"").json();
    let digest = pulled["digest"].as_str().unwrap();
    assert_eq!(sandbox["image"], format!("{name}@{digest}"));
    let listed = image_json(&host, &["list"]);
    assert_eq!(listed["images"][0]["used_by"], json!(["default/box"]));
    refuse(&host, &["rm", &name], "in use by default/box");

    // The tag moves. The sandbox keeps its digest until it is changed.
    registry.push(&layouts.source("two"), "tool:1");
    let moved = image_json(&host, &["pull", &name, "--plain-http"]);
    assert_eq!(moved["digest"], second["digest"]);
    let shown = ended(command(&host, &["sandbox", "show", "default/box", "--json"]), b"").json();
    assert_eq!(shown["image"], format!("{name}@{digest}"));
    let words = ["sandbox", "set", "default/box", "--image", &name, "--json"];
    let set = ended(command(&host, &words), b"").json();
    assert_eq!(set["image"], format!("{name}@{}", second["digest"].as_str().unwrap()));

    // What no sandbox uses can be pruned, and the shared base stays.
    let pruned = image_json(&host, &["prune"]);
    assert_eq!(pruned["removed"], json!([digest]));
    assert!(pruned["freed_bytes"].as_u64().unwrap() > 0);
    assert_eq!(stored(&host).0, 2);
    let words = ["sandbox", "set", "default/box", "--image", "host", "--json"];
    assert_eq!(ended(command(&host, &words), b"").json()["image"], "host");
    let table = image(&host, &["list"]);
    assert!(table.stdout.starts_with("NAMES"), "{table:?}");
    let short = &second["digest"].as_str().unwrap()[7..19];
    assert_eq!(image_json(&host, &["inspect", short])["digest"], second["digest"]);
    assert_eq!(image(&host, &["rm", short]).code, 0);
    assert_eq!(stored(&host), (0, Vec::new()));
    refuse(&host, &["inspect", &name], "there is no image");
    let ended = ended(command(&host, &words[..3]), b"");
    assert_eq!(ended.code, 0);
}

#[tokio::test]
async fn a_registry_with_an_account_and_tls_is_used_with_the_login_of_other_tools() {
    let Some(host) = Host::start().await else { return };
    let Some(registry) = Registry::start(RegistryOptions { account: true, tls: true }) else {
        return;
    };
    let layouts = Layouts::make(1000).unwrap();
    registry.push(&layouts.source("one"), "tool:1");
    let name = format!("{}/tool:1", registry.address);
    let ca = registry.directory.path().join("ca.pem").display().to_string();
    refuse(&host, &["pull", &name], "cannot be used");
    refuse(&host, &["pull", &name, "--ca-file", &ca], "wants credentials");

    let login = host.directory().join("auth.json").display().to_string();
    run(
        "skopeo",
        &[
            "login",
            "--tls-verify=false",
            "--authfile",
            &login,
            "--username",
            ACCOUNT.0,
            "--password",
            ACCOUNT.1,
            &registry.address,
        ],
    );
    let words = ["pull", &name, "--ca-file", &ca, "--auth-file", &login];
    assert_eq!(image_json(&host, &words)["names"], json!([name]));
    let password = host.directory().join("password");
    fs::write(&password, ACCOUNT.1).unwrap();
    let password = password.display().to_string();
    let words = ["--username", ACCOUNT.0, "--password-file", &password];
    image_json(&host, &[&["pull", &name, "--ca-file", &ca][..], &words].concat());
    fs::write(&password, "wrong").unwrap();
    let words = [&["pull", &name, "--ca-file", &ca][..], &words].concat();
    refuse(&host, &words, "does not accept these credentials");
    assert!(!host.said("log").contains(ACCOUNT.1), "the password is in the log");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_pull_leaves_nothing_and_is_continued() {
    let Some(host) = Host::start().await else { return };
    let Some(registry) = Registry::start(RegistryOptions::default()) else { return };
    let layouts = Layouts::make(3_000_000).unwrap();
    registry.push(&layouts.source("one"), "tool:1");
    let proxy = HoldingProxy::start(&registry.address, 2_000_000).await;
    let name = format!("{}/tool:1", proxy.address);
    let mut pull = command(&host, &["image", "pull", &name, "--plain-http"]);
    let mut child = pull.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let partial = || -> u64 {
        stored(&host).1.iter().map(|path| path.metadata().map_or(0, |meta| meta.len())).sum()
    };
    eventually("a part of the image arrives", async || {
        (partial() > 1_000_000).then_some(()).ok_or_else(|| partial().to_string())
    })
    .await;
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert!(!child.wait().unwrap().success());
    assert_eq!(image_json(&host, &["list"])["images"], json!([]));
    assert_eq!(stored(&host).0, 0);

    // The interrupted pull has let go: the next one goes on, and fetches only what is missing.
    let before = partial();
    proxy.passed.store(0, Ordering::SeqCst);
    proxy.limit.store(u64::MAX, Ordering::SeqCst);
    image_json(&host, &["pull", &name, "--plain-http"]);
    let passed = proxy.passed.load(Ordering::SeqCst);
    assert!(passed < 5_000_000 - before, "{passed} bytes after {before}");
    assert_eq!(stored(&host), (2, Vec::new()));
}

#[tokio::test]
async fn layouts_and_archives_of_other_tools_are_imported() {
    let Some(host) = Host::start().await else { return };
    let Some(layouts) = Layouts::make(100_000) else { return };
    let directory = layouts.path().display().to_string();
    refuse(&host, &["import", &directory], "several images; choose one with --ref: ");
    let words = ["import", &directory, "--ref", "one", "--name", "mine:1"];
    let one = image_json(&host, &words);
    assert_eq!(one["names"], json!(["mine:1"]));

    // The same image as docker save writes it, and as an archive of a layout.
    let (saved, archive) = (layouts.beside("saved.tar"), layouts.beside("oci.tar"));
    run("skopeo", &["copy", &layouts.source("one"), &format!("docker-archive:{saved}:mine:2")]);
    run("skopeo", &["copy", &layouts.source("one"), &format!("oci-archive:{archive}:mine")]);
    let saved = image_json(&host, &["import", &saved]);
    assert_eq!(saved["names"], json!(["mine:2"]));
    assert_eq!(saved["layers"], one["layers"]);
    let input = ended(
        command(&host, &["image", "import", "-", "--name", "mine:3", "--json"]),
        &fs::read(&archive).unwrap(),
    );
    assert_eq!(input.json()["layers"], one["layers"], "{input:?}");
    assert_eq!(stored(&host).0, 2);

    // Over HTTP: the progress, then the image.
    let body = fs::read(&archive).unwrap();
    let request = host.admin_request(Method::POST, "images/import?name=mine%3A4");
    let answer = request.header("accept", "application/x-ndjson").body(body.clone());
    let text = answer.send().await.unwrap().text().await.unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(last["event"], "image", "{text}");
    assert!(last["image"]["names"].as_array().unwrap().contains(&json!("mine:4")));
    let request = host.admin_request(Method::POST, "images/import").body(body[..5000].to_vec());
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 400);
    assert_eq!(stored(&host).0, 2);
}
