//! Converts rows to model types. A value that cannot be read is an error with the column's name,
//! never a default.

use std::{str::FromStr, time::Duration};

use cloche_model::{
    ApiKey, ByteSize, Execution, ExecutionEnd, ExecutionStart, ExecutionStatus, GateSettings,
    HomeUsage, HomeWrites, KeyId, LedgerRetention, Moment, Sandbox, SandboxId, Team, Thread,
    ThreadSnapshot, UsageReport,
};
use serde::{Serialize, de::DeserializeOwned};
use sqlx::{Row, sqlite::SqliteRow};

use super::sealed;
use crate::{Result, StoreError, sealing::SecretSealer};

fn corrupt_column(column: &'static str, reason: impl ToString) -> StoreError {
    StoreError::Corrupt { column, reason: reason.to_string() }
}

/// Reads a column that contains the text form of a model type.
pub(super) fn read_parsed<T>(row: &SqliteRow, column: &'static str) -> Result<T>
where
    T: FromStr,
    T::Err: ToString,
{
    let text: &str = row.try_get(column)?;
    text.parse().map_err(|error: T::Err| corrupt_column(column, error))
}

pub(super) fn read_parsed_or_null<T>(row: &SqliteRow, column: &'static str) -> Result<Option<T>>
where
    T: FromStr,
    T::Err: ToString,
{
    let text: Option<&str> = row.try_get(column)?;
    text.map(|text| text.parse().map_err(|error: T::Err| corrupt_column(column, error))).transpose()
}

pub(super) fn read_json<T: DeserializeOwned>(row: &SqliteRow, column: &'static str) -> Result<T> {
    let text: &str = row.try_get(column)?;
    serde_json::from_str(text).map_err(|error| corrupt_column(column, error))
}

pub(super) fn read_json_or_default<T: DeserializeOwned + Default>(
    row: &SqliteRow,
    column: &'static str,
) -> Result<T> {
    let text: Option<&str> = row.try_get(column)?;
    let value = text.map(serde_json::from_str).transpose();
    Ok(value.map_err(|error| corrupt_column(column, error))?.unwrap_or_default())
}

fn read_json_or_null<T: DeserializeOwned>(
    row: &SqliteRow,
    column: &'static str,
) -> Result<Option<T>> {
    let text: Option<&str> = row.try_get(column)?;
    let value = text.map(serde_json::from_str).transpose();
    value.map_err(|error| corrupt_column(column, error))
}

/// The text for a JSON column.
pub(super) fn to_json<T: Serialize>(column: &'static str, value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| corrupt_column(column, error))
}

pub(super) fn read_moment(row: &SqliteRow, column: &'static str) -> Result<Moment> {
    Ok(Moment(row.try_get(column)?))
}

pub(super) fn read_moment_or_null(row: &SqliteRow, column: &'static str) -> Result<Option<Moment>> {
    Ok(row.try_get::<Option<i64>, _>(column)?.map(Moment))
}

pub(super) fn read_number<T: TryFrom<i64>>(row: &SqliteRow, column: &'static str) -> Result<T> {
    let number: i64 = row.try_get(column)?;
    T::try_from(number).map_err(|_| corrupt_column(column, "out of range"))
}

fn read_number_or_null<T: TryFrom<i64>>(
    row: &SqliteRow,
    column: &'static str,
) -> Result<Option<T>> {
    let number: Option<i64> = row.try_get(column)?;
    number.map(|n| T::try_from(n).map_err(|_| corrupt_column(column, "out of range"))).transpose()
}

/// A count as a column value.
pub(super) fn to_sql_integer(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub(super) fn team_from_row(row: &SqliteRow) -> Result<Team> {
    Ok(Team {
        id: read_parsed(row, "id")?,
        name: row.try_get("name")?,
        plan: read_parsed(row, "plan")?,
        max_concurrency: read_number_or_null(row, "max_concurrency")?,
        max_timeout: read_number_or_null(row, "max_timeout_s")?.map(Duration::from_secs),
        storage: read_number_or_null(row, "storage_bytes")?.map(ByteSize),
        monthly_micro_credits: read_number_or_null(row, "monthly_micro_credits")?,
        gates: GateSettings {
            agent_sandbox: row.try_get("agent_sandbox")?,
            execute_code: read_parsed_or_null(row, "execute_code")?,
            elicitation: row.try_get("elicitation")?,
            pending_approval: read_parsed_or_null(row, "pending_approval")?,
            web_search: read_parsed_or_null(row, "web_search")?,
            fetch_url: read_parsed_or_null(row, "fetch_url")?,
            people_search: read_parsed_or_null(row, "people_search")?,
        },
        created_at: read_moment(row, "created_at")?,
    })
}

pub(super) fn sandbox_from_row(row: &SqliteRow, sealer: &SecretSealer) -> Result<Sandbox> {
    let id: SandboxId = read_parsed(row, "id")?;
    let secret_env = sealed::open_env(sealer, ("sandboxes", id.as_str()), row)?;
    Ok(Sandbox {
        id,
        secret_env,
        team: read_parsed(row, "team_id")?,
        name: row.try_get("name")?,
        shape: read_json(row, "shape")?,
        resources: read_json(row, "resources")?,
        env: read_json(row, "env")?,
        retention: LedgerRetention {
            code: row.try_get("retain_code")?,
            days: read_number_or_null(row, "retention_days")?,
        },
        created_at: read_moment(row, "created_at")?,
    })
}

pub(super) fn key_from_row(row: &SqliteRow, sealer: &SecretSealer) -> Result<ApiKey> {
    let id: KeyId = read_parsed(row, "id")?;
    let webhook_secret = sealed::open_webhook_secret(sealer, id.as_str(), row)?;
    let secret_env = sealed::open_env(sealer, ("keys", id.as_str()), row)?;
    Ok(ApiKey {
        id,
        secret_env,
        team: read_parsed(row, "team_id")?,
        sandbox: read_parsed(row, "sandbox_id")?,
        name: row.try_get("name")?,
        prefix: row.try_get("prefix")?,
        env: read_json(row, "env")?,
        webhook_url: row.try_get("webhook_url")?,
        webhook_secret,
        may_approve: row.try_get("may_approve")?,
        created_at: read_moment(row, "created_at")?,
        revoked_at: read_moment_or_null(row, "revoked_at")?,
    })
}

fn home_usage_from_row(row: &SqliteRow) -> Result<HomeUsage> {
    Ok(HomeUsage {
        bytes: ByteSize(read_number(row, "bytes")?),
        entries: read_number(row, "entries")?,
        counted: row.try_get("counted")?,
    })
}

pub(super) fn thread_from_row(row: &SqliteRow) -> Result<Thread> {
    Ok(Thread {
        team: read_parsed(row, "team_id")?,
        id: read_parsed(row, "thread_id")?,
        created_at: read_moment(row, "created_at")?,
        updated_at: read_moment(row, "updated_at")?,
        head: read_number(row, "head")?,
        layers: read_json(row, "stack")?,
        usage: home_usage_from_row(row)?,
    })
}

pub(super) fn point_from_row(row: &SqliteRow) -> Result<ThreadSnapshot> {
    Ok(ThreadSnapshot {
        seq: read_number(row, "seq")?,
        kind: read_parsed(row, "kind")?,
        trace_id: read_parsed_or_null(row, "trace_id")?,
        at: read_moment(row, "at")?,
        layers: read_json(row, "stack")?,
        layer: read_parsed_or_null(row, "layer")?,
        added: ByteSize(read_number(row, "added")?),
        changed: read_number(row, "changed")?,
        usage: home_usage_from_row(row)?,
    })
}

/// Reads an execution. `whole` is true if the query selected code, score and output.
pub(super) fn execution_from_row(row: &SqliteRow, whole: bool) -> Result<Execution> {
    let start = ExecutionStart {
        trace_id: read_parsed(row, "trace_id")?,
        team: read_parsed(row, "team_id")?,
        key: read_parsed(row, "key_id")?,
        sandbox: read_parsed(row, "sandbox_id")?,
        language: read_parsed_or_null(row, "language")?,
        thread: read_parsed_or_null(row, "thread_id")?,
        delivery: read_parsed(row, "delivery")?,
        webhook_url: row.try_get("webhook_url")?,
        metadata: read_json(row, "metadata")?,
        code_digest: row.try_get("code_digest")?,
        code_bytes: read_number(row, "code_bytes")?,
        code: if whole { row.try_get("code")? } else { None },
        created_at: read_moment(row, "created_at")?,
    };
    let completed_at = read_moment_or_null(row, "completed_at")?;
    let end = completed_at.map(|at| execution_end_from_row(row, at, whole)).transpose()?;
    let status: ExecutionStatus = read_parsed(row, "status")?;
    Ok(Execution {
        start,
        status,
        end,
        webhook_status: read_parsed_or_null(row, "webhook_status")?,
    })
}

fn execution_end_from_row(
    row: &SqliteRow,
    completed_at: Moment,
    whole: bool,
) -> Result<ExecutionEnd> {
    let bytes = |column| -> Result<Vec<u8>> {
        let bytes: Option<Vec<u8>> = if whole { row.try_get(column)? } else { None };
        Ok(bytes.unwrap_or_default())
    };
    Ok(ExecutionEnd {
        stdout_tail: Vec::new(),
        stderr_tail: Vec::new(),
        exit_code: read_number_or_null(row, "exit_code")?.unwrap_or(-1),
        stdout: bytes("stdout")?.into(),
        stderr: bytes("stderr")?.into(),
        stdout_dropped: read_number(row, "stdout_dropped")?,
        stderr_dropped: read_number(row, "stderr_dropped")?,
        output_truncated: row.try_get("output_truncated")?,
        error: row.try_get("error")?,
        usage: UsageReport {
            wall_ms: read_number(row, "wall_ms")?,
            cpu_ms: read_number(row, "cpu_ms")?,
            peak_memory_bytes: read_number(row, "peak_memory")?,
            micro_credits: read_number(row, "micro_credits")?,
        },
        event_order: if whole {
            read_parsed_or_null(row, "score")?.unwrap_or_default()
        } else {
            Default::default()
        },
        network: read_json_or_null(row, "network")?,
        written: if whole { written_from_row(row)? } else { Default::default() },
        mounts: if whole { read_json_or_default(row, "mounts")? } else { Default::default() },
        phases: if whole { read_json_or_null(row, "phases")? } else { None },
        completed_at,
    })
}

/// Reads what an execution wrote. The layer is missing once the execution's snapshot was pruned.
fn written_from_row(row: &SqliteRow) -> Result<HomeWrites> {
    let mut written: HomeWrites = read_json_or_default(row, "written")?;
    if row.try_get::<Option<&str>, _>("layer")?.is_none() {
        written.layer = None;
    }
    Ok(written)
}
