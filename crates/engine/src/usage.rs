//! Runs in: server (no capabilities).
//!
//! What teams used, and how much of it a month allows. The store counts executions with their
//! outcome; transferred bytes are gathered here and written at intervals. See
//! `docs/decisions/0026-credits-and-usage.md`.

use std::{collections::HashMap, sync::Arc, time::Duration};

use cloche_model::{ErrorCode, Invalid, KeyId, Moment, Team, TeamId, TeamPlan};
use cloche_store::{StorageTraffic, Store, Transfer, UsageFilter, UsageTotals};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{Refusal, clock, metrics::UsageMetrics};

/// The interval at which transferred bytes are written.
const RECORD_EVERY: Duration = Duration::from_secs(2);
/// The longest range that is shown day by day.
const MOST_DAYS: i64 = 366;

/// What the executions of a team may cost in a month, by plan, in millionths of a credit. `None` is
/// no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreditAllowances {
    /// On the Free plan.
    pub free: Option<u64>,
    /// On the Pro plan.
    pub pro: Option<u64>,
    /// On the Enterprise plan.
    pub enterprise: Option<u64>,
}

impl CreditAllowances {
    /// The allowance of a team: its own, else that of its plan.
    #[must_use]
    pub fn of_team(&self, team: &Team) -> Option<u64> {
        let of_plan = match team.plan {
            TeamPlan::Free => self.free,
            TeamPlan::Pro => self.pro,
            TeamPlan::Enterprise => self.enterprise,
        };
        team.monthly_micro_credits.or(of_plan)
    }
}

/// Which usage to sum up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageQuery {
    /// Of this key only.
    pub key: Option<KeyId>,
    /// From this day on; the first of this month if absent.
    pub first_day: Option<i64>,
    /// Up to this day, inclusive; today if absent.
    pub last_day: Option<i64>,
    /// Whether each day is shown.
    pub by_day: bool,
}

/// The allowance of a team in this month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowanceState {
    /// The allowance, in millionths of a credit.
    pub micro_credits: u64,
    /// What is used of it.
    pub used_micro_credits: u64,
    /// When the next month begins.
    pub renews_at: Moment,
}

/// The usage of a team, or of all teams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageSummary {
    /// The first day that is counted.
    pub first_day: i64,
    /// The last day that is counted.
    pub last_day: i64,
    /// The sum.
    pub totals: UsageTotals,
    /// What is stored now. `None` if the query is about one key, because what is stored belongs to
    /// the team.
    pub stored_bytes: Option<u64>,
    /// The bytes that executions read and wrote in connections and volumes.
    pub storage: Vec<StorageTraffic>,
    /// The allowance of the team, if it has one.
    pub allowance: Option<AllowanceState>,
    /// The days with any usage, if they were asked for.
    pub days: Option<Vec<(i64, UsageTotals)>>,
}

/// The account that transferred bytes belong to: the team, the key and the day.
type TransferAccount = (TeamId, Option<KeyId>, i64);

/// What teams used.
pub struct UsageAccounts {
    store: Arc<dyn Store>,
    allowances: CreditAllowances,
    /// Received and sent bytes that are not written yet.
    transfers: Mutex<HashMap<TransferAccount, (u64, u64)>>,
}

impl UsageAccounts {
    pub(crate) fn new(store: Arc<dyn Store>, allowances: CreditAllowances) -> Self {
        Self { store, allowances, transfers: Mutex::default() }
    }

    /// Counts bytes of HTTP bodies.
    pub fn count_transfer(&self, team: &TeamId, key: Option<&KeyId>, received: u64, sent: u64) {
        let account = (team.clone(), key.cloned(), clock::now().utc_day());
        self.add_to_account(account, received, sent);
    }

    fn add_to_account(&self, account: TransferAccount, received: u64, sent: u64) {
        let mut transfers = self.transfers.lock();
        let bytes = transfers.entry(account).or_default();
        *bytes = (bytes.0.saturating_add(received), bytes.1.saturating_add(sent));
    }

    /// Refuses a team whose allowance of this month is used up. Executions under way are not
    /// counted before they end, so a month may exceed its allowance by what they cost.
    pub(crate) async fn check_allowance(&self, team: &Team) -> Result<(), Refusal> {
        let Some(state) = self.allowance_state(team).await? else { return Ok(()) };
        if state.used_micro_credits < state.micro_credits {
            return Ok(());
        }
        let (plan, renews) = (team.plan.display_name(), clock::format_rfc3339(state.renews_at));
        let allowed = display_credits(state.micro_credits);
        let message = format!(
            "the allowance of {allowed} credits a month on the {plan} plan is used up; it renews \
             at {renews}, or ask your administrator to raise it"
        );
        Err(Refusal::new(ErrorCode::RateLimited, message).without_retry())
    }

    async fn allowance_state(&self, team: &Team) -> Result<Option<AllowanceState>, Refusal> {
        let Some(micro_credits) = self.allowances.of_team(team) else { return Ok(None) };
        let (first_day, next_month) = this_month();
        let filter =
            UsageFilter { team: Some(team.id.clone()), key: None, first_day, last_day: i64::MAX };
        let used_micro_credits = self.store.sum_usage(&filter).await?.micro_credits;
        let renews_at = Moment::from_utc_day(next_month);
        Ok(Some(AllowanceState { micro_credits, used_micro_credits, renews_at }))
    }

