//! The settings of the gates: a team's own, and the fleet's for teams that have none.

use cloche_model::{Decision, DecisionId, DecisionKind, GateSettings, Team, TeamId, ToolPolicy};

use crate::{Engine, Refusal, clock, secrets};

/// What to change of the gates; `None` leaves it, `Some(None)` leaves it to whoever is further out.
#[derive(Clone, Copy, Debug, Default)]
pub struct GateChange {
    /// Whether agents may run code at all.
    pub agent_sandbox: Option<Option<bool>>,
    /// What happens to a call of `execute_code`.
    pub execute_code: Option<Option<ToolPolicy>>,
    /// Whether the person at the client that asks may answer.
    pub elicitation: Option<Option<bool>>,
}

impl GateChange {
    fn apply(self, settings: GateSettings) -> GateSettings {
        GateSettings {
            agent_sandbox: self.agent_sandbox.unwrap_or(settings.agent_sandbox),
            execute_code: self.execute_code.unwrap_or(settings.execute_code),
            elicitation: self.elicitation.unwrap_or(settings.elicitation),
        }
    }
}

impl Engine {
    /// What holds for teams that have no setting of their own.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn fleet_gates(&self) -> Result<GateSettings, Refusal> {
        Ok(self.inner.store.fleet_gates().await?)
    }

    /// Changes what holds for teams that have no setting of their own.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn change_fleet_gates(&self, change: GateChange) -> Result<GateSettings, Refusal> {
        let _held = self.inner.approval_waiters.settings_lock.lock().await;
        let before = self.inner.store.fleet_gates().await?;
        self.write_gates(None, before, change.apply(before)).await
    }

    /// Changes a team's own gates. The caller holds the lock on settings.
    pub(super) async fn change_team_gates(
        &self,
        team: &Team,
        change: GateChange,
    ) -> Result<GateSettings, Refusal> {
        let before = self.find_team(team.id.as_str()).await?.gates;
        self.write_gates(Some(&team.id), before, change.apply(before)).await
    }

    /// Writes the settings with the decision, if they differ.
    async fn write_gates(
        &self,
        team: Option<&TeamId>,
        before: GateSettings,
        after: GateSettings,
    ) -> Result<GateSettings, Refusal> {
        if before == after {
            return Ok(after);
        }
        let decision = Decision {
            id: DecisionId::from_random(secrets::random_bytes()?),
            kind: DecisionKind::Changed,
            by: "admin".to_owned(),
            at: clock::now(),
            team: team.cloned(),
            key: None,
            tool: None,
            digest: None,
            approval: None,
            execution: None,
            note: Some(format_settings(after)),
        };
        match self.inner.store.change_gates(team, after, decision).await? {
            true => {
                self.agent_metrics().count_decision(DecisionKind::Changed);
                Ok(after)
            }
            false => Err(Refusal::not_found("team")),
        }
    }
}

/// As they are typed.
fn format_settings(settings: GateSettings) -> String {
    let switch = |on: Option<bool>| on.map_or("none", |on| if on { "on" } else { "off" });
    format!(
        "agent_sandbox={} execute_code={} elicitation={}",
        switch(settings.agent_sandbox),
        settings.execute_code.map_or("none", ToolPolicy::name),
        switch(settings.elicitation),
    )
}
