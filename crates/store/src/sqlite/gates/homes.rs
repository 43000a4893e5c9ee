//! Runs in: server (no capabilities). Approvals and the homes that they are bound to. An approval
//! is valid for one state of a thread, and any change of the thread invalidates it.

use cloche_model::{
    Approval, ApprovalId, ApprovalState, Decision, DecisionKind, HomeState, LayerDigest, Moment,
    SnapshotKind,
};
use sqlx::{Row, SqliteConnection, SqlitePool};

use super::{
    super::{
        heads,
        row_reader::{point_from_row, read_parsed, to_json, to_sql_integer},
    },
    rows::{approval_from_row, insert_decision},
};
use crate::{ApprovalAnswer, CallId, Result, StoreError, ThreadKey};

/// How many consecutive squash snapshots are followed back to their origin.
const SQUASHES: u32 = 64;
/// The reason of an approval that expired because its home changed.
const HOME_CHANGED: &str = "the thread changed after approval was requested";

/// The layers of a thread's home before it was squashed, which change only with its content. If a
/// squash cannot be followed back, its layer is used, so the home counts as changed.
pub(crate) async fn home_layers(
    connection: &mut SqliteConnection,
    key: &ThreadKey,
) -> Result<Vec<LayerDigest>> {
    let Some(thread) = heads::find_thread(&mut *connection, key).await? else {
        return Ok(Vec::new());
    };
    let rows = sqlx::query(
        "SELECT * FROM points WHERE team_id = ? AND thread_id = ? AND seq <= ? \
         ORDER BY seq DESC LIMIT ?",
    )
    .bind(key.team.as_str())
    .bind(key.id.as_str())
    .bind(to_sql_integer(thread.head))
    .bind(SQUASHES)
    .fetch_all(connection)
    .await?;
    let (mut layers, mut expected) = (thread.layers, thread.head);
    for row in &rows {
        let point = point_from_row(row)?;
        if point.seq != expected {
            break;
        }
        layers = point.layers;
        if point.kind != SnapshotKind::Squash {
            break;
        }
        expected = expected.saturating_sub(1);
    }
    Ok(layers)
}

/// Whether a thread is still in this state.
pub(crate) async fn is_home_unchanged(
    connection: &mut SqliteConnection,
    key: &ThreadKey,
    layers: &[LayerDigest],
) -> Result<bool> {
    Ok(home_layers(connection, key).await? == layers)
}

/// The column value of a state.
pub(super) fn home_text(home: Option<&HomeState>) -> Result<Option<String>> {
    home.map(|home| to_json("home", &home.layers)).transpose()
}

/// Writes an answer. If the home has changed since, an approval is not written and expires.
pub(super) async fn write_answer(
    connection: &mut SqliteConnection,
    answer: ApprovalAnswer,
) -> Result<Option<Approval>> {
    let asked = sqlx::query("SELECT * FROM approvals WHERE id = ? AND state = 'pending'")
        .bind(answer.id.to_string())
        .fetch_optional(&mut *connection)
        .await?;
    let Some(asked) = asked.as_ref().map(approval_from_row).transpose()? else { return Ok(None) };
    if asked.expires_at <= answer.at {
        return Ok(None);
    }
    if answer.approve
        && let Some(home) = &asked.home
    {
        let key = ThreadKey { team: asked.team.clone(), id: home.thread.clone() };
        if !is_home_unchanged(&mut *connection, &key, &home.layers).await? {
            let decision = Decision {
                kind: DecisionKind::Expired,
                by: "gate".to_owned(),
                note: Some(HOME_CHANGED.to_owned()),
                ..answer.decision
            };
            return expire_changed(connection, &asked.id, decision).await;
        }
        note_approved_home(connection, &asked, home, answer.at).await?;
    }
    let state = if answer.approve { ApprovalState::Approved } else { ApprovalState::Denied };
    let row = sqlx::query(
        "UPDATE approvals SET state = ?1, decided_at = ?2, decided_by = ?3, reason = ?4, \
         expires_at = ?5, arguments = iif(?1 = 'denied', NULL, arguments), \
         changes = iif(?1 = 'denied', NULL, changes) WHERE id = ?6 RETURNING *",
    )
    .bind(state.name())
    .bind(answer.at.0)
    .bind(answer.decision.by.clone())
    .bind(answer.reason)
    .bind(answer.expires_at.0)
    .bind(String::from(answer.id))
    .fetch_one(&mut *connection)
    .await?;
    insert_decision(connection, answer.decision).await?;
    Ok(Some(approval_from_row(&row)?))
}

/// Ends an open approval because its home has changed, and records the decision.
pub(super) async fn expire_changed(
    connection: &mut SqliteConnection,
    id: &ApprovalId,
    decision: Decision,
) -> Result<Option<Approval>> {
    let row = sqlx::query(
        "UPDATE approvals SET state = 'expired', arguments = NULL, changes = NULL, reason = ? \
         WHERE id = ? AND state IN ('pending', 'approved') RETURNING *",
    )
    .bind(HOME_CHANGED)
    .bind(id.to_string())
    .fetch_optional(&mut *connection)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let note = Some(HOME_CHANGED.to_owned());
    insert_decision(connection, Decision { note, ..decision }).await?;
    Ok(Some(approval_from_row(&row)?))
}

async fn note_approved_home(
    connection: &mut SqliteConnection,
    asked: &Approval,
    home: &HomeState,
    at: Moment,
) -> Result<()> {
    sqlx::query(
        "INSERT INTO approved_homes (team_id, thread_id, home, approval_id, at) \
         VALUES (?, ?, ?, ?, ?) ON CONFLICT (team_id, thread_id) DO UPDATE SET \
         home = excluded.home, approval_id = excluded.approval_id, at = excluded.at",
    )
    .bind(asked.team.to_string())
    .bind(home.thread.to_string())
    .bind(to_json("home", &home.layers)?)
    .bind(asked.id.to_string())
    .bind(at.0)
    .execute(connection)
    .await?;
    Ok(())
}

/// The state that was approved last, and the id of that approval.
pub(super) async fn approved_home(
    readers: &SqlitePool,
    key: &ThreadKey,
) -> Result<Option<(ApprovalId, Vec<LayerDigest>)>> {
    let row = sqlx::query("SELECT * FROM approved_homes WHERE team_id = ? AND thread_id = ?")
        .bind(key.team.as_str())
        .bind(key.id.as_str())
        .fetch_optional(readers)
        .await?;
    let Some(row) = row else { return Ok(None) };
    let layers = serde_json::from_str(row.try_get("home")?)
        .map_err(|error| StoreError::Corrupt { column: "home", reason: error.to_string() })?;
    Ok(Some((read_parsed(&row, "approval_id")?, layers)))
}

/// Open approvals of this call, either for this state of its home or for another one.
pub(super) async fn open_approvals(
    readers: &SqlitePool,
    (call, same_home): (&CallId, bool),
    now: Moment,
) -> Result<Vec<Approval>> {
    let rows = sqlx::query(
        "SELECT * FROM approvals WHERE team_id = ? AND key_id = ? AND tool = ? AND digest = ? \
         AND state IN ('pending', 'approved') AND expires_at > ? AND (home IS ?) = ? \
         ORDER BY state, created_at",
    )
    .bind(call.team.as_str())
    .bind(call.key.as_str())
    .bind(call.tool.name())
    .bind(call.digest.as_str())
    .bind(now.0)
    .bind(home_text(call.home.as_ref())?)
    .bind(same_home)
    .fetch_all(readers)
    .await?;
    rows.iter().map(approval_from_row).collect()
}
