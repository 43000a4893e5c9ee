//! Runs in: test. `cloche backup` of a running server, and `cloche restore` into a new directory.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    host::Host,
    moto::Moto,
    storage_connections::operator_json,
    support::{Ended, binary, ended},
    threads::bash,
    volumes::{download, upload},
};

fn backup(host: &Host, place: &str, more: &[&str]) -> Ended {
    let mut command = Command::new(binary());
    command.args(["backup", place, "--data-dir"]).arg(host.data()).args(more);
    ended(command, b"")
}

fn restore(place: &str, more: &[&str]) -> Ended {
    let mut command = Command::new(binary());
    command.args(["restore", place]).args(more);
    ended(command, b"")
}

/// Every thread with the content of all its files, every execution, and every volume.
async fn everything(host: &Host) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    let (_, threads) = host.get("/v1/threads").await;
    for thread in threads["threads"].as_array().unwrap() {
        let id = thread["thread_id"].as_str().unwrap();
        found.insert(format!("thread {id}"), thread.clone());
        let (_, history) = host.get(&format!("/v1/threads/{id}/history")).await;
        found.insert(format!("history {id}"), history);
        let export = host.request(Method::GET, &format!("/v1/threads/{id}/export"));
        let export = export.send().await.unwrap().bytes().await.unwrap();
        let mut files = BTreeMap::new();
        let mut archive = tar::Archive::new(&export[..]);
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut content = Vec::new();
            std::io::Read::read_to_end(&mut entry, &mut content).unwrap();
            files.insert(name, hex::encode(content));
        }
        found.insert(format!("files {id}"), json!(files));
    }
    let (_, executions) = host.get("/v1/executions?limit=100").await;
    for execution in executions["executions"].as_array().unwrap() {
        let id = execution["trace_id"].as_str().unwrap();
        found.insert(format!("execution {id}"), host.record(id).await);
    }
    for noun in ["teams", "keys", "sandboxes", "volumes", "gates"] {
        let listed = host.admin_request(Method::GET, noun).send().await.unwrap();
        found.insert(noun.to_owned(), listed.json().await.unwrap());
    }
    found
}

/// A server on what was restored, with the key and the token of the first one.
async fn start_restored(first: &Host, directory: Arc<TempDir>) -> Host {
    // The token is not in a backup; an operator keeps it elsewhere.
    fs::copy(first.data().join("bootstrap.json"), directory.path().join("data/bootstrap.json"))
        .unwrap();
    Host::start_on(directory, Vec::new()).await.with_key(first.key.clone())
}

fn count_files(path: &Path) -> usize {
    fs::read_dir(path).map_or(0, Iterator::count)
}

/// Threads, files, a secret and a volume.
async fn fill(host: &Host) {
    for thread in ["a", "b", "c"] {
        bash(host, thread, "mkdir d; seq 1000 >d/f; ln d/f hard; ln -s d link; chmod 600 hard")
            .await;
        bash(host, thread, "echo more >>d/f; rm link").await;
    }
    operator_json(host, &["volume", "create", "work", "--quota", "64M"], "");
    let bind = ["storage", "bind", "work", "--sandbox", "default", "--read-write"];
    operator_json(host, &bind, "");
    assert_eq!(upload(host, "work", "in/table.csv", vec![b'x'; 3 << 20]).await, 200);
    let sandboxes = operator_json(host, &["sandbox", "list"], "");
    let id = sandboxes["sandboxes"][0]["id"].as_str().unwrap();
    let secret = ["sandbox", "set", id, "--secret-env", "TOKEN=-"];
    operator_json(host, &secret, "s3cret-value");
}

