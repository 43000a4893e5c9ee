//! Threads as their owners ask for them: list, look back, compare, fork, go back, delete.

mod exchange;
mod homes;
mod upkeep;

use cloche_model::{ErrorCode, Point, PointName, Team, Thread, ThreadId};
use cloche_store::{Fork, Moved, ThreadKey};

use crate::{Engine, Refusal, clock, storage::over_budget};

pub use exchange::TarStream;
pub use homes::Difference;
pub(crate) use homes::{failed, quota};

/// Some threads, and where the list goes on.
pub struct ThreadPage {
    /// The threads, by name.
    pub threads: Vec<Thread>,
    /// The last of them, if there are more.
    pub next: Option<ThreadId>,
}

/// Some points of a thread, and where the list goes on.
pub struct History {
    /// The points, the newest first.
    pub points: Vec<Point>,
    /// The last of them, if there are more.
    pub next: Option<u64>,
}

/// What a caller hears while somebody holds the thread.
pub(crate) fn busy() -> Refusal {
    Refusal::new(
        ErrorCode::Conflict,
        "another execution is already using this thread_id; only one execution per thread at a time",
    )
}

/// What a caller hears whose thread is not as it was approved.
pub(crate) fn changed() -> Refusal {
    Refusal::new(
        ErrorCode::Conflict,
        "the thread changed after this call was approved, so it did not run; make the same call to \
         have it asked about again",
    )
}

pub(crate) fn key(team: &Team, id: &ThreadId) -> ThreadKey {
    ThreadKey { team: team.id.clone(), id: id.clone() }
}

/// The thread after a move, or why there was none.
pub(crate) fn settle(moved: Moved) -> Result<Thread, Refusal> {
    match moved {
        Moved::Done(thread) => Ok(thread),
        Moved::Busy => Err(busy()),
        Moved::Missing => Err(Refusal::not_found("thread")),
        Moved::Taken => {
            Err(Refusal::new(ErrorCode::Conflict, "there is a thread of this name already"))
        }
        Moved::Changed => Err(changed()),
        Moved::OverBudget => {
            Err(Refusal::new(ErrorCode::QuotaExceeded, "storage budget of the team exceeded"))
        }
        Moved::Stale => {
            Err(Refusal::new(ErrorCode::Conflict, "the thread changed meanwhile; try again"))
        }
    }
}

impl Engine {
    /// Threads of a team, by name.
    ///
    /// # Errors
    /// When they cannot be read.
    pub async fn threads(
        &self,
        team: &Team,
        after: Option<&ThreadId>,
        limit: u32,
    ) -> Result<ThreadPage, Refusal> {
        let mut threads = self.inner.store.threads(&team.id, after, limit + 1).await?;
        let more = threads.len() > limit as usize;
        threads.truncate(limit as usize);
        let next = threads.last().filter(|_| more).map(|last| last.id.clone());
        Ok(ThreadPage { threads, next })
    }

    /// One thread, with what it holds counted.
    ///
    /// # Errors
    /// When there is none that the team may see, or its layers cannot be read.
    pub async fn thread(&self, team: &Team, id: &ThreadId) -> Result<Thread, Refusal> {
        let thread = self.find_thread(team, id).await?;
        let usage = self.counted(&thread).await?;
        Ok(Thread { usage, ..thread })
    }

    pub(crate) async fn find_thread(&self, team: &Team, id: &ThreadId) -> Result<Thread, Refusal> {
        let found = self.inner.store.thread(&key(team, id)).await?;
        found.ok_or_else(|| Refusal::not_found("thread"))
    }

    /// The points of a thread, the newest first.
    ///
    /// # Errors
    /// When there is no thread that the team may see.
    pub async fn history(
        &self,
        team: &Team,
        id: &ThreadId,
        before: Option<u64>,
        limit: u32,
    ) -> Result<History, Refusal> {
        self.find_thread(team, id).await?;
        let mut points = self.inner.store.points(&key(team, id), before, limit + 1).await?;
        let more = points.len() > limit as usize;
        points.truncate(limit as usize);
        let next = points.last().filter(|_| more).map(|last| last.seq);
        Ok(History { points, next })
    }

    /// One point of a thread.
    pub(crate) async fn point(
        &self,
        team: &Team,
        id: &ThreadId,
        name: &PointName,
    ) -> Result<Point, Refusal> {
        let found = self.inner.store.point(&key(team, id), name).await?;
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
        from: Option<&PointName>,
        to: Option<&PointName>,
    ) -> Result<Difference, Refusal> {
        let thread = self.find_thread(team, id).await?;
        let to = self.stack_at(team, id, to.unwrap_or(&PointName::Seq(thread.head))).await?;
        let before = PointName::Seq(to.0.saturating_sub(1));
        let from = self.stack_at(team, id, from.unwrap_or(&before)).await?;
        self.compare(from, to).await
    }

    /// Makes a thread from a point of another; from its newest if none is named.
    ///
    /// # Errors
    /// When there is no such thread or point, or the new name is taken.
    pub async fn fork_thread(
        &self,
        team: &Team,
        id: &ThreadId,
        at: Option<&PointName>,
        new: &ThreadId,
    ) -> Result<Thread, Refusal> {
        let thread = self.find_thread(team, id).await?;
        let seq = match at {
            Some(name) => self.point(team, id, name).await?.seq,
            None => thread.head,
        };
        self.inner.host_storage.check()?;
        for is_pruned in [false, true] {
            if is_pruned {
                self.make_room(team, 1).await?;
            }
            let (source, thread, at) = (key(team, id), new.clone(), clock::now());
            let fork = Fork { source, seq, thread, at, budget: self.unreserved_budget(team) };
            let moved = self.inner.store.fork(fork).await?;
            if moved != Moved::OverBudget {
                return settle(moved);
            }
        }
        Err(over_budget(team, self.storage_budget(team).unwrap_or_default()))
    }

    /// Goes back to a point, which is a new point itself.
    ///
    /// # Errors
    /// When there is no such thread or point, or somebody holds the thread.
    pub async fn rollback_thread(
        &self,
        team: &Team,
        id: &ThreadId,
        to: &PointName,
    ) -> Result<Thread, Refusal> {
        self.find_thread(team, id).await?;
        let seq = self.point(team, id, to).await?.seq;
        for is_pruned in [false, true] {
            if is_pruned {
                self.make_room(team, 1).await?;
            }
            let budget = self.unreserved_budget(team);
            let moved =
                self.inner.store.rollback(&key(team, id), seq, clock::now(), budget).await?;
            if moved != Moved::OverBudget {
                return settle(moved);
            }
        }
        Err(over_budget(team, self.storage_budget(team).unwrap_or_default()))
    }

    /// Deletes a thread with all its points. Layers that nothing else needs go in the background.
    ///
    /// # Errors
    /// When there is none that the team may see, or somebody holds it.
    pub async fn delete_thread(&self, team: &Team, id: &ThreadId) -> Result<(), Refusal> {
        let layers = self.inner.store.thread_layers(&key(team, id)).await?;
        settle(self.inner.store.delete_thread(&key(team, id), clock::now()).await?)?;
        let engine = self.clone();
        self.inner.background.spawn(async move { engine.remove_layers(&layers).await });
        self.inner.sweep_now.notify_one();
        Ok(())
    }
}
