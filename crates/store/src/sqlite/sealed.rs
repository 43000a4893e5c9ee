//! Runs in: server (no capabilities). Sealed columns: reading and writing them, and sealing and
//! erasing the plain text of an earlier version at start.

use std::collections::BTreeMap;

use cloche_model::{EnvVars, Secret, SecretVars};
use sqlx::{Connection, Row, SqliteConnection, sqlite::SqliteRow};

use crate::{
    Result, StoreError,
    sealing::{KeySource, SealedColumn, SecretSealer},
};

/// Settings that an earlier version stored as plain text.
const SECRET_SETTINGS: [&str; 1] = ["url_signing_key"];

/// Loads the key, and seals remaining plain text with it in one transaction.
pub(super) async fn unlock_sealer(
    connection: &mut SqliteConnection,
    source: &KeySource,
) -> Result<SecretSealer> {
    let row = sqlx::query("SELECT key_id, is_erased FROM sealing_key")
        .fetch_optional(&mut *connection)
        .await?;
    let known: Option<String> = row.as_ref().map(|row| row.try_get("key_id")).transpose()?;
    let was_erased: bool = row.map_or(Ok(true), |row| row.try_get("is_erased"))?;
    let sealer = source.load_sealer(known.as_deref())?;
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    let sealed = seal_plain_rows(&mut transaction, &sealer).await?;
    let is_erased = was_erased && sealed == 0;
    sqlx::query("INSERT OR REPLACE INTO sealing_key (only, key_id, is_erased) VALUES (1, ?, ?)")
        .bind(sealer.key_id())
        .bind(is_erased)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    if !is_erased {
        tracing::info!(sealed, "sealed secrets that were plain text in the database");
        erase_plain_text(connection).await?;
    }
    Ok(sealer)
}

/// Erases older versions of rows from free pages and from the log: rewrites the file and empties
/// the log.
async fn erase_plain_text(connection: &mut SqliteConnection) -> Result<()> {
    for statement in
        ["VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)", "UPDATE sealing_key SET is_erased = 1"]
    {
        sqlx::query(statement).execute(&mut *connection).await?;
    }
    Ok(())
}

async fn seal_plain_rows(connection: &mut SqliteConnection, sealer: &SecretSealer) -> Result<u64> {
    let mut sealed = 0;
    let rows = sqlx::query("SELECT id, webhook_secret FROM keys WHERE webhook_secret IS NOT NULL")
        .fetch_all(&mut *connection)
        .await?;
    for row in &rows {
        let (id, secret): (String, String) = (row.try_get("id")?, row.try_get("webhook_secret")?);
        let value = seal_webhook_secret(sealer, &id, Some(&Secret::new(secret)))?;
        sqlx::query(
            "UPDATE keys SET webhook_secret = NULL, sealed_webhook_secret = ? WHERE id = ?",
        )
        .bind(value)
        .bind(id)
        .execute(&mut *connection)
        .await?;
        sealed += 1;
    }
    for name in SECRET_SETTINGS {
        let row = sqlx::query("SELECT value FROM settings WHERE name = ?")
            .bind(name)
            .fetch_optional(&mut *connection)
            .await?;
        let Some(row) = row else { continue };
        let value: String = row.try_get("value")?;
        write_sealed_setting(connection, name, seal_setting(sealer, name, &Secret::new(value))?)
            .await?;
        sqlx::query("DELETE FROM settings WHERE name = ?")
            .bind(name)
            .execute(&mut *connection)
            .await?;
        sealed += 1;
    }
    Ok(sealed)
}

/// Writes a sealed setting.
pub(super) async fn write_sealed_setting(
    connection: &mut SqliteConnection,
    name: &str,
    sealed: Vec<u8>,
) -> Result<()> {
    sqlx::query(
        "INSERT INTO sealed_settings (id, sealed_value) VALUES (?, ?) \
         ON CONFLICT (id) DO UPDATE SET sealed_value = excluded.sealed_value",
    )
    .bind(name.to_owned())
    .bind(sealed)
    .execute(connection)
    .await?;
    Ok(())
}

const fn setting_column(name: &str) -> SealedColumn<'_> {
    SealedColumn { table: "sealed_settings", column: "sealed_value", id: name }
}

const fn webhook_secret_column(id: &str) -> SealedColumn<'_> {
    SealedColumn { table: "keys", column: "sealed_webhook_secret", id }
}

/// The sealed form of a setting.
pub(super) fn seal_setting(sealer: &SecretSealer, name: &str, value: &Secret) -> Result<Vec<u8>> {
    Ok(sealer.seal(setting_column(name), value.reveal().as_bytes())?)
}

/// Opens a sealed setting.
pub(super) fn open_setting(sealer: &SecretSealer, name: &str, row: &SqliteRow) -> Result<Secret> {
    let column = setting_column(name);
    open_sealed_column(sealer, column, row)?
        .ok_or_else(|| corrupt_sealed_column(column, "it is empty"))
}

/// The sealed form of a key's webhook secret.
pub(super) fn seal_webhook_secret(
    sealer: &SecretSealer,
    id: &str,
    secret: Option<&Secret>,
) -> Result<Option<Vec<u8>>> {
    let seal = |secret: &Secret| sealer.seal(webhook_secret_column(id), secret.reveal().as_bytes());
    Ok(secret.map(seal).transpose()?)
}

