//! Runs in: server (no capabilities).
//!
//! Storage use of each team, as counters that are updated in the transaction of every row that they
//! count, and the deletion of history so that a team stays within its budget.

use std::collections::HashMap;

use async_trait::async_trait;
use cloche_model::{LayerDigest, Moment, TeamId, ThreadId};

use crate::{Result, ThreadKey};

/// The storage use of one team.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StorageUsage {
    /// Its distinct layers, each counted by [`cloche_model::Layer::disk_bytes`].
    pub layer_bytes: u64,
    /// Its rows: code, output and metadata of executions, snapshots, responses.
    pub row_bytes: u64,
}

impl StorageUsage {
    /// The sum of layers and rows.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.layer_bytes.saturating_add(self.row_bytes)
    }
}

/// Which snapshots of a thread are dropped. A snapshot is dropped only if every rule that is set
/// applies to it. The head is always kept. Without a rule nothing is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryRule {
    /// All except this many of the newest.
    pub keep: Option<u64>,
    /// Those older than this.
    pub before: Option<Moment>,
}

/// The outcome of an attempt to drop a part of a thread's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryPruneOutcome {
    /// The snapshots were dropped, which is durable.
    Done(PrunedRows),
    /// An execution holds the thread.
    Busy,
    /// The thread does not exist.
    Missing,
}

/// The dropped rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrunedRows {
    /// The number of snapshots or records.
    pub rows: u64,
    /// Layers that they referred to. Other rows may still refer to them.
    pub layers: Vec<LayerDigest>,
}

/// The storage use of each team.
#[async_trait]
pub trait StorageAccounting: Send + Sync {
    /// The storage use of one team.
    async fn storage_usage(&self, team: &TeamId) -> Result<StorageUsage>;
    /// The storage use of every team that has any.
    async fn storage_usages(&self) -> Result<Vec<(TeamId, StorageUsage)>>;
    /// Threads of a team with snapshots that the rule drops.
    async fn threads_to_prune(&self, team: &TeamId, rule: HistoryRule) -> Result<Vec<ThreadId>>;
    /// Drops snapshots of a thread, and the files of their executions that no other snapshot has.
    async fn prune_thread(
        &self,
        key: &ThreadKey,
        rule: HistoryRule,
        now: Moment,
    ) -> Result<HistoryPruneOutcome>;
    /// Drops the files of executions whose snapshots are gone, and the oldest records beyond
    /// `keep`. At most a thousand at once.
    async fn prune_records(&self, team: &TeamId, keep: u64) -> Result<PrunedRows>;
    /// The layers in the history of a thread.
    async fn thread_layers(&self, key: &ThreadKey) -> Result<Vec<LayerDigest>>;
    /// Whether a row of any team refers to this layer.
    async fn is_layer_needed(&self, layer: &LayerDigest) -> Result<bool>;
    /// Recounts everything. `sizes` has the stored size of every layer.
    async fn recount_storage(&self, sizes: &HashMap<LayerDigest, u64>) -> Result<()>;
}
