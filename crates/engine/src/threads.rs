//! Runs in: server (no capabilities).
//!
//! Threads and their homes: list, history, diff, fork, roll back, delete. `open_thread` is the
//! thread of one execution, `homes` what a home is made of, `archive` import and export, `upkeep`
//! the work in the background.

mod archive;
mod homes;
mod open_thread;
mod record_end;
mod upkeep;

use std::{collections::HashSet, path::PathBuf, sync::Arc, time::Duration};

use cloche_model::{ErrorCode, LayerDigest, SnapshotRef, Team, Thread, ThreadId, ThreadSnapshot};
use cloche_store::{HeadMoveOutcome, Store, ThreadFork, ThreadKey};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    Dispatcher, EngineConfig, HomesConfig, Refusal, StorageBudgets, admit::AdmissionControl, clock,
    lifecycle::Lifecycle, shared_parts::SharedParts,
};

pub use archive::TarStream;
pub use homes::ThreadDiff;
pub(crate) use homes::layer_refusal;
pub(crate) use open_thread::OpenThread;
pub(crate) use record_end::QUOTA;

/// The threads of every team.
pub struct Threads {
    store: Arc<dyn Store>,
    storage: Arc<StorageBudgets>,
    /// Places for imports and exports.
    admission: Arc<AdmissionControl>,
    lifecycle: Arc<Lifecycle>,
    homes: HomesConfig,
    /// Says whether what runs the code can keep the homes of its runs.
    dispatcher: Arc<dyn Dispatcher>,
    /// How long an execution holds its thread without a renewal.
    lease: Duration,
    /// For archives that are unpacked; empty at every start.
    scratch: PathBuf,
    /// Threads that are being squashed.
    squashing: Mutex<HashSet<ThreadKey>>,
    /// Asks for a sweep before it is time.
    sweep_now: Notify,
}

/// Some threads, and where the list goes on.
pub struct ThreadPage {
    /// The threads, by name.
    pub threads: Vec<Thread>,
    /// The last of them, if there are more.
    pub next: Option<ThreadId>,
}

/// Some snapshots of a thread, and where the list goes on.
pub struct ThreadHistory {
    /// The snapshots, the newest first.
    pub points: Vec<ThreadSnapshot>,
    /// The last of them, if there are more.
    pub next: Option<u64>,
}

/// The refusal while another execution holds the thread.
pub(crate) fn thread_busy_refusal() -> Refusal {
    Refusal::new(
        ErrorCode::Conflict,
        "another execution is already using this thread_id; only one execution per thread at a time",
    )
}

/// The refusal of a call whose thread is not as it was approved.
pub(crate) fn thread_changed_refusal() -> Refusal {
    Refusal::new(
        ErrorCode::Conflict,
        "the thread changed after this call was approved, so it did not run; make the same call to \
         have it asked about again",
    )
}

pub(crate) fn thread_key(team: &Team, id: &ThreadId) -> ThreadKey {
    ThreadKey { team: team.id.clone(), id: id.clone() }
}

/// The thread after a move, or why there was none.
pub(crate) fn moved_thread(moved: HeadMoveOutcome) -> Result<Thread, Refusal> {
    match moved {
        HeadMoveOutcome::Done(thread) => Ok(thread),
        HeadMoveOutcome::Busy => Err(thread_busy_refusal()),
        HeadMoveOutcome::Missing => Err(Refusal::not_found("thread")),
        HeadMoveOutcome::Taken => {
            Err(Refusal::new(ErrorCode::Conflict, "there is a thread of this name already"))
        }
        HeadMoveOutcome::Changed => Err(thread_changed_refusal()),
        HeadMoveOutcome::OverBudget => {
            Err(Refusal::new(ErrorCode::QuotaExceeded, "storage budget of the team exceeded"))
        }
        HeadMoveOutcome::Stale => {
            Err(Refusal::new(ErrorCode::Conflict, "the thread changed meanwhile; try again"))
        }
    }
}

impl Threads {
    pub(crate) fn new(
        shared: &SharedParts,
        storage: Arc<StorageBudgets>,
        config: &EngineConfig,
        scratch: PathBuf,
    ) -> Self {
        Self {
            store: Arc::clone(&shared.store),
            storage,
            admission: Arc::clone(&shared.admission),
            lifecycle: Arc::clone(&shared.lifecycle),
            homes: config.homes.clone(),
            dispatcher: Arc::clone(&shared.dispatcher),
            lease: config.lease,
            scratch,
            squashing: Mutex::default(),
            sweep_now: Notify::new(),
        }
    }

    /// Whether executions can have a thread whose home outlives them.
    pub(crate) fn keeps_homes(&self) -> bool {
        self.homes.layers.is_some() && self.dispatcher.keeps_homes()
    }

    /// How long an execution holds its thread without a renewal.
    pub(crate) fn lease(&self) -> Duration {
        self.lease
    }

    /// Threads of a team, by name.
    ///
    /// # Errors
    /// When they cannot be read.
    pub async fn list_threads(
        &self,
        team: &Team,
        after: Option<&ThreadId>,
        limit: u32,
    ) -> Result<ThreadPage, Refusal> {
        let mut threads = self.store.list_threads(&team.id, after, limit + 1).await?;
        let more = threads.len() > limit as usize;
        threads.truncate(limit as usize);
        let next = threads.last().filter(|_| more).map(|last| last.id.clone());
        Ok(ThreadPage { threads, next })
    }

