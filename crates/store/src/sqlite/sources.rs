//! Runs in: server (no capabilities).
//!
//! Connections, volumes and bindings in SQLite. The trigger of migration 17 counts bytes.

use async_trait::async_trait;
use cloche_model::{
    BindingUser, BoundStorage, KeyId, KeyPrefix, SandboxId, StorageBacking, StorageBinding,
    StorageConnection, StorageId, StorageSource, TeamId,
};
use sqlx::{QueryBuilder, Row, Sqlite as Database, SqliteConnection, sqlite::SqliteRow};

use super::{
    SqliteStore,
    row_reader::{read_json, read_moment, read_number, read_parsed, to_json},
    sealed,
    tenancy::{SealedValue, name_taken_error},
};
use crate::{
    Result, SourceRemoval, SourceStore, StorageTraffic, StoreError, UsageFilter,
    sealing::SecretSealer,
};

/// The sandboxes and valid keys that a connection or volume is bound to.
const USERS: &str = "SELECT b.storage_id, b.user_id, b.path, b.read_only, \
     coalesce('sandbox ' || s.name, 'key ' || k.name) AS user FROM storage_bindings b \
     LEFT JOIN sandboxes s ON s.id = b.user_id \
     LEFT JOIN keys k ON k.id = b.user_id AND k.revoked_at IS NULL \
     WHERE b.storage_id = ? AND coalesce(s.id, k.id) IS NOT NULL ORDER BY user";