    /// The usage of a team; of all teams if there is none.
    ///
    /// # Errors
    /// When the days are not a range, or the store cannot be read.
    pub async fn summarize(
        &self,
        team: Option<&Team>,
        query: UsageQuery,
    ) -> Result<UsageSummary, Refusal> {
        let first_day = query.first_day.unwrap_or_else(|| this_month().0);
        let last_day = query.last_day.unwrap_or_else(|| clock::now().utc_day());
        if first_day > last_day {
            return Err(Invalid::new("from must not be after to").into());
        }
        if query.by_day && last_day - first_day >= MOST_DAYS {
            let message = format!("by=day shows at most {MOST_DAYS} days; choose from and to");
            return Err(Invalid::new(message).into());
        }
        self.write_transfers().await;
        let stored_bytes = match &query.key {
            Some(_) => None,
            None => Some(self.stored_bytes(team).await?),
        };
        let allowance = match team {
            Some(team) => self.allowance_state(team).await?,
            None => None,
        };
        let team = team.map(|team| team.id.clone());
        let filter = UsageFilter { team, key: query.key, first_day, last_day };
        let totals = self.store.sum_usage(&filter).await?;
        let storage = self.store.storage_traffic(&filter).await?;
        let days = match query.by_day {
            true => Some(self.store.usage_by_day(&filter).await?),
            false => None,
        };
        Ok(UsageSummary { first_day, last_day, totals, stored_bytes, storage, allowance, days })
    }

    /// The usage of each key on each day, of a team or of all teams.
    ///
    /// # Errors
    /// When the days are not a range of at most a year, or the store cannot be read.
    pub async fn list_days(
        &self,
        team: Option<&Team>,
        query: UsageQuery,
    ) -> Result<Vec<(i64, Option<KeyId>, UsageTotals)>, Refusal> {
        let first_day = query.first_day.unwrap_or_else(|| this_month().0);
        let last_day = query.last_day.unwrap_or_else(|| clock::now().utc_day());
        if first_day > last_day {
            return Err(Invalid::new("from must not be after to").into());
        }
        if last_day - first_day >= MOST_DAYS {
            let message = format!("at most {MOST_DAYS} days are shown; choose from and to");
            return Err(Invalid::new(message).into());
        }
        self.write_transfers().await;
        let team = team.map(|team| team.id.clone());
        let filter = UsageFilter { team, key: query.key, first_day, last_day };
        Ok(self.store.usage_by_day_and_key(&filter).await?)
    }

    async fn stored_bytes(&self, team: Option<&Team>) -> Result<u64, Refusal> {
        Ok(match team {
            Some(team) => self.store.storage_usage(&team.id).await?.total(),
            None => {
                let usages = self.store.storage_usages().await?;
                usages.iter().fold(0, |sum, (_, usage)| sum.saturating_add(usage.total()))
            }
        })
    }

    /// Writes transferred bytes at intervals, and once more when the engine closes.
    pub(crate) async fn record_transfers(self: Arc<Self>, closing: CancellationToken) {
        while !closing.is_cancelled() {
            tokio::select! {
                () = tokio::time::sleep(RECORD_EVERY) => {}
                () = closing.cancelled() => {}
            }
            self.write_transfers().await;
        }
    }

    /// Writes the bytes that were transferred so far. What could not be written is kept.
    async fn write_transfers(&self) {
        let taken = std::mem::take(&mut *self.transfers.lock());
        if taken.is_empty() {
            return;
        }
        let transfer = |(account, bytes): (&TransferAccount, &(u64, u64))| {
            let (team, key, day) = account.clone();
            Transfer { team, key, day, received_bytes: bytes.0, sent_bytes: bytes.1 }
        };
        let transfers = taken.iter().map(transfer).collect();
        if let Err(error) = self.store.add_transfers(transfers).await {
            tracing::error!(%error, "transferred bytes were not written; they are tried again");
            for (account, (received, sent)) in taken {
                self.add_to_account(account, received, sent);
            }
        }
    }

    /// Brings the metrics of usage up to date.
    pub(crate) async fn show_usage(&self, metrics: &UsageMetrics) {
        match self.store.usage_by_team(this_month().0).await {
            Ok(usages) => metrics.set_gauges(&usages),
            Err(error) => tracing::error!(%error, "usage could not be read"),
        }
        let first_day = this_month().0;
        let all = UsageFilter { team: None, key: None, first_day, last_day: i64::MAX };
        match self.store.storage_traffic(&all).await {
            Ok(traffic) => metrics.set_storage(&traffic),
            Err(error) => tracing::error!(%error, "the usage of storage could not be read"),
        }
    }
}

/// The first day of this month and of the next.
fn this_month() -> (i64, i64) {
    let today = clock::now().utc_day();
    // Only a day some ten thousand years away has no date.
    clock::month_around(today).unwrap_or((today, today))
}

/// Credits with as many digits as they need.
fn display_credits(micro: u64) -> String {
    let text = format!("{}.{:06}", micro / 1_000_000, micro % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_are_shown_without_needless_digits() {
        assert_eq!(display_credits(5_000_000), "5");
        assert_eq!(display_credits(100_000_000), "100");
        assert_eq!(display_credits(1_500), "0.0015");
        assert_eq!(display_credits(0), "0");
    }
}
