//! Threads in SQLite. Whatever moves a head is one durable transaction.

use std::collections::HashSet;

use async_trait::async_trait;
use cloche_model::{
    HomeUsage, LayerDigest, Moment, Point, PointKind, PointName, TeamId, Thread, ThreadId, TraceId,
};
use sqlx::SqliteConnection;

use super::{
    Sqlite,
    gates::homes,
    heads::{self, Step},
    read::{integer, point, thread, word},
    storage::exceeds,
};
use crate::{Append, Fork, Founding, Moved, Result, Squash, ThreadKey, Threads};

#[async_trait]
impl Threads for Sqlite {
    async fn thread(&self, key: &ThreadKey) -> Result<Option<Thread>> {
        let row = sqlx::query("SELECT * FROM threads WHERE team_id = ? AND thread_id = ?")
            .bind(key.team.as_str())
            .bind(key.id.as_str())
            .fetch_optional(&self.readers)
            .await?;
        row.map(|row| thread(&row)).transpose()
    }

    async fn threads(
        &self,
        team: &TeamId,
        after: Option<&ThreadId>,
        limit: u32,
    ) -> Result<Vec<Thread>> {
        let rows = sqlx::query(
            "SELECT * FROM threads WHERE team_id = ? AND thread_id > ? ORDER BY thread_id LIMIT ?",
        )
        .bind(team.as_str())
        .bind(after.map_or("", ThreadId::as_str))
        .bind(limit)
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(thread).collect()
    }

    async fn is_held(&self, key: &ThreadKey, now: Moment) -> Result<bool> {
        let row = sqlx::query(
            "SELECT 1 FROM thread_leases WHERE team_id = ? AND thread_id = ? AND expires_at > ?",
        )
        .bind(key.team.as_str())
        .bind(key.id.as_str())
        .bind(now.0)
        .fetch_optional(&self.readers)
        .await?;
        Ok(row.is_some())
    }

    async fn points(&self, key: &ThreadKey, before: Option<u64>, limit: u32) -> Result<Vec<Point>> {
        let rows = sqlx::query(
            "SELECT * FROM points WHERE team_id = ? AND thread_id = ? AND seq < ? \
             ORDER BY seq DESC LIMIT ?",
        )
        .bind(key.team.as_str())
        .bind(key.id.as_str())
        .bind(before.map_or(i64::MAX, integer))
        .bind(limit)
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(point).collect()
    }

    async fn point(&self, key: &ThreadKey, name: &PointName) -> Result<Option<Point>> {
        let query = match name {
            PointName::Seq(_) => {
                "SELECT * FROM points WHERE team_id = ? AND thread_id = ? AND seq = ?"
            }
            PointName::Trace(_) => {
                "SELECT * FROM points WHERE team_id = ? AND thread_id = ? AND trace_id = ?"
            }
        };
        let query = sqlx::query(query).bind(key.team.as_str()).bind(key.id.as_str());
        let query = match name {
            PointName::Seq(seq) => query.bind(integer(*seq)),
            PointName::Trace(trace) => query.bind(trace.as_str()),
        };
        query.fetch_optional(&self.readers).await?.map(|row| point(&row)).transpose()
    }

    async fn renew(&self, trace: &TraceId, until: Moment) -> Result<bool> {
        let trace = trace.to_string();
        self.writer
            .statement(move |connection| {
                Box::pin(async move {
                    let renewed = sqlx::query(
                        "UPDATE thread_leases SET expires_at = ?1 WHERE trace_id = ?2 AND (team_id, \
                         thread_id) = (SELECT team_id, thread_id FROM executions WHERE trace_id = ?2)",
                    )
                    .bind(until.0)
                    .bind(trace)
                    .execute(connection)
                    .await?;
                    Ok(renewed.rows_affected() == 1)
                })
            })
            .await
    }

    async fn append(&self, append: Append) -> Result<Moved> {
        let Append { thread: key, head, layer, kind, at, allowed_at, approved, budget } = append;
        self.writer
            .durable(move |connection| {
                Box::pin(async move {
                    if let Some(moment) = allowed_at
                        && heads::was_deleted_since(connection, &key, moment).await?
                    {
                        return Ok(Moved::Missing);
                    }
                    if heads::is_held(connection, &key, at).await? {
                        return Ok(Moved::Busy);
                    }
                    if let Some(home) = approved
                        && !homes::is_unchanged(&mut *connection, &key, &home.layers).await?
                    {
                        return Ok(Moved::Changed);
                    }
                    let now = heads::find(connection, &key).await?;
                    if now.as_ref().map_or(0, |thread| thread.head) != head {
                        return Ok(Moved::Stale);
                    }
                    if exceeds(connection, &key.team, &[&layer], budget).await? {
                        return Ok(Moved::OverBudget);
                    }
                    let thread = now.unwrap_or_else(|| heads::fresh(&key, at));
                    let step = Step::onto(kind, None, at, Some(layer));
                    heads::advance(connection, thread, step).await.map(Moved::Done)
                })
            })
            .await
    }

    async fn found(&self, founding: Founding) -> Result<Moved> {
        let Founding { thread: key, kind, layers, usage, at, budget } = founding;
        self.writer
            .durable(move |connection| {
                Box::pin(async move {
                    let new: Vec<_> = layers.iter().collect();
                    if exceeds(connection, &key.team, &new, budget).await? {
                        return Ok(Moved::OverBudget);
                    }
                    let stack = layers.iter().map(|layer| layer.digest.clone()).collect();
                    let step = Step {
                        stack: Some((stack, usage)),
                        sizes: layers,
                        added: usage.bytes,
                        changed: usage.entries,
                        ..Step::onto(kind, None, at, None)
                    };
                    found(connection, &key, step).await
                })
            })
            .await
    }

