//! Runs in: server (no capabilities).
//!
//! The end of executions: the row, the thread's head and the webhook, in one transaction.

use std::time::Duration;

use cloche_model::{ExecutionEnd, ExecutionStatus, HomeWrites, Moment, SnapshotKind, TraceId};
use rusqlite::types::Value;
use sqlx::SqliteConnection;

use super::{
    heads::{self, HeadMove},
    inline_writer::execute_values,
    row_reader::{to_json, to_sql_integer},
    storage::execution_exceeds_budget,
};
use crate::{ExecutionFinish, FinishOutcome, Result};

/// Ends an execution that holds a thread, wrote files or has a webhook.
pub(super) async fn end_execution(
    connection: &mut SqliteConnection,
    finish: ExecutionFinish,
) -> Result<FinishOutcome> {
    let ExecutionFinish { trace_id, status, end, thread, moves_head, webhook_delay, budget } =
        finish;
    let (at, layer) = (end.completed_at, end.written.layer.clone());
    if let Some(layer) = &layer
        && execution_exceeds_budget(connection, &trace_id, layer, budget).await?
    {
        return Ok(FinishOutcome::OverBudget);
    }
    // This comes first, because it decides whether anything may be written.
    if let Some(key) = &thread
        && !release_lease(connection, &trace_id).await?
    {
        return Ok(match heads::is_running(connection, key, &trace_id).await? {
            true => FinishOutcome::ThreadLost,
            false => FinishOutcome::NotRunning,
        });
    }
    if !write_outcome(connection, &trace_id, status, end).await? {
        return Ok(FinishOutcome::NotRunning);
    }
    if let Some(key) = thread.as_ref().filter(|_| moves_head) {
        let thread = heads::find_thread(connection, key).await?;
        let thread = thread.unwrap_or_else(|| heads::new_thread(key, at));
        let step = HeadMove::with_layer(SnapshotKind::Run, Some(trace_id.clone()), at, layer);
        heads::advance_head(connection, thread, step).await?;
    }
    if let Some(delay) = webhook_delay {
        queue_webhooks(connection, Some(&trace_id), at, delay).await?;
    }
    Ok(FinishOutcome::Recorded)
}

/// Releases the thread. Returns false if the execution no longer held it.
async fn release_lease(connection: &mut SqliteConnection, trace: &TraceId) -> Result<bool> {
    let released = sqlx::query(
        "DELETE FROM thread_leases WHERE trace_id = ?1 AND (team_id, thread_id) = (SELECT team_id, \
         thread_id FROM executions WHERE trace_id = ?1)",
    )
    .bind(trace.to_string())
    .execute(connection)
    .await?;
    Ok(released.rows_affected() == 1)
}

/// Writes the outcome. Returns false if the execution had ended already.
async fn write_outcome(
    connection: &mut SqliteConnection,
    trace: &TraceId,
    status: ExecutionStatus,
    end: ExecutionEnd,
) -> Result<bool> {
    let values = outcome_values(trace, status, end)?;
    Ok(execute_values(connection, UPDATE_OUTCOME, values).await? == 1)
}

pub(super) const UPDATE_OUTCOME: &str = "UPDATE executions SET status = ?, completed_at = ?, \
     exit_code = ?, error = ?, stdout_dropped = ?, stderr_dropped = ?, output_truncated = ?, \
     wall_ms = ?, cpu_ms = ?, peak_memory = ?, micro_credits = ?, score = ?, stdout = ?, \
     stderr = ?, layer_bytes = ?, layer = ?, written = ?, network = ?, network_in_bytes = ?, \
     network_out_bytes = ?, mounts = ?, phases = ? WHERE trace_id = ? AND status = 'running'";

/// The values of that statement.
pub(super) fn outcome_values(
    trace: &TraceId,
    status: ExecutionStatus,
    end: ExecutionEnd,
) -> Result<Vec<Value>> {
    let written = match end.written == HomeWrites::default() {
        true => None,
        false => Some(to_json("written", &end.written)?),
    };
    let network = end.network.as_ref().map(|report| to_json("network", report)).transpose()?;
    let (network_in, network_out) =
        end.network.as_ref().map_or((0, 0), |report| (report.bytes_in, report.bytes_out));
    let mounts = match end.mounts.is_empty() {
        true => None,
        false => Some(to_json("mounts", &end.mounts)?),
    };
    let phases = end.phases.as_ref().map(|phases| to_json("phases", phases)).transpose()?;
    let layer_bytes = end.written.layer.as_ref().map_or(0, |layer| layer.disk_bytes());
    Ok(vec![
        Value::Text(status.name().to_owned()),
        end.completed_at.0.into(),
        i64::from(end.exit_code).into(),
        end.error.into(),
        to_sql_integer(end.stdout_dropped).into(),
        to_sql_integer(end.stderr_dropped).into(),
        i64::from(end.output_truncated).into(),
        to_sql_integer(end.usage.wall_ms).into(),
        to_sql_integer(end.usage.cpu_ms).into(),
        to_sql_integer(end.usage.peak_memory_bytes).into(),
        to_sql_integer(end.usage.micro_credits).into(),
        end.event_order.to_string().into(),
        Value::Blob(end.stdout.to_vec()),
        Value::Blob(end.stderr.to_vec()),
        to_sql_integer(layer_bytes).into(),
        end.written.layer.map(|layer| String::from(layer.digest)).into(),
        written.into(),
        network.into(),
        to_sql_integer(network_in).into(),
        to_sql_integer(network_out).into(),
        mounts.into(),
        phases.into(),
        trace.to_string().into(),
    ])
}

/// Queues the webhook of one execution, or of every running one.
pub(super) async fn queue_webhooks(
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
    .bind(now.saturating_add(delay).0)
    .bind(trace.map(ToString::to_string))
    .execute(connection)
    .await?;
    Ok(())
}
