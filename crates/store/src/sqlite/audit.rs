//! Runs in: server (no capabilities).
//!
//! The audit log in SQLite.

use async_trait::async_trait;
use cloche_model::{AuditActor, AuditEntry, Moment};
use sqlx::{QueryBuilder, Row, sqlite::SqliteRow};

use super::{
    SqliteStore,
    row_reader::{read_json, read_moment, read_number, read_parsed, read_parsed_or_null, to_json},
};
use crate::{AuditFilter, AuditLog, Result};

fn entry_from_row(row: &SqliteRow) -> Result<AuditEntry> {
    Ok(AuditEntry {
        seq: row.try_get("seq")?,
        at: read_moment(row, "at")?,
        actor: AuditActor {
            kind: read_parsed(row, "actor_kind")?,
            id: row.try_get("actor_id")?,
            name: row.try_get("actor_name")?,
        },
        team: read_parsed_or_null(row, "team_id")?,
        address: row.try_get("address")?,
        action: row.try_get("action")?,
        target: row.try_get("target")?,
        fields: read_json(row, "fields")?,
        status: read_number(row, "status")?,
    })
}

#[async_trait]
impl AuditLog for SqliteStore {
    async fn record_audit(&self, entry: AuditEntry) -> Result<()> {
        let fields = to_json("fields", &entry.fields)?;
        self.writer
            .run_statement(move |connection| {
                Box::pin(async move {
                    sqlx::query(
                        "INSERT INTO audit (at, actor_kind, actor_id, actor_name, team_id, \
                         address, action, target, fields, status) \
                         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    )
                    .bind(entry.at.0)
                    .bind(entry.actor.kind.name())
                    .bind(entry.actor.id)
                    .bind(entry.actor.name)
                    .bind(entry.team.map(String::from))
                    .bind(entry.address)
                    .bind(entry.action)
                    .bind(entry.target)
                    .bind(fields)
                    .bind(i64::from(entry.status))
                    .execute(connection)
                    .await?;
                    Ok(())
                })
            })
            .await
    }

    async fn list_audit(&self, filter: &AuditFilter) -> Result<Vec<AuditEntry>> {
        let mut query = QueryBuilder::new("SELECT * FROM audit WHERE seq < ");
        query.push_bind(filter.before.unwrap_or(i64::MAX));
        if let Some(team) = &filter.team {
            query.push(" AND team_id = ").push_bind(team.to_string());
        }
        if let Some(actor) = &filter.actor {
            query.push(" AND (actor_id = ").push_bind(actor.clone());
            query.push(" OR actor_name = ").push_bind(actor.clone()).push(")");
        }
        if let Some(since) = filter.since {
            query.push(" AND at >= ").push_bind(since.0);
        }
        if let Some(until) = filter.until {
            query.push(" AND at < ").push_bind(until.0);
        }
        query.push(" ORDER BY seq DESC LIMIT ").push_bind(filter.limit);
        let rows = query.build().fetch_all(&self.readers).await?;
        rows.iter().map(entry_from_row).collect()
    }

    async fn prune_audit(&self, before: Moment) -> Result<()> {
        self.writer
            .run_statement(move |connection| {
                Box::pin(async move {
                    sqlx::query("DELETE FROM audit WHERE at < ?")
                        .bind(before.0)
                        .execute(connection)
                        .await?;
                    Ok(())
                })
            })
            .await
    }
}
