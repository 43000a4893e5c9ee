//! Threads as rows: heads, snapshots (points), and leases.

use std::{collections::HashSet, time::Duration};

use async_trait::async_trait;
use cloche_model::{
    HomeState, HomeUsage, Layer, LayerDigest, Moment, SnapshotKind, SnapshotRef, TeamId, Thread,
    ThreadId, ThreadSnapshot, TraceId,
};

use crate::Result;

/// A thread of a team.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ThreadKey {
    /// The team.
    pub team: TeamId,
    /// The name that the team gave it.
    pub id: ThreadId,
}

/// The outcome of an attempt to move a head. Only `Done` wrote anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeadMoveOutcome {
    /// The thread after the change, which is durable.
    Done(Thread),
    /// An execution holds the thread.
    Busy,
    /// The thread or the snapshot does not exist.
    Missing,
    /// A thread of this name exists already.
    Taken,
    /// The head is not the expected one.
    Stale,
    /// The home is not in the state that was approved.
    Changed,
    /// The team's budget would be exceeded.
    OverBudget,
}

/// A layer to append to a thread that no execution holds.
#[derive(Clone, Debug)]
pub struct LayerAppend {
    /// The thread, which is created if it does not exist.
    pub thread: ThreadKey,
    /// The head for which the layer was made; 0 if the thread did not exist.
    pub head: u64,
    /// The layer.
    pub layer: Layer,
    /// The kind of the new snapshot.
    pub kind: SnapshotKind,
    /// The time of the change.
    pub at: Moment,
    /// When the change was allowed. [`HeadMoveOutcome::Missing`] if a thread of this name was
    /// deleted since.
    pub allowed_at: Option<Moment>,
    /// The state that was approved, if approval was needed. [`HeadMoveOutcome::Changed`] if the
    /// thread is in another state.
    pub approved: Option<HomeState>,
    /// The maximum that the team may store afterwards. `None` is no limit.
    pub budget: Option<u64>,
}

/// How long a deletion is remembered: longer than any change can be allowed in advance.
pub const DELETED_KEPT: Duration = Duration::from_secs(8 * 86_400);

/// A thread to create from layers.
#[derive(Clone, Debug)]
pub struct ThreadCreation {
    /// The thread.
    pub thread: ThreadKey,
    /// The kind of its first snapshot.
    pub kind: SnapshotKind,
    /// Its layers, oldest first.
    pub layers: Vec<Layer>,
    /// The usage of its layers.
    pub usage: HomeUsage,
    /// The time of the change.
    pub at: Moment,
    /// The maximum that the team may store afterwards. `None` is no limit.
    pub budget: Option<u64>,
}

/// A thread to create from a snapshot of another.
#[derive(Clone, Debug)]
pub struct ThreadFork {
    /// The source thread.
    pub source: ThreadKey,
    /// The number of the snapshot.
    pub seq: u64,
    /// The new thread.
    pub thread: ThreadId,
    /// The time of the change.
    pub at: Moment,
    /// The maximum that the team may store afterwards. `None` is no limit.
    pub budget: Option<u64>,
}

/// A squash: one layer replaces the lowest layers of a stack.
#[derive(Clone, Debug)]
pub struct LayerSquash {
    /// The thread.
    pub thread: ThreadKey,
    /// The replaced layers, oldest first.
    pub layers: Vec<LayerDigest>,
    /// The new layer. `None` if the layers have no content.
    pub by: Option<Layer>,
    /// The time of the change.
    pub at: Moment,
    /// The maximum that the team may store afterwards. `None` is no limit.
    pub budget: Option<u64>,
}

/// Threads: homes that outlive executions.
#[async_trait]
pub trait ThreadStore: Send + Sync {
    /// One thread.
    async fn find_thread(&self, key: &ThreadKey) -> Result<Option<Thread>>;
    /// The threads of a team, sorted by name, after this one.
    async fn list_threads(
        &self,
        team: &TeamId,
        after: Option<&ThreadId>,
        limit: u32,
    ) -> Result<Vec<Thread>>;
    /// Whether an execution holds the thread.
    async fn is_thread_held(&self, key: &ThreadKey, now: Moment) -> Result<bool>;
    /// The snapshots of a thread before this number, newest first.
    async fn list_points(
        &self,
        key: &ThreadKey,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Vec<ThreadSnapshot>>;
    /// One snapshot of a thread.
    async fn find_point(
        &self,
        key: &ThreadKey,
        name: &SnapshotRef,
    ) -> Result<Option<ThreadSnapshot>>;
    /// Extends an execution's lease of its thread. Returns false if it no longer holds the thread.
    async fn renew_lease(&self, trace: &TraceId, until: Moment) -> Result<bool>;
    /// Appends a layer.
    async fn append_layer(&self, append: LayerAppend) -> Result<HeadMoveOutcome>;
    /// Creates a thread.
    async fn create_thread(&self, creation: ThreadCreation) -> Result<HeadMoveOutcome>;
    /// Creates a thread from a snapshot of another.
    async fn fork_thread(&self, fork: ThreadFork) -> Result<HeadMoveOutcome>;
    /// Restores a snapshot as a new snapshot.
    async fn roll_back_thread(
        &self,
        key: &ThreadKey,
        seq: u64,
        at: Moment,
        budget: Option<u64>,
    ) -> Result<HeadMoveOutcome>;
    /// Replaces several layers by one. The content of the home does not change, so an execution
    /// that holds the thread keeps it. [`HeadMoveOutcome::Stale`] if the stack does not begin with
    /// these layers any more.
    async fn squash_layers(&self, squash: LayerSquash) -> Result<HeadMoveOutcome>;
    /// Writes the counted usage, unless the head has moved since.
    async fn record_home_usage(&self, key: &ThreadKey, head: u64, usage: HomeUsage) -> Result<()>;
    /// Whether a thread of this name was deleted at this time or later.
    async fn was_thread_deleted_since(&self, key: &ThreadKey, moment: Moment) -> Result<bool>;
    /// Deletes a thread with all its snapshots. Returns its last state.
    async fn delete_thread(&self, key: &ThreadKey, at: Moment) -> Result<HeadMoveOutcome>;
    /// Every layer that a thread, a snapshot or an execution refers to.
    async fn layers_in_use(&self) -> Result<HashSet<LayerDigest>>;
}
