//! Runs in: server (no capabilities).
//!
//! Threads and their homes: `[threads]` of the file.

use std::time::Duration;

use cloche_engine::HomesConfig;
use serde::Deserialize;

use super::{SettingsError, parse_size};

/// The section of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ThreadsFile {
    /// The maximum size of a home, whatever the plan allows.
    bytes: Option<String>,
    entries: Option<u64>,
    squash_depth: Option<usize>,
    url_seconds: Option<u64>,
    upload: Option<String>,
}

pub(super) fn homes_config(file: &ThreadsFile) -> Result<HomesConfig, SettingsError> {
    let mut homes = HomesConfig::default();
    homes.cap.bytes = parse_size("threads.bytes", &file.bytes)?.unwrap_or(homes.cap.bytes);
    homes.cap.inodes = file.entries.unwrap_or(homes.cap.inodes);
    homes.upload = parse_size("threads.upload", &file.upload)?.unwrap_or(homes.upload);
    homes.url_expiry = file.url_seconds.map_or(homes.url_expiry, Duration::from_secs);
    homes.squash_depth = file.squash_depth.unwrap_or(homes.squash_depth);
    if homes.squash_depth < 2 {
        return Err(SettingsError::SquashDepth);
    }
    Ok(homes)
}
