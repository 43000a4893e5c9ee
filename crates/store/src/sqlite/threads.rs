//! Threads in SQLite. Every change of a head is one durable transaction.

use std::collections::HashSet;

use async_trait::async_trait;
use cloche_model::{
    HomeUsage, LayerDigest, Moment, SnapshotKind, SnapshotRef, TeamId, Thread, ThreadId,
    ThreadSnapshot, TraceId,
};
use sqlx::SqliteConnection;

use super::{
    SqliteStore,
    backup::LAYERS_IN_USE,
    gates::homes,
    heads::{self, HeadMove},
    row_reader::{point_from_row, read_parsed, thread_from_row, to_sql_integer},
    storage::exceeds_budget,
};
use crate::{
    HeadMoveOutcome, LayerAppend, LayerSquash, Result, ThreadCreation, ThreadFork, ThreadKey,
    ThreadStore,
};

#[async_trait]
impl ThreadStore for SqliteStore {
    async fn find_thread(&self, key: &ThreadKey) -> Result<Option<Thread>> {
        let row = sqlx::query("SELECT * FROM threads WHERE team_id = ? AND thread_id = ?")
            .bind(key.team.as_str())
            .bind(key.id.as_str())
            .fetch_optional(&self.readers)
            .await?;
        row.map(|row| thread_from_row(&row)).transpose()
    }

    async fn list_threads(
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
        rows.iter().map(thread_from_row).collect()
    }

