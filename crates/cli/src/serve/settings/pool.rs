//! Runs in: server (no capabilities).
//!
//! Parked cells: `[pool]` of the file.

use std::time::Duration;

use cloche_executor::PoolSettings;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{SettingsError, parse_size};

/// The section of the file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PoolFile {
    /// The fewest parked cells of a configuration that is in use.
    #[schemars(extend("default" = 2))]
    floor: Option<usize>,
    /// The parked cells of such a configuration that a template forks while the host is quiet, for
    /// the next burst. Each takes about 1.5 MiB.
    #[schemars(extend("default" = 112))]
    quiet_forks: Option<usize>,
    /// The most parked cells of one configuration.
    #[schemars(extend("default" = 128))]
    ceiling: Option<usize>,
    /// The most memory of all parked cells together.
    #[schemars(extend("default" = "2G"))]
    memory: Option<String>,
    /// Forks after which a template is replaced.
    #[schemars(extend("default" = 20000))]
    template_forks: Option<u32>,
    /// Age at which a template is replaced.
    #[schemars(extend("default" = 3600))]
    template_age_seconds: Option<u64>,
    /// Seconds for which a configuration is kept warm after its last use.
    #[schemars(extend("default" = 600))]
    idle_seconds: Option<u64>,
}

pub(super) fn pool_settings(file: &PoolFile) -> Result<PoolSettings, SettingsError> {
    let usual = PoolSettings::default();
    let seconds = |value: Option<u64>, usual| value.map_or(usual, Duration::from_secs);
    Ok(PoolSettings {
        floor: file.floor.unwrap_or(usual.floor),
        quiet_forks: file.quiet_forks.unwrap_or(usual.quiet_forks),
        ceiling: file.ceiling.unwrap_or(usual.ceiling),
        memory: parse_size("pool.memory", &file.memory)?.unwrap_or(usual.memory),
        template_forks: file.template_forks.unwrap_or(usual.template_forks),
        template_age: seconds(file.template_age_seconds, usual.template_age),
        idle: seconds(file.idle_seconds, usual.idle),
    })
}
