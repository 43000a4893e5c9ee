//! Runs in: server (no capabilities).
//!
//! The settings of storage budgets, with their defaults.

use std::time::Duration;

use cloche_model::{ByteSize, TeamPlan};

/// Settings of storage budgets.
#[derive(Clone, Debug)]
pub struct StorageConfig {
    /// Teams of the free plan.
    pub free: PlanStorage,
    /// Teams of the pro plan.
    pub pro: PlanStorage,
    /// Teams of the enterprise plan.
    pub enterprise: PlanStorage,
    /// The part of the disk that is kept free of new data.
    pub reserve: StorageReserve,
    /// Exports of one team at once.
    pub exports: u32,
    /// How long the reader of an export may read nothing.
    pub export_stall: Duration,
}

/// What a team of a plan may store, and what pruning keeps when that is not enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanStorage {
    /// The most that a team may store; none is no limit.
    pub bytes: Option<ByteSize>,
    /// So many of the newest snapshots of a thread are kept.
    pub keep: Option<u64>,
    /// Snapshots younger than so many days are kept, too.
    pub days: Option<u32>,
    /// The newest execution records that are not pruned.
    pub records: u64,
}

/// The part of the file system of the data directory that is kept free of new data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageReserve {
    /// Free bytes; if absent the larger of 2 % and 1 GiB, but no more than 10 % of it.
    pub bytes: Option<ByteSize>,
    /// Free inodes; if absent 2 % of them.
    pub inodes: Option<u64>,
}

impl StorageConfig {
    /// What a team of this plan may store.
    #[must_use]
    pub const fn of_plan(&self, plan: TeamPlan) -> PlanStorage {
        match plan {
            TeamPlan::Free => self.free,
            TeamPlan::Pro => self.pro,
            TeamPlan::Enterprise => self.enterprise,
        }
    }
}

impl Default for StorageConfig {
    fn default() -> Self {
        let plan = |gib: u64, keep| PlanStorage {
            bytes: Some(ByteSize::gib(gib)),
            keep: Some(keep),
            days: None,
            records: 1000,
        };
        Self {
            free: plan(4, 10),
            pro: plan(40, 50),
            enterprise: PlanStorage { bytes: None, ..plan(0, 50) },
            reserve: StorageReserve { bytes: None, inodes: None },
            exports: 4,
            export_stall: Duration::from_secs(60),
        }
    }
}