#[tokio::test]
async fn a_backup_of_a_running_server_restores_threads_executions_keys_and_volumes() {
    let Some(host) = Host::start().await else { return };
    fill(&host).await;
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("backups");
    let place = place.to_str().unwrap();
    // Programs run, and threads change and are deleted, while the backup is made.
    let (made, ()) = tokio::join!(
        async {
            let (data, place) = (host.data(), place.to_owned());
            let work = move || {
                let mut command = Command::new(binary());
                command.args(["backup", &place, "--data-dir"]).arg(data);
                ended(command, b"")
            };
            tokio::task::spawn_blocking(work).await.unwrap()
        },
        async {
            for round in 0..5 {
                bash(&host, "busy", &format!("echo {round} >>log")).await;
                let path = format!("/v1/threads/gone{round}");
                bash(&host, &format!("gone{round}"), "echo x >f").await;
                host.request(Method::DELETE, &path).send().await.unwrap();
            }
        }
    );
    assert_eq!(made.code, 0, "{made:?}");
    assert!(made.stdout.contains("the secret key is not in it"), "{made:?}");

    // The second backup copies only what is new.
    let before = count_files(&Path::new(place).join("layers/sha256"));
    bash(&host, "a", "echo last >>d/f").await;
    let again = backup(&host, place, &[]);
    assert_eq!(again.code, 0, "{again:?}");
    let added = count_files(&Path::new(place).join("layers/sha256")) - before;
    assert!(again.stdout.contains(&format!("({added} new)")) && added > 0, "{again:?}");
    let third = backup(&host, place, &[]);
    assert!(third.stdout.contains("(0 new)"), "{third:?}");
    let expected = everything(&host).await;
    assert_eq!(restore(place, &["--list"]).printed().lines().count(), 3);
    assert!(restore(place, &["--check"]).printed().contains("every part is as in its manifest"));

    let fresh = Arc::new(tempfile::tempdir().unwrap());
    let data = fresh.path().join("data");
    let (data, key) = (data.to_str().unwrap(), host.data().join("secret.key"));
    let key = key.to_str().unwrap();
    let restored = restore(place, &["--data-dir", data, "--secret-key-file", key]);
    assert_eq!(restored.code, 0, "{restored:?}");
    let refused = restore(place, &["--data-dir", data]);
    assert!(refused.stderr.contains("is not empty; name a new directory"), "{refused:?}");
    let copy = start_restored(&host, fresh).await;
    let found = everything(&copy).await;
    assert!(expected.len() > 15, "{}", expected.len());
    for (what, value) in &expected {
        assert_eq!(found.get(what), Some(value), "{what}");
    }
    assert_eq!(found.len(), expected.len());
    assert_eq!(download(&copy, "work", "in/table.csv").await.unwrap(), vec![b'x'; 3 << 20]);
    assert_eq!(bash(&copy, "a", "tail -n 2 hard; echo $TOKEN").await, "more\nlast\ns3cret-value\n");
}

/// Changes, cuts and removes a part of a backup: each is refused, and nothing is restored.
fn assert_damage_is_refused(name: &str, (path, shown): (&Path, &str), target: &Path) {
    let target_name = target.to_str().unwrap();
    let good = fs::read(path).unwrap();
    let mut flipped = good.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    let cut = good[..good.len() - 1].to_vec();
    for (broken, sentence) in
        [(Some(flipped), "does not have the digest"), (Some(cut), ""), (None, "is missing")]
    {
        match broken {
            Some(bytes) => fs::write(path, bytes).unwrap(),
            None => fs::remove_file(path).unwrap(),
        }
        for more in [&["--check"][..], &["--data-dir", target_name]] {
            let refused = restore(name, more);
            assert_ne!(refused.code, 0, "{shown} {more:?}");
            assert!(refused.stderr.contains("the backup is damaged: "), "{refused:?}");
            assert!(refused.stderr.contains(shown), "{refused:?}");
            assert!(refused.stderr.contains(sentence), "{refused:?}");
            assert!(!target.exists(), "nothing is left");
        }
        fs::write(path, &good).unwrap();
    }
}

