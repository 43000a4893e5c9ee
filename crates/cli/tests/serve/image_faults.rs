//! Runs in: test.
//!
//! Images where something is in the way: logins that a helper keeps, layers in a bucket, names that
//! differ in case only, a full disk, a registry that goes away, a restart.

use std::{
    fs,
    io::Write,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};

use cloche_test_support::eventually;
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    host::{Host, MODEL_KEY},
    image_runs::{add_python, import, output, sandbox_key},
    images::{command, image, image_json, refuse, stored},
    moto::Moto,
    registry::{ACCOUNT, HoldingProxy, Layouts, Registry, RegistryOptions},
    storage::SmallDisk,
    storage_connections::operator_json,
    support::{Ended, can_sandbox, ended},
};

/// Writes a program.
fn write_program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn a_credential_helper_is_asked_for_the_login_of_its_registry() {
    let Some(host) = Host::start().await else { return };
    let Some(registry) = Registry::start(RegistryOptions { account: true, tls: true }) else {
        return;
    };
    let layouts = Layouts::make(1000).unwrap();
    registry.push(&layouts.source("one"), "tool:1");
    let name = format!("{}/tool:1", registry.address);
    let ca = registry.directory.path().join("ca.pem").display().to_string();

    // The helper notes what it is asked, and answers only for this registry.
    let programs = host.directory().join("programs");
    fs::create_dir(&programs).unwrap();
    let helper = format!(
        "#!/bin/sh\nread -r asked\necho \"$1 $asked\" >>{log}\n[ \"$asked\" = {address} ] || exit 1\n\
         printf '{{\"ServerURL\":\"%s\",\"Username\":\"%s\",\"Secret\":\"%s\"}}' \
         \"$asked\" \"{user}\" \"{password}\"\n",
        log = programs.join("asked").display(),
        address = registry.address,
        user = ACCOUNT.0,
        password = ACCOUNT.1,
    );
    write_program(&programs.join("docker-credential-kept"), &helper);
    let docker = host.directory().join(".docker");
    fs::create_dir(&docker).unwrap();
    let pull = |config: Value| -> Ended {
        fs::write(docker.join("config.json"), config.to_string()).unwrap();
        let mut pull = command(&host, &["image", "pull", &name, "--ca-file", &ca, "--json"]);
        let path = std::env::var("PATH").unwrap();
        pull.env("PATH", format!("{}:{path}", programs.display()));
        ended(pull, b"")
    };
    for config in [
        json!({"credHelpers": {&registry.address: "kept"}}),
        json!({"credsStore": "kept", "auths": {&registry.address: {}}}),
    ] {
        let pulled = pull(config);
        assert_eq!(pulled.code, 0, "{pulled:?} {}", host.said("log"));
        assert_eq!(pulled.json()["names"], json!([name]));
        assert_eq!(image(&host, &["rm", &name]).code, 0);
    }
    let asked = fs::read_to_string(programs.join("asked")).unwrap();
    assert_eq!(asked, format!("get {0}\nget {0}\n", registry.address));

    // A helper that is not there is an error that names the file; one that knows nothing is none.
    let missing = pull(json!({"credHelpers": {&registry.address: "absent"}}));
    assert!(missing.code != 0 && missing.stderr.contains("config.json"), "{missing:?}");
    write_program(&programs.join("docker-credential-empty"), "#!/bin/sh\nexit 1\n");
    let unknown = pull(json!({"credsStore": "empty"}));
    assert!(unknown.stderr.contains("wants credentials"), "{unknown:?}");
    assert!(!host.said("log").contains(ACCOUNT.1), "the password is in the log");
}

