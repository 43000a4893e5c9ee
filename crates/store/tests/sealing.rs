//! Runs in: test. Secrets in the database file are sealed, are erased where they were plain text,
//! and open with no other key.
#![allow(clippy::unwrap_used, reason = "a set-up that fails is a test that fails")]

use std::{fs, path::Path};

use cloche_model::Secret;
use cloche_store::{
    KeyError, KeySource, SettingStore, SqliteStore, Store, StoreError, TenancyStore,
};
use sqlx::{Connection, SqliteConnection};
use tempfile::TempDir;

#[path = "conformance/suite.rs"]
#[allow(dead_code, reason = "only its rows are needed")]
mod suite;

const PLAIN: &str = "a-webhook-secret-in-plain-text";
const SIGNING: &str = "5349474e494e474b45595349474e494e474b45595349474e494e474b45595349";

/// The files of the database that contain this text.
fn files_with(directory: &Path, text: &str) -> Vec<String> {
    let files = fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    let holds = |path: &Path| {
        let bytes = fs::read(path).unwrap();
        bytes.windows(text.len()).any(|part| part == text.as_bytes())
    };
    files.filter(|path| holds(path)).map(|path| path.display().to_string()).collect()
}

async fn open_raw(path: &Path) -> SqliteConnection {
    SqliteConnection::connect(&format!("sqlite://{}", path.display())).await.unwrap()
}

async fn change(connection: &mut SqliteConnection, statement: &'static str, values: [&str; 2]) {
    let query = sqlx::query(statement).bind(values[0].to_owned()).bind(values[1].to_owned());
    query.execute(connection).await.unwrap();
}

/// A database of an earlier version: a key and a setting in plain text, no sealing key.
async fn earlier_version(directory: &Path) {
    let path = directory.join("cloche.db");
    let store = SqliteStore::open(&path).await.unwrap();
    store.create_team(&suite::team(1)).await.unwrap();
    store.create_sandbox(&suite::sandbox(1)).await.unwrap();
    store.create_key(&suite::key(1), "digest").await.unwrap();
    store.close().await;
    let mut raw = open_raw(&path).await;
    let plain = "UPDATE keys SET webhook_secret = ?, sealed_webhook_secret = NULL WHERE id != ?";
    change(&mut raw, plain, [PLAIN, ""]).await;
    let setting = "INSERT INTO settings (name, value) VALUES (?, ?)";
    change(&mut raw, setting, ["url_signing_key", SIGNING]).await;
    // The remains of a value that was replaced.
    change(&mut raw, setting, ["gone", &PLAIN.repeat(400)]).await;
    change(&mut raw, "DELETE FROM settings WHERE name = ? OR name = ?", ["gone", ""]).await;
    for statement in [
        "UPDATE keys SET sealed_env = NULL",
        "UPDATE sandboxes SET sealed_env = NULL",
        "DELETE FROM sealing_key",
        "PRAGMA wal_checkpoint(TRUNCATE)",
    ] {
        sqlx::query(statement).execute(&mut raw).await.unwrap();
    }
    raw.close().await.unwrap();
    fs::remove_file(directory.join("secret.key")).unwrap();
}

#[tokio::test]
async fn plain_secrets_of_an_earlier_version_are_sealed_and_erased_at_start() {
    let directory = TempDir::new().unwrap();
    earlier_version(directory.path()).await;
    assert!(!files_with(directory.path(), PLAIN).is_empty());
    let store = SqliteStore::open(&directory.path().join("cloche.db")).await.unwrap();
    let key = store.find_key(&suite::key(1).id).await.unwrap().unwrap();
    assert_eq!(key.webhook_secret, Some(Secret::new(PLAIN)));
    let signing = store.read_secret_setting("url_signing_key").await.unwrap();
    assert_eq!(signing, Some(Secret::new(SIGNING)));
    assert_eq!(store.read_setting("url_signing_key").await.unwrap(), None);
    for text in [PLAIN, SIGNING] {
        assert_eq!(files_with(directory.path(), text), Vec::<String>::new());
    }
    store.close().await;
    assert_eq!(files_with(directory.path(), PLAIN), Vec::<String>::new());
}

