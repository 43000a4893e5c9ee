//! Runs in: server (no capabilities).
//!
//! Threads and their homes: `[threads]` of the file.

use std::time::Duration;

use cloche_engine::HomesConfig;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{SettingsError, parse_size};

/// The section of the file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ThreadsFile {
    /// The largest home, whatever the plan allows.
    #[schemars(extend("default" = "64G"))]
    bytes: Option<String>,
    /// The most files and directories of a home.
    #[schemars(extend("default" = 4000000))]
    entries: Option<u64>,
    /// Layers of a home above which they are merged; 2 or more.
    #[schemars(extend("default" = 16))]
    squash_depth: Option<usize>,
    /// Seconds for which a signed URL is valid.
    #[schemars(extend("default" = 900))]
    url_seconds: Option<u64>,
    /// The largest file that can be uploaded.
    #[schemars(extend("default" = "10G"))]
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
