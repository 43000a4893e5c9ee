//! Teams, sandboxes and keys in SQLite.

use async_trait::async_trait;
use cloche_model::{
    ApiKey, Decision, KeyId, Moment, PendingApproval, Sandbox, SandboxId, Team, TeamId, ToolPolicy,
};
use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};

use super::{
    SqliteStore,
    images::check_sandbox_image,
    row_reader::{key_from_row, sandbox_from_row, team_from_row, to_json, to_sql_integer},
    sealed, updates,
};
use crate::{KeyAccess, Result, Revisioned, SourceStore, StoreError, TenancyStore, UpdateOutcome};

#[async_trait]
impl TenancyStore for SqliteStore {
    async fn create_team(&self, team: &Team) -> Result<()> {
        let team = team.clone();
        let name = team.name.clone();
        self.writer
            .run_statement(move |connection| {
                Box::pin(async move {
                    sqlx::query(
                        "INSERT INTO teams (id, name, plan, max_concurrency, max_timeout_s, \
                         storage_bytes, monthly_micro_credits, agent_sandbox, execute_code, \
                         elicitation, pending_approval, web_search, fetch_url, people_search, \
                         created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    )
                    .bind(String::from(team.id))
                    .bind(team.name)
                    .bind(team.plan.name())
                    .bind(team.max_concurrency)
                    .bind(team.max_timeout.map(to_sql_seconds))
                    .bind(team.storage.map(|limit| to_sql_integer(limit.bytes())))
                    .bind(team.monthly_micro_credits.map(to_sql_integer))
                    .bind(team.gates.agent_sandbox)
                    .bind(team.gates.execute_code.map(ToolPolicy::name))
                    .bind(team.gates.elicitation)
                    .bind(team.gates.pending_approval.map(PendingApproval::name))
                    .bind(team.gates.web_search.map(ToolPolicy::name))
                    .bind(team.gates.fetch_url.map(ToolPolicy::name))
                    .bind(team.gates.people_search.map(ToolPolicy::name))
                    .bind(team.created_at.0)
                    .execute(connection)
                    .await
                    .map_err(|error| name_taken_error(error, "team", &name))?;
                    Ok(())
                })
            })
            .await
    }

    async fn list_teams(&self) -> Result<Vec<Team>> {
        let rows = sqlx::query("SELECT * FROM teams ORDER BY created_at, id")
            .fetch_all(&self.readers)
            .await?;
        rows.iter().map(team_from_row).collect()
    }

    async fn find_team(&self, id_or_name: &str) -> Result<Option<Team>> {
        let row = self.team_row(id_or_name).await?;
        row.as_ref().map(team_from_row).transpose()
    }

    async fn team_for_update(&self, id_or_name: &str) -> Result<Option<Revisioned<Team>>> {
        let row = self.team_row(id_or_name).await?;
        row.map(|row| updates::with_revision(&row, team_from_row)).transpose()
    }

    async fn update_team(
        &self,
        team: &Revisioned<Team>,
        gate_decision: Option<Decision>,
    ) -> Result<UpdateOutcome> {
        let team = team.clone();
        self.writer
            .run_transaction(move |connection| {
                Box::pin(updates::update_team(connection, team, gate_decision))
            })
            .await
    }

    async fn delete_team(&self, id: &TeamId) -> Result<bool> {
        let id = id.to_string();
        self.writer
            .run_transaction(move |connection| {
                Box::pin(async move {
                    const GOOD: &str =
                        "SELECT count(*) AS n FROM keys WHERE team_id = ? AND revoked_at IS NULL";
                    refuse_while_used(connection, GOOD, &id, "team").await?;
                    for statement in [
                        "DELETE FROM credential_bindings WHERE credential_id IN \
                         (SELECT id FROM credentials WHERE team_id = ?)",
                        "DELETE FROM credentials WHERE team_id = ?",
                        "DELETE FROM keys WHERE team_id = ?",
                        "DELETE FROM sandboxes WHERE team_id = ?",
                        "DELETE FROM approvals WHERE team_id = ?",
                        "DELETE FROM approved_homes WHERE team_id = ?",
                        "DELETE FROM points WHERE team_id = ?",
                        "DELETE FROM thread_layers WHERE team_id = ?",
                        "DELETE FROM threads WHERE team_id = ?",
                        "DELETE FROM deleted_threads WHERE team_id = ?",
                    ] {
                        sqlx::query(statement).bind(id.clone()).execute(&mut *connection).await?;
                    }
                    let deleted = sqlx::query("DELETE FROM teams WHERE id = ?")
                        .bind(id)
                        .execute(connection)
                        .await?;
                    Ok(deleted.rows_affected() == 1)
                })
            })
            .await
    }

    async fn create_sandbox(&self, sandbox: &Sandbox) -> Result<()> {
        let sandbox = sandbox.clone();
        let sealed_env = self.seal_sandbox_env(&sandbox)?;
        self.writer
            .run_transaction(move |connection| {
                Box::pin(async move {
                    check_sandbox_image(connection, &sandbox.shape.image).await?;
                    sqlx::query(
                        "INSERT INTO sandboxes (name, shape, resources, env, sealed_env, retain_code, \
                         retention_days, id, team_id, created_at) \
                         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    )
                    .bind(sandbox.name.clone())
                    .bind(to_json("shape", &sandbox.shape)?)
                    .bind(to_json("resources", &sandbox.resources)?)
                    .bind(to_json("env", &sandbox.env)?)
                    .bind(sealed_env)
                    .bind(sandbox.retention.code)
                    .bind(sandbox.retention.days)
                    .bind(String::from(sandbox.id))
                    .bind(String::from(sandbox.team))
                    .bind(sandbox.created_at.0)
                    .execute(connection)
                    .await
                    .map_err(|error| name_taken_error(error, "sandbox", &sandbox.name))?;
                    Ok(())
                })
            })
            .await
    }

    async fn list_sandboxes(&self, team: Option<&TeamId>) -> Result<Vec<Sandbox>> {
        let rows = sqlx::query(
            "SELECT * FROM sandboxes WHERE ?1 IS NULL OR team_id = ?1 ORDER BY created_at, id",
        )
        .bind(team.map(ToString::to_string))
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(|row| sandbox_from_row(row, &self.sealer)).collect()
    }

    async fn find_sandbox(&self, id: &SandboxId) -> Result<Option<Sandbox>> {
        let row = self.sandbox_row(id).await?;
        row.as_ref().map(|row| sandbox_from_row(row, &self.sealer)).transpose()
    }

    async fn sandbox_for_update(&self, id: &SandboxId) -> Result<Option<Revisioned<Sandbox>>> {
        let row = self.sandbox_row(id).await?;
        let read = |row: &_| sandbox_from_row(row, &self.sealer);
        row.map(|row| updates::with_revision(&row, read)).transpose()
    }

    async fn update_sandbox(&self, sandbox: &Revisioned<Sandbox>) -> Result<UpdateOutcome> {
        let sealed_env = self.seal_sandbox_env(&sandbox.row)?;
        let sandbox = sandbox.clone();
        self.writer
            .run_transaction(move |connection| {
                Box::pin(updates::update_sandbox(connection, sandbox, sealed_env))
            })
            .await
    }

    async fn delete_sandbox(&self, id: &SandboxId) -> Result<bool> {
        let id = id.to_string();
        self.writer
            .run_transaction(move |connection| {
                Box::pin(async move {
                    const GOOD: &str =
                        "SELECT count(*) AS n FROM keys WHERE sandbox_id = ? AND revoked_at IS NULL";
                    refuse_while_used(connection, GOOD, &id, "sandbox").await?;
                    sqlx::query("DELETE FROM credential_bindings WHERE bound_to = ?")
                        .bind(id.clone())
                        .execute(&mut *connection)
                        .await?;
                    let deleted = sqlx::query("DELETE FROM sandboxes WHERE id = ?")
                        .bind(id)
                        .execute(connection)
                        .await?;
                    Ok(deleted.rows_affected() == 1)
                })
            })
            .await
    }

    async fn create_key(&self, key: &ApiKey, digest: &str) -> Result<()> {
        let (key, digest) = (key.clone(), digest.to_owned());
        let (sealed_env, sealed_webhook_secret) = self.seal_key_secrets(&key)?;
        self.writer
            .run_statement(move |connection| {
                Box::pin(async move {
                    sqlx::query(
                        "INSERT INTO keys (name, sandbox_id, env, sealed_env, webhook_url, \
                         sealed_webhook_secret, may_approve, id, team_id, prefix, digest, created_at) \
                         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    )
                    .bind(key.name)
                    .bind(String::from(key.sandbox))
                    .bind(to_json("env", &key.env)?)
                    .bind(sealed_env)
                    .bind(key.webhook_url)
                    .bind(sealed_webhook_secret)
                    .bind(key.may_approve)
                    .bind(String::from(key.id))
                    .bind(String::from(key.team))
                    .bind(key.prefix)
                    .bind(digest)
                    .bind(key.created_at.0)
                    .execute(connection)
                    .await?;
                    Ok(())
                })
            })
            .await
    }

    async fn list_keys(&self, team: Option<&TeamId>) -> Result<Vec<ApiKey>> {
        let rows = sqlx::query(
            "SELECT * FROM keys WHERE ?1 IS NULL OR team_id = ?1 ORDER BY created_at, id",
        )
        .bind(team.map(ToString::to_string))
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(|row| key_from_row(row, &self.sealer)).collect()
    }

    async fn find_key(&self, id: &KeyId) -> Result<Option<ApiKey>> {
        let row = self.key_row(id).await?;
        row.as_ref().map(|row| key_from_row(row, &self.sealer)).transpose()
    }

    async fn key_for_update(&self, id: &KeyId) -> Result<Option<Revisioned<ApiKey>>> {
        let row = self.key_row(id).await?;
        let read = |row: &_| key_from_row(row, &self.sealer);
        row.map(|row| updates::with_revision(&row, read)).transpose()
    }

    async fn update_key(&self, key: &Revisioned<ApiKey>) -> Result<UpdateOutcome> {
        let sealed = self.seal_key_secrets(&key.row)?;
        let key = key.clone();
        self.writer
            .run_transaction(move |connection| {
                Box::pin(updates::update_key(connection, key, sealed))
            })
            .await
    }

    async fn revoke_key(&self, id: &KeyId, at: Moment) -> Result<bool> {
        let id = id.to_string();
        self.writer
            .run_statement(move |connection| {
                Box::pin(async move {
                    let revoked = sqlx::query(
                        "UPDATE keys SET revoked_at = coalesce(revoked_at, ?), \
                         revision = revision + 1 WHERE id = ?",
                    )
                    .bind(at.0)
                    .bind(id)
                    .execute(connection)
                    .await?;
                    Ok(revoked.rows_affected() == 1)
                })
            })
            .await
    }

    async fn find_key_access(&self, digest: &str) -> Result<Option<KeyAccess>> {
        let row = sqlx::query("SELECT * FROM keys WHERE digest = ? AND revoked_at IS NULL")
            .bind(digest.to_owned())
            .fetch_optional(&self.readers)
            .await?;
        let key = row.as_ref().map(|row| key_from_row(row, &self.sealer)).transpose()?;
        match key {
            Some(key) => self.access_of_key(key).await,
            None => Ok(None),
        }
    }

    async fn access_of_key(&self, key: ApiKey) -> Result<Option<KeyAccess>> {
        let team = self.find_team(key.team.as_str()).await?;
        let sandbox = self.find_sandbox(&key.sandbox).await?;
        let Some((team, sandbox)) = team.zip(sandbox) else { return Ok(None) };
        let storage = self.bound_storage(&sandbox.id, &key.id).await?;
        let credentials = self.credentials_of_key(&key).await?;
        Ok(Some(KeyAccess { key, team, sandbox, storage, credentials, by_person: false }))
    }
}

/// A sealed column; NULL where there is nothing to seal.
pub(super) type SealedValue = Option<Vec<u8>>;

impl SqliteStore {
    async fn team_row(&self, id_or_name: &str) -> Result<Option<SqliteRow>> {
        // Names have no underscore and ids have one, so the two cannot be confused.
        let query = sqlx::query("SELECT * FROM teams WHERE id = ?1 OR name = ?1");
        Ok(query.bind(id_or_name.to_owned()).fetch_optional(&self.readers).await?)
    }

    async fn sandbox_row(&self, id: &SandboxId) -> Result<Option<SqliteRow>> {
        let query = sqlx::query("SELECT * FROM sandboxes WHERE id = ?");
        Ok(query.bind(id.to_string()).fetch_optional(&self.readers).await?)
    }

    async fn key_row(&self, id: &KeyId) -> Result<Option<SqliteRow>> {
        let query = sqlx::query("SELECT * FROM keys WHERE id = ?");
        Ok(query.bind(id.to_string()).fetch_optional(&self.readers).await?)
    }

    fn seal_sandbox_env(&self, sandbox: &Sandbox) -> Result<SealedValue> {
        let row = ("sandboxes", sandbox.id.as_str());
        sealed::seal_env(&self.sealer, row, &sandbox.secret_env)
    }

    /// The sealed variables and webhook secret of a key.
    fn seal_key_secrets(&self, key: &ApiKey) -> Result<(SealedValue, SealedValue)> {
        let id = key.id.as_str();
        let env = sealed::seal_env(&self.sealer, ("keys", id), &key.secret_env)?;
        let secret = key.webhook_secret.as_ref();
        Ok((env, sealed::seal_webhook_secret(&self.sealer, id, secret)?))
    }
}

pub(super) fn to_sql_seconds(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

pub(super) fn name_taken_error(error: sqlx::Error, what: &str, name: &str) -> StoreError {
    match error.as_database_error() {
        Some(cause) if cause.is_unique_violation() => {
            StoreError::Conflict(format!("a {what} named {name:?} already exists"))
        }
        _ => StoreError::Database(error),
    }
}

async fn refuse_while_used(
    connection: &mut SqliteConnection,
    count: &'static str,
    id: &str,
    what: &str,
) -> Result<()> {
    let row = sqlx::query(count).bind(id.to_owned()).fetch_one(connection).await?;
    match row.try_get::<i64, _>("n")? {
        0 => Ok(()),
        keys => Err(StoreError::Conflict(format!(
            "the {what} is still used by {keys} key{}; revoke or rebind {} first",
            if keys == 1 { "" } else { "s" },
            if keys == 1 { "it" } else { "them" },
        ))),
    }
}
