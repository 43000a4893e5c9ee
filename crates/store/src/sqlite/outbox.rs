//! Queued webhooks and settings, in SQLite.

use async_trait::async_trait;
use cloche_model::{DeliveryStatus, Moment, Secret, TraceId};
use sqlx::Row;

use super::{
    SqliteStore,
    row_reader::{read_moment, read_number, read_parsed},
    sealed,
};
use crate::{DUE_PER_URL, DeliveryAttempt, DueDelivery, Result, SettingStore, WebhookOutbox};

#[async_trait]
impl WebhookOutbox for SqliteStore {
    async fn due_deliveries(&self, now: Moment, limit: u32) -> Result<Vec<DueDelivery>> {
        // The rank among deliveries of the same team and URL, then the rank within the team.
        let rows = sqlx::query(
            "WITH due AS (SELECT d.trace_id, e.team_id, d.key_id, d.url, d.attempts, d.queued_at, \
                 d.next_at, row_number() OVER (PARTITION BY e.team_id, d.url ORDER BY d.next_at) \
                 AS in_url FROM deliveries d JOIN executions e ON e.trace_id = d.trace_id \
                 WHERE d.status = 'pending' AND d.next_at <= ?) \
             SELECT trace_id, team_id, key_id, url, attempts, queued_at FROM due WHERE in_url <= ? \
             ORDER BY row_number() OVER (PARTITION BY team_id ORDER BY in_url, next_at), next_at \
             LIMIT ?",
        )
        .bind(now.0)
        .bind(DUE_PER_URL)
        .bind(limit)
        .fetch_all(&self.readers)
        .await?;
        rows.iter()
            .map(|row| {
                Ok(DueDelivery {
                    trace_id: read_parsed(row, "trace_id")?,
                    team: read_parsed(row, "team_id")?,
                    key: read_parsed(row, "key_id")?,
                    url: row.try_get("url")?,
                    attempts: read_number(row, "attempts")?,
                    queued_at: read_moment(row, "queued_at")?,
                })
            })
            .collect()
    }

    async fn next_delivery_due(&self, now: Moment) -> Result<Option<Moment>> {
        let row = sqlx::query(
            "SELECT min(next_at) AS at FROM deliveries WHERE status = 'pending' AND next_at > ?",
        )
        .bind(now.0)
        .fetch_one(&self.readers)
        .await?;
        Ok(row.try_get::<Option<i64>, _>("at")?.map(Moment))
    }

    async fn record_attempt(&self, trace: &TraceId, attempt: DeliveryAttempt) -> Result<()> {
        let trace = trace.to_string();
        let (status, at, error) = match attempt {
            DeliveryAttempt::Delivered => (DeliveryStatus::Delivered, None, None),
            DeliveryAttempt::Again { at, error } => {
                (DeliveryStatus::Pending, Some(at.0), Some(error))
            }
            DeliveryAttempt::GaveUp { error } => (DeliveryStatus::Failed, None, Some(error)),
        };
        self.writer
            .run_statement(move |connection| {
                Box::pin(async move {
                    sqlx::query(
                        "UPDATE deliveries SET status = ?, attempts = attempts + 1, \
                         next_at = coalesce(?, next_at), last_error = ? WHERE trace_id = ?",
                    )
                    .bind(status.name())
                    .bind(at)
                    .bind(error)
                    .bind(trace)
                    .execute(connection)
                    .await?;
                    Ok(())
                })
            })
            .await
    }
}

#[async_trait]
impl SettingStore for SqliteStore {
    async fn read_setting(&self, name: &str) -> Result<Option<String>> {
        let row = sqlx::query("SELECT value FROM settings WHERE name = ?")
            .bind(name.to_owned())
            .fetch_optional(&self.readers)
            .await?;
        Ok(row.map(|row| row.try_get("value")).transpose()?)
    }

    async fn set_setting(&self, name: &str, value: &str) -> Result<()> {
        let (name, value) = (name.to_owned(), value.to_owned());
        self.writer
            .run_statement(move |connection| {
                Box::pin(async move {
                    sqlx::query(
                        "INSERT INTO settings (name, value) VALUES (?, ?) \
                         ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                    )
                    .bind(name)
                    .bind(value)
                    .execute(connection)
                    .await?;
                    Ok(())
                })
            })
            .await
    }

    async fn read_secret_setting(&self, name: &str) -> Result<Option<Secret>> {
        let row = sqlx::query("SELECT sealed_value FROM sealed_settings WHERE id = ?")
            .bind(name.to_owned())
            .fetch_optional(&self.readers)
            .await?;
        row.map(|row| sealed::open_setting(&self.sealer, name, &row)).transpose()
    }

    async fn set_secret_setting(&self, name: &str, value: &Secret) -> Result<()> {
        let sealed = sealed::seal_setting(&self.sealer, name, value)?;
        let name = name.to_owned();
        self.writer
            .run_statement(move |connection| {
                Box::pin(
                    async move { sealed::write_sealed_setting(connection, &name, sealed).await },
                )
            })
            .await
    }
}
