//! Runs in: server (no capabilities).
//!
//! What teams and keys used on each day: executions and their cost, which are counted in the
//! transaction of their outcome, and bytes that were transferred.

use async_trait::async_trait;
use cloche_model::{KeyId, TeamId};

use crate::Result;

/// What was used in some days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageTotals {
    /// Executions that ended. Refused ones do not count.
    pub executions: u64,
    /// What they cost, in millionths of a credit.
    pub micro_credits: u64,
    /// Their wall-clock time.
    pub wall_ms: u64,
    /// Their processor time.
    pub cpu_ms: u64,
    /// Bytes of request bodies.
    pub received_bytes: u64,
    /// Bytes of response bodies.
    pub sent_bytes: u64,
    /// Bytes that programs received over the networks of their sandboxes.
    pub network_in_bytes: u64,
    /// Bytes that they sent.
    pub network_out_bytes: u64,
    /// Calls of web tools that a provider answered.
    pub tool_calls: u64,
    /// What they cost, in millionths of a dollar.
    pub tool_micro_dollars: u64,
}

/// Which usage is summed up. Days are counted from 1970-01-01 in UTC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageFilter {
    /// Of one team; `None` is all teams.
    pub team: Option<TeamId>,
    /// Of one key; `None` is all keys.
    pub key: Option<KeyId>,
    /// From this day on.
    pub first_day: i64,
    /// Up to this day, inclusive.
    pub last_day: i64,
}

/// Bytes that a key transferred on one day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The team.
    pub team: TeamId,
    /// The key; `None` for a URL that the admin token signed.
    pub key: Option<KeyId>,
    /// The day.
    pub day: i64,
    /// Bytes of request bodies.
    pub received_bytes: u64,
    /// Bytes of response bodies.
    pub sent_bytes: u64,
}

/// What teams and keys used.
#[async_trait]
pub trait UsageAccounting: Send + Sync {
    /// Adds transferred bytes to their days.
    async fn add_transfers(&self, transfers: Vec<Transfer>) -> Result<()>;
    /// The sum of the days.
    async fn sum_usage(&self, filter: &UsageFilter) -> Result<UsageTotals>;
    /// The days with any usage, oldest first.
    async fn usage_by_day(&self, filter: &UsageFilter) -> Result<Vec<(i64, UsageTotals)>>;
    /// The days of each key with any usage, oldest first. Transfers of an operator have no key.
    async fn usage_by_day_and_key(
        &self,
        filter: &UsageFilter,
    ) -> Result<Vec<(i64, Option<KeyId>, UsageTotals)>>;
    /// The usage of each team that has any since this day, in the order of their ids.
    async fn usage_by_team(&self, first_day: i64) -> Result<Vec<(TeamId, UsageTotals)>>;
}
