//! Moves the head of a thread: inserts a snapshot and updates the thread's row. Every function here
//! runs inside the transaction of its caller.

use cloche_model::{
    ByteSize, HomeUsage, Layer, LayerDigest, Moment, SnapshotKind, Thread, ThreadSnapshot, TraceId,
};
use sqlx::SqliteConnection;

use super::{
    row_reader::{point_from_row, thread_from_row, to_json, to_sql_integer},
    storage,
};
use crate::{DELETED_KEPT, Result, ThreadKey};

/// A move from one snapshot to the next.
pub(super) struct HeadMove {
    pub(super) kind: SnapshotKind,
    pub(super) trace: Option<TraceId>,
    pub(super) at: Moment,
    /// A layer to append.
    pub(super) layer: Option<Layer>,
    /// A whole stack that replaces the current one.
    pub(super) stack: Option<(Vec<LayerDigest>, HomeUsage)>,
    /// Layers of that stack that may be new to the team.
    pub(super) sizes: Vec<Layer>,
    pub(super) added: ByteSize,
    pub(super) changed: u64,
}

impl HeadMove {
    /// A move that appends a layer, or changes nothing.
    pub(super) fn with_layer(
        kind: SnapshotKind,
        trace: Option<TraceId>,
        at: Moment,
        layer: Option<Layer>,
    ) -> Self {
        let added = layer.as_ref().map_or(ByteSize(0), |layer| layer.bytes);
        let changed = layer.as_ref().map_or(0, |layer| layer.entries);
        Self { kind, trace, at, layer, stack: None, sizes: Vec::new(), added, changed }
    }
}

/// A thread without snapshots.
pub(super) fn new_thread(key: &ThreadKey, at: Moment) -> Thread {
    Thread {
        team: key.team.clone(),
        id: key.id.clone(),
        created_at: at,
        updated_at: at,
        head: 0,
        layers: Vec::new(),
        usage: HomeUsage { counted: true, ..HomeUsage::default() },
    }
}

pub(super) async fn find_thread(
    connection: &mut SqliteConnection,
    key: &ThreadKey,
) -> Result<Option<Thread>> {
    let row = sqlx::query("SELECT * FROM threads WHERE team_id = ? AND thread_id = ?")
        .bind(key.team.as_str())
        .bind(key.id.as_str())
        .fetch_optional(connection)
        .await?;
    row.map(|row| thread_from_row(&row)).transpose()
}

pub(super) async fn find_point_at(
    connection: &mut SqliteConnection,
    key: &ThreadKey,
    seq: u64,
) -> Result<Option<ThreadSnapshot>> {
    let row = sqlx::query("SELECT * FROM points WHERE team_id = ? AND thread_id = ? AND seq = ?")
        .bind(key.team.as_str())
        .bind(key.id.as_str())
        .bind(to_sql_integer(seq))
        .fetch_optional(connection)
        .await?;
    row.map(|row| point_from_row(&row)).transpose()
}

/// Whether a lease of the thread is valid. An expired lease does not count.
pub(super) async fn is_held(
    connection: &mut SqliteConnection,
    key: &ThreadKey,
    now: Moment,
) -> Result<bool> {
    let row = sqlx::query(
        "SELECT 1 FROM thread_leases WHERE team_id = ? AND thread_id = ? AND expires_at > ?",
    )
    .bind(key.team.as_str())
    .bind(key.id.as_str())
    .bind(now.0)
    .fetch_optional(connection)
    .await?;
    Ok(row.is_some())
}

/// Whether this execution of the thread is still running.
pub(super) async fn is_running(
    connection: &mut SqliteConnection,
    key: &ThreadKey,
    trace: &TraceId,
) -> Result<bool> {
    let row = sqlx::query(
        "SELECT 1 FROM executions WHERE trace_id = ? AND team_id = ? AND thread_id = ? AND \
         status = 'running'",
    )
    .bind(trace.as_str())
    .bind(key.team.as_str())
    .bind(key.id.as_str())
    .fetch_optional(connection)
    .await?;
    Ok(row.is_some())
}

