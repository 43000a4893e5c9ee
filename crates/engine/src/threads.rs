//! Threads as their owners ask for them: list, look back, compare, fork, go back, delete.

mod archive;
mod homes;
mod upkeep;

use cloche_model::{ErrorCode, SnapshotRef, Team, Thread, ThreadId, ThreadSnapshot};
use cloche_store::{HeadMoveOutcome, ThreadFork, ThreadKey};

use crate::{Engine, Refusal, clock, storage::over_budget_refusal};

pub use archive::TarStream;
pub use homes::ThreadDiff;
pub(crate) use homes::{home_quota, layer_refusal};

/// Some threads, and where the list goes on.
pub struct ThreadPage {
    /// The threads, by name.
    pub threads: Vec<Thread>,
    /// The last of them, if there are more.
    pub next: Option<ThreadId>,
}

/// Some points of a thread, and where the list goes on.
pub struct ThreadHistory {
    /// The points, the newest first.
    pub points: Vec<ThreadSnapshot>,
    /// The last of them, if there are more.
    pub next: Option<u64>,
}

/// What a caller hears while somebody holds the thread.
pub(crate) fn thread_busy_refusal() -> Refusal {
    Refusal::new(
        ErrorCode::Conflict,
        "another execution is already using this thread_id; only one execution per thread at a time",
    )
}

/// What a caller hears whose thread is not as it was approved.
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

impl Engine {
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
        let mut threads = self.inner.store.list_threads(&team.id, after, limit + 1).await?;
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
        let found = self.inner.store.find_thread(&thread_key(team, id)).await?;
        found.ok_or_else(|| Refusal::not_found("thread"))
    }

    /// The points of a thread, the newest first.
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
        let mut points =
            self.inner.store.list_points(&thread_key(team, id), before, limit + 1).await?;
        let more = points.len() > limit as usize;
        points.truncate(limit as usize);
        let next = points.last().filter(|_| more).map(|last| last.seq);
        Ok(ThreadHistory { points, next })
    }

    /// One point of a thread.
    pub(crate) async fn find_snapshot(
        &self,
        team: &Team,
        id: &ThreadId,
        name: &SnapshotRef,
    ) -> Result<ThreadSnapshot, Refusal> {
        let found = self.inner.store.find_point(&thread_key(team, id), name).await?;
        found.ok_or_else(|| Refusal::not_found("point of this thread"))
    }

    /// What differs between two points: `to` is the newest if absent, `from` the one before it.
    /// Point 0 is the empty home.
    ///
    /// # Errors
    /// When there is no such thread or point, or its layers cannot be read.
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

    /// Makes a thread from a point of another; from its newest if none is named.
    ///
    /// # Errors
    /// When there is no such thread or point, or the new name is taken.
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
        self.inner.host_storage.check_now()?;
        for is_pruned in [false, true] {
            if is_pruned {
                self.make_room(team, 1).await?;
            }
            let (source, thread, at) = (thread_key(team, id), new.clone(), clock::now());
            let fork = ThreadFork { source, seq, thread, at, budget: self.unreserved_budget(team) };
            let moved = self.inner.store.fork_thread(fork).await?;
            if moved != HeadMoveOutcome::OverBudget {
                return moved_thread(moved);
            }
        }
        Err(over_budget_refusal(team, self.storage_budget(team).unwrap_or_default()))
    }

    /// Goes back to a point, which is a new point itself.
    ///
    /// # Errors
    /// When there is no such thread or point, or somebody holds the thread.
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
                self.make_room(team, 1).await?;
            }
            let budget = self.unreserved_budget(team);
            let moved = self
                .inner
                .store
                .roll_back_thread(&thread_key(team, id), seq, clock::now(), budget)
                .await?;
            if moved != HeadMoveOutcome::OverBudget {
                return moved_thread(moved);
            }
        }
        Err(over_budget_refusal(team, self.storage_budget(team).unwrap_or_default()))
    }

    /// Deletes a thread with all its points. Layers that nothing else needs go in the background.
    ///
    /// # Errors
    /// When there is none that the team may see, or somebody holds it.
    pub async fn delete_thread(&self, team: &Team, id: &ThreadId) -> Result<(), Refusal> {
        let layers = self.inner.store.thread_layers(&thread_key(team, id)).await?;
        moved_thread(self.inner.store.delete_thread(&thread_key(team, id), clock::now()).await?)?;
        let engine = self.clone();
        self.inner.background.spawn(async move { engine.remove_layers(&layers).await });
        self.inner.sweep_now.notify_one();
        Ok(())
    }
}