#[tokio::test]
async fn secrets_are_not_in_the_files_while_the_store_is_open() {
    let directory = TempDir::new().unwrap();
    let store = SqliteStore::open(&directory.path().join("cloche.db")).await.unwrap();
    store.create_team(&suite::team(1)).await.unwrap();
    let mut sandbox = suite::sandbox(1);
    sandbox.secret_env.insert("TOKEN".to_owned(), Secret::new(PLAIN));
    store.create_sandbox(&sandbox).await.unwrap();
    let key = cloche_model::ApiKey { webhook_secret: Some(Secret::new(PLAIN)), ..suite::key(1) };
    store.create_key(&key, "digest").await.unwrap();
    store.set_secret_setting("url_signing_key", &Secret::new(SIGNING)).await.unwrap();
    assert_eq!(store.find_sandbox(&sandbox.id).await.unwrap(), Some(sandbox));
    assert_eq!(store.find_key_access("digest").await.unwrap().unwrap().key, key);
    for text in [PLAIN, SIGNING] {
        assert_eq!(files_with(directory.path(), text), Vec::<String>::new());
    }
    store.close().await;
}

#[tokio::test]
async fn a_wrong_key_and_a_missing_key_are_refused_and_change_nothing() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("cloche.db");
    let store = SqliteStore::open(&path).await.unwrap();
    store.set_secret_setting("url_signing_key", &Secret::new(SIGNING)).await.unwrap();
    store.close().await;
    let before = fs::read(&path).unwrap();

    let other = KeySource::Given(Secret::new("07".repeat(32)));
    let refused = SqliteStore::open_with_key(&path, &other).await.err();
    assert!(matches!(refused, Some(StoreError::Key(KeyError::Wrong { .. }))), "{refused:?}");
    let kept = directory.path().join("kept");
    fs::rename(directory.path().join("secret.key"), &kept).unwrap();
    let refused = SqliteStore::open(&path).await.err();
    assert!(matches!(refused, Some(StoreError::Key(KeyError::Missing { .. }))), "{refused:?}");
    assert!(!directory.path().join("secret.key").exists());
    assert_eq!(fs::read(&path).unwrap(), before);

    // The same key works from another source.
    let text = fs::read_to_string(&kept).unwrap();
    let given = KeySource::Given(Secret::new(text.trim()));
    let store = SqliteStore::open_with_key(&path, &given).await.unwrap();
    let signing = store.read_secret_setting("url_signing_key").await.unwrap();
    assert_eq!(signing, Some(Secret::new(SIGNING)));
    store.close().await;
}

#[tokio::test]
async fn a_sealed_value_copied_to_another_row_does_not_open() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("cloche.db");
    let store = SqliteStore::open(&path).await.unwrap();
    store.create_team(&suite::team(1)).await.unwrap();
    store.create_sandbox(&suite::sandbox(1)).await.unwrap();
    store.create_key(&suite::key(1), "one").await.unwrap();
    store.create_key(&suite::key(2), "two").await.unwrap();
    store.close().await;
    let mut raw = open_raw(&path).await;
    let copy = "UPDATE keys SET sealed_webhook_secret = \
        (SELECT sealed_webhook_secret FROM keys WHERE digest = ?) WHERE digest = ?";
    change(&mut raw, copy, ["one", "two"]).await;
    raw.close().await.unwrap();
    let store = SqliteStore::open(&path).await.unwrap();
    assert!(store.find_key_access("one").await.unwrap().is_some());
    let error = store.find_key_access("two").await.unwrap_err().to_string();
    assert!(error.contains("it was not sealed for this row with this key"), "{error}");
    store.close().await;
}
