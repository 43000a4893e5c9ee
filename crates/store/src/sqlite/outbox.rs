//! Webhooks to be sent, and settings, in SQLite.

use async_trait::async_trait;
use cloche_model::{DeliveryStatus, Moment, Secret, TraceId};
use sqlx::Row;

use super::{
    Sqlite,
    read::{moment, number, word},
    sealed,
};
use crate::{Attempt, DUE_PER_URL, DueDelivery, Outbox, Result, Settings};

#[async_trait]
impl Outbox for Sqlite {
    async fn due(&self, now: Moment, limit: u32) -> Result<Vec<DueDelivery>> {
        // The rank among the same team's and URL's, then the rank among the same team's.
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
                    trace_id: word(row, "trace_id")?,
                    team: word(row, "team_id")?,
                    key: word(row, "key_id")?,
                    url: row.try_get("url")?,
                    attempts: number(row, "attempts")?,
                    queued_at: moment(row, "queued_at")?,
                })
            })
            .collect()
    }

    async fn next_due(&self, now: Moment) -> Result<Option<Moment>> {
        let row = sqlx::query(
            "SELECT min(next_at) AS at FROM deliveries WHERE status = 'pending' AND next_at > ?",
        )
        .bind(now.0)
        .fetch_one(&self.readers)
        .await?;
        Ok(row.try_get::<Option<i64>, _>("at")?.map(Moment))
    }

    async fn attempted(&self, trace: &TraceId, attempt: Attempt) -> Result<()> {
        let trace = trace.to_string();
        let (status, at, error) = match attempt {
            Attempt::Delivered => (DeliveryStatus::Delivered, None, None),
            Attempt::Again { at, error } => (DeliveryStatus::Pending, Some(at.0), Some(error)),
            Attempt::GaveUp { error } => (DeliveryStatus::Failed, None, Some(error)),
        };
        self.writer
            .statement(move |connection| {
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
impl Settings for Sqlite {
    async fn setting(&self, name: &str) -> Result<Option<String>> {
        let row = sqlx::query("SELECT value FROM settings WHERE name = ?")
            .bind(name.to_owned())
            .fetch_optional(&self.readers)
            .await?;
        Ok(row.map(|row| row.try_get("value")).transpose()?)
    }

    async fn set_setting(&self, name: &str, value: &str) -> Result<()> {
        let (name, value) = (name.to_owned(), value.to_owned());
        self.writer
            .statement(move |connection| {
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

    async fn secret_setting(&self, name: &str) -> Result<Option<Secret>> {
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
            .statement(move |connection| {
                Box::pin(async move { sealed::write_setting(connection, &name, sealed).await })
            })
            .await
    }
}
