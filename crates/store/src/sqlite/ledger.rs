//! Executions and leases in SQLite.

use std::time::Duration;

use async_trait::async_trait;
use cloche_model::{
    Execution, ExecutionStart, ExecutionStatus, HomeState, Moment, TeamId, TraceId,
};
use rusqlite::types::Value;
use sqlx::SqliteConnection;

use super::{
    SqliteStore,
    gates::homes,
    inline_writer::execute_values,
    ledger_end::{UPDATE_OUTCOME, end_execution, outcome_values, queue_webhooks},
    row_reader::{execution_from_row, to_json, to_sql_integer},
    storage::exceeds_budget,
};
use crate::{
    BeginOutcome, ExecutionFilter, ExecutionFinish, FinishOutcome, Ledger, Result, ThreadKey,
};

/// Everything except code, score and output. A webhook that is not queued yet is pending.
macro_rules! small_columns {
    () => {
        "SELECT e.trace_id, e.team_id, e.key_id, e.sandbox_id, e.language, e.thread_id, e.delivery, \
         e.webhook_url, e.metadata, e.status, e.created_at, e.completed_at, e.exit_code, e.error, \
         e.stdout_dropped, e.stderr_dropped, e.output_truncated, e.wall_ms, e.cpu_ms, \
         e.peak_memory, e.micro_credits, e.network, e.code_digest, e.code_bytes, \
         coalesce(d.status, iif(e.webhook_url IS NOT NULL AND e.status = 'running', 'pending', NULL)) \
         AS webhook_status"
    };
}
macro_rules! execution_tables {
    () => {
        " LEFT JOIN deliveries d ON d.trace_id = e.trace_id"
    };
}

/// The columns of a list, and what else they come from than the executions `e`.
pub(super) const SMALL_COLUMNS: &str = small_columns!();
pub(super) const EXECUTION_TABLES: &str = execution_tables!();

macro_rules! whole_execution {
    ($condition:literal) => {
        concat!(
            small_columns!(),
            ", e.code, e.score, e.stdout, e.stderr, e.layer, e.written, e.mounts, e.phases \
             FROM executions e",
            execution_tables!(),
            $condition
        )
    };
}

#[async_trait]
impl Ledger for SqliteStore {
    async fn begin_execution(
        &self,
        start: ExecutionStart,
        lease_until: Moment,
        budget: Option<u64>,
    ) -> Result<BeginOutcome> {
        if start.thread.is_none() {
            let values = start_values(start, InitialExecutionState::Running(budget))?;
            let begun = self.write_statement(INSERT_EXECUTION, values).await?;
            return Ok(if begun { BeginOutcome::Started } else { BeginOutcome::OverBudget });
        }
        self.writer
            .run_transaction(move |connection| {
                Box::pin(async move {
                    if exceeds_budget(connection, &start.team, &[], budget).await? {
                        return Ok(BeginOutcome::OverBudget);
                    }
                    if !lease_thread(connection, &start, lease_until).await? {
                        return Ok(BeginOutcome::ThreadBusy);
                    }
                    insert_execution(connection, start, InitialExecutionState::Running(None))
                        .await?;
                    Ok(BeginOutcome::Started)
                })
            })
            .await
    }

    async fn begin_approved_execution(
        &self,
        start: ExecutionStart,
        lease_until: Moment,
        budget: Option<u64>,
        home: HomeState,
    ) -> Result<BeginOutcome> {
        self.writer
            .run_transaction(move |connection| {
                Box::pin(async move {
                    if exceeds_budget(connection, &start.team, &[], budget).await? {
                        return Ok(BeginOutcome::OverBudget);
                    }
                    let key = ThreadKey { team: start.team.clone(), id: home.thread };
                    if !homes::is_home_unchanged(&mut *connection, &key, &home.layers).await? {
                        return Ok(BeginOutcome::ThreadChanged);
                    }
                    if start.thread.as_ref() != Some(&key.id) {
                        return Ok(BeginOutcome::ThreadChanged);
                    }
                    if !lease_thread(connection, &start, lease_until).await? {
                        return Ok(BeginOutcome::ThreadBusy);
                    }
                    insert_execution(connection, start, InitialExecutionState::Running(None))
                        .await?;
                    Ok(BeginOutcome::Started)
                })
            })
            .await
    }