    async fn fork(&self, fork: Fork) -> Result<Moved> {
        let Fork { source, seq, thread: id, at, budget } = fork;
        self.writer
            .durable(move |connection| {
                Box::pin(async move {
                    let Some(point) = heads::point_at(connection, &source, seq).await? else {
                        return Ok(Moved::Missing);
                    };
                    if exceeds(connection, &source.team, &[], budget).await? {
                        return Ok(Moved::OverBudget);
                    }
                    let key = ThreadKey { team: source.team, id };
                    let step = Step {
                        added: point.usage.bytes,
                        changed: point.usage.entries,
                        stack: Some((point.layers, point.usage)),
                        ..Step::onto(PointKind::Fork, None, at, None)
                    };
                    found(connection, &key, step).await
                })
            })
            .await
    }

    async fn rollback(
        &self,
        key: &ThreadKey,
        seq: u64,
        at: Moment,
        budget: Option<u64>,
    ) -> Result<Moved> {
        let key = key.clone();
        self.writer
            .durable(move |connection| {
                Box::pin(async move {
                    let Some(thread) = heads::find(connection, &key).await? else {
                        return Ok(Moved::Missing);
                    };
                    if heads::is_held(connection, &key, at).await? {
                        return Ok(Moved::Busy);
                    }
                    let Some(point) = heads::point_at(connection, &key, seq).await? else {
                        return Ok(Moved::Missing);
                    };
                    if exceeds(connection, &key.team, &[], budget).await? {
                        return Ok(Moved::OverBudget);
                    }
                    let step = Step {
                        stack: Some((point.layers, point.usage)),
                        ..Step::onto(PointKind::Rollback, None, at, None)
                    };
                    heads::advance(connection, thread, step).await.map(Moved::Done)
                })
            })
            .await
    }

    async fn squash(&self, squash: Squash) -> Result<Moved> {
        let Squash { thread: key, layers, by, at, budget } = squash;
        self.writer
            .durable(move |connection| {
                Box::pin(async move {
                    let Some(thread) = heads::find(connection, &key).await? else {
                        return Ok(Moved::Missing);
                    };
                    let Some(rest) = thread.layers.strip_prefix(layers.as_slice()) else {
                        return Ok(Moved::Stale);
                    };
                    let new: Vec<_> = by.iter().collect();
                    if exceeds(connection, &key.team, &new, budget).await? {
                        return Ok(Moved::OverBudget);
                    }
                    let digest = by.iter().map(|layer| layer.digest.clone());
                    let stack = digest.chain(rest.iter().cloned()).collect();
                    let step = Step {
                        stack: Some((stack, thread.usage)),
                        sizes: by.into_iter().collect(),
                        ..Step::onto(PointKind::Squash, None, at, None)
                    };
                    heads::advance(connection, thread, step).await.map(Moved::Done)
                })
            })
            .await
    }

    async fn count(&self, key: &ThreadKey, head: u64, usage: HomeUsage) -> Result<()> {
        let key = key.clone();
        self.writer
            .statement(move |connection| {
                Box::pin(async move {
                    sqlx::query(
                        "UPDATE threads SET bytes = ?, entries = ?, counted = ? \
                         WHERE team_id = ? AND thread_id = ? AND head = ?",
                    )
                    .bind(integer(usage.bytes.bytes()))
                    .bind(integer(usage.entries))
                    .bind(usage.counted)
                    .bind(String::from(key.team))
                    .bind(String::from(key.id))
                    .bind(integer(head))
                    .execute(connection)
                    .await?;
                    Ok(())
                })
            })
            .await
    }

    async fn was_deleted_since(&self, key: &ThreadKey, moment: Moment) -> Result<bool> {
        let mut connection = self.readers.acquire().await?;
        heads::was_deleted_since(&mut connection, key, moment).await
    }

    async fn delete_thread(&self, key: &ThreadKey, at: Moment) -> Result<Moved> {
        let key = key.clone();
        self.writer
            .durable(move |connection| {
                Box::pin(async move {
                    let Some(thread) = heads::find(connection, &key).await? else {
                        return Ok(Moved::Missing);
                    };
                    if heads::is_held(connection, &key, at).await? {
                        return Ok(Moved::Busy);
                    }
                    heads::remove(connection, &key, at).await?;
                    Ok(Moved::Done(thread))
                })
            })
            .await
    }

    async fn layers_in_use(&self) -> Result<HashSet<LayerDigest>> {
        let rows = sqlx::query(
            "SELECT value AS digest FROM threads, json_each(threads.stack) UNION \
             SELECT value FROM points, json_each(points.stack) UNION \
             SELECT layer FROM points WHERE layer IS NOT NULL UNION \
             SELECT layer FROM executions WHERE layer IS NOT NULL",
        )
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(|row| word(row, "digest")).collect()
    }
}

/// Makes a thread whose first point is this step.
async fn found(connection: &mut SqliteConnection, key: &ThreadKey, step: Step) -> Result<Moved> {
    if heads::find(connection, key).await?.is_some() {
        return Ok(Moved::Taken);
    }
    if heads::is_held(connection, key, step.at).await? {
        return Ok(Moved::Busy);
    }
    let thread = heads::fresh(key, step.at);
    heads::advance(connection, thread, step).await.map(Moved::Done)
}