    /// One thread, with what it holds counted.
    ///
    /// # Errors
    /// When there is none that the team may see, or its layers cannot be read.
    pub async fn thread_with_usage(&self, team: &Team, id: &ThreadId) -> Result<Thread, Refusal> {
        let thread = self.find_thread(team, id).await?;
        let usage = self.counted_usage(&thread).await?;
        Ok(Thread { usage, ..thread })
    }

    pub(crate) async fn find_thread(&self, team: &Team, id: &ThreadId) -> Result<Thread, Refusal> {
        let found = self.store.find_thread(&thread_key(team, id)).await?;
        found.ok_or_else(|| Refusal::not_found("thread"))
    }

    /// The snapshots of a thread, the newest first.
    ///
    /// # Errors
    /// When there is no thread that the team may see.
    pub async fn thread_history(
        &self,
        team: &Team,
        id: &ThreadId,
        before: Option<u64>,
        limit: u32,
    ) -> Result<ThreadHistory, Refusal> {
        self.find_thread(team, id).await?;
        let mut points = self.store.list_points(&thread_key(team, id), before, limit + 1).await?;
        let more = points.len() > limit as usize;
        points.truncate(limit as usize);
        let next = points.last().filter(|_| more).map(|last| last.seq);
        Ok(ThreadHistory { points, next })
    }

    /// One snapshot of a thread.
    pub(crate) async fn find_snapshot(
        &self,
        team: &Team,
        id: &ThreadId,
        name: &SnapshotRef,
    ) -> Result<ThreadSnapshot, Refusal> {
        let found = self.store.find_point(&thread_key(team, id), name).await?;
        found.ok_or_else(|| Refusal::not_found("point of this thread"))
    }

    /// The layers of a thread at a snapshot; those of its head without one. Snapshot 0 is the empty
    /// home.
    pub(crate) async fn layers_at(
        &self,
        team: &Team,
        id: &ThreadId,
        at: Option<&SnapshotRef>,
    ) -> Result<Vec<LayerDigest>, Refusal> {
        let thread = self.find_thread(team, id).await?;
        match at {
            None => Ok(thread.layers),
            Some(SnapshotRef::Seq(0)) => Ok(Vec::new()),
            Some(at) => Ok(self.find_snapshot(team, id, at).await?.layers),
        }
    }

    /// What differs between two snapshots: `to` is the newest if absent, `from` the one before it.
    /// Snapshot 0 is the empty home.
    ///
    /// # Errors
    /// When there is no such thread or snapshot, or its layers cannot be read.
    pub async fn thread_diff(
        &self,
        team: &Team,
        id: &ThreadId,
        from: Option<&SnapshotRef>,
        to: Option<&SnapshotRef>,
    ) -> Result<ThreadDiff, Refusal> {
        let thread = self.find_thread(team, id).await?;
        let to = self.stack_at(team, id, to.unwrap_or(&SnapshotRef::Seq(thread.head))).await?;
        let before = SnapshotRef::Seq(to.0.saturating_sub(1));
        let from = self.stack_at(team, id, from.unwrap_or(&before)).await?;
        self.compare_stacks(from, to).await
    }

    /// Makes a thread from a snapshot of another; from its newest if none is named.
    ///
    /// # Errors
    /// When there is no such thread or snapshot, or the new name is taken.
    pub async fn fork_thread(
        &self,
        team: &Team,
        id: &ThreadId,
        at: Option<&SnapshotRef>,
        new: &ThreadId,
    ) -> Result<Thread, Refusal> {
        let thread = self.find_thread(team, id).await?;
        let seq = match at {
            Some(name) => self.find_snapshot(team, id, name).await?.seq,
            None => thread.head,
        };
        self.storage.host().check_now()?;
        for is_pruned in [false, true] {
            if is_pruned {
                self.storage.make_room(team, 1).await?;
            }
            let (source, thread, at) = (thread_key(team, id), new.clone(), clock::now());
            let fork = ThreadFork {
                source,
                seq,
                thread,
                at,
                budget: self.storage.unreserved_budget(team),
            };
            let moved = self.store.fork_thread(fork).await?;
            if moved != HeadMoveOutcome::OverBudget {
                return moved_thread(moved);
            }
        }
        Err(self.storage.over_budget(team))
    }

    /// Goes back to a snapshot, which makes a new snapshot.
    ///
    /// # Errors
    /// When there is no such thread or snapshot, or an execution holds the thread.
    pub async fn rollback_thread(
        &self,
        team: &Team,
        id: &ThreadId,
        to: &SnapshotRef,
    ) -> Result<Thread, Refusal> {
        self.find_thread(team, id).await?;
        let seq = self.find_snapshot(team, id, to).await?.seq;
        for is_pruned in [false, true] {
            if is_pruned {
                self.storage.make_room(team, 1).await?;
            }
            let budget = self.storage.unreserved_budget(team);
            let moved = self
                .store
                .roll_back_thread(&thread_key(team, id), seq, clock::now(), budget)
                .await?;
            if moved != HeadMoveOutcome::OverBudget {
                return moved_thread(moved);
            }
        }
        Err(self.storage.over_budget(team))
    }

    /// Deletes a thread with all its snapshots. Layers that nothing else needs are removed in the
    /// background.
    ///
    /// # Errors
    /// When there is none that the team may see, or an execution holds it.
    pub async fn delete_thread(&self, team: &Team, id: &ThreadId) -> Result<(), Refusal> {
        let layers = self.store.thread_layers(&thread_key(team, id)).await?;
        moved_thread(self.store.delete_thread(&thread_key(team, id), clock::now()).await?)?;
        let storage = Arc::clone(&self.storage);
        self.lifecycle.spawn(async move { storage.remove_layers(&layers).await });
        self.sweep_now.notify_one();
        Ok(())
    }
}
