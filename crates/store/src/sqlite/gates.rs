//! Approvals and decisions in SQLite.

mod rows;

use async_trait::async_trait;
use cloche_model::{
    Approval, ApprovalId, ApprovalState, Decision, DecisionId, GateSettings, Moment, TeamId,
    ToolPolicy, TraceId,
};
use sqlx::{Row, SqliteConnection};

use super::{
    Sqlite,
    read::{moment_or_null, to_json},
};
use crate::{
    Answer, ApprovalFilter, Asked, CallId, DecisionFilter, Gates, Result, Settings, StoreError,
};
use rows::{approval, decision, insert_approval, insert_decision, open_one};

/// The setting with the fleet's gates.
const FLEET: &str = "gates";

#[async_trait]
impl Gates for Sqlite {
    async fn fleet_gates(&self) -> Result<GateSettings> {
        let Some(text) = self.setting(FLEET).await? else { return Ok(GateSettings::default()) };
        serde_json::from_str(&text)
            .map_err(|error| StoreError::Corrupt { column: FLEET, reason: error.to_string() })
    }

    async fn change_gates(
        &self,
        team: Option<&TeamId>,
        gates: GateSettings,
        decision: Decision,
    ) -> Result<bool> {
        let team = team.map(ToString::to_string);
        self.writer
            .transaction(move |connection| {
                Box::pin(async move {
                    let changed = match team {
                        Some(team) => set_team(connection, team, gates).await?,
                        None => set_fleet(connection, gates).await?,
                    };
                    if changed {
                        insert_decision(connection, decision).await?;
                    }
                    Ok(changed)
                })
            })
            .await
    }

    async fn ask(&self, approval: Approval, most: u32, decision: Decision) -> Result<Asked> {
        self.writer
            .transaction(move |connection| {
                Box::pin(async move {
                    if let Some(same) = open_one(connection, &approval).await? {
                        return Ok(Asked::Same(Box::new(same)));
                    }
                    let row = sqlx::query(
                        "SELECT count(*) AS n FROM approvals \
                         WHERE team_id = ? AND state = 'pending' AND expires_at > ?",
                    )
                    .bind(approval.team.as_str())
                    .bind(approval.created_at.0)
                    .fetch_one(&mut *connection)
                    .await?;
                    if row.try_get::<i64, _>("n")? >= i64::from(most) {
                        return Ok(Asked::Crowded);
                    }
                    insert_approval(connection, approval).await?;
                    insert_decision(connection, decision).await?;
                    Ok(Asked::New)
                })
            })
            .await
    }

    async fn answer(&self, answer: Answer) -> Result<Option<Approval>> {
        let state = if answer.approve { ApprovalState::Approved } else { ApprovalState::Denied };
        self.writer
            .transaction(move |connection| {
                Box::pin(async move {
                    let row = sqlx::query(
                        "UPDATE approvals SET state = ?1, decided_at = ?2, decided_by = ?3, \
                         reason = ?4, expires_at = ?5, \
                         arguments = iif(?1 = 'denied', NULL, arguments) \
                         WHERE id = ?6 AND state = 'pending' AND expires_at > ?2 RETURNING *",
                    )
                    .bind(state.name())
                    .bind(answer.at.0)
                    .bind(answer.decision.by.clone())
                    .bind(answer.reason)
                    .bind(answer.expires_at.0)
                    .bind(String::from(answer.id))
                    .fetch_optional(&mut *connection)
                    .await?;
                    let Some(row) = row else { return Ok(None) };
                    insert_decision(connection, answer.decision).await?;
                    Ok(Some(approval(&row)?))
                })
            })
            .await
    }

