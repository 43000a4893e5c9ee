//! Runs in: server (no capabilities), `cloche restore`.
//!
//! Copies of the database file, and the check of a copy before it is used.

use std::path::Path;

use async_trait::async_trait;
use cloche_model::VolumeSettings;
use sqlx::{ConnectOptions, Row, SqliteConnection, sqlite::SqliteConnectOptions};

use super::{
    SqliteStore, newest_schema,
    row_reader::{read_json, read_parsed},
};
use crate::{BackupStore, DatabaseContents, Result, StoreError};

/// Every layer that a row refers to.
pub(super) const LAYERS_IN_USE: &str = "SELECT value AS digest FROM threads, json_each(threads.stack) UNION \
     SELECT value FROM points, json_each(points.stack) UNION \
     SELECT layer FROM points WHERE layer IS NOT NULL UNION \
     SELECT layer FROM executions WHERE layer IS NOT NULL UNION \
     SELECT layer FROM image_layers WHERE layer IS NOT NULL";

#[async_trait]
impl BackupStore for SqliteStore {
    async fn copy_database(&self, to: &Path) -> Result<DatabaseContents> {
        let path = to.to_string_lossy().into_owned();
        // One read transaction: the copy is the state of one moment, without free pages.
        sqlx::query("VACUUM INTO ?").bind(path).execute(&self.readers).await?;
        read_contents(&mut open_copy(to).await?).await
    }
}

/// Checks a copy of a database: that it is whole, and that this version can use it. Changes
/// nothing.
///
/// # Errors
/// If it is damaged, or was written by a newer version.
pub async fn check_database(path: &Path) -> Result<DatabaseContents> {
    let mut copy = open_copy(path).await?;
    let row = sqlx::query("PRAGMA integrity_check(1)").fetch_one(&mut copy).await?;
    let found: &str = row.try_get(0)?;
    if found != "ok" {
        return Err(StoreError::Corrupt { column: "integrity_check", reason: found.to_owned() });
    }
    let schema = read_schema(&mut copy).await?;
    if schema > newest_schema() {
        return Err(StoreError::Newer { found: schema, known: newest_schema() });
    }
    read_contents(&mut copy).await
}

async fn open_copy(path: &Path) -> Result<SqliteConnection> {
    let options = SqliteConnectOptions::new().filename(path).read_only(true).immutable(true);
    Ok(options.disable_statement_logging().connect().await?)
}

/// The number of the newest migration of a database.
pub(super) async fn read_schema(connection: &mut SqliteConnection) -> Result<i64> {
    let newest = sqlx::query("SELECT max(version) FROM _sqlx_migrations WHERE success");
    let schema: Option<i64> = newest.fetch_one(connection).await?.try_get(0)?;
    Ok(schema.unwrap_or_default())
}

async fn read_contents(copy: &mut SqliteConnection) -> Result<DatabaseContents> {
    let schema = read_schema(copy).await?;
    let key = sqlx::query("SELECT key_id FROM sealing_key").fetch_optional(&mut *copy).await?;
    let sealing_key = key.map(|row| row.try_get("key_id")).transpose()?;
    let layers = sqlx::query(LAYERS_IN_USE).fetch_all(&mut *copy).await?;
    let layers = layers.iter().map(|row| read_parsed(row, "digest")).collect::<Result<_>>()?;
    let volumes = sqlx::query("SELECT settings FROM storage_sources WHERE kind = 'volume'");
    let volumes = volumes.fetch_all(&mut *copy).await?;
    let volumes = volumes
        .iter()
        .map(|row| read_json::<VolumeSettings>(row, "settings").map(|volume| volume.id))
        .collect::<Result<_>>()?;
    Ok(DatabaseContents { schema, sealing_key, layers, volumes })
}
