//! Rows to words. A row that cannot be read is an error with the column's name, never a default.

use std::{str::FromStr, time::Duration};

use cloche_model::{
    ApiKey, ByteSize, Execution, ExecutionEnd, ExecutionStart, GateSettings, HomeUsage, KeyId,
    Moment, Point, Retention, Sandbox, SandboxId, Status, Team, Thread, UsageReport, Written,
};
use serde::{Serialize, de::DeserializeOwned};
use sqlx::{Row, sqlite::SqliteRow};

use super::sealed;
use crate::{Result, StoreError, sealing::Sealer};

fn corrupt(column: &'static str, reason: impl ToString) -> StoreError {
    StoreError::Corrupt { column, reason: reason.to_string() }
}

/// A column that holds a word of the model.
pub(super) fn word<T>(row: &SqliteRow, column: &'static str) -> Result<T>
where
    T: FromStr,
    T::Err: ToString,
{
    let text: &str = row.try_get(column)?;
    text.parse().map_err(|error: T::Err| corrupt(column, error))
}

pub(super) fn word_or_null<T>(row: &SqliteRow, column: &'static str) -> Result<Option<T>>
where
    T: FromStr,
    T::Err: ToString,
{
    let text: Option<&str> = row.try_get(column)?;
    text.map(|text| text.parse().map_err(|error: T::Err| corrupt(column, error))).transpose()
}

fn json<T: DeserializeOwned>(row: &SqliteRow, column: &'static str) -> Result<T> {
    let text: &str = row.try_get(column)?;
    serde_json::from_str(text).map_err(|error| corrupt(column, error))
}

pub(super) fn json_or_default<T: DeserializeOwned + Default>(
    row: &SqliteRow,
    column: &'static str,
) -> Result<T> {
    let text: Option<&str> = row.try_get(column)?;
    let value = text.map(serde_json::from_str).transpose();
    Ok(value.map_err(|error| corrupt(column, error))?.unwrap_or_default())
}

/// The text of a JSON column.
pub(super) fn to_json<T: Serialize>(column: &'static str, value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| corrupt(column, error))
}

pub(super) fn moment(row: &SqliteRow, column: &'static str) -> Result<Moment> {
    Ok(Moment(row.try_get(column)?))
}

pub(super) fn moment_or_null(row: &SqliteRow, column: &'static str) -> Result<Option<Moment>> {
    Ok(row.try_get::<Option<i64>, _>(column)?.map(Moment))
}

pub(super) fn number<T: TryFrom<i64>>(row: &SqliteRow, column: &'static str) -> Result<T> {
    let number: i64 = row.try_get(column)?;
    T::try_from(number).map_err(|_| corrupt(column, "out of range"))
}

fn number_or_null<T: TryFrom<i64>>(row: &SqliteRow, column: &'static str) -> Result<Option<T>> {
    let number: Option<i64> = row.try_get(column)?;
    number.map(|n| T::try_from(n).map_err(|_| corrupt(column, "out of range"))).transpose()
}

/// A count as a column holds it.
pub(super) fn integer(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub(super) fn team(row: &SqliteRow) -> Result<Team> {
    Ok(Team {
        id: word(row, "id")?,
        name: row.try_get("name")?,
        plan: word(row, "plan")?,
        max_concurrency: number_or_null(row, "max_concurrency")?,
        max_timeout: number_or_null(row, "max_timeout_s")?.map(Duration::from_secs),
        storage: number_or_null(row, "storage_bytes")?.map(ByteSize),
        gates: GateSettings {
            agent_sandbox: row.try_get("agent_sandbox")?,
            execute_code: word_or_null(row, "execute_code")?,
            elicitation: row.try_get("elicitation")?,
        },
        created_at: moment(row, "created_at")?,
    })
}

pub(super) fn sandbox(row: &SqliteRow, sealer: &Sealer) -> Result<Sandbox> {
    let id: SandboxId = word(row, "id")?;
    let secret_env = sealed::open_env(sealer, ("sandboxes", id.as_str()), row)?;
    Ok(Sandbox {
        id,
        secret_env,
        team: word(row, "team_id")?,
        name: row.try_get("name")?,
        shape: json(row, "shape")?,
        resources: json(row, "resources")?,
        env: json(row, "env")?,
        retention: Retention {
            code: row.try_get("retain_code")?,
            days: number_or_null(row, "retention_days")?,
        },
        created_at: moment(row, "created_at")?,
    })
}

pub(super) fn key(row: &SqliteRow, sealer: &Sealer) -> Result<ApiKey> {
    let id: KeyId = word(row, "id")?;
    let webhook_secret = sealed::open_webhook_secret(sealer, id.as_str(), row)?;
    let secret_env = sealed::open_env(sealer, ("keys", id.as_str()), row)?;
    Ok(ApiKey {
        id,
        secret_env,
        team: word(row, "team_id")?,
        sandbox: word(row, "sandbox_id")?,
        name: row.try_get("name")?,
        prefix: row.try_get("prefix")?,
        env: json(row, "env")?,
        webhook_url: row.try_get("webhook_url")?,
        webhook_secret,
        may_approve: row.try_get("may_approve")?,
        created_at: moment(row, "created_at")?,
        revoked_at: moment_or_null(row, "revoked_at")?,
    })
}

fn usage(row: &SqliteRow) -> Result<HomeUsage> {
    Ok(HomeUsage {
        bytes: ByteSize(number(row, "bytes")?),
        entries: number(row, "entries")?,
        counted: row.try_get("counted")?,
    })
}

pub(super) fn thread(row: &SqliteRow) -> Result<Thread> {
    Ok(Thread {
        team: word(row, "team_id")?,
        id: word(row, "thread_id")?,
        created_at: moment(row, "created_at")?,
        updated_at: moment(row, "updated_at")?,
        head: number(row, "head")?,
        layers: json(row, "stack")?,
        usage: usage(row)?,
    })
}

pub(super) fn point(row: &SqliteRow) -> Result<Point> {
    Ok(Point {
        seq: number(row, "seq")?,
        kind: word(row, "kind")?,
        trace_id: word_or_null(row, "trace_id")?,
        at: moment(row, "at")?,
        layers: json(row, "stack")?,
        layer: word_or_null(row, "layer")?,
        added: ByteSize(number(row, "added")?),
        changed: number(row, "changed")?,
        usage: usage(row)?,
    })
}

/// An execution. `whole` says whether the query also chose code, score and output.
pub(super) fn execution(row: &SqliteRow, whole: bool) -> Result<Execution> {
    let start = ExecutionStart {
        trace_id: word(row, "trace_id")?,
        team: word(row, "team_id")?,
        key: word(row, "key_id")?,
        sandbox: word(row, "sandbox_id")?,
        language: word_or_null(row, "language")?,
        thread: word_or_null(row, "thread_id")?,
        delivery: word(row, "delivery")?,
        webhook_url: row.try_get("webhook_url")?,
        metadata: json(row, "metadata")?,
        code_digest: row.try_get("code_digest")?,
        code_bytes: number(row, "code_bytes")?,
        code: if whole { row.try_get("code")? } else { None },
        created_at: moment(row, "created_at")?,
    };
    let completed_at = moment_or_null(row, "completed_at")?;
    let end = completed_at.map(|at| execution_end(row, at, whole)).transpose()?;
    let status: Status = word(row, "status")?;
    Ok(Execution { start, status, end, webhook_status: word_or_null(row, "webhook_status")? })
}

fn execution_end(row: &SqliteRow, completed_at: Moment, whole: bool) -> Result<ExecutionEnd> {
    let bytes = |column| -> Result<Vec<u8>> {
        let bytes: Option<Vec<u8>> = if whole { row.try_get(column)? } else { None };
        Ok(bytes.unwrap_or_default())
    };
    Ok(ExecutionEnd {
        stdout_tail: Vec::new(),
        stderr_tail: Vec::new(),
        exit_code: number_or_null(row, "exit_code")?.unwrap_or(-1),
        stdout: bytes("stdout")?.into(),
        stderr: bytes("stderr")?.into(),
        stdout_dropped: number(row, "stdout_dropped")?,
        stderr_dropped: number(row, "stderr_dropped")?,
        error: row.try_get("error")?,
        usage: UsageReport {
            wall_ms: number(row, "wall_ms")?,
            cpu_ms: number(row, "cpu_ms")?,
            peak_memory_bytes: number(row, "peak_memory")?,
            micro_credits: number(row, "micro_credits")?,
        },
        score: if whole {
            word_or_null(row, "score")?.unwrap_or_default()
        } else {
            Default::default()
        },
        written: if whole { written(row)? } else { Default::default() },
        completed_at,
    })
}

/// What an execution wrote. Its layer is gone once the point of the execution is pruned.
fn written(row: &SqliteRow) -> Result<Written> {
    let mut written: Written = json_or_default(row, "written")?;
    if row.try_get::<Option<&str>, _>("layer")?.is_none() {
        written.layer = None;
    }
    Ok(written)
}
