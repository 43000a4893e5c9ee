//! Runs in: server (no capabilities).
//!
//! The gates in front of agent tools: `[gates]` of the file.

use std::time::Duration;

use cloche_engine::GateConfig;
use schemars::JsonSchema;
use serde::Deserialize;

/// The gates in front of agent tools. Settings of teams are not here.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct GateFile {
    /// Seconds after which a request for approval expires.
    #[schemars(extend("default" = 900))]
    approval_seconds: Option<u64>,
    /// The most approvals of one team that may be open.
    #[schemars(extend("default" = 100))]
    pending_per_team: Option<u32>,
    /// The most calls of one team that may wait for an approval.
    #[schemars(extend("default" = 32))]
    waiting_per_team: Option<usize>,
    /// Days for which decisions are kept.
    #[schemars(extend("default" = 365))]
    keep_days: Option<u32>,
}

pub(super) fn gate_config(file: &GateFile) -> GateConfig {
    let usual = GateConfig::default();
    let days = |days| Duration::from_hours(24 * u64::from(days));
    GateConfig {
        lifetime: file.approval_seconds.map_or(usual.lifetime, Duration::from_secs),
        pending: file.pending_per_team.unwrap_or(usual.pending),
        waiting: file.waiting_per_team.unwrap_or(usual.waiting),
        keep: file.keep_days.map_or(usual.keep, days),
    }
}
