//! Runs in: server (no capabilities).
//!
//! Pruning: one thread on request, and a team by the policy of its plan before a write beyond its
//! budget is refused.

use std::time::Duration;

use cloche_model::{ErrorCode, Invalid, Team, ThreadId};
use cloche_store::{HistoryPruneOutcome, HistoryRule, PrunedRows, ThreadKey};

use super::{StorageBudgets, over_budget_refusal};
use crate::{Refusal, clock, threads};

/// The oldest that a rule can ask for: a hundred years.
const MOST_DAYS: u32 = 36_500;

/// Which snapshots of a thread are dropped: those that no set rule keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryPolicy {
    /// All but so many of the newest.
    pub keep: Option<u64>,
    /// Those that are older than so many days.
    pub older_than_days: Option<u32>,
}

impl HistoryPolicy {
    fn check(self) -> Result<(), Invalid> {
        if self.keep.is_some_and(|keep| !(1..1 << 53).contains(&keep)) {
            return Err(Invalid::new("keep must be 1 or more: the newest point always stays"));
        }
        if self.older_than_days.is_some_and(|days| days > MOST_DAYS) {
            return Err(Invalid::new(format!("older_than_days must be at most {MOST_DAYS}")));
        }
        Ok(())
    }

    fn to_rule(self) -> HistoryRule {
        let age = |days| Duration::from_hours(24 * u64::from(days));
        let before = self.older_than_days.map(|days| clock::now().saturating_sub(age(days)));
        HistoryRule { keep: self.keep, before }
    }
}

/// What was dropped of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrunedHistory {
    /// Points.
    pub points: u64,
    /// How many bytes less the team stores now.
    pub freed_bytes: u64,
}

impl StorageBudgets {
    /// Drops points of a thread; those of the plan's policy if no rule is set. The head stays, and so
    /// does what another thread has.
    ///
    /// # Errors
    /// When there is no thread that the team may see, an execution holds it, or a rule is malformed.
    pub async fn prune_history(
        &self,
        team: &Team,
        id: &ThreadId,
        policy: HistoryPolicy,
    ) -> Result<PrunedHistory, Refusal> {
        let policy = match policy == HistoryPolicy::default() {
            true => self.plan_policy(team),
            false => policy,
        };
        policy.check()?;
        let before = self.store.storage_usage(&team.id).await?.total();
        let key = threads::thread_key(team, id);
        let pruned = match self.store.prune_thread(&key, policy.to_rule(), clock::now()).await? {
            HistoryPruneOutcome::Done(pruned) => pruned,
            HistoryPruneOutcome::Busy => return Err(threads::thread_busy_refusal()),
            HistoryPruneOutcome::Missing => return Err(Refusal::not_found("thread")),
        };
        self.remove_layers(&pruned.layers).await;
        let after = self.store.storage_usage(&team.id).await?.total();
        Ok(PrunedHistory { points: pruned.rows, freed_bytes: before.saturating_sub(after) })
    }

    fn plan_policy(&self, team: &Team) -> HistoryPolicy {
        let plan = self.config.of_plan(team.plan);
        HistoryPolicy { keep: plan.keep, older_than_days: plan.days }
    }

    /// Prunes by the plan's policy until the team can store so many bytes more, or nothing is left
    /// to prune. One team at a time, because pruning keeps the one writer of the store busy.
    pub(crate) async fn make_room(&self, team: &Team, wanted: u64) -> Result<(), Refusal> {
        let Some(budget) = self.budget_of(team) else { return Ok(()) };
        let _turn = self.pruning.lock().await;
        let store = &self.store;
        let most = budget.saturating_sub(wanted);
        let rule = self.plan_policy(team).to_rule();
        for id in store.threads_to_prune(&team.id, rule).await? {
            if self.stores_at_most(team, most).await? {
                return Ok(());
            }
            let key = ThreadKey { team: team.id.clone(), id };
            if let HistoryPruneOutcome::Done(pruned) =
                store.prune_thread(&key, rule, clock::now()).await?
            {
                self.note_pruned(team, &pruned, "history").await;
            }
        }
        let keep = self.config.of_plan(team.plan).records;
        while !self.stores_at_most(team, most).await? {
            let pruned = store.prune_records(&team.id, keep).await?;
            if pruned == PrunedRows::default() {
                break;
            }
            self.note_pruned(team, &pruned, "records").await;
        }
        Ok(())
    }

    /// Refuses new rows of a team that has used up its budget, after it was pruned.
    pub(crate) async fn check_budget(&self, team: &Team) -> Result<(), Refusal> {
        let Some(budget) = self.budget_of(team) else { return Ok(()) };
        for is_pruned in [false, true] {
            if is_pruned {
                self.make_room(team, 1).await?;
            }
            if self.stores_at_most(team, budget.saturating_sub(1)).await? {
                return Ok(());
            }
        }
        Err(Refusal { code: ErrorCode::RateLimited, ..over_budget_refusal(team, budget) })
    }

    async fn stores_at_most(&self, team: &Team, bytes: u64) -> Result<bool, Refusal> {
        Ok(self.store.storage_usage(&team.id).await?.total() <= bytes)
    }

    async fn note_pruned(&self, team: &Team, pruned: &PrunedRows, what: &'static str) {
        let (rows, layers) = (pruned.rows, pruned.layers.len());
        tracing::info!(team = %team.id, rows, layers, what, "pruned to stay within the storage budget");
        self.remove_layers(&pruned.layers).await;
    }

    /// Prunes teams that are over their budget although they were refused nothing: by records of
    /// refused requests, or because their budget is less than it was.
    pub(crate) async fn prune_teams_over_budget(&self) -> Result<(), Refusal> {
        for (id, used) in self.store.storage_usages().await? {
            let Some(team) = self.store.find_team(id.as_str()).await? else { continue };
            if self.budget_of(&team).is_some_and(|budget| used.total() > budget) {
                self.make_room(&team, 0).await?;
            }
        }
        Ok(())
    }
}