#[async_trait]
impl SourceStore for SqliteStore {
    async fn create_source(&self, source: &StorageSource) -> Result<()> {
        let (kind, settings, sealed) = self.source_columns(source)?;
        let source = source.clone();
        self.writer
            .run_durable(move |connection| {
                Box::pin(async move {
                    sqlx::query(
                        "INSERT INTO storage_sources (id, team_id, name, kind, settings, \
                         sealed_credentials, created_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    )
                    .bind(String::from(source.id))
                    .bind(String::from(source.team))
                    .bind(source.name.clone())
                    .bind(kind)
                    .bind(settings)
                    .bind(sealed)
                    .bind(source.created_at.0)
                    .execute(connection)
                    .await
                    .map_err(|error| {
                        name_taken_error(error, "storage connection or volume", &source.name)
                    })?;
                    Ok(())
                })
            })
            .await
    }

    async fn list_sources(&self, team: Option<&TeamId>) -> Result<Vec<StorageSource>> {
        let rows = sqlx::query(
            "SELECT * FROM storage_sources WHERE ?1 IS NULL OR team_id = ?1 \
             ORDER BY created_at, id",
        )
        .bind(team.map(ToString::to_string))
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(|row| source_from_row(row, &self.sealer)).collect()
    }

    async fn find_source(&self, id: &StorageId) -> Result<Option<StorageSource>> {
        let row = sqlx::query("SELECT * FROM storage_sources WHERE id = ?")
            .bind(id.to_string())
            .fetch_optional(&self.readers)
            .await?;
        row.map(|row| source_from_row(&row, &self.sealer)).transpose()
    }

    async fn find_source_by_name(
        &self,
        team: &TeamId,
        name: &str,
    ) -> Result<Option<StorageSource>> {
        let row = sqlx::query("SELECT * FROM storage_sources WHERE team_id = ? AND name = ?")
            .bind(team.to_string())
            .bind(name.to_owned())
            .fetch_optional(&self.readers)
            .await?;
        row.map(|row| source_from_row(&row, &self.sealer)).transpose()
    }

    async fn update_source(&self, source: &StorageSource) -> Result<bool> {
        let (_, settings, sealed) = self.source_columns(source)?;
        let id = source.id.to_string();
        self.writer
            .run_durable(move |connection| {
                Box::pin(async move {
                    let updated = sqlx::query(
                        "UPDATE storage_sources SET settings = ?, sealed_credentials = ? \
                         WHERE id = ?",
                    )
                    .bind(settings)
                    .bind(sealed)
                    .bind(id)
                    .execute(connection)
                    .await?;
                    Ok(updated.rows_affected() == 1)
                })
            })
            .await
    }

    async fn remove_source(&self, id: &StorageId) -> Result<SourceRemoval> {
        let id = id.to_string();
        self.writer
            .run_durable(move |connection| Box::pin(remove_source_rows(connection, id)))
            .await
    }

    async fn bind_source(&self, binding: &StorageBinding) -> Result<()> {
        let binding = binding.clone();
        self.writer
            .run_transaction(move |connection| Box::pin(insert_binding(connection, binding)))
            .await
    }

    async fn unbind_source(&self, id: &StorageId, user: &BindingUser) -> Result<bool> {
        let (id, user) = (id.to_string(), user.id().to_owned());
        self.writer
            .run_statement(move |connection| {
                Box::pin(async move {
                    let removed = sqlx::query(
                        "DELETE FROM storage_bindings WHERE storage_id = ? AND user_id = ?",
                    )
                    .bind(id)
                    .bind(user)
                    .execute(connection)
                    .await?;
                    Ok(removed.rows_affected() == 1)
                })
            })
            .await
    }

    async fn list_bindings(&self, id: &StorageId) -> Result<Vec<(StorageBinding, String)>> {
        let rows = sqlx::query(USERS).bind(id.to_string()).fetch_all(&self.readers).await?;
        rows.iter().map(|row| Ok((binding_from_row(row)?, row.try_get("user")?))).collect()
    }

    async fn sandbox_storage(&self, id: &SandboxId) -> Result<Vec<(String, bool)>> {
        let rows = sqlx::query(
            "SELECT s.name, b.read_only FROM storage_bindings b \
             JOIN storage_sources s ON s.id = b.storage_id WHERE b.user_id = ? ORDER BY s.name",
        )
        .bind(id.to_string())
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(|row| Ok((row.try_get("name")?, row.try_get("read_only")?))).collect()
    }

    async fn bound_storage(&self, sandbox: &SandboxId, key: &KeyId) -> Result<Vec<BoundStorage>> {
        let rows = sqlx::query(
            "SELECT s.*, b.storage_id, b.user_id, b.path, b.read_only FROM storage_bindings b \
             JOIN storage_sources s ON s.id = b.storage_id WHERE b.user_id IN (?, ?) \
             ORDER BY s.name, b.user_id",
        )
        .bind(sandbox.to_string())
        .bind(key.to_string())
        .fetch_all(&self.readers)
        .await?;
        let mut found: Vec<(StorageSource, Vec<StorageBinding>)> = Vec::new();
        for row in &rows {
            let source = source_from_row(row, &self.sealer)?;
            let binding = binding_from_row(row)?;
            match found.last_mut() {
                Some((last, bindings)) if last.id == source.id => bindings.push(binding),
                _ => found.push((source, vec![binding])),
            }
        }
        let bound = found.into_iter();
        Ok(bound.map(|(source, bindings)| BoundStorage::new(source, &bindings)).collect())
    }

    async fn storage_traffic(&self, filter: &UsageFilter) -> Result<Vec<StorageTraffic>> {
        let mut query = QueryBuilder::<Database>::new(
            "SELECT team_id, name, sum(read_bytes) AS read_bytes, \
             sum(written_bytes) AS written_bytes FROM storage_days WHERE day >= ",
        );
        query.push_bind(filter.first_day).push(" AND day <= ").push_bind(filter.last_day);
        if let Some(team) = &filter.team {
            query.push(" AND team_id = ").push_bind(team.to_string());
        }
        if let Some(key) = &filter.key {
            query.push(" AND key_id = ").push_bind(key.to_string());
        }
        query.push(" GROUP BY team_id, name ORDER BY team_id, name");
        let rows = query.build().fetch_all(&self.readers).await?;
        let traffic = |row: &SqliteRow| {
            Ok(StorageTraffic {
                team: read_parsed(row, "team_id")?,
                name: row.try_get("name")?,
                read_bytes: read_number(row, "read_bytes")?,
                written_bytes: read_number(row, "written_bytes")?,
            })
        };
        rows.iter().map(traffic).collect()
    }
}

impl SqliteStore {
    /// The kind, the settings as JSON and the sealed credentials.
    fn source_columns(
        &self,
        source: &StorageSource,
    ) -> Result<(&'static str, String, SealedValue)> {
        match &source.backing {
            StorageBacking::Volume(volume) => Ok(("volume", to_json("settings", volume)?, None)),
            StorageBacking::Connection(connection) => {
                let (id, vars) = (source.id.as_str(), &connection.credentials);
                let sealed = sealed::seal_credentials(&self.sealer, id, vars)?;
                Ok(("connection", to_json("settings", connection)?, sealed))
            }
        }
    }
}

fn source_from_row(row: &SqliteRow, sealer: &SecretSealer) -> Result<StorageSource> {
    let id: StorageId = read_parsed(row, "id")?;
    let backing = match row.try_get("kind")? {
        "volume" => StorageBacking::Volume(read_json(row, "settings")?),
        _ => {
            let credentials = sealed::open_credentials(sealer, id.as_str(), row)?;
            let connection: StorageConnection = read_json(row, "settings")?;
            StorageBacking::Connection(StorageConnection { credentials, ..connection })
        }
    };
    Ok(StorageSource {
        id,
        backing,
        team: read_parsed(row, "team_id")?,
        name: row.try_get("name")?,
        created_at: read_moment(row, "created_at")?,
    })
}

fn binding_from_row(row: &SqliteRow) -> Result<StorageBinding> {
    let user: &str = row.try_get("user_id")?;
    let user = match user.starts_with(KeyId::PREFIX) {
        true => BindingUser::Key(read_parsed(row, "user_id")?),
        false => BindingUser::Sandbox(read_parsed(row, "user_id")?),
    };
    let path: KeyPrefix = read_parsed(row, "path")?;
    Ok(StorageBinding {
        storage: read_parsed(row, "storage_id")?,
        user,
        path,
        read_only: row.try_get("read_only")?,
    })
}

async fn insert_binding(connection: &mut SqliteConnection, binding: StorageBinding) -> Result<()> {
    let bound = sqlx::query(
        "INSERT OR REPLACE INTO storage_bindings (storage_id, user_id, path, read_only) \
         SELECT ?1, ?2, ?3, ?4 FROM storage_sources s WHERE s.id = ?1 AND s.team_id IN \
         (SELECT team_id FROM sandboxes WHERE id = ?2 UNION ALL \
         SELECT team_id FROM keys WHERE id = ?2 AND revoked_at IS NULL)",
    )
    .bind(binding.storage.to_string())
    .bind(binding.user.id().to_owned())
    .bind(String::from(binding.path))
    .bind(binding.read_only)
    .execute(connection)
    .await?;
    match bound.rows_affected() {
        0 => Err(StoreError::Conflict(
            "storage can be bound to a sandbox or a valid key of its own team only".to_owned(),
        )),
        _ => Ok(()),
    }
}

async fn remove_source_rows(
    connection: &mut SqliteConnection,
    id: String,
) -> Result<SourceRemoval> {
    let users = sqlx::query(USERS).bind(id.clone()).fetch_all(&mut *connection).await?;
    if !users.is_empty() {
        let users: std::result::Result<_, sqlx::Error> =
            users.iter().map(|row| row.try_get("user")).collect();
        return Ok(SourceRemoval::InUse(users?));
    }
    sqlx::query("DELETE FROM storage_bindings WHERE storage_id = ?")
        .bind(id.clone())
        .execute(&mut *connection)
        .await?;
    let removed = sqlx::query("DELETE FROM storage_sources WHERE id = ?")
        .bind(id)
        .execute(&mut *connection)
        .await?;
    Ok(match removed.rows_affected() {
        0 => SourceRemoval::Missing,
        _ => SourceRemoval::Done,
    })
}