    async fn record_refusal(&self, start: ExecutionStart, error: &str) -> Result<()> {
        let error = error.to_owned();
        self.writer
            .run_statement(move |connection| {
                Box::pin(async move {
                    insert_execution(connection, start, InitialExecutionState::Refused(error))
                        .await?;
                    Ok(())
                })
            })
            .await
    }

    async fn finish_execution(&self, finish: ExecutionFinish) -> Result<FinishOutcome> {
        // The common case is one statement, which commits by itself.
        let is_plain = finish.webhook_delay.is_none() && finish.end.written.layer.is_none();
        if finish.thread.is_none() && is_plain {
            let ExecutionFinish { trace_id, status, end, .. } = finish;
            let values = outcome_values(&trace_id, status, end)?;
            let updated = self.write_statement(UPDATE_OUTCOME, values).await?;
            return Ok(if updated { FinishOutcome::Recorded } else { FinishOutcome::NotRunning });
        }
        // If the home did not change, a power cut cannot lose anything.
        if finish.thread.is_some() && finish.end.written.layer.is_some() {
            return self
                .writer
                .run_durable(move |connection| Box::pin(end_execution(connection, finish)))
                .await;
        }
        self.writer
            .run_transaction(move |connection| Box::pin(end_execution(connection, finish)))
            .await
    }

    async fn record_bytes(&self, trace: &TraceId) -> Result<u64> {
        // The length of a blob is in the header of its row, so the blob itself is not read.
        let bytes: Option<i64> = sqlx::query_scalar(
            "SELECT ifnull(length(stdout), 0) + ifnull(length(stderr), 0) \
             + ifnull(length(code), 0) FROM executions WHERE trace_id = ?",
        )
        .bind(trace.as_str())
        .fetch_optional(&self.readers)
        .await?;
        Ok(bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or_default())
    }

    async fn find_execution(&self, team: &TeamId, trace: &TraceId) -> Result<Option<Execution>> {
        let row = sqlx::query(whole_execution!(" WHERE e.trace_id = ? AND e.team_id = ?"))
            .bind(trace.as_str())
            .bind(team.as_str())
            .fetch_optional(&self.readers)
            .await?;
        row.map(|row| execution_from_row(&row, true)).transpose()
    }

    async fn find_execution_of_any_team(&self, trace: &TraceId) -> Result<Option<Execution>> {
        let row = sqlx::query(whole_execution!(" WHERE e.trace_id = ?"))
            .bind(trace.as_str())
            .fetch_optional(&self.readers)
            .await?;
        row.map(|row| execution_from_row(&row, true)).transpose()
    }

    async fn list_executions(
        &self,
        team: Option<&TeamId>,
        filter: &ExecutionFilter,
    ) -> Result<Vec<Execution>> {
        self.select_page(team, filter).await
    }

    async fn index_executions(&self) -> Result<bool> {
        self.index_some_executions().await
    }

    async fn fail_running_executions(
        &self,
        at: Moment,
        error: &str,
        webhook_delay: Duration,
    ) -> Result<u64> {
        let error = error.to_owned();
        self.writer
            .run_transaction(move |connection| {
                Box::pin(async move {
                    queue_webhooks(connection, None, at, webhook_delay).await?;
                    sqlx::query("DELETE FROM thread_leases").execute(&mut *connection).await?;
                    let ended = sqlx::query(
                        "UPDATE executions SET status = 'failed', exit_code = -1, error = ?, \
                         completed_at = ? WHERE status = 'running'",
                    )
                    .bind(error)
                    .bind(at.0)
                    .execute(connection)
                    .await?;
                    Ok(ended.rows_affected())
                })
            })
            .await
    }

    async fn prune_executions(&self, now: Moment) -> Result<u64> {
        self.writer
            .run_transaction(move |connection| {
                Box::pin(async move {
                    let pruned = sqlx::query(
                        "DELETE FROM executions WHERE rowid IN (SELECT e.rowid FROM executions e JOIN \
                         sandboxes s ON s.id = e.sandbox_id WHERE s.retention_days IS NOT NULL AND \
                         e.status != 'running' AND \
                         e.created_at < ? - s.retention_days * 86400000000 LIMIT 1000)",
                    )
                    .bind(now.0)
                    .execute(&mut *connection)
                    .await?;
                    sqlx::query(
                        "DELETE FROM deliveries WHERE trace_id NOT IN (SELECT trace_id FROM executions)",
                    )
                    .execute(connection)
                    .await?;
                    Ok(pruned.rows_affected())
                })
            })
            .await
    }
}

