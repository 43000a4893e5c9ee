//! Runs in: server (no capabilities).
//!
//! Storage budgets: `[storage]` of the file, with a table for each plan.

use cloche_engine::{PlanStorage, StorageConfig, StorageReserve};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{SettingsError, parse_size};

/// The section of the file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct StorageFile {
    /// Free bytes below which new data is refused.
    #[schemars(extend("x-default" = "2 % or 1 GiB, whichever is more, but 10 % at most"))]
    reserve: Option<String>,
    /// Free inodes below which new data is refused.
    #[schemars(extend("x-default" = "2 %"))]
    reserve_inodes: Option<u64>,
    /// Exports of one team at once.
    #[schemars(extend("default" = 4))]
    exports: Option<u32>,
    /// Seconds that an export may stall because its reader does not read.
    #[schemars(extend("default" = 60))]
    export_stall_seconds: Option<u64>,
    /// What a team on the plan free may store.
    free: PlanFile,
    /// What a team on the plan pro may store.
    pro: PlanFile,
    /// What a team on the plan enterprise may store.
    enterprise: PlanFile,
}

/// What a team of a plan may store, and how much of its history is kept.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct PlanFile {
    /// The budget of a team: a size, or `none` for no limit.
    #[schemars(extend("x-default" = "4G on free, 40G on pro, none on enterprise"))]
    bytes: Option<String>,
    /// So many of the newest snapshots of a thread survive pruning.
    #[schemars(extend("x-default" = "10 on free, 50 on the others; none if `days` is set"))]
    keep: Option<u64>,
    /// Snapshots younger than so many days survive pruning, too.
    #[schemars(extend("x-default" = "none"))]
    days: Option<u32>,
    /// So many of the newest execution records survive pruning.
    #[schemars(extend("default" = 1000))]
    records: Option<u64>,
}

pub(super) fn storage_config(file: &StorageFile) -> Result<StorageConfig, SettingsError> {
    let usual = StorageConfig::default();
    let stall = file.export_stall_seconds.map(std::time::Duration::from_secs);
    Ok(StorageConfig {
        free: plan_storage("storage.free.bytes", &file.free, usual.free)?,
        pro: plan_storage("storage.pro.bytes", &file.pro, usual.pro)?,
        enterprise: plan_storage("storage.enterprise.bytes", &file.enterprise, usual.enterprise)?,
        reserve: StorageReserve {
            bytes: parse_size("storage.reserve", &file.reserve)?,
            inodes: file.reserve_inodes,
        },
        exports: file.exports.unwrap_or(usual.exports),
        export_stall: stall.unwrap_or(usual.export_stall),
    })
}

fn plan_storage(
    name: &'static str,
    file: &PlanFile,
    usual: PlanStorage,
) -> Result<PlanStorage, SettingsError> {
    let bytes = match file.bytes.as_deref() {
        Some("none") => None,
        Some(_) => parse_size(name, &file.bytes)?,
        None => usual.bytes,
    };
    // A rule that is set replaces the default one. The head is always kept.
    let keep = match (file.keep, file.days) {
        (None, Some(_)) => None,
        (keep, _) => keep.or(usual.keep).map(|keep| keep.max(1)),
    };
    let days = file.days.or(usual.days);
    Ok(PlanStorage { bytes, keep, days, records: file.records.unwrap_or(usual.records) })
}

#[cfg(test)]
mod tests {
    use cloche_model::ByteSize;

    use super::*;

    #[test]
    fn budgets_are_read_by_plan() {
        let text = "reserve = \"8M\"\n[free]\nbytes = \"50M\"\ndays = 7\n[pro]\nbytes = \"none\"\n";
        let file: StorageFile = toml::from_str(text).unwrap();
        let config = storage_config(&file).unwrap();
        assert_eq!(config.reserve.bytes, Some(ByteSize::mib(8)));
        assert_eq!(config.free.bytes, Some(ByteSize::mib(50)));
        assert_eq!((config.free.keep, config.free.days), (None, Some(7)));
        assert_eq!((config.pro.bytes, config.pro.keep), (None, Some(50)));
        let wrong: StorageFile = toml::from_str("[free]\nbytes = \"much\"").unwrap();
        let error = storage_config(&wrong).unwrap_err();
        assert!(error.to_string().contains("storage.free.bytes"), "{error}");
    }
}
