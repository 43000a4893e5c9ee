//! Runs in: server (no capabilities).
//!
//! Credentials and their bindings, in SQLite.

use async_trait::async_trait;
use cloche_model::{
    ApiKey, Credential, CredentialBinding, CredentialId, HeldCredential, Moment, Secret, TeamId,
};
use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};

use super::{
    SqliteStore,
    row_reader::{read_json, read_moment, read_parsed, to_json},
    sealed::{open_credential_value, seal_credential_value},
    tenancy::name_taken_error,
};
use crate::{CredentialStore, Result};

#[async_trait]
impl CredentialStore for SqliteStore {
    async fn create_credential(&self, credential: &Credential, value: &Secret) -> Result<()> {
        let sealed = seal_credential_value(&self.sealer, credential.id.as_str(), value)?;
        let credential = credential.clone();
        self.writer
            .run_transaction(move |connection| {
                Box::pin(insert_credential(connection, credential, sealed))
            })
            .await
    }

    async fn list_credentials(&self, team: Option<&TeamId>) -> Result<Vec<Credential>> {
        let rows = sqlx::query(
            "SELECT * FROM credentials WHERE ?1 IS NULL OR team_id = ?1 ORDER BY team_id, name",
        )
        .bind(team.map(ToString::to_string))
        .fetch_all(&self.readers)
        .await?;
        let mut credentials = Vec::with_capacity(rows.len());
        for row in &rows {
            credentials.push(self.with_bindings(row).await?);
        }
        Ok(credentials)
    }

    async fn find_credential(&self, id: &CredentialId) -> Result<Option<Credential>> {
        let row = sqlx::query("SELECT * FROM credentials WHERE id = ?")
            .bind(id.to_string())
            .fetch_optional(&self.readers)
            .await?;
        match row {
            Some(row) => Ok(Some(self.with_bindings(&row).await?)),
            None => Ok(None),
        }
    }

    async fn update_credential(
        &self,
        credential: &Credential,
        value: Option<&Secret>,
    ) -> Result<bool> {
        let id = credential.id.as_str();
        let seal = |value| seal_credential_value(&self.sealer, id, value);
        let sealed = value.map(seal).transpose()?;
        let credential = credential.clone();
        self.writer
            .run_statement(move |connection| {
                Box::pin(async move {
                    let updated = sqlx::query(
                        "UPDATE credentials SET delivery = ?, updated_at = ?, \
                         sealed_value = coalesce(?, sealed_value) WHERE id = ?",
                    )
                    .bind(to_json("delivery", &credential.delivery)?)
                    .bind(credential.updated_at.0)
                    .bind(sealed)
                    .bind(String::from(credential.id))
                    .execute(connection)
                    .await?;
                    Ok(updated.rows_affected() == 1)
                })
            })
            .await
    }

    async fn delete_credential(&self, id: &CredentialId) -> Result<bool> {
        let id = id.to_string();
        self.writer
            .run_transaction(move |connection| {
                Box::pin(async move {
                    sqlx::query("DELETE FROM credential_bindings WHERE credential_id = ?")
                        .bind(id.clone())
                        .execute(&mut *connection)
                        .await?;
                    let deleted = sqlx::query("DELETE FROM credentials WHERE id = ?")
                        .bind(id)
                        .execute(connection)
                        .await?;
                    Ok(deleted.rows_affected() == 1)
                })
            })
            .await
    }

    async fn bind_credential(&self, id: &CredentialId, to: &CredentialBinding) -> Result<()> {
        let (id, to) = (id.to_string(), to.as_str().to_owned());
        self.writer
            .run_statement(move |connection| Box::pin(insert_binding(connection, id, to)))
            .await
    }

