//! Approvals and decisions in SQLite.

pub(crate) mod homes;
mod rows;

use async_trait::async_trait;
use cloche_model::{
    Approval, ApprovalId, ApprovalState, Decision, DecisionId, GateSettings, LayerDigest, Moment,
    TeamId, TraceId,
};
use sqlx::{Row, SqliteConnection};

use super::{
    SqliteStore,
    row_reader::{read_moment_or_null, to_json, to_sql_integer},
};
use crate::{
    ApprovalAnswer, ApprovalFilter, ApprovalRequestOutcome, CallId, DecisionFilter, GateStore,
    QuestionLimits, Result, SettingStore, StoreError, ThreadKey,
};
pub(super) use rows::insert_decision;
use rows::{approval_from_row, decision_from_row, find_open_approval, insert_approval};

/// The setting that contains the fleet's gates.
const FLEET: &str = "gates";

#[async_trait]
impl GateStore for SqliteStore {
    async fn fleet_gates(&self) -> Result<GateSettings> {
        let text = self.read_setting(FLEET).await?;
        text.map_or_else(|| Ok(GateSettings::default()), |text| parse_gates(&text))
    }

    async fn change_fleet_gates(
        &self,
        from: GateSettings,
        to: GateSettings,
        decision: Decision,
    ) -> Result<bool> {
        self.writer
            .run_transaction(move |connection| {
                Box::pin(async move {
                    if read_fleet_gates(connection).await? != from {
                        return Ok(false);
                    }
                    set_fleet_gates(connection, to).await?;
                    insert_decision(connection, decision).await?;
                    Ok(true)
                })
            })
            .await
    }

    async fn request_approval(
        &self,
        approval: Approval,
        limits: QuestionLimits,
        decision: Decision,
    ) -> Result<ApprovalRequestOutcome> {
        self.writer
            .run_transaction(move |connection| {
                Box::pin(async move {
                    if let Some(same) = find_open_approval(connection, &approval).await? {
                        return Ok(ApprovalRequestOutcome::Same(Box::new(same)));
                    }
                    let row = sqlx::query(
                        "SELECT coalesce(sum(state = 'pending'), 0) AS n, \
                         coalesce(sum(arguments_bytes), 0) AS bytes FROM approvals WHERE team_id = ? \
                         AND state IN ('pending', 'approved') AND expires_at > ?",
                    )
                    .bind(approval.team.as_str())
                    .bind(approval.created_at.0)
                    .fetch_one(&mut *connection)
                    .await?;
                    let bytes = to_sql_integer(approval.arguments_bytes)
                        .saturating_add(row.try_get::<i64, _>("bytes")?);
                    let full = row.try_get::<i64, _>("n")? >= i64::from(limits.count);
                    if full || bytes > to_sql_integer(limits.bytes) {
                        return Ok(ApprovalRequestOutcome::Crowded);
                    }
                    insert_approval(connection, approval).await?;
                    insert_decision(connection, decision).await?;
                    Ok(ApprovalRequestOutcome::New)
                })
            })
            .await
    }

    async fn answer_approval(&self, answer: ApprovalAnswer) -> Result<Option<Approval>> {
        self.writer
            .run_transaction(move |connection| Box::pin(homes::write_answer(connection, answer)))
            .await
    }

    async fn open_approvals(&self, call: &CallId, now: Moment) -> Result<Vec<Approval>> {
        homes::open_approvals(&self.readers, (call, true), now).await
    }

    async fn outdated_approvals(&self, call: &CallId, now: Moment) -> Result<Vec<Approval>> {
        homes::open_approvals(&self.readers, (call, false), now).await
    }

    async fn expire_changed_approval(&self, id: &ApprovalId, decision: Decision) -> Result<bool> {
        let id = id.clone();
        self.writer
            .run_transaction(move |connection| {
                Box::pin(async move {
                    Ok(homes::expire_changed(connection, &id, decision).await?.is_some())
                })
            })
            .await
    }

    async fn home_layers(&self, key: &ThreadKey) -> Result<Vec<LayerDigest>> {
        let mut connection = self.readers.acquire().await?;
        homes::home_layers(&mut connection, key).await
    }

    async fn approved_home(
        &self,
        key: &ThreadKey,
    ) -> Result<Option<(ApprovalId, Vec<LayerDigest>)>> {
        homes::approved_home(&self.readers, key).await
    }

