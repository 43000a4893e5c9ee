//! Runs in: server (no capabilities).
//!
//! The thread of one execution, from the lease to the new head. The store takes the lease with the
//! running row; this value renews it, reads the home, and closes the thread: one transaction writes
//! the end of the execution, moves the head and gives the lease back.

use std::sync::Arc;

use cloche_model::{ErrorCode, ExecutionStart, Team, ThreadHome, TraceId};
use cloche_store::{ExecutionFinish, StoreError, ThreadKey};
use tokio_util::task::AbortOnDropHandle;

use super::Threads;
use crate::{DispatchError, clock};

/// The thread that an execution holds. Empty for an execution without a thread.
pub(crate) struct OpenThread {
    pub(super) threads: Arc<Threads>,
    pub(super) team: Team,
    key: Option<ThreadKey>,
    /// Renews the lease until the thread is closed.
    _renewal: Option<AbortOnDropHandle<()>>,
}

impl Threads {
    /// Opens the thread of an execution whose running row holds the lease.
    pub(crate) fn open(self: &Arc<Self>, start: &ExecutionStart, team: &Team) -> OpenThread {
        let id = start.thread.clone();
        let key = id.map(|id| ThreadKey { team: start.team.clone(), id });
        let renewal = key.as_ref().map(|_| self.renew_lease(start.trace_id.clone()));
        OpenThread { threads: Arc::clone(self), team: team.clone(), key, _renewal: renewal }
    }

    fn renew_lease(self: &Arc<Self>, trace_id: TraceId) -> AbortOnDropHandle<()> {
        let threads = Arc::clone(self);
        AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                tokio::time::sleep(threads.lease / 3).await;
                let until = clock::now().saturating_add(threads.lease);
                match threads.store.renew_lease(&trace_id, until).await {
                    Ok(true) => {}
                    // Closing the thread finds that out, too, and records it.
                    Ok(false) => return,
                    Err(error) => tracing::error!(%error, %trace_id, "a lease was not renewed"),
                }
            }
        }))
    }
}

impl OpenThread {
    /// The home that the run begins with; none without a thread.
    pub(crate) async fn home(&self) -> Result<Option<ThreadHome>, DispatchError> {
        let Some(key) = &self.key else { return Ok(None) };
        match self.threads.thread_home(key, &self.team).await {
            Ok(home) => Ok(Some(home)),
            Err(refusal) if refusal.code == ErrorCode::QuotaExceeded => {
                Err(DispatchError::Impossible(refusal.message.into_owned()))
            }
            Err(refusal) => {
                let thread = &key.id;
                tracing::error!(error = %refusal, source = ?refusal.source, %thread, "no home");
                Err(DispatchError::Impossible("the home of this thread cannot be read".to_owned()))
            }
        }
    }

    /// Writes the end of the execution, moves the head by what it wrote, and gives the thread back.
    /// Returns the end as it was recorded: without the files that the team may not store, and with a
    /// shorter output where the disk is short.
    pub(crate) async fn close(
        self,
        mut finish: ExecutionFinish,
    ) -> Result<ExecutionFinish, StoreError> {
        finish.thread.clone_from(&self.key);
        let recorded = self.finish_within_budget(finish).await?;
        let moved = recorded.thread.is_some() && recorded.end.written.layer.is_some();
        if let Some(key) = self.key.filter(|_| moved) {
            self.threads.squash_in_background(key);
        }
        Ok(recorded)
    }
}