    async fn unbind_credential(&self, id: &CredentialId, from: &CredentialBinding) -> Result<bool> {
        let (id, from) = (id.to_string(), from.as_str().to_owned());
        self.writer
            .run_statement(move |connection| {
                Box::pin(async move {
                    let deleted = sqlx::query(
                        "DELETE FROM credential_bindings WHERE credential_id = ? AND bound_to = ?",
                    )
                    .bind(id)
                    .bind(from)
                    .execute(connection)
                    .await?;
                    Ok(deleted.rows_affected() == 1)
                })
            })
            .await
    }

    async fn note_credential_use(&self, ids: Vec<CredentialId>, at: Moment) -> Result<()> {
        self.writer
            .run_transaction(move |connection| {
                Box::pin(async move {
                    for id in ids {
                        sqlx::query("UPDATE credentials SET last_used_at = ? WHERE id = ?")
                            .bind(at.0)
                            .bind(String::from(id))
                            .execute(&mut *connection)
                            .await?;
                    }
                    Ok(())
                })
            })
            .await
    }
}

impl SqliteStore {
    /// The credentials of the executions of a key, with their values.
    pub(super) async fn credentials_of_key(&self, key: &ApiKey) -> Result<Vec<HeldCredential>> {
        // The team is compared again: no binding leads from one team to another.
        let rows = sqlx::query(
            "SELECT DISTINCT c.* FROM credentials c \
             JOIN credential_bindings b ON b.credential_id = c.id \
             WHERE b.bound_to IN (?, ?) AND c.team_id = ? ORDER BY c.name",
        )
        .bind(key.id.to_string())
        .bind(key.sandbox.to_string())
        .bind(key.team.to_string())
        .fetch_all(&self.readers)
        .await?;
        let held = |row: &SqliteRow| {
            let id: CredentialId = read_parsed(row, "id")?;
            Ok(HeldCredential {
                value: open_credential_value(&self.sealer, id.as_str(), row)?,
                id,
                name: row.try_get("name")?,
                delivery: read_json(row, "delivery")?,
            })
        };
        rows.iter().map(held).collect()
    }

    async fn with_bindings(&self, row: &SqliteRow) -> Result<Credential> {
        let id: CredentialId = read_parsed(row, "id")?;
        let bindings = sqlx::query(
            "SELECT bound_to FROM credential_bindings WHERE credential_id = ? ORDER BY bound_to",
        )
        .bind(id.to_string())
        .fetch_all(&self.readers)
        .await?;
        let bindings: Result<_> = bindings.iter().map(|row| read_parsed(row, "bound_to")).collect();
        let last_used: Option<i64> = row.try_get("last_used_at")?;
        Ok(Credential {
            id,
            team: read_parsed(row, "team_id")?,
            name: row.try_get("name")?,
            delivery: read_json(row, "delivery")?,
            bindings: bindings?,
            created_at: read_moment(row, "created_at")?,
            updated_at: read_moment(row, "updated_at")?,
            last_used_at: last_used.map(Moment),
        })
    }
}

async fn insert_credential(
    connection: &mut SqliteConnection,
    credential: Credential,
    sealed: Vec<u8>,
) -> Result<()> {
    let id = credential.id.to_string();
    sqlx::query(
        "INSERT INTO credentials (id, team_id, name, delivery, sealed_value, created_at, \
         updated_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(id.clone())
    .bind(String::from(credential.team))
    .bind(credential.name.clone())
    .bind(to_json("delivery", &credential.delivery)?)
    .bind(sealed)
    .bind(credential.created_at.0)
    .bind(credential.updated_at.0)
    .execute(&mut *connection)
    .await
    .map_err(|error| name_taken_error(error, "credential", &credential.name))?;
    for binding in credential.bindings {
        insert_binding(connection, id.clone(), binding.as_str().to_owned()).await?;
    }
    Ok(())
}

async fn insert_binding(connection: &mut SqliteConnection, id: String, to: String) -> Result<()> {
    sqlx::query(
        "INSERT OR IGNORE INTO credential_bindings (credential_id, bound_to) VALUES (?, ?)",
    )
    .bind(id)
    .bind(to)
    .execute(connection)
    .await?;
    Ok(())
}
