//! Runs in: server (no capabilities).
//!
//! The wire format of usage by day and key.

use cloche_engine::{UsageTotals, format_utc_day};
use cloche_model::KeyId;
use serde::Serialize;
use utoipa::ToSchema;

use super::execution::micro_to_credits;

/// What a key used on a day.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UsageRow {
    /// The day in UTC.
    #[schema(format = Date)]
    day: String,
    /// Null for transfers of an operator.
    key_id: Option<String>,
    /// Null if the key was deleted.
    key_name: Option<String>,
    executions: u64,
    credits: f64,
    wall_ms: u64,
    cpu_ms: u64,
    received_bytes: u64,
    sent_bytes: u64,
    network_in_bytes: u64,
    network_out_bytes: u64,
}

impl UsageRow {
    pub(crate) fn new(
        day: i64,
        key: Option<KeyId>,
        key_name: Option<String>,
        totals: &UsageTotals,
    ) -> Self {
        Self {
            day: format_utc_day(day),
            key_id: key.map(Into::into),
            key_name,
            executions: totals.executions,
            credits: micro_to_credits(totals.micro_credits),
            wall_ms: totals.wall_ms,
            cpu_ms: totals.cpu_ms,
            received_bytes: totals.received_bytes,
            sent_bytes: totals.sent_bytes,
            network_in_bytes: totals.network_in_bytes,
            network_out_bytes: totals.network_out_bytes,
        }
    }
}

/// Usage by day and key.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UsageRows {
    /// Oldest first.
    pub(crate) rows: Vec<UsageRow>,
}

impl UsageRows {
    /// The rows as a table. Ids and names have no comma and no quote, and begin with a letter or
    /// digit, so that no program takes them for a formula.
    pub(crate) fn to_csv(&self) -> String {
        let mut text = String::from(
            "day,key_id,key_name,executions,credits,wall_ms,cpu_ms,received_bytes,sent_bytes,\
             network_in_bytes,network_out_bytes\n",
        );
        for row in &self.rows {
            text.push_str(&format!(
                "{},{},{},{},{},{},{},{},{},{},{}\n",
                row.day,
                row.key_id.as_deref().unwrap_or_default(),
                row.key_name.as_deref().unwrap_or_default(),
                row.executions,
                row.credits,
                row.wall_ms,
                row.cpu_ms,
                row.received_bytes,
                row.sent_bytes,
                row.network_in_bytes,
                row.network_out_bytes,
            ));
        }
        text
    }
}
