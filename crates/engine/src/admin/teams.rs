//! Teams: create, look, change, remove.

use std::time::Duration;

use cloche_model::{
    ByteSize, GateSettings, Invalid, Team, TeamId, TeamPlan, check_name, request::MAX_TIMEOUT,
};

use super::GateChange;
use crate::{Engine, Refusal, clock, secrets};

/// The largest concurrency limit; no limit at all is said by leaving it out.
const MAX_CONCURRENCY: u32 = 1_000_000;

/// The largest storage budget: what every reader of JSON can count.
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
}

impl TeamDraft {
    /// With the limits of the plan.
    pub fn new(name: impl Into<String>, plan: TeamPlan) -> Self {
        Self { name: name.into(), plan, max_concurrency: None, max_timeout: None, storage: None }
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
    /// The gates in front of agent tools.
    pub gates: GateChange,
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

impl Engine {
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
            gates: GateSettings::default(),
            created_at: clock::now(),
        };
        check_team(&team)?;
        self.inner.store.create_team(&team).await?;
        Ok(team)
    }

    /// Every team.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn list_teams(&self) -> Result<Vec<Team>, Refusal> {
        Ok(self.inner.store.list_teams().await?)
    }

    /// The team with this id or name.
    ///
    /// # Errors
    /// When there is none.
    pub async fn find_team(&self, id_or_name: &str) -> Result<Team, Refusal> {
        let team = self.inner.store.find_team(id_or_name).await?;
        team.ok_or_else(|| Refusal::not_found("team"))
    }

    /// Changes a team.
    ///
    /// # Errors
    /// When there is none, or a field breaks a rule.
    pub async fn update_team(&self, id_or_name: &str, change: TeamChange) -> Result<Team, Refusal> {
        let _held = self.inner.approval_waiters.settings_lock.lock().await;
        let mut team = self.find_team(id_or_name).await?;
        team.name = change.name.unwrap_or(team.name);
        team.plan = change.plan.unwrap_or(team.plan);
        team.max_concurrency = change.max_concurrency.unwrap_or(team.max_concurrency);
        team.max_timeout = change.max_timeout.unwrap_or(team.max_timeout);
        team.storage = change.storage.unwrap_or(team.storage);
        check_team(&team)?;
        if !self.inner.store.update_team(&team).await? {
            return Err(Refusal::not_found("team"));
        }
        team.gates = self.change_team_gates(&team, change.gates).await?;
        self.inner.key_cache.forget_all();
        Ok(team)
    }

    /// Removes a team, its sandboxes and its revoked keys. Its executions stay in the ledger.
    ///
    /// # Errors
    /// When there is none, or one of its keys is still good.
    pub async fn delete_team(&self, id_or_name: &str) -> Result<(), Refusal> {
        let team = self.find_team(id_or_name).await?;
        self.inner.store.delete_team(&team.id).await?;
        self.inner.key_cache.forget_all();
        Ok(())
    }
}
