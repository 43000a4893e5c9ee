//! Threads as rows: heads, points in time, and who may move them.

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
    /// Whose it is.
    pub team: TeamId,
    /// What its owner calls it.
    pub id: ThreadId,
}

/// What became of an attempt to move a head. Only the first of them wrote anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeadMoveOutcome {
    /// The thread as it is now; durable.
    Done(Thread),
    /// Someone holds the thread.
    Busy,
    /// There is no such thread, or no such point of it.
    Missing,
    /// The thread that was to be made is there already.
    Taken,
    /// The head is not the one that was expected.
    Stale,
    /// The home is not in the state that was approved.
    Changed,
    /// The team may not store that much.
    OverBudget,
}

/// A layer to be put on top of a thread that nobody holds.
#[derive(Clone, Debug)]
pub struct LayerAppend {
    /// Which thread; made if it is not there.
    pub thread: ThreadKey,
    /// The head that the layer was made for; 0 if there was no thread.
    pub head: u64,
    /// The layer.
    pub layer: Layer,
    /// How it came to be.
    pub kind: SnapshotKind,
    /// When.
    pub at: Moment,
    /// When it was allowed. [`Moved::Missing`] if a thread of this name was deleted since.
    pub allowed_at: Option<Moment>,
    /// The state that the thread must be in, where one was approved; [`Moved::Changed`] if it is not.
    pub approved: Option<HomeState>,
    /// The most that the team may store then; none is no limit.
    pub budget: Option<u64>,
}

/// How long it is known that a thread was deleted: longer than anything can be allowed ahead.
pub const DELETED_KEPT: Duration = Duration::from_secs(8 * 86_400);

/// A thread to be made from layers.
#[derive(Clone, Debug)]
pub struct ThreadCreation {
    /// Which thread.
    pub thread: ThreadKey,
    /// How it came to be.
    pub kind: SnapshotKind,
    /// Its layers, the oldest first.
    pub layers: Vec<Layer>,
    /// What they hold.
    pub usage: HomeUsage,
    /// When.
    pub at: Moment,
    /// The most that the team may store then; none is no limit.
    pub budget: Option<u64>,
}

/// A thread to be made from a point of another.
#[derive(Clone, Debug)]
pub struct ThreadFork {
    /// The thread that has the point.
    pub source: ThreadKey,
    /// The number of the point.
    pub seq: u64,
    /// The new thread.
    pub thread: ThreadId,
    /// When.
    pub at: Moment,
    /// The most that the team may store then; none is no limit.
    pub budget: Option<u64>,
}

/// Layers at the bottom of a stack that one layer takes the place of.
#[derive(Clone, Debug)]
pub struct LayerSquash {
    /// Which thread.
    pub thread: ThreadKey,
    /// The layers, the oldest first.
    pub layers: Vec<LayerDigest>,
    /// What takes their place; nothing if they come to nothing.
    pub by: Option<Layer>,
    /// When.
    pub at: Moment,
    /// The most that the team may store then; none is no limit.
    pub budget: Option<u64>,
}

/// Homes that outlive a run.
#[async_trait]
pub trait ThreadStore: Send + Sync {
    /// One thread.
    async fn find_thread(&self, key: &ThreadKey) -> Result<Option<Thread>>;
    /// The threads of a team by name, from after this one on.
    async fn list_threads(
        &self,
        team: &TeamId,
        after: Option<&ThreadId>,
        limit: u32,
    ) -> Result<Vec<Thread>>;
    /// Whether someone holds the thread.
    async fn is_thread_held(&self, key: &ThreadKey, now: Moment) -> Result<bool>;
    /// The points of a thread, the newest first, from before this number on.
    async fn list_points(
        &self,
        key: &ThreadKey,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Vec<ThreadSnapshot>>;
    /// One point of a thread.
    async fn find_point(
        &self,
        key: &ThreadKey,
        name: &SnapshotRef,
    ) -> Result<Option<ThreadSnapshot>>;
    /// Keeps an execution's thread for longer; false if it is no longer its own.
    async fn renew_lease(&self, trace: &TraceId, until: Moment) -> Result<bool>;
    /// Puts a layer on top.
    async fn append_layer(&self, append: LayerAppend) -> Result<HeadMoveOutcome>;
    /// Makes a thread.
    async fn create_thread(&self, founding: ThreadCreation) -> Result<HeadMoveOutcome>;
    /// Makes a thread from a point of another.
    async fn fork_thread(&self, fork: ThreadFork) -> Result<HeadMoveOutcome>;
    /// Goes back to a point, which is a new point itself.
    async fn roll_back_thread(
        &self,
        key: &ThreadKey,
        seq: u64,
        at: Moment,
        budget: Option<u64>,
    ) -> Result<HeadMoveOutcome>;
    /// Puts one layer in the place of several. It changes nothing in the home, so whoever holds the
    /// thread keeps it; [`Moved::Stale`] if the stack does not begin with these layers any more.
    async fn squash_layers(&self, squash: LayerSquash) -> Result<HeadMoveOutcome>;
    /// Writes down what was counted, unless the head has moved since.
    async fn record_home_usage(&self, key: &ThreadKey, head: u64, usage: HomeUsage) -> Result<()>;
    /// Whether a thread of this name was deleted at this moment or later.
    async fn was_thread_deleted_since(&self, key: &ThreadKey, moment: Moment) -> Result<bool>;
    /// Removes a thread with all its points; gives back what it was.
    async fn delete_thread(&self, key: &ThreadKey, at: Moment) -> Result<HeadMoveOutcome>;
    /// Every layer that a thread, a point or an execution needs.
    async fn layers_in_use(&self) -> Result<HashSet<LayerDigest>>;
}
