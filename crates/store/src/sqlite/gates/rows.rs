//! Approvals and decisions as rows: in, and back.

use cloche_model::{Approval, ApprovalState, Decision, HomeState, Tool};
use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};

use super::{
    super::read::{
        integer, json_or_default, moment, moment_or_null, number, to_json, word, word_or_null,
    },
    homes::home_text,
};
use crate::Result;

/// The same question, if it waits or its answer does.
pub(super) async fn open_one(
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
    row.as_ref().map(approval).transpose()
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
    .bind(integer(asked.arguments_bytes))
    .bind(asked.arguments)
    .bind(asked.home.as_ref().map(|home| home.thread.to_string()))
    .bind(home_text(asked.home.as_ref())?)
    .bind(asked.changes.map(|changes| to_json("changes", &changes)).transpose()?)
    .execute(connection)
    .await?;
    Ok(())
}

pub(super) async fn insert_decision(
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
    .bind(made.tool.map(Tool::name))
    .bind(made.digest)
    .bind(made.approval.map(String::from))
    .bind(made.execution.map(String::from))
    .bind(made.note)
    .execute(connection)
    .await?;
    Ok(())
}

pub(super) fn approval(row: &SqliteRow) -> Result<Approval> {
    let thread = word_or_null(row, "thread_id")?;
    let layers = json_or_default(row, "home")?;
    Ok(Approval {
        id: word(row, "id")?,
        team: word(row, "team_id")?,
        key: word(row, "key_id")?,
        tool: word(row, "tool")?,
        digest: row.try_get("digest")?,
        arguments: row.try_get("arguments")?,
        arguments_bytes: number(row, "arguments_bytes")?,
        home: thread.map(|thread| HomeState { thread, layers }),
        changes: json_or_default(row, "changes")?,
        state: word(row, "state")?,
        created_at: moment(row, "created_at")?,
        expires_at: moment(row, "expires_at")?,
        decided_at: moment_or_null(row, "decided_at")?,
        decided_by: row.try_get("decided_by")?,
        reason: row.try_get("reason")?,
    })
}

pub(super) fn decision(row: &SqliteRow) -> Result<Decision> {
    Ok(Decision {
        id: word(row, "id")?,
        kind: word(row, "kind")?,
        by: row.try_get("decided_by")?,
        at: moment(row, "at")?,
        team: word_or_null(row, "team_id")?,
        key: word_or_null(row, "key_id")?,
        tool: word_or_null(row, "tool")?,
        digest: row.try_get("digest")?,
        approval: word_or_null(row, "approval_id")?,
        execution: word_or_null(row, "trace_id")?,
        note: row.try_get("note")?,
    })
}
