//! Runs in: server (no capabilities).
//!
//! The wire format of usage.

use cloche_engine::{
    AllowanceState, StorageTraffic, UsageSummary, UsageTotals, format_rfc3339, format_utc_day,
};
use cloche_model::{KeyId, TeamId};
use serde::Serialize;
use utoipa::ToSchema;

use super::execution::micro_to_credits;

/// What was used in some days.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UsageCounts {
    /// Executions that ended; refused ones do not count.
    executions: u64,
    /// One credit is a minute at one core and 1 GiB: minutes × (cores + GiB) / 2.
    credits: f64,
    /// Processor time of the programs.
    cpu_seconds: f64,
    /// Bytes of request bodies.
    bytes_received: u64,
    /// Bytes of response bodies.
    bytes_sent: u64,
    /// The sum of both.
    bytes_transferred: u64,
    /// Bytes that programs received over the networks of their sandboxes.
    network_bytes_in: u64,
    /// Bytes that programs sent over them.
    network_bytes_out: u64,
    /// Calls of web tools that a provider answered, of models and of code.
    tool_calls: u64,
    /// What these calls cost, in dollars.
    tool_calls_cost: f64,
}

impl From<UsageTotals> for UsageCounts {
    #[expect(clippy::cast_precision_loss, reason = "a count of milliseconds, shown to people")]
    fn from(totals: UsageTotals) -> Self {
        Self {
            executions: totals.executions,
            credits: micro_to_credits(totals.micro_credits),
            cpu_seconds: totals.cpu_ms as f64 / 1e3,
            bytes_received: totals.received_bytes,
            bytes_sent: totals.sent_bytes,
            bytes_transferred: totals.received_bytes.saturating_add(totals.sent_bytes),
            network_bytes_in: totals.network_in_bytes,
            network_bytes_out: totals.network_out_bytes,
            tool_calls: totals.tool_calls,
            tool_calls_cost: micro_to_credits(totals.tool_micro_dollars),
        }
    }
}

/// What was used on one day.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UsageDayRecord {
    /// The day in UTC.
    #[schema(format = Date)]
    date: String,
    #[serde(flatten)]
    counts: UsageCounts,
}

/// The allowance of a team in this month.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AllowanceRecord {
    monthly_credits: f64,
    used_credits: f64,
    /// The start of the next month in UTC.
    #[schema(format = DateTime)]
    renews_at: String,
}

impl From<AllowanceState> for AllowanceRecord {
    fn from(state: AllowanceState) -> Self {
        Self {
            monthly_credits: micro_to_credits(state.micro_credits),
            used_credits: micro_to_credits(state.used_micro_credits),
            renews_at: format_rfc3339(state.renews_at),
        }
    }
}

/// The bytes that executions read and wrote in one connection or volume.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StorageTrafficRecord {
    team_id: String,
    name: String,
    bytes_read: u64,
    bytes_written: u64,
}

impl From<StorageTraffic> for StorageTrafficRecord {
    fn from(traffic: StorageTraffic) -> Self {
        Self {
            team_id: traffic.team.into(),
            name: traffic.name,
            bytes_read: traffic.read_bytes,
            bytes_written: traffic.written_bytes,
        }
    }
}

/// The usage of a team, or of all teams.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UsageReply {
    /// The team; null for all teams.
    team_id: Option<String>,
    /// The key; null for all keys.
    key_id: Option<String>,
    /// The first day that is counted, in UTC.
    #[schema(format = Date)]
    from: String,
    /// The last day that is counted, in UTC.
    #[schema(format = Date)]
    to: String,
    #[serde(flatten)]
    counts: UsageCounts,
    /// What is stored now; null for one key, because what is stored belongs to the team.
    bytes_stored: Option<u64>,
    /// The bytes that executions read and wrote in connections and volumes.
    storage: Vec<StorageTrafficRecord>,
    /// The monthly allowance of the team; null if there is none.
    allowance: Option<AllowanceRecord>,
    /// The days with any usage, oldest first. Only with `by=day`.
    #[serde(skip_serializing_if = "Option::is_none")]
    days: Option<Vec<UsageDayRecord>>,
}

impl UsageReply {
    pub(crate) fn new(team: Option<TeamId>, key: Option<KeyId>, summary: UsageSummary) -> Self {
        let day = |(day, totals): (i64, UsageTotals)| UsageDayRecord {
            date: format_utc_day(day),
            counts: totals.into(),
        };
        Self {
            team_id: team.map(Into::into),
            key_id: key.map(Into::into),
            from: format_utc_day(summary.first_day),
            to: format_utc_day(summary.last_day),
            counts: summary.totals.into(),
            bytes_stored: summary.stored_bytes,
            storage: summary.storage.into_iter().map(Into::into).collect(),
            allowance: summary.allowance.map(Into::into),
            days: summary.days.map(|days| days.into_iter().map(day).collect()),
        }
    }
}