impl SqliteStore {
    /// Writes a single statement: at once if it is small and no other write is under way, else
    /// through the queue. Returns whether it changed a row.
    async fn write_statement(&self, statement: &'static str, values: Vec<Value>) -> Result<bool> {
        let is_small = |value: &Value| match value {
            Value::Text(text) => text.len() <= INLINE_BYTES,
            Value::Blob(bytes) => bytes.len() <= INLINE_BYTES,
            Value::Null | Value::Integer(_) | Value::Real(_) => true,
        };
        if values.iter().all(is_small)
            && let Some(changed) = self.writer.inline.try_statement(statement, &values)
        {
            return Ok(changed == 1);
        }
        self.writer
            .run_statement(move |connection| {
                Box::pin(
                    async move { Ok(execute_values(connection, statement, values).await? == 1) },
                )
            })
            .await
    }
}

/// The most bytes of a value that is written in the thread of the caller.
const INLINE_BYTES: usize = 64 << 10;

/// The initial status of an execution.
enum InitialExecutionState {
    /// Running, unless its team already stores this many bytes.
    Running(Option<u64>),
    /// Refused, for this reason.
    Refused(String),
}

/// Inserts the row. Returns false if the team's budget is used up. One statement, which is a
/// transaction by itself.
async fn insert_execution(
    connection: &mut SqliteConnection,
    start: ExecutionStart,
    beginning: InitialExecutionState,
) -> Result<bool> {
    let values = start_values(start, beginning)?;
    Ok(execute_values(connection, INSERT_EXECUTION, values).await? == 1)
}

const INSERT_EXECUTION: &str = "INSERT INTO executions (trace_id, team_id, key_id, sandbox_id, \
     language, thread_id, delivery, webhook_url, metadata, status, created_at, completed_at, \
     exit_code, error, code_digest, code_bytes, code) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, \
     ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17 WHERE ?18 IS NULL OR ?18 > coalesce((SELECT \
     layer_bytes + row_bytes FROM team_storage WHERE team_id = ?2), 0)";

/// The values of that statement.
fn start_values(start: ExecutionStart, beginning: InitialExecutionState) -> Result<Vec<Value>> {
    let (status, error, budget) = match beginning {
        InitialExecutionState::Running(budget) => (ExecutionStatus::Running, None, budget),
        InitialExecutionState::Refused(error) => (ExecutionStatus::Blocked, Some(error), None),
    };
    let over = (status != ExecutionStatus::Running).then_some(start.created_at.0);
    let text = |text: &str| Value::Text(text.to_owned());
    Ok(vec![
        String::from(start.trace_id).into(),
        String::from(start.team).into(),
        String::from(start.key).into(),
        String::from(start.sandbox).into(),
        start.language.map_or(Value::Null, |language| text(language.name())),
        start.thread.map(String::from).into(),
        text(start.delivery.name()),
        start.webhook_url.into(),
        to_json("metadata", &start.metadata)?.into(),
        text(status.name()),
        start.created_at.0.into(),
        over.into(),
        over.map(|_| -1_i64).into(),
        error.into(),
        start.code_digest.into(),
        to_sql_integer(start.code_bytes).into(),
        start.code.into(),
        budget.map(to_sql_integer).into(),
    ])
}

/// Leases the thread unless another execution holds it. An expired lease does not count.
async fn lease_thread(
    connection: &mut SqliteConnection,
    start: &ExecutionStart,
    until: Moment,
) -> Result<bool> {
    let taken = sqlx::query(
        "INSERT INTO thread_leases (team_id, thread_id, trace_id, expires_at) VALUES (?, ?, ?, ?) \
         ON CONFLICT (team_id, thread_id) DO UPDATE SET trace_id = excluded.trace_id, \
         expires_at = excluded.expires_at WHERE thread_leases.expires_at <= ?",
    )
    .bind(start.team.to_string())
    .bind(start.thread.clone().map(String::from))
    .bind(start.trace_id.to_string())
    .bind(until.0)
    .bind(start.created_at.0)
    .execute(connection)
    .await?;
    Ok(taken.rows_affected() == 1)
}