#[tokio::test]
async fn images_in_a_bucket_survive_the_loss_of_the_host_s_disk() {
    let Some(moto) = Moto::start() else { return };
    let Some(layouts) = Layouts::make(100_000) else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("cloche.toml");
    let keys = format!("access_key_env = {0:?}\nsecret_key_env = {0:?}\n", MODEL_KEY.0);
    fs::write(&file, format!("[layers]\nbucket = \"layers\"\n{keys}")).unwrap();
    let endpoint = format!("http://{}", moto.address);
    let arguments = ["--config", file.to_str().unwrap(), "--layers-endpoint", &endpoint];
    let Some(mut host) = Host::start_with(&arguments).await else { return };
    let one = import(&host, &layouts, "one");
    assert_eq!(import(&host, &layouts, "two")["layers"][0], one["layers"][0]);
    let key = sandbox_key(&host, "s", "one:1");
    assert_eq!(output(&host, &key, "sh", "cat /one").await, "one");
    assert!(!host.data().join("layers/blobs").exists(), "nothing is kept on the disk");

    host.signal(Signal::KILL);
    host.ended().await;
    for name in ["cache", "new"] {
        fs::remove_dir_all(host.data().join("layers").join(name)).unwrap();
    }
    host = host.again().await;
    assert_eq!(output(&host, &key, "sh", "cat /one; wc -c </noise").await, "one100000\n");
    // What no image needs any more leaves the bucket as well.
    assert_eq!(image(&host, &["rm", "two:1"]).code, 0);
    assert_eq!(output(&host, &key, "sh", "cat /one").await, "one");
}

#[tokio::test]
async fn names_that_differ_in_case_or_form_only_are_different_files() {
    let Some(host) = Host::start().await else { return };
    let Some(layouts) = Layouts::make(1000) else { return };
    // The last two look the same: one has a combining accent.
    let twins = ["Twin", "twin", "caf\u{e9}", "cafe\u{301}"];
    layouts.add_layer("base", "twins", |root| {
        fs::create_dir(root.join("twins")).unwrap();
        for (number, name) in twins.iter().enumerate() {
            fs::write(root.join("twins").join(name), number.to_string()).unwrap();
        }
    });
    // The next layer removes one of each pair, and must not touch the other.
    layouts.add_layer("twins", "fewer", |root| {
        for name in [twins[0], twins[3]] {
            fs::remove_file(root.join("twins").join(name)).unwrap();
        }
    });
    for (tag, expected) in [("twins", "0123"), ("fewer", "12")] {
        import(&host, &layouts, tag);
        let key = sandbox_key(&host, tag, &format!("{tag}:1"));
        let code = format!("cd /twins; cat {} 2>/dev/null; true", twins.join(" "));
        assert_eq!(output(&host, &key, "sh", &code).await, expected, "{tag}");
    }
}