#[tokio::test]
async fn a_damaged_or_incomplete_backup_is_refused() {
    let Some(host) = Host::start().await else { return };
    fill(&host).await;
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("backups");
    let name = place.to_str().unwrap();
    let key = host.data().join("secret.key");
    let made = backup(&host, name, &["--include-secret-key", key.to_str().unwrap()]);
    assert_eq!(made.code, 0, "{made:?}");
    let id = fs::read_dir(place.join("backups")).unwrap().next().unwrap().unwrap().file_name();
    let backup_dir = place.join("backups").join(&id);
    let layer = fs::read_dir(place.join("layers/sha256")).unwrap().next().unwrap().unwrap().path();
    let volume = fs::read_dir(backup_dir.join("volumes")).unwrap().next().unwrap().unwrap().path();
    let target = directory.path().join("data");
    let target_name = target.to_str().unwrap();
    let parts: [(PathBuf, &str); 4] = [
        (layer, "layers/sha256/"),
        (backup_dir.join("database"), "/database"),
        (volume, "/volumes/"),
        (backup_dir.join("secret.key"), "/secret.key"),
    ];
    for (path, shown) in &parts {
        assert_damage_is_refused(name, (path, shown), &target);
    }
    // Another key is refused, too; the right one is in the backup.
    let other = directory.path().join("other.key");
    fs::write(&other, "00".repeat(32)).unwrap();
    let refused =
        restore(name, &["--data-dir", target_name, "--secret-key-file", other.to_str().unwrap()]);
    assert!(
        refused.stderr.contains("the secret key does not belong to this backup"),
        "{refused:?}"
    );
    fs::rename(backup_dir.join("manifest.json"), directory.path().join("manifest")).unwrap();
    let refused = restore(name, &["--data-dir", target_name]);
    assert!(refused.stderr.contains("is not complete: it has no manifest"), "{refused:?}");
    fs::rename(directory.path().join("manifest"), backup_dir.join("manifest.json")).unwrap();
    let restored = restore(name, &["--data-dir", target_name]);
    assert_eq!(restored.code, 0, "{restored:?}");
    assert_eq!(fs::read(target.join("secret.key")).unwrap(), fs::read(&key).unwrap());
    let left: Vec<_> =
        fs::read_dir(directory.path()).unwrap().map(|it| it.unwrap().path()).collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

#[tokio::test]
async fn a_backup_in_a_bucket_is_restored() {
    let Some(moto) = Moto::start() else { return };
    let Some(host) = Host::start().await else { return };
    bash(&host, "t", "seq 100000 >f").await;
    let endpoint = format!("http://{}", moto.address);
    let s3 = |words: &[&str]| {
        let mut command = Command::new(binary());
        command.args(words).args(["--endpoint", &endpoint]);
        // The service accepts any key.
        command.envs([("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")]);
        ended(command, b"")
    };
    let place = "s3://layers/daily/one";
    let data = host.data();
    let data_dir = data.to_str().unwrap();
    for words in [
        &["backup", "s3://no-such/daily", "--data-dir", data_dir][..],
        &["restore", "s3://no-such/daily", "--list"],
    ] {
        let refused = s3(words);
        assert_eq!(refused.code, 1, "{refused:?}");
        assert_eq!(refused.stderr, "cloche: the bucket of s3://no-such/daily does not exist\n");
    }
    let made = s3(&["backup", place, "--data-dir", data_dir, "--json"]);
    assert_eq!(made.code, 0, "{made:?}");
    let made: Value = serde_json::from_str(&made.stdout).unwrap();
    assert_eq!((&made["place"], &made["secret_key"]), (&json!(place), &json!(false)));
    let fresh = Arc::new(tempfile::tempdir().unwrap());
    let (target, key) = (fresh.path().join("data"), data.join("secret.key"));
    let (target, key) = (target.to_str().unwrap(), key.to_str().unwrap());
    let restored = s3(&["restore", place, "--data-dir", target, "--secret-key-file", key]);
    assert_eq!(restored.code, 0, "{restored:?}");
    let copy = start_restored(&host, fresh).await;
    assert_eq!(bash(&copy, "t", "tail -n 1 f").await, "100000\n");
}

#[tokio::test]
async fn a_replaced_admin_token_is_refused_and_the_new_one_is_in_the_bootstrap_file() {
    let Some(host) = Host::start().await else { return };
    let made = operator_json(&host, &["admin-token", "rotate"], "");
    let token = made["admin_token"].as_str().unwrap();
    assert_ne!(token, host.admin);
    let old = host.admin_request(Method::GET, "teams").send().await.unwrap();
    assert_eq!(old.status(), 401);
    let bootstrap = fs::read(host.data().join("bootstrap.json")).unwrap();
    let bootstrap: Value = serde_json::from_slice(&bootstrap).unwrap();
    assert_eq!(
        (&bootstrap["admin_token"], &bootstrap["api_key"]),
        (&json!(token), &json!(host.key))
    );
    // Operator commands find the new one there.
    operator_json(&host, &["team", "list"], "");
    assert_eq!(host.run(json!({"code": "print(1)"})).await.0, 200);
}

#[tokio::test]
async fn one_backup_at_a_time_and_its_parts_only_for_the_admin_token() {
    let Some(host) = Host::start().await else { return };
    let begun = host.admin_json(Method::POST, "backups", json!({})).await;
    let second = host.admin_request(Method::POST, "backups").send().await.unwrap();
    assert_eq!(second.status(), 409);
    let path = format!("backups/{}", begun["id"].as_str().unwrap());
    let database = format!("/v1/admin/{path}/database");
    assert_eq!(host.request(Method::GET, &database).send().await.unwrap().status(), 401);
    let part = host.admin_request(Method::GET, &format!("{path}/database")).send().await.unwrap();
    assert_eq!(part.content_length(), begun["database_bytes"].as_u64());
    for missing in ["layers/sha256:0", "volumes/vol_x", "other"] {
        let part = host.admin_request(Method::GET, &format!("{path}/{missing}"));
        assert_eq!(part.send().await.unwrap().status(), 404, "{missing}");
    }
    assert_eq!(host.admin_request(Method::DELETE, &path).send().await.unwrap().status(), 204);
    assert_eq!(host.admin_request(Method::DELETE, &path).send().await.unwrap().status(), 404);
    host.admin_json(Method::POST, "backups", json!({})).await;
}