/// Writes the next snapshot and updates the thread.
pub(super) async fn advance_head(
    connection: &mut SqliteConnection,
    mut thread: Thread,
    step: HeadMove,
) -> Result<Thread> {
    let before = thread.layers.clone();
    if let Some((stack, usage)) = step.stack {
        (thread.layers, thread.usage) = (stack, usage);
    }
    if let Some(layer) = &step.layer {
        thread.layers.push(layer.digest.clone());
        thread.usage = thread.usage.with_layer(layer.bytes, layer.entries);
    }
    thread.head += 1;
    thread.updated_at = thread.updated_at.max(step.at);
    let sizes: Vec<_> = step.sizes.iter().chain(&step.layer).collect();
    storage::track_layers(connection, &thread, &before, &sizes).await?;
    let point = ThreadSnapshot {
        seq: thread.head,
        kind: step.kind,
        trace_id: step.trace,
        at: step.at,
        layers: thread.layers.clone(),
        layer: step.layer.map(|layer| layer.digest),
        added: step.added,
        changed: step.changed,
        usage: thread.usage,
    };
    write_point(connection, &thread, point).await?;
    write_thread(connection, &thread).await?;
    Ok(thread)
}

async fn write_point(
    connection: &mut SqliteConnection,
    thread: &Thread,
    point: ThreadSnapshot,
) -> Result<()> {
    sqlx::query(
        "INSERT INTO points (team_id, thread_id, seq, kind, trace_id, at, layer, added, changed, \
         bytes, entries, counted, stack) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(thread.team.to_string())
    .bind(thread.id.to_string())
    .bind(to_sql_integer(point.seq))
    .bind(point.kind.name())
    .bind(point.trace_id.map(String::from))
    .bind(point.at.0)
    .bind(point.layer.map(String::from))
    .bind(to_sql_integer(point.added.bytes()))
    .bind(to_sql_integer(point.changed))
    .bind(to_sql_integer(point.usage.bytes.bytes()))
    .bind(to_sql_integer(point.usage.entries))
    .bind(point.usage.counted)
    .bind(to_json("stack", &point.layers)?)
    .execute(connection)
    .await?;
    Ok(())
}

async fn write_thread(connection: &mut SqliteConnection, thread: &Thread) -> Result<()> {
    sqlx::query(
        "INSERT INTO threads (team_id, thread_id, created_at, updated_at, head, bytes, entries, \
         counted, stack) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (team_id, thread_id) DO \
         UPDATE SET updated_at = excluded.updated_at, head = excluded.head, bytes = excluded.bytes, \
         entries = excluded.entries, counted = excluded.counted, stack = excluded.stack",
    )
    .bind(thread.team.to_string())
    .bind(thread.id.to_string())
    .bind(thread.created_at.0)
    .bind(thread.updated_at.0)
    .bind(to_sql_integer(thread.head))
    .bind(to_sql_integer(thread.usage.bytes.bytes()))
    .bind(to_sql_integer(thread.usage.entries))
    .bind(thread.usage.counted)
    .bind(to_json("stack", &thread.layers)?)
    .execute(connection)
    .await?;
    Ok(())
}

/// Whether a thread of this name was deleted at this time or later.
pub(super) async fn was_deleted_since(
    connection: &mut SqliteConnection,
    key: &ThreadKey,
    moment: Moment,
) -> Result<bool> {
    let row = sqlx::query(
        "SELECT 1 FROM deleted_threads WHERE team_id = ? AND thread_id = ? AND deleted_at >= ?",
    )
    .bind(key.team.as_str())
    .bind(key.id.as_str())
    .bind(moment.0)
    .fetch_optional(connection)
    .await?;
    Ok(row.is_some())
}

pub(super) async fn delete_thread_rows(
    connection: &mut SqliteConnection,
    key: &ThreadKey,
    at: Moment,
) -> Result<()> {
    let kept = i64::try_from(DELETED_KEPT.as_micros()).unwrap_or(i64::MAX);
    sqlx::query("DELETE FROM deleted_threads WHERE deleted_at < ?")
        .bind(at.0.saturating_sub(kept))
        .execute(&mut *connection)
        .await?;
    sqlx::query(
        "INSERT INTO deleted_threads (team_id, thread_id, deleted_at) VALUES (?, ?, ?) ON CONFLICT \
         DO UPDATE SET deleted_at = excluded.deleted_at",
    )
    .bind(key.team.to_string())
    .bind(key.id.to_string())
    .bind(at.0)
    .execute(&mut *connection)
    .await?;
    for statement in [
        "DELETE FROM points WHERE team_id = ? AND thread_id = ?",
        "DELETE FROM thread_layers WHERE team_id = ? AND thread_id = ?",
        "DELETE FROM threads WHERE team_id = ? AND thread_id = ?",
    ] {
        sqlx::query(statement)
            .bind(key.team.to_string())
            .bind(key.id.to_string())
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}
