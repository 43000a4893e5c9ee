//! Runs in: server (no capabilities).
//!
//! The settings of the gates: those of a team, and those of the fleet for teams without a setting.

use cloche_model::{
    Decision, DecisionId, DecisionKind, GateSettings, PendingApproval, TeamId, ToolPolicy,
};

use super::{Tenancy, UPDATE_ATTEMPTS, contended_refusal};
use crate::{Refusal, clock, secrets};

/// What to change of the gates; `None` leaves it, `Some(None)` leaves it to the fleet.
#[derive(Clone, Copy, Debug, Default)]
pub struct GateChange {
    /// Whether agents may run code at all.
    pub agent_sandbox: Option<Option<bool>>,
    /// What happens to a call of `execute_code`.
    pub execute_code: Option<Option<ToolPolicy>>,
    /// Whether the person at the client that asks may answer.
    pub elicitation: Option<Option<bool>>,
    /// How a response is shown while a call of it waits for a person.
    pub pending_approval: Option<Option<PendingApproval>>,
    /// What happens to a call of `web_search`.
    pub web_search: Option<Option<ToolPolicy>>,
    /// What happens to a call of `fetch_url`.
    pub fetch_url: Option<Option<ToolPolicy>>,
    /// What happens to a call of `people_search`.
    pub people_search: Option<Option<ToolPolicy>>,
}

impl GateChange {
    pub(super) fn apply(self, settings: GateSettings) -> GateSettings {
        GateSettings {
            agent_sandbox: self.agent_sandbox.unwrap_or(settings.agent_sandbox),
            execute_code: self.execute_code.unwrap_or(settings.execute_code),
            elicitation: self.elicitation.unwrap_or(settings.elicitation),
            pending_approval: self.pending_approval.unwrap_or(settings.pending_approval),
            web_search: self.web_search.unwrap_or(settings.web_search),
            fetch_url: self.fetch_url.unwrap_or(settings.fetch_url),
            people_search: self.people_search.unwrap_or(settings.people_search),
        }
    }
}

impl Tenancy {
    /// What holds for teams that have no setting of their own.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn fleet_gates(&self) -> Result<GateSettings, Refusal> {
        Ok(self.store.fleet_gates().await?)
    }

    /// Changes what holds for teams that have no setting of their own.
    ///
    /// # Errors
    /// When the store fails, or others change the same settings all the time.
    pub async fn change_fleet_gates(&self, change: GateChange) -> Result<GateSettings, Refusal> {
        let _turn = self.updating.lock().await;
        for _ in 0..UPDATE_ATTEMPTS {
            let from = self.store.fleet_gates().await?;
            let to = change.apply(from);
            if from == to {
                return Ok(to);
            }
            if self.store.change_fleet_gates(from, to, gate_decision(None, to)?).await? {
                self.metrics.agents.count_decision(DecisionKind::Changed);
                return Ok(to);
            }
        }
        Err(contended_refusal("fleet's gate settings"))
    }
}

/// The decision that is written with a change of the gates of a team, or of the fleet.
pub(super) fn gate_decision(
    team: Option<&TeamId>,
    settings: GateSettings,
) -> Result<Decision, Refusal> {
    Ok(Decision {
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
        note: Some(format_settings(settings)),
    })
}

/// As they are typed.
fn format_settings(settings: GateSettings) -> String {
    let switch = |on: Option<bool>| on.map_or("none", |on| if on { "on" } else { "off" });
    let policy = |policy: Option<ToolPolicy>| policy.map_or("none", ToolPolicy::name);
    format!(
        "agent_sandbox={} execute_code={} elicitation={} pending_approval={} web_search={} \
         fetch_url={} people_search={}",
        switch(settings.agent_sandbox),
        policy(settings.execute_code),
        switch(settings.elicitation),
        settings.pending_approval.map_or("none", PendingApproval::name),
        policy(settings.web_search),
        policy(settings.fetch_url),
        policy(settings.people_search),
    )
}