    async fn is_thread_held(&self, key: &ThreadKey, now: Moment) -> Result<bool> {
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

    async fn list_points(
        &self,
        key: &ThreadKey,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Vec<ThreadSnapshot>> {
        let rows = sqlx::query(
            "SELECT * FROM points WHERE team_id = ? AND thread_id = ? AND seq < ? \
             ORDER BY seq DESC LIMIT ?",
        )
        .bind(key.team.as_str())
        .bind(key.id.as_str())
        .bind(before.map_or(i64::MAX, to_sql_integer))
        .bind(limit)
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(point_from_row).collect()
    }

    async fn find_point(
        &self,
        key: &ThreadKey,
        name: &SnapshotRef,
    ) -> Result<Option<ThreadSnapshot>> {
        let query = match name {
            SnapshotRef::Seq(_) => {
                "SELECT * FROM points WHERE team_id = ? AND thread_id = ? AND seq = ?"
            }
            SnapshotRef::Trace(_) => {
                "SELECT * FROM points WHERE team_id = ? AND thread_id = ? AND trace_id = ?"
            }
        };
        let query = sqlx::query(query).bind(key.team.as_str()).bind(key.id.as_str());
        let query = match name {
            SnapshotRef::Seq(seq) => query.bind(to_sql_integer(*seq)),
            SnapshotRef::Trace(trace) => query.bind(trace.as_str()),
        };
        query.fetch_optional(&self.readers).await?.map(|row| point_from_row(&row)).transpose()
    }

    async fn renew_lease(&self, trace: &TraceId, until: Moment) -> Result<bool> {
        let trace = trace.to_string();
        self.writer
            .run_statement(move |connection| {
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

    async fn append_layer(&self, append: LayerAppend) -> Result<HeadMoveOutcome> {
        let LayerAppend { thread: key, head, layer, kind, at, allowed_at, approved, budget } =
            append;
        self.writer
            .run_durable(move |connection| {
                Box::pin(async move {
                    if let Some(moment) = allowed_at
                        && heads::was_deleted_since(connection, &key, moment).await?
                    {
                        return Ok(HeadMoveOutcome::Missing);
                    }
                    if heads::is_held(connection, &key, at).await? {
                        return Ok(HeadMoveOutcome::Busy);
                    }
                    if let Some(home) = approved
                        && !homes::is_home_unchanged(&mut *connection, &key, &home.layers).await?
                    {
                        return Ok(HeadMoveOutcome::Changed);
                    }
                    let now = heads::find_thread(connection, &key).await?;
                    if now.as_ref().map_or(0, |thread| thread.head) != head {
                        return Ok(HeadMoveOutcome::Stale);
                    }
                    if exceeds_budget(connection, &key.team, &[&layer], budget).await? {
                        return Ok(HeadMoveOutcome::OverBudget);
                    }
                    let thread = now.unwrap_or_else(|| heads::new_thread(&key, at));
                    let step = HeadMove::with_layer(kind, None, at, Some(layer));
                    heads::advance_head(connection, thread, step).await.map(HeadMoveOutcome::Done)
                })
            })
            .await
    }

    async fn create_thread(&self, creation: ThreadCreation) -> Result<HeadMoveOutcome> {
        let ThreadCreation { thread: key, kind, layers, usage, at, budget } = creation;
        self.writer
            .run_durable(move |connection| {
                Box::pin(async move {
                    let new: Vec<_> = layers.iter().collect();
                    if exceeds_budget(connection, &key.team, &new, budget).await? {
                        return Ok(HeadMoveOutcome::OverBudget);
                    }
                    let stack = layers.iter().map(|layer| layer.digest.clone()).collect();
                    let step = HeadMove {
                        stack: Some((stack, usage)),
                        sizes: layers,
                        added: usage.bytes,
                        changed: usage.entries,
                        ..HeadMove::with_layer(kind, None, at, None)
                    };
                    insert_new_thread(connection, &key, step).await
                })
            })
            .await
    }

    async fn fork_thread(&self, fork: ThreadFork) -> Result<HeadMoveOutcome> {
        let ThreadFork { source, seq, thread: id, at, budget } = fork;
        self.writer
            .run_durable(move |connection| {
                Box::pin(async move {
                    let Some(point) = heads::find_point_at(connection, &source, seq).await? else {
                        return Ok(HeadMoveOutcome::Missing);
                    };
                    if exceeds_budget(connection, &source.team, &[], budget).await? {
                        return Ok(HeadMoveOutcome::OverBudget);
                    }
                    let key = ThreadKey { team: source.team, id };
                    let step = HeadMove {
                        added: point.usage.bytes,
                        changed: point.usage.entries,
                        stack: Some((point.layers, point.usage)),
                        ..HeadMove::with_layer(SnapshotKind::Fork, None, at, None)
                    };
                    insert_new_thread(connection, &key, step).await
                })
            })
            .await
    }

    async fn roll_back_thread(
        &self,
        key: &ThreadKey,
        seq: u64,
        at: Moment,
        budget: Option<u64>,
    ) -> Result<HeadMoveOutcome> {
        let key = key.clone();
        self.writer
            .run_durable(move |connection| {
                Box::pin(async move {
                    let Some(thread) = heads::find_thread(connection, &key).await? else {
                        return Ok(HeadMoveOutcome::Missing);
                    };
                    if heads::is_held(connection, &key, at).await? {
                        return Ok(HeadMoveOutcome::Busy);
                    }
                    let Some(point) = heads::find_point_at(connection, &key, seq).await? else {
                        return Ok(HeadMoveOutcome::Missing);
                    };
                    if exceeds_budget(connection, &key.team, &[], budget).await? {
                        return Ok(HeadMoveOutcome::OverBudget);
                    }
                    let step = HeadMove {
                        stack: Some((point.layers, point.usage)),
                        ..HeadMove::with_layer(SnapshotKind::Rollback, None, at, None)
                    };
                    heads::advance_head(connection, thread, step).await.map(HeadMoveOutcome::Done)
                })
            })
            .await
    }

    async fn squash_layers(&self, squash: LayerSquash) -> Result<HeadMoveOutcome> {
        let LayerSquash { thread: key, layers, by, at, budget } = squash;
        self.writer
            .run_durable(move |connection| {
                Box::pin(async move {
                    let Some(thread) = heads::find_thread(connection, &key).await? else {
                        return Ok(HeadMoveOutcome::Missing);
                    };
                    let Some(rest) = thread.layers.strip_prefix(layers.as_slice()) else {
                        return Ok(HeadMoveOutcome::Stale);
                    };
                    let new: Vec<_> = by.iter().collect();
                    if exceeds_budget(connection, &key.team, &new, budget).await? {
                        return Ok(HeadMoveOutcome::OverBudget);
                    }
                    let digest = by.iter().map(|layer| layer.digest.clone());
                    let stack = digest.chain(rest.iter().cloned()).collect();
                    let step = HeadMove {
                        stack: Some((stack, thread.usage)),
                        sizes: by.into_iter().collect(),
                        ..HeadMove::with_layer(SnapshotKind::Squash, None, at, None)
                    };
                    heads::advance_head(connection, thread, step).await.map(HeadMoveOutcome::Done)
                })
            })
            .await
    }

    async fn record_home_usage(&self, key: &ThreadKey, head: u64, usage: HomeUsage) -> Result<()> {
        let key = key.clone();
        self.writer
            .run_statement(move |connection| {
                Box::pin(async move {
                    sqlx::query(
                        "UPDATE threads SET bytes = ?, entries = ?, counted = ? \
                         WHERE team_id = ? AND thread_id = ? AND head = ?",
                    )
                    .bind(to_sql_integer(usage.bytes.bytes()))
                    .bind(to_sql_integer(usage.entries))
                    .bind(usage.counted)
                    .bind(String::from(key.team))
                    .bind(String::from(key.id))
                    .bind(to_sql_integer(head))
                    .execute(connection)
                    .await?;
                    Ok(())
                })
            })
            .await
    }

    async fn was_thread_deleted_since(&self, key: &ThreadKey, moment: Moment) -> Result<bool> {
        let mut connection = self.readers.acquire().await?;
        heads::was_deleted_since(&mut connection, key, moment).await
    }

    async fn delete_thread(&self, key: &ThreadKey, at: Moment) -> Result<HeadMoveOutcome> {
        let key = key.clone();
        self.writer
            .run_durable(move |connection| {
                Box::pin(async move {
                    let Some(thread) = heads::find_thread(connection, &key).await? else {
                        return Ok(HeadMoveOutcome::Missing);
                    };
                    if heads::is_held(connection, &key, at).await? {
                        return Ok(HeadMoveOutcome::Busy);
                    }
                    heads::delete_thread_rows(connection, &key, at).await?;
                    Ok(HeadMoveOutcome::Done(thread))
                })
            })
            .await
    }

    async fn layers_in_use(&self) -> Result<HashSet<LayerDigest>> {
        let rows = sqlx::query(LAYERS_IN_USE).fetch_all(&self.readers).await?;
        rows.iter().map(|row| read_parsed(row, "digest")).collect()
    }
}

/// Creates a thread whose first snapshot is this move.
async fn insert_new_thread(
    connection: &mut SqliteConnection,
    key: &ThreadKey,
    step: HeadMove,
) -> Result<HeadMoveOutcome> {
    if heads::find_thread(connection, key).await?.is_some() {
        return Ok(HeadMoveOutcome::Taken);
    }
    if heads::is_held(connection, key, step.at).await? {
        return Ok(HeadMoveOutcome::Busy);
    }
    let thread = heads::new_thread(key, step.at);
    heads::advance_head(connection, thread, step).await.map(HeadMoveOutcome::Done)
}
