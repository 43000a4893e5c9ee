//! Approvals and decisions as rows: writing and reading.

use cloche_model::{AgentTool, Approval, ApprovalState, Decision, HomeState};
use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};

use super::{
    super::row_reader::{
        read_json_or_default, read_moment, read_moment_or_null, read_number, read_parsed,
        read_parsed_or_null, to_json, to_sql_integer,
    },
    homes::home_text,
};
use crate::Result;

/// The same question, if it is pending or its approval was not used.
pub(super) async fn find_open_approval(
    connection: &mut SqliteConnection,
    asked: &Approval,
) -> Result<Option<Approval>> {
    let row = sqlx::query(
        "SELECT * FROM approvals WHERE team_id = ? AND key_id = ? AND tool = ? AND digest = ? \
         AND state IN ('pending', 'approved') AND expires_at > ? AND home IS ? \
         ORDER BY state, created_at LIMIT 1",
    )
    .bind(asked.team.to_string())
    .bind(asked.key.to_string())
    .bind(asked.tool.name())
    .bind(asked.digest.clone())
    .bind(asked.created_at.0)
    .bind(home_text(asked.home.as_ref())?)
    .fetch_optional(connection)
    .await?;
    row.as_ref().map(approval_from_row).transpose()
}

pub(super) async fn insert_approval(
    connection: &mut SqliteConnection,
    asked: Approval,
) -> Result<()> {
    sqlx::query(
        "INSERT INTO approvals (id, team_id, key_id, tool, digest, state, created_at, expires_at, \
         arguments_bytes, arguments, thread_id, home, changes) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(String::from(asked.id))
    .bind(String::from(asked.team))
    .bind(String::from(asked.key))
    .bind(asked.tool.name())
    .bind(asked.digest)
    .bind(ApprovalState::Pending.name())
    .bind(asked.created_at.0)
    .bind(asked.expires_at.0)
    .bind(to_sql_integer(asked.arguments_bytes))
    .bind(asked.arguments)
    .bind(asked.home.as_ref().map(|home| home.thread.to_string()))
    .bind(home_text(asked.home.as_ref())?)
    .bind(asked.changes.map(|changes| to_json("changes", &changes)).transpose()?)
    .execute(connection)
    .await?;
    Ok(())
}

pub(in crate::sqlite) async fn insert_decision(
    connection: &mut SqliteConnection,
    made: Decision,
) -> Result<()> {
    sqlx::query(
        "INSERT INTO decisions (id, kind, decided_by, at, team_id, key_id, tool, digest, \
         approval_id, trace_id, note) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(String::from(made.id))
    .bind(made.kind.name())
    .bind(made.by)
    .bind(made.at.0)
    .bind(made.team.map(String::from))
    .bind(made.key.map(String::from))
    .bind(made.tool.map(AgentTool::name))
    .bind(made.digest)
    .bind(made.approval.map(String::from))
    .bind(made.execution.map(String::from))
    .bind(made.note)
    .execute(connection)
    .await?;
    Ok(())
}

pub(super) fn approval_from_row(row: &SqliteRow) -> Result<Approval> {
    let thread = read_parsed_or_null(row, "thread_id")?;
    let layers = read_json_or_default(row, "home")?;
    Ok(Approval {
        id: read_parsed(row, "id")?,
        team: read_parsed(row, "team_id")?,
        key: read_parsed(row, "key_id")?,
        tool: read_parsed(row, "tool")?,
        digest: row.try_get("digest")?,
        arguments: row.try_get("arguments")?,
        arguments_bytes: read_number(row, "arguments_bytes")?,
        home: thread.map(|thread| HomeState { thread, layers }),
        changes: read_json_or_default(row, "changes")?,
        state: read_parsed(row, "state")?,
        created_at: read_moment(row, "created_at")?,
        expires_at: read_moment(row, "expires_at")?,
        decided_at: read_moment_or_null(row, "decided_at")?,
        decided_by: row.try_get("decided_by")?,
        reason: row.try_get("reason")?,
    })
}

pub(super) fn decision_from_row(row: &SqliteRow) -> Result<Decision> {
    Ok(Decision {
        id: read_parsed(row, "id")?,
        kind: read_parsed(row, "kind")?,
        by: row.try_get("decided_by")?,
        at: read_moment(row, "at")?,
        team: read_parsed_or_null(row, "team_id")?,
        key: read_parsed_or_null(row, "key_id")?,
        tool: read_parsed_or_null(row, "tool")?,
        digest: row.try_get("digest")?,
        approval: read_parsed_or_null(row, "approval_id")?,
        execution: read_parsed_or_null(row, "trace_id")?,
        note: row.try_get("note")?,
    })
}