/// Opens a key's webhook secret.
pub(super) fn open_webhook_secret(
    sealer: &SecretSealer,
    id: &str,
    row: &SqliteRow,
) -> Result<Option<Secret>> {
    open_sealed_column(sealer, webhook_secret_column(id), row)
}

const fn totp_column(id: &str) -> SealedColumn<'_> {
    SealedColumn { table: "members", column: "sealed_totp", id }
}

/// The sealed form of the secret of a member's one-time codes.
pub(super) fn seal_totp_secret(
    sealer: &SecretSealer,
    id: &str,
    secret: &Secret,
) -> Result<Vec<u8>> {
    Ok(sealer.seal(totp_column(id), secret.reveal().as_bytes())?)
}

/// Opens the secret of a member's one-time codes.
pub(super) fn open_totp_secret(
    sealer: &SecretSealer,
    id: &str,
    row: &SqliteRow,
) -> Result<Option<Secret>> {
    open_sealed_column(sealer, totp_column(id), row)
}

const fn credential_column(id: &str) -> SealedColumn<'_> {
    SealedColumn { table: "credentials", column: "sealed_value", id }
}

/// The sealed form of the value of a credential.
pub(super) fn seal_credential_value(
    sealer: &SecretSealer,
    id: &str,
    value: &Secret,
) -> Result<Vec<u8>> {
    Ok(sealer.seal(credential_column(id), value.reveal().as_bytes())?)
}

/// Opens the value of a credential.
pub(super) fn open_credential_value(
    sealer: &SecretSealer,
    id: &str,
    row: &SqliteRow,
) -> Result<Secret> {
    let column = credential_column(id);
    open_sealed_column(sealer, column, row)?
        .ok_or_else(|| corrupt_sealed_column(column, "it is empty"))
}

/// The sealed form of the secret variables of a key or a sandbox. `None` if there are none.
pub(super) fn seal_env(
    sealer: &SecretSealer,
    (table, id): (&'static str, &str),
    vars: &SecretVars,
) -> Result<Option<Vec<u8>>> {
    seal_vars(sealer, SealedColumn { table, column: "sealed_env", id }, vars)
}

/// The sealed form of the secret parts of a connection. `None` if there are none.
pub(super) fn seal_credentials(
    sealer: &SecretSealer,
    id: &str,
    vars: &SecretVars,
) -> Result<Option<Vec<u8>>> {
    seal_vars(sealer, credentials_column(id), vars)
}

const fn credentials_column(id: &str) -> SealedColumn<'_> {
    SealedColumn { table: "storage_sources", column: "sealed_credentials", id }
}

fn seal_vars(
    sealer: &SecretSealer,
    column: SealedColumn<'_>,
    vars: &SecretVars,
) -> Result<Option<Vec<u8>>> {
    if vars.is_empty() {
        return Ok(None);
    }
    let plain: BTreeMap<&str, &str> =
        vars.iter().map(|(name, value)| (name.as_str(), value.reveal())).collect();
    let plain = serde_json::to_vec(&plain).map_err(|error| corrupt_sealed_column(column, error))?;
    Ok(Some(sealer.seal(column, &plain)?))
}

/// Opens the secret variables of a key or a sandbox.
pub(super) fn open_env(
    sealer: &SecretSealer,
    (table, id): (&'static str, &str),
    row: &SqliteRow,
) -> Result<SecretVars> {
    open_vars(sealer, SealedColumn { table, column: "sealed_env", id }, row)
}

/// Opens the secret parts of a connection.
pub(super) fn open_credentials(
    sealer: &SecretSealer,
    id: &str,
    row: &SqliteRow,
) -> Result<SecretVars> {
    open_vars(sealer, credentials_column(id), row)
}

fn open_vars(
    sealer: &SecretSealer,
    column: SealedColumn<'_>,
    row: &SqliteRow,
) -> Result<SecretVars> {
    let Some(text) = open_sealed_column(sealer, column, row)? else { return Ok(SecretVars::new()) };
    // The parse error is dropped, because it would quote the text.
    let vars: EnvVars = serde_json::from_str(text.reveal())
        .map_err(|_| corrupt_sealed_column(column, "it does not hold variables"))?;
    Ok(vars.into_iter().map(|(name, value)| (name, Secret::new(value))).collect())
}

fn open_sealed_column(
    sealer: &SecretSealer,
    column: SealedColumn<'_>,
    row: &SqliteRow,
) -> Result<Option<Secret>> {
    let sealed: Option<&[u8]> = row.try_get(column.column)?;
    let Some(sealed) = sealed else { return Ok(None) };
    let plain = sealer.open(column, sealed);
    let text = plain.and_then(|plain| String::from_utf8(plain).ok());
    match text {
        Some(text) => Ok(Some(Secret::new(text))),
        None => Err(corrupt_sealed_column(column, "it was not sealed for this row with this key")),
    }
}

fn corrupt_sealed_column(column: SealedColumn<'_>, reason: impl ToString) -> StoreError {
    StoreError::Corrupt { column: column.column, reason: reason.to_string() }
}