#[tokio::test]
async fn a_full_disk_during_an_import_is_named_and_leaves_other_images_unharmed() {
    if !can_sandbox() {
        return;
    }
    let Some(disk) = SmallDisk::mount(64) else { return };
    let (Some(small), Some(large)) = (Layouts::make(1000), Layouts::make(40 << 20)) else { return };
    let config = disk.directory.path().join("cloche.toml");
    fs::write(&config, "[storage]\nreserve = \"4M\"\nreserve_inodes = 10\n").unwrap();
    let arguments = vec!["--config".to_owned(), config.to_str().unwrap().to_owned()];
    let host = Host::start_on(Arc::clone(&disk.directory), arguments).await;
    import(&host, &small, "one");
    let key = sandbox_key(&host, "s", "one:1");
    let before = stored(&host);
    let layout = large.path().display().to_string();
    let words = ["import", &layout, "--ref", "two", "--name", "large:1"];
    for _ in 0..2 {
        refuse(&host, &words, "disk");
        assert_eq!(stored(&host), before, "a part of the image is left");
        assert_eq!(fs::read_dir(host.data().join("layers/new")).unwrap().count(), 0);
    }
    assert_eq!(image_json(&host, &["list"])["images"].as_array().unwrap().len(), 1);
    assert_eq!(output(&host, &key, "sh", "cat /one").await, "one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_goes_away_is_named_and_the_next_pull_goes_on() {
    let Some(host) = Host::start().await else { return };
    let Some(registry) = Registry::start(RegistryOptions::default()) else { return };
    let layouts = Layouts::make(3_000_000).unwrap();
    registry.push(&layouts.source("one"), "tool:1");
    let mut proxy = HoldingProxy::start(&registry.address, 2_000_000).await;
    let name = format!("{}/tool:1", proxy.address);
    let words = ["image", "pull", &name, "--plain-http"];
    let pull = command(&host, &words);
    let pulling = tokio::task::spawn_blocking(move || ended(pull, b""));
    let partial = || -> u64 {
        stored(&host).1.iter().map(|path| path.metadata().map_or(0, |meta| meta.len())).sum()
    };
    eventually("a part of the image arrives", async || {
        (partial() > 1_000_000).then_some(()).ok_or_else(|| partial().to_string())
    })
    .await;
    proxy.stop().await;
    let failed = pulling.await.unwrap();
    assert!(failed.code != 0 && failed.stderr.contains("registry"), "{failed:?}");
    assert_eq!(image_json(&host, &["list"])["images"], json!([]));
    assert_eq!(stored(&host).0, 0);
    assert!(!stored(&host).1.is_empty(), "nothing is left for the next pull");

    // It comes back, and only what is missing is fetched.
    let had = partial();
    let proxy = HoldingProxy::start_at(&proxy.address, &registry.address, u64::MAX).await;
    image_json(&host, &["pull", &name, "--plain-http"]);
    let passed = proxy.passed.load(Ordering::SeqCst);
    assert!(passed < 5_000_000 - had, "{passed} bytes after {had}");
    assert_eq!(stored(&host), (2, Vec::new()));
}

/// Adds the Python of this machine to a root, with code that runs whenever it starts.
fn add_customized_python(root: &Path, code: &str) {
    add_python(root);
    let libraries = fs::read_dir(root.join("usr/lib")).unwrap().map(|it| it.unwrap().path());
    let library = |path: &PathBuf| path.to_string_lossy().contains("/python3.");
    let library = { libraries }.find(library).unwrap();
    replace_file_inside(root, &library.join("sitecustomize.py"), code);
}

/// Replaces a file of a root. Links of a copied root lead to files of this machine, so no link is
/// followed: a link at the end is replaced, and a path that leads out of the root is a failure.
fn replace_file_inside(root: &Path, path: &Path, content: &str) {
    let directory = fs::canonicalize(path.parent().unwrap()).unwrap();
    assert!(directory.starts_with(fs::canonicalize(root).unwrap()), "{directory:?} is outside");
    let path = directory.join(path.file_name().unwrap());
    if path.symlink_metadata().is_ok() {
        fs::remove_file(&path).unwrap();
    }
    let mut file = fs::File::options().write(true).create_new(true).open(path).unwrap();
    file.write_all(content.as_bytes()).unwrap();
}

#[test]
fn a_file_of_a_root_is_replaced_without_following_links() {
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let kept = outside.path().join("kept");
    fs::write(&kept, "kept").unwrap();
    std::os::unix::fs::symlink(&kept, root.path().join("link")).unwrap();
    std::os::unix::fs::symlink(outside.path(), root.path().join("directory")).unwrap();
    replace_file_inside(root.path(), &root.path().join("link"), "new");
    assert_eq!(fs::read_to_string(root.path().join("link")).unwrap(), "new");
    let led_out = std::panic::catch_unwind(|| {
        replace_file_inside(root.path(), &root.path().join("directory/kept"), "new");
    });
    assert!(led_out.is_err(), "the path leads out of the root");
    assert_eq!(fs::read_to_string(kept).unwrap(), "kept");
}

#[tokio::test]
async fn an_interpreter_that_the_suite_has_not_run_with_waits_and_is_not_forked() {
    let Some(host) = Host::start().await else { return };
    let Some(layouts) = Layouts::make(1000) else { return };
    layouts.add_layer("base", "other", |root| {
        add_customized_python(root, "import sys\nsys.abiflags = 't'\n");
    });
    let imported = import(&host, &layouts, "other");
    let python = imported["interpreters"].as_array().unwrap().iter();
    let python = { python }.find(|found| found["language"] == "python").unwrap();
    assert_eq!(python["start"], "waiting", "{imported}");
    let reason = python["reason"].as_str().unwrap();
    assert!(reason.contains("a template needs CPython 3."), "{reason}");
    assert!(reason.contains("; this is cpython 3.") && reason.ends_with('t'), "{reason}");
    let shown = image(&host, &["inspect", "other:1"]);
    assert!(shown.stdout.contains(reason), "{shown:?}");
    let key = sandbox_key(&host, "s", "other:1");
    for _ in 0..4 {
        assert_eq!(output(&host, &key, "python", "print(6 * 7)").await, "42\n");
    }
}

#[tokio::test]
async fn events_say_which_interpreter_is_being_tried() {
    let Some(host) = Host::start().await else { return };
    let Some(layouts) = Layouts::make(1000) else { return };
    // It starts more slowly than one event follows another.
    layouts.add_layer("base", "slow", |root| {
        add_customized_python(root, "import time\ntime.sleep(0.6)\n");
    });
    let archive = layouts.beside("slow.tar");
    let target = format!("oci-archive:{archive}:slow");
    crate::registry::run("skopeo", &["copy", &layouts.source("slow"), &target]);
    let request = host.admin_request(Method::POST, "images/import?name=slow%3A1");
    let request = request.header("accept", "application/x-ndjson");
    let answer = request.body(fs::read(&archive).unwrap()).send().await.unwrap();
    let text = answer.text().await.unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let trying = |name: &str| {
        events.iter().any(|event| event["phase"] == "trying" && event["trying"] == name)
    };
    assert!(trying("python3"), "{text}");
    assert_eq!(events.last().unwrap()["event"], "image", "{text}");
}

/// The unpacked layers: the name and the inode of each directory.
fn unpacked(host: &Host) -> Vec<(String, u64)> {
    let entries = fs::read_dir(host.data().join("layers/cache")).unwrap().map(Result::unwrap);
    let directories = entries.filter(|entry| entry.file_type().unwrap().is_dir());
    let mut found: Vec<_> = directories
        .map(|entry| {
            let inode = entry.metadata().unwrap().ino();
            (entry.file_name().into_string().unwrap(), inode)
        })
        .collect();
    found.sort();
    found
}

#[tokio::test]
async fn the_next_start_of_the_server_finds_an_image_ready() {
    let Some(host) = Host::start().await else { return };
    let Some(layouts) = Layouts::make(1000) else { return };
    let imported = import(&host, &layouts, "one");
    let key = sandbox_key(&host, "s", "one:1");
    let before = unpacked(&host);
    assert_eq!(before.len(), 2, "the import unpacks both layers: {before:?}");
    assert_eq!(output(&host, &key, "sh", "cat /one").await, "one");
    let restarted = host.restart_with(&[]).await;
    assert_eq!(unpacked(&restarted), before);
    assert_eq!(output(&restarted, &key, "sh", "cat /one").await, "one");
    assert_eq!(unpacked(&restarted), before, "a layer was unpacked again");
    let shown = image_json(&restarted, &["inspect", "one:1"]);
    assert_eq!(shown["interpreters"], imported["interpreters"]);
}

#[tokio::test]
async fn a_removed_image_leaves_nothing_unpacked() {
    let Some(host) = Host::start().await else { return };
    let Some(layouts) = Layouts::make(1000) else { return };
    import(&host, &layouts, "one");
    import(&host, &layouts, "two");
    let key = sandbox_key(&host, "s", "one:1");
    // Cells are parked on the image, and it is mounted.
    assert_eq!(output(&host, &key, "sh", "cat /one").await, "one");
    assert_eq!(unpacked(&host).len(), 3, "a base and a layer of each");
    operator_json(&host, &["sandbox", "set", "default/s", "--image", "host"], "");
    assert_eq!(image(&host, &["rm", "one:1"]).code, 0);
    let unpacked_layers = async |count: usize| {
        eventually("the unpacked layers are removed", async || {
            let left = unpacked(&host);
            (left.len() == count).then_some(()).ok_or_else(|| format!("{left:?}"))
        })
        .await;
    };
    unpacked_layers(2).await;
    assert_eq!(output(&host, &key, "bash", "echo runs").await, "runs\n");
    assert_eq!(image(&host, &["prune"]).code, 0);
    unpacked_layers(0).await;
    assert_eq!(stored(&host), (0, Vec::new()));
    // Imported again, it is unpacked again.
    import(&host, &layouts, "one");
    assert_eq!(unpacked(&host).len(), 2);
}
