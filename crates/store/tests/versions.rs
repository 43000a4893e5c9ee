//! Runs in: test. Databases of other versions, and copies of a database.
#![allow(clippy::unwrap_used, reason = "a set-up that fails is a test that fails")]

use std::{fs, path::Path};

use cloche_store::{
    BackupStore, KeySource, SqliteStore, Store, StoreError, TenancyStore, check_database,
};
use sqlx::{Connection, SqliteConnection};
use tempfile::TempDir;

#[path = "conformance/suite.rs"]
#[allow(dead_code, reason = "only its rows are needed")]
mod suite;

async fn add_migration(path: &Path, version: i64) {
    let mut raw = SqliteConnection::connect(&format!("sqlite://{}", path.display())).await.unwrap();
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
         VALUES (?, 'later', 1, x'00', 0)",
    )
    .bind(version)
    .execute(&mut raw)
    .await
    .unwrap();
    sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut raw).await.unwrap();
    raw.close().await.unwrap();
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_refused_and_not_changed() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("cloche.db");
    SqliteStore::open(&path).await.unwrap().close().await;
    add_migration(&path, 9000).await;
    add_migration(&path, 9001).await;
    let before = fs::read(&path).unwrap();
    let Err(error) = SqliteStore::open(&path).await else { panic!("it was opened") };
    assert!(matches!(error, StoreError::Newer { found: 9001, .. }), "{error:?}");
    let said = error.to_string();
    assert!(said.starts_with("the database was written by a newer version of cloche"), "{said}");
    assert!(said.contains("its schema is 9001, and this version knows schemas up to "), "{said}");
    assert_eq!(fs::read(&path).unwrap(), before);
    let error = check_database(&path).await.unwrap_err();
    assert!(matches!(error, StoreError::Newer { found: 9001, .. }), "{error:?}");
}

#[tokio::test]
async fn a_copy_is_a_database_of_its_own_that_the_same_key_opens() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("cloche.db");
    let store = SqliteStore::open(&path).await.unwrap();
    store.create_team(&suite::team(1)).await.unwrap();
    let copy = directory.path().join("copy.db");
    let contents = store.copy_database(&copy).await.unwrap();
    store.create_team(&suite::team(2)).await.unwrap();
    store.close().await;
    assert_eq!(check_database(&copy).await.unwrap(), contents);
    let key = KeySource::File(directory.path().join("secret.key"));
    key.check_key(contents.sealing_key.as_ref().unwrap()).unwrap();
    assert!(key.check_key("another").is_err());
    let copied = SqliteStore::open_with_key(&copy, &key).await.unwrap();
    assert_eq!(copied.list_teams().await.unwrap(), [suite::team(1)]);
    copied.close().await;
}

#[tokio::test]
async fn a_damaged_copy_is_refused() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("cloche.db");
    let store = SqliteStore::open(&path).await.unwrap();
    let copy = directory.path().join("copy.db");
    store.copy_database(&copy).await.unwrap();
    store.close().await;
    let mut bytes = fs::read(&copy).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 8192].fill(0xff);
    fs::write(&copy, bytes).unwrap();
    assert!(check_database(&copy).await.is_err());
}
