//! Responses of the Agent API, in SQLite.

use async_trait::async_trait;
use cloche_model::{Moment, ResponseId, TeamId};
use sqlx::{Row, sqlite::SqliteRow};

use super::{
    SqliteStore,
    row_reader::{read_moment, read_moment_or_null, read_parsed},
};
use crate::{ResponseRow, ResponseStore, ResponseSummary, Result};

fn response_from_row(row: &SqliteRow) -> Result<ResponseRow> {
    Ok(ResponseRow {
        id: read_parsed(row, "id")?,
        team: read_parsed(row, "team_id")?,
        key: read_parsed(row, "key_id")?,
        sandbox: read_parsed(row, "sandbox_id")?,
        status: read_parsed(row, "status")?,
        visible: row.try_get("visible")?,
        created_at: read_moment(row, "created_at")?,
        completed_at: read_moment_or_null(row, "completed_at")?,
        record: row.try_get("record")?,
        conversation: row.try_get("conversation")?,
        events: row.try_get("events")?,
    })
}

fn summary_from_row(row: &SqliteRow) -> Result<ResponseSummary> {
    Ok(ResponseSummary {
        id: read_parsed(row, "id")?,
        key: read_parsed(row, "key_id")?,
        sandbox: read_parsed(row, "sandbox_id")?,
        status: read_parsed(row, "status")?,
        model: row.try_get("model")?,
        created_at: read_moment(row, "created_at")?,
        completed_at: read_moment_or_null(row, "completed_at")?,
    })
}

#[async_trait]
impl ResponseStore for SqliteStore {
    async fn create_response(&self, row: ResponseRow) -> Result<()> {
        self.writer
            .run_statement(move |connection| {
                Box::pin(async move {
                    sqlx::query(
                        "INSERT INTO responses (id, team_id, key_id, sandbox_id, status, visible, \
                         created_at, completed_at, record, conversation, events) \
                         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    )
                    .bind(row.id.to_string())
                    .bind(row.team.to_string())
                    .bind(row.key.to_string())
                    .bind(row.sandbox.to_string())
                    .bind(row.status.name())
                    .bind(row.visible)
                    .bind(row.created_at.0)
                    .bind(row.completed_at.map(|at| at.0))
                    .bind(row.record)
                    .bind(row.conversation)
                    .bind(row.events)
                    .execute(connection)
                    .await?;
                    Ok(())
                })
            })
            .await
    }

    async fn update_response(&self, row: ResponseRow) -> Result<bool> {
        self.writer
            .run_statement(move |connection| {
                Box::pin(async move {
                    let updated = sqlx::query(
                        "UPDATE responses SET status = ?, completed_at = ?, record = ?, \
                         conversation = ?, events = ? WHERE id = ? AND completed_at IS NULL",
                    )
                    .bind(row.status.name())
                    .bind(row.completed_at.map(|at| at.0))
                    .bind(row.record)
                    .bind(row.conversation)
                    .bind(row.events)
                    .bind(row.id.to_string())
                    .execute(connection)
                    .await?;
                    Ok(updated.rows_affected() > 0)
                })
            })
            .await
    }

    async fn find_response(&self, team: &TeamId, id: &ResponseId) -> Result<Option<ResponseRow>> {
        let row = sqlx::query("SELECT * FROM responses WHERE id = ? AND team_id = ?")
            .bind(id.to_string())
            .bind(team.to_string())
            .fetch_optional(&self.readers)
            .await?;
        row.as_ref().map(response_from_row).transpose()
    }

    async fn list_responses(
        &self,
        team: &TeamId,
        after: Option<(Moment, ResponseId)>,
        limit: u32,
    ) -> Result<Vec<ResponseSummary>> {
        let (at, id) = match after {
            Some((at, id)) => (at.0, id.to_string()),
            None => (i64::MAX, String::new()),
        };
        let rows = sqlx::query(
            "SELECT id, key_id, sandbox_id, status, created_at, completed_at, \
             record ->> '$.response.model' AS model FROM responses WHERE visible AND team_id = ? \
             AND (created_at, id) < (?, ?) ORDER BY created_at DESC, id DESC LIMIT ?",
        )
        .bind(team.to_string())
        .bind(at)
        .bind(id)
        .bind(limit)
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(summary_from_row).collect()
    }

    async fn open_responses(&self) -> Result<Vec<ResponseRow>> {
        let rows = sqlx::query("SELECT * FROM responses WHERE completed_at IS NULL")
            .fetch_all(&self.readers)
            .await?;
        rows.iter().map(response_from_row).collect()
    }

    async fn prune_responses(&self, now: Moment) -> Result<u64> {
        self.writer
            .run_statement(move |connection| {
                Box::pin(async move {
                    let pruned = sqlx::query(
                        "DELETE FROM responses WHERE rowid IN (SELECT r.rowid FROM responses r JOIN \
                         sandboxes s ON s.id = r.sandbox_id WHERE s.retention_days IS NOT NULL AND \
                         r.completed_at IS NOT NULL AND \
                         r.created_at < ? - s.retention_days * 86400000000 LIMIT 1000)",
                    )
                    .bind(now.0)
                    .execute(connection)
                    .await?;
                    Ok(pruned.rows_affected())
                })
            })
            .await
    }
}
