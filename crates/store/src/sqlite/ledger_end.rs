//! Runs in: server (no capabilities).
//!
//! How executions end in SQLite: the row, the thread's head and the webhook, in one transaction.

use std::time::Duration;

use cloche_model::{ExecutionEnd, Moment, PointKind, Status, TraceId, Written};
use sqlx::SqliteConnection;

use super::{
    heads::{self, Step},
    read::{integer, to_json},
    storage::execution_exceeds,
};
use crate::{Finish, Finished, Result};

/// The end of an execution that holds a thread, wrote files or has a webhook.
pub(super) async fn end(connection: &mut SqliteConnection, finish: Finish) -> Result<Finished> {
    let Finish { trace_id, status, end, thread, moves_head, webhook_delay, budget } = finish;
    let (at, layer) = (end.completed_at, end.written.layer.clone());
    if let Some(layer) = &layer
        && execution_exceeds(connection, &trace_id, layer, budget).await?
    {
        return Ok(Finished::OverBudget);
    }
    // First, as it tells whether anything may be written at all.
    if let Some(key) = &thread
        && !release(connection, &trace_id).await?
    {
        return Ok(match heads::is_running(connection, key, &trace_id).await? {
            true => Finished::ThreadLost,
            false => Finished::NotRunning,
        });
    }
    if !update(connection, &trace_id, status, end).await? {
        return Ok(Finished::NotRunning);
    }
    if let Some(key) = thread.as_ref().filter(|_| moves_head) {
        let thread = heads::find(connection, key).await?;
        let thread = thread.unwrap_or_else(|| heads::fresh(key, at));
        let step = Step::onto(PointKind::Run, Some(trace_id.clone()), at, layer);
        heads::advance(connection, thread, step).await?;
    }
    if let Some(delay) = webhook_delay {
        queue(connection, Some(&trace_id), at, delay).await?;
    }
    Ok(Finished::Recorded)
}

/// Gives the thread back; false if it was no longer the execution's own.
async fn release(connection: &mut SqliteConnection, trace: &TraceId) -> Result<bool> {
    let released = sqlx::query(
        "DELETE FROM thread_leases WHERE trace_id = ?1 AND (team_id, thread_id) = (SELECT team_id, \
         thread_id FROM executions WHERE trace_id = ?1)",
    )
    .bind(trace.to_string())
    .execute(connection)
    .await?;
    Ok(released.rows_affected() == 1)
}

/// Writes the outcome; false if the execution was over already.
pub(super) async fn update(
    connection: &mut SqliteConnection,
    trace: &TraceId,
    status: Status,
    end: ExecutionEnd,
) -> Result<bool> {
    let written = match end.written == Written::default() {
        true => None,
        false => Some(to_json("written", &end.written)?),
    };
    let updated = sqlx::query(
        "UPDATE executions SET status = ?, completed_at = ?, exit_code = ?, error = ?, \
         stdout_dropped = ?, stderr_dropped = ?, wall_ms = ?, cpu_ms = ?, peak_memory = ?, \
         micro_credits = ?, score = ?, stdout = ?, stderr = ?, layer_bytes = ?, layer = ?, \
         written = ? WHERE trace_id = ? AND status = 'running'",
    )
    .bind(status.name())
    .bind(end.completed_at.0)
    .bind(end.exit_code)
    .bind(end.error)
    .bind(integer(end.stdout_dropped))
    .bind(integer(end.stderr_dropped))
    .bind(integer(end.usage.wall_ms))
    .bind(integer(end.usage.cpu_ms))
    .bind(integer(end.usage.peak_memory_bytes))
    .bind(integer(end.usage.micro_credits))
    .bind(end.score.to_string())
    .bind(&end.stdout[..])
    .bind(&end.stderr[..])
    .bind(end.written.layer.as_ref().map_or(0, |layer| integer(layer.charge())))
    .bind(end.written.layer.map(|layer| String::from(layer.digest)))
    .bind(written)
    .bind(trace.to_string())
    .execute(connection)
    .await?;
    Ok(updated.rows_affected() == 1)
}

/// Queues the webhook of one execution, or of every one that is still running.
pub(super) async fn queue(
    connection: &mut SqliteConnection,
    trace: Option<&TraceId>,
    now: Moment,
    delay: Duration,
) -> Result<()> {
    sqlx::query(
        "INSERT OR IGNORE INTO deliveries (trace_id, key_id, url, status, queued_at, next_at) \
         SELECT trace_id, key_id, webhook_url, 'pending', ?1, ?2 FROM executions \
         WHERE webhook_url IS NOT NULL AND iif(?3 IS NULL, status = 'running', trace_id = ?3)",
    )
    .bind(now.0)
    .bind(now.plus(delay).0)
    .bind(trace.map(ToString::to_string))
    .execute(connection)
    .await?;
    Ok(())
}
