//! Runs in: server (no capabilities).
//!
//! What the data of each team takes, as counters that are kept in the transaction of every row that
//! they count; and what is dropped of the past so that a team stays within its budget.

use std::collections::HashMap;

use async_trait::async_trait;
use cloche_model::{LayerDigest, Moment, TeamId, ThreadId};

use crate::{Result, ThreadKey};

/// What the data of one team takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StorageUsage {
    /// Its distinct layers, each as [`cloche_model::Layer::charge`] counts it.
    pub layer_bytes: u64,
    /// Its rows: code, output and metadata of executions, points, responses.
    pub row_bytes: u64,
}

impl StorageUsage {
    /// All of it.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.layer_bytes.saturating_add(self.row_bytes)
    }
}

/// Which points of a thread are dropped. A point goes only if every rule that is set says so; the
/// head always stays. Without a rule nothing goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryRule {
    /// All but so many of the newest.
    pub keep: Option<u64>,
    /// Those that are older.
    pub before: Option<Moment>,
}

/// What became of an attempt to drop a part of a thread's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryPruneOutcome {
    /// It is dropped, and durable.
    Done(PrunedRows),
    /// An execution holds the thread.
    Busy,
    /// There is no such thread.
    Missing,
}

/// What was dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrunedRows {
    /// Points or records.
    pub rows: u64,
    /// Layers that they needed. Others may still need them.
    pub layers: Vec<LayerDigest>,
}

/// What the data of each team takes.
#[async_trait]
pub trait StorageAccounting: Send + Sync {
    /// What one team's data takes.
    async fn storage_usage(&self, team: &TeamId) -> Result<StorageUsage>;
    /// The same for every team that has any.
    async fn storage_usages(&self) -> Result<Vec<(TeamId, StorageUsage)>>;
    /// Threads of a team that the rule would take points from.
    async fn threads_to_prune(&self, team: &TeamId, rule: HistoryRule) -> Result<Vec<ThreadId>>;
    /// Drops points of a thread, and the files of their executions as far as only they had them.
    async fn prune_thread(
        &self,
        key: &ThreadKey,
        rule: HistoryRule,
        now: Moment,
    ) -> Result<HistoryPruneOutcome>;
    /// Drops the files of executions whose points are gone, and the oldest records beyond so many;
    /// at most a thousand at once.
    async fn prune_records(&self, team: &TeamId, keep: u64) -> Result<PrunedRows>;
    /// The layers in the history of a thread.
    async fn thread_layers(&self, key: &ThreadKey) -> Result<Vec<LayerDigest>>;
    /// Whether any team needs this layer.
    async fn is_layer_needed(&self, layer: &LayerDigest) -> Result<bool>;
    /// Counts everything anew. `sizes` has the size of every layer as stored.
    async fn recount_storage(&self, sizes: &HashMap<LayerDigest, u64>) -> Result<()>;
}