    async fn consume(
        &self,
        call: &CallId,
        now: Moment,
        decision: Decision,
    ) -> Result<Option<Approval>> {
        let call = call.clone();
        self.writer
            .transaction(move |connection| {
                Box::pin(async move {
                    let row = sqlx::query(
                        "UPDATE approvals SET state = 'used', arguments = NULL WHERE id = ( \
                         SELECT id FROM approvals WHERE team_id = ? AND key_id = ? AND tool = ? \
                         AND digest = ? AND state = 'approved' AND expires_at > ? \
                         ORDER BY decided_at, id LIMIT 1) RETURNING *",
                    )
                    .bind(String::from(call.team))
                    .bind(String::from(call.key))
                    .bind(call.tool.name())
                    .bind(call.digest)
                    .bind(now.0)
                    .fetch_optional(&mut *connection)
                    .await?;
                    let Some(used) = row.as_ref().map(approval).transpose()? else {
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

    async fn denial(&self, call: &CallId, now: Moment) -> Result<Option<Approval>> {
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
        row.as_ref().map(approval).transpose()
    }

    async fn overdue(&self, now: Moment, limit: u32) -> Result<Vec<Approval>> {
        let rows = sqlx::query(
            "SELECT * FROM approvals WHERE state IN ('pending', 'approved') AND expires_at <= ? \
             ORDER BY expires_at LIMIT ?",
        )
        .bind(now.0)
        .bind(limit)
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(approval).collect()
    }

    async fn expire(&self, id: &ApprovalId, now: Moment, decision: Decision) -> Result<bool> {
        let id = id.to_string();
        self.writer
            .transaction(move |connection| {
                Box::pin(async move {
                    let expired = sqlx::query(
                        "UPDATE approvals SET state = 'expired', arguments = NULL WHERE id = ? \
                         AND state IN ('pending', 'approved') AND expires_at <= ?",
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

    async fn pending_approvals(&self, now: Moment) -> Result<u64> {
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
        moment_or_null(&row, "at")
    }

    async fn approval(&self, id: &ApprovalId) -> Result<Option<Approval>> {
        let row = sqlx::query("SELECT * FROM approvals WHERE id = ?")
            .bind(id.as_str())
            .fetch_optional(&self.readers)
            .await?;
        row.as_ref().map(approval).transpose()
    }

    async fn approvals(&self, filter: &ApprovalFilter) -> Result<Vec<Approval>> {
        let rows = sqlx::query(
            "SELECT id, team_id, key_id, tool, digest, state, created_at, expires_at, decided_at, \
             decided_by, reason, arguments_bytes, NULL AS arguments FROM approvals \
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
        rows.iter().map(approval).collect()
    }

    async fn note(&self, decision: Decision) -> Result<()> {
        self.writer
            .statement(move |connection| Box::pin(insert_decision(connection, decision)))
            .await
    }

    async fn note_execution(&self, id: &DecisionId, execution: &TraceId) -> Result<bool> {
        let (id, execution) = (id.to_string(), execution.to_string());
        self.writer
            .statement(move |connection| {
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

    async fn decisions(&self, filter: &DecisionFilter) -> Result<Vec<Decision>> {
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
        rows.iter().map(decision).collect()
    }

    async fn decision_of(&self, team: &TeamId, execution: &TraceId) -> Result<Option<Decision>> {
        let row = sqlx::query("SELECT * FROM decisions WHERE trace_id = ? AND team_id = ?")
            .bind(execution.as_str())
            .bind(team.as_str())
            .fetch_optional(&self.readers)
            .await?;
        row.as_ref().map(decision).transpose()
    }

    async fn prune_gates(&self, before: Moment) -> Result<u64> {
        self.writer
            .transaction(move |connection| {
                Box::pin(async move {
                    let mut pruned = 0;
                    for statement in [
                        "DELETE FROM approvals WHERE created_at < ? \
                         AND state NOT IN ('pending', 'approved')",
                        "DELETE FROM decisions WHERE at < ?",
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

async fn set_team(
    connection: &mut SqliteConnection,
    team: String,
    gates: GateSettings,
) -> Result<bool> {
    let updated = sqlx::query(
        "UPDATE teams SET agent_sandbox = ?, execute_code = ?, elicitation = ? WHERE id = ?",
    )
    .bind(gates.agent_sandbox)
    .bind(gates.execute_code.map(ToolPolicy::name))
    .bind(gates.elicitation)
    .bind(team)
    .execute(connection)
    .await?;
    Ok(updated.rows_affected() == 1)
}

async fn set_fleet(connection: &mut SqliteConnection, gates: GateSettings) -> Result<bool> {
    sqlx::query(
        "INSERT INTO settings (name, value) VALUES (?, ?) \
         ON CONFLICT (name) DO UPDATE SET value = excluded.value",
    )
    .bind(FLEET)
    .bind(to_json(FLEET, &gates)?)
    .execute(connection)
    .await?;
    Ok(true)
}