    async fn consume_approval(
        &self,
        call: &CallId,
        now: Moment,
        decision: Decision,
    ) -> Result<Option<Approval>> {
        let call = call.clone();
        self.writer
            .run_transaction(move |connection| {
                Box::pin(async move {
                    let row = sqlx::query(
                        "UPDATE approvals SET state = 'used', arguments = NULL, changes = NULL \
                         WHERE id = ( \
                         SELECT id FROM approvals WHERE team_id = ? AND key_id = ? AND tool = ? \
                         AND digest = ? AND state = 'approved' AND expires_at > ? AND home IS ? \
                         ORDER BY decided_at, id LIMIT 1) RETURNING *",
                    )
                    .bind(String::from(call.team))
                    .bind(String::from(call.key))
                    .bind(call.tool.name())
                    .bind(call.digest)
                    .bind(now.0)
                    .bind(homes::home_text(call.home.as_ref())?)
                    .fetch_optional(&mut *connection)
                    .await?;
                    let Some(used) = row.as_ref().map(approval_from_row).transpose()? else {
                        return Ok(None);
                    };
                    let by = used.decided_by.clone().unwrap_or(decision.by);
                    let decision = Decision { by, approval: Some(used.id.clone()), ..decision };
                    insert_decision(connection, decision).await?;
                    Ok(Some(used))
                })
            })
            .await
    }

    async fn find_denial(&self, call: &CallId, now: Moment) -> Result<Option<Approval>> {
        let row = sqlx::query(
            "SELECT * FROM approvals WHERE team_id = ? AND key_id = ? AND tool = ? AND digest = ? \
             AND state = 'denied' AND expires_at > ? ORDER BY decided_at DESC LIMIT 1",
        )
        .bind(call.team.as_str())
        .bind(call.key.as_str())
        .bind(call.tool.name())
        .bind(call.digest.as_str())
        .bind(now.0)
        .fetch_optional(&self.readers)
        .await?;
        row.as_ref().map(approval_from_row).transpose()
    }

    async fn overdue_approvals(&self, now: Moment, limit: u32) -> Result<Vec<Approval>> {
        let rows = sqlx::query(
            "SELECT * FROM approvals WHERE state IN ('pending', 'approved') AND expires_at <= ? \
             ORDER BY expires_at LIMIT ?",
        )
        .bind(now.0)
        .bind(limit)
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(approval_from_row).collect()
    }

    async fn expire_overdue_approval(
        &self,
        id: &ApprovalId,
        now: Moment,
        decision: Decision,
    ) -> Result<bool> {
        let id = id.to_string();
        self.writer
            .run_transaction(move |connection| {
                Box::pin(async move {
                    let expired = sqlx::query(
                        "UPDATE approvals SET state = 'expired', arguments = NULL, changes = NULL \
                         WHERE id = ? AND state IN ('pending', 'approved') AND expires_at <= ?",
                    )
                    .bind(id)
                    .bind(now.0)
                    .execute(&mut *connection)
                    .await?;
                    let expired = expired.rows_affected() == 1;
                    if expired {
                        insert_decision(connection, decision).await?;
                    }
                    Ok(expired)
                })
            })
            .await
    }

    async fn count_pending_approvals(&self, now: Moment) -> Result<u64> {
        let row = sqlx::query(
            "SELECT count(*) AS n FROM approvals WHERE state = 'pending' AND expires_at > ?",
        )
        .bind(now.0)
        .fetch_one(&self.readers)
        .await?;
        Ok(u64::try_from(row.try_get::<i64, _>("n")?).unwrap_or_default())
    }

    async fn next_expiry(&self) -> Result<Option<Moment>> {
        let row = sqlx::query(
            "SELECT min(expires_at) AS at FROM approvals WHERE state IN ('pending', 'approved')",
        )
        .fetch_one(&self.readers)
        .await?;
        read_moment_or_null(&row, "at")
    }

    async fn find_approval(&self, id: &ApprovalId) -> Result<Option<Approval>> {
        let row = sqlx::query("SELECT * FROM approvals WHERE id = ?")
            .bind(id.as_str())
            .fetch_optional(&self.readers)
            .await?;
        row.as_ref().map(approval_from_row).transpose()
    }

