//! Runs in: server (no capabilities).
//!
//! Teams: create, read, change, delete.

use std::time::Duration;

use cloche_model::{
    ByteSize, DecisionKind, ErrorCode, GateSettings, Invalid, Team, TeamId, TeamPlan, check_name,
    request::MAX_TIMEOUT,
};
use cloche_store::{Revisioned, UpdateOutcome};

use super::{
    GateChange, Tenancy, UPDATE_ATTEMPTS, contended_refusal, gate_settings::gate_decision,
};
use crate::{Refusal, clock, secrets};

/// The largest concurrency limit; without a value there is no limit.
const MAX_CONCURRENCY: u32 = 1_000_000;

/// The largest storage budget: the largest integer that every JSON reader represents exactly.
const MAX_STORAGE: ByteSize = ByteSize((1 << 53) - 1);

/// A team to be made.
#[derive(Clone, Debug)]
pub struct TeamDraft {
    /// The name people use.
    pub name: String,
    /// What it signs up for.
    pub plan: TeamPlan,
    /// A concurrency limit of its own.
    pub max_concurrency: Option<u32>,
    /// The longest time limit of its own.
    pub max_timeout: Option<Duration>,
    /// A storage budget of its own.
    pub storage: Option<ByteSize>,
    /// A monthly allowance of its own, in millionths of a credit.
    pub monthly_micro_credits: Option<u64>,
}

impl TeamDraft {
    /// With the limits of the plan.
    pub fn new(name: impl Into<String>, plan: TeamPlan) -> Self {
        Self {
            name: name.into(),
            plan,
            max_concurrency: None,
            max_timeout: None,
            storage: None,
            monthly_micro_credits: None,
        }
    }
}

/// What to change of a team; `None` leaves it, `Some(None)` clears it.
#[derive(Clone, Debug, Default)]
pub struct TeamChange {
    /// The name.
    pub name: Option<String>,
    /// The plan.
    pub plan: Option<TeamPlan>,
    /// The concurrency limit.
    pub max_concurrency: Option<Option<u32>>,
    /// The longest time limit.
    pub max_timeout: Option<Option<Duration>>,
    /// The storage budget.
    pub storage: Option<Option<ByteSize>>,
    /// The monthly allowance, in millionths of a credit.
    pub monthly_micro_credits: Option<Option<u64>>,
    /// The gates in front of agent tools.
    pub gates: GateChange,
}

impl TeamChange {
    /// Applies it to a team and checks the whole.
    fn apply(self, team: Team) -> Result<Team, Invalid> {
        let team = Team {
            name: self.name.unwrap_or(team.name),
            plan: self.plan.unwrap_or(team.plan),
            max_concurrency: self.max_concurrency.unwrap_or(team.max_concurrency),
            max_timeout: self.max_timeout.unwrap_or(team.max_timeout),
            storage: self.storage.unwrap_or(team.storage),
            monthly_micro_credits: self.monthly_micro_credits.unwrap_or(team.monthly_micro_credits),
            gates: self.gates.apply(team.gates),
            ..team
        };
        check_team(&team)?;
        Ok(team)
    }
}

fn check_team(team: &Team) -> Result<(), Invalid> {
    check_name("name", &team.name)?;
    let longest = MAX_TIMEOUT.as_secs();
    if team.max_timeout.is_some_and(|limit| !(1..=longest).contains(&limit.as_secs())) {
        return Err(Invalid::new(format!("max_timeout_seconds must be between 1 and {longest}")));
    }
    if team.storage.is_some_and(|limit| limit > MAX_STORAGE) {
        let most = MAX_STORAGE.bytes();
        return Err(Invalid::new(format!("storage_bytes must be at most {most}")));
    }
    if team.max_concurrency.is_some_and(|limit| limit > MAX_CONCURRENCY) {
        return Err(Invalid::new(format!(
            "max_concurrency must be between 0 and {MAX_CONCURRENCY}"
        )));
    }
    Ok(())
}

impl Tenancy {
    /// Makes a team.
    ///
    /// # Errors
    /// When the name is taken or malformed.
    pub async fn create_team(&self, draft: TeamDraft) -> Result<Team, Refusal> {
        let team = Team {
            id: TeamId::from_random(secrets::random_bytes()?),
            name: draft.name,
            plan: draft.plan,
            max_concurrency: draft.max_concurrency,
            max_timeout: draft.max_timeout,
            storage: draft.storage,
            monthly_micro_credits: draft.monthly_micro_credits,
            gates: GateSettings::default(),
            created_at: clock::now(),
        };
        check_team(&team)?;
        self.store.create_team(&team).await?;
        Ok(team)
    }

    /// Every team.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn list_teams(&self) -> Result<Vec<Team>, Refusal> {
        Ok(self.store.list_teams().await?)
    }

    /// The team with this id or name.
    ///
    /// # Errors
    /// When there is none.
    pub async fn find_team(&self, id_or_name: &str) -> Result<Team, Refusal> {
        let team = self.store.find_team(id_or_name).await?;
        team.ok_or_else(|| Refusal::not_found("team"))
    }

    /// Changes a team.
    ///
    /// # Errors
    /// When there is none, or a field breaks a rule.
    pub async fn update_team(&self, id_or_name: &str, change: TeamChange) -> Result<Team, Refusal> {
        let missing = || Refusal::not_found("team");
        let _turn = self.updating.lock().await;
        for _ in 0..UPDATE_ATTEMPTS {
            let read = self.store.team_for_update(id_or_name).await?;
            let Revisioned { row: before, revision } = read.ok_or_else(missing)?;
            let update = Revisioned { row: change.clone().apply(before.clone())?, revision };
            let gates_change = before.gates != update.row.gates;
            let decision = match gates_change {
                true => Some(gate_decision(Some(&before.id), update.row.gates)?),
                false => None,
            };
            let outcome = self.store.update_team(&update, decision).await?;
            self.key_cache.forget_all();
            match outcome {
                UpdateOutcome::Done => {
                    if gates_change {
                        self.metrics.agents.count_decision(DecisionKind::Changed);
                    }
                    return Ok(update.row);
                }
                UpdateOutcome::Stale => {}
                UpdateOutcome::Missing => return Err(missing()),
            }
        }
        Err(contended_refusal("team"))
    }

    /// Removes a team, its sandboxes, connections and revoked keys. Its executions stay in the
    /// ledger.
    ///
    /// # Errors
    /// When there is none, one of its keys is still good, or it has a volume.
    pub async fn delete_team(&self, id_or_name: &str) -> Result<(), Refusal> {
        let team = self.find_team(id_or_name).await?;
        let sources = self.store.list_sources(Some(&team.id)).await?;
        let volumes = sources.iter().filter(|source| source.volume().is_some());
        let volumes: Vec<&str> = volumes.map(|source| source.name.as_str()).collect();
        if !volumes.is_empty() {
            let names = volumes.join(", ");
            let message = format!("the team still has volumes: {names}; remove them first");
            return Err(Refusal::new(ErrorCode::Conflict, message));
        }
        self.store.delete_team(&team.id).await?;
        self.key_cache.forget_all();
        Ok(())
    }
}
