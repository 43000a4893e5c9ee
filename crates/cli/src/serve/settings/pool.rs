//! Runs in: server (no capabilities).
//!
//! Parked cells: `[pool]` of the file.

use std::time::Duration;

use cloche_executor::PoolSettings;
use serde::Deserialize;

use super::{SettingsError, parse_size};

/// The section of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PoolFile {
    floor: Option<usize>,
    ceiling: Option<usize>,
    memory: Option<String>,
    template_forks: Option<u32>,
    template_age_seconds: Option<u64>,
    idle_seconds: Option<u64>,
}

pub(super) fn pool_settings(file: &PoolFile) -> Result<PoolSettings, SettingsError> {
    let usual = PoolSettings::default();
    let seconds = |value: Option<u64>, usual| value.map_or(usual, Duration::from_secs);
    Ok(PoolSettings {
        floor: file.floor.unwrap_or(usual.floor),
        ceiling: file.ceiling.unwrap_or(usual.ceiling),
        memory: parse_size("pool.memory", &file.memory)?.unwrap_or(usual.memory),
        template_forks: file.template_forks.unwrap_or(usual.template_forks),
        template_age: seconds(file.template_age_seconds, usual.template_age),
        idle: seconds(file.idle_seconds, usual.idle),
    })
}