    async fn list_approvals(&self, filter: &ApprovalFilter) -> Result<Vec<Approval>> {
        let rows = sqlx::query(
            "SELECT id, team_id, key_id, tool, digest, state, created_at, expires_at, decided_at, \
             decided_by, reason, arguments_bytes, thread_id, home, NULL AS arguments, \
             NULL AS changes FROM approvals \
             WHERE (?1 IS NULL OR team_id = ?1) AND (?2 IS NULL OR state = ?2) \
             AND (?3 IS NULL OR (created_at, id) < \
             (SELECT created_at, id FROM approvals WHERE id = ?3)) \
             ORDER BY created_at DESC, id DESC LIMIT ?4",
        )
        .bind(filter.team.as_ref().map(TeamId::as_str))
        .bind(filter.state.map(ApprovalState::name))
        .bind(filter.before.as_ref().map(ApprovalId::as_str))
        .bind(filter.limit)
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(approval_from_row).collect()
    }

    async fn record_decision(&self, decision: Decision) -> Result<()> {
        self.writer
            .run_statement(move |connection| Box::pin(insert_decision(connection, decision)))
            .await
    }

    async fn record_decision_execution(
        &self,
        id: &DecisionId,
        execution: &TraceId,
    ) -> Result<bool> {
        let (id, execution) = (id.to_string(), execution.to_string());
        self.writer
            .run_statement(move |connection| {
                Box::pin(async move {
                    let noted = sqlx::query(
                        "UPDATE decisions SET trace_id = ? WHERE id = ? AND trace_id IS NULL",
                    )
                    .bind(execution)
                    .bind(id)
                    .execute(connection)
                    .await?;
                    Ok(noted.rows_affected() == 1)
                })
            })
            .await
    }

    async fn list_decisions(&self, filter: &DecisionFilter) -> Result<Vec<Decision>> {
        let rows = sqlx::query(
            "SELECT * FROM decisions WHERE (?1 IS NULL OR team_id = ?1) \
             AND (?2 IS NULL OR approval_id = ?2) \
             AND (?3 IS NULL OR (at, id) < (SELECT at, id FROM decisions WHERE id = ?3)) \
             ORDER BY at DESC, id DESC LIMIT ?4",
        )
        .bind(filter.team.as_ref().map(TeamId::as_str))
        .bind(filter.approval.as_ref().map(ApprovalId::as_str))
        .bind(filter.before.as_ref().map(DecisionId::as_str))
        .bind(filter.limit)
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(decision_from_row).collect()
    }

    async fn find_execution_decision(
        &self,
        team: &TeamId,
        execution: &TraceId,
    ) -> Result<Option<Decision>> {
        let row = sqlx::query("SELECT * FROM decisions WHERE trace_id = ? AND team_id = ?")
            .bind(execution.as_str())
            .bind(team.as_str())
            .fetch_optional(&self.readers)
            .await?;
        row.as_ref().map(decision_from_row).transpose()
    }

    async fn prune_gates(&self, before: Moment) -> Result<u64> {
        self.writer
            .run_transaction(move |connection| {
                Box::pin(async move {
                    let mut pruned = 0;
                    for statement in [
                        "DELETE FROM approvals WHERE created_at < ? \
                         AND state NOT IN ('pending', 'approved')",
                        "DELETE FROM decisions WHERE at < ?",
                        "DELETE FROM approved_homes WHERE at < ?",
                        "DELETE FROM tool_calls WHERE at < ?",
                    ] {
                        let gone =
                            sqlx::query(statement).bind(before.0).execute(&mut *connection).await?;
                        pruned += gone.rows_affected();
                    }
                    Ok(pruned)
                })
            })
            .await
    }
}

/// The gates of the fleet as the writing connection sees them.
async fn read_fleet_gates(connection: &mut SqliteConnection) -> Result<GateSettings> {
    let row = sqlx::query("SELECT value FROM settings WHERE name = ?")
        .bind(FLEET)
        .fetch_optional(connection)
        .await?;
    row.map(|row| parse_gates(&row.try_get::<String, _>("value")?))
        .transpose()
        .map(Option::unwrap_or_default)
}

fn parse_gates(text: &str) -> Result<GateSettings> {
    serde_json::from_str(text)
        .map_err(|error| StoreError::Corrupt { column: FLEET, reason: error.to_string() })
}

async fn set_fleet_gates(connection: &mut SqliteConnection, gates: GateSettings) -> Result<()> {
    sqlx::query(
        "INSERT INTO settings (name, value) VALUES (?, ?) \
         ON CONFLICT (name) DO UPDATE SET value = excluded.value",
    )
    .bind(FLEET)
    .bind(to_json(FLEET, &gates)?)
    .execute(connection)
    .await?;
    Ok(())
}
