//! Runs in: server (no capabilities).
//!
//! Where the engine is between its start and its end. The parts share it: while the engine drains
//! they take nothing new, and once it closes their background tasks end.

use std::{
    future::Future,
    sync::atomic::{AtomicBool, Ordering},
};

use cloche_model::ErrorCode;
use tokio_util::{
    sync::{CancellationToken, WaitForCancellationFuture},
    task::TaskTracker,
};

use crate::Refusal;

/// Draining, then closing.
#[derive(Default)]
pub(crate) struct Lifecycle {
    draining: AtomicBool,
    closing: CancellationToken,
    background: TaskTracker,
}

impl Lifecycle {
    /// Whether nothing new may be taken.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Refuses new work while the engine drains.
    pub(crate) fn check_taking_work(&self) -> Result<(), Refusal> {
        if self.is_draining() {
            let message = "the server is shutting down; try again in a moment";
            return Err(Refusal::new(ErrorCode::Unavailable, message));
        }
        Ok(())
    }

    /// From now on nothing new is taken.
    pub(crate) fn begin_draining(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    /// Completes once the engine closes.
    pub(crate) fn closed(&self) -> WaitForCancellationFuture<'_> {
        self.closing.cancelled()
    }

    /// For a task that selects on it by itself.
    pub(crate) fn closing_token(&self) -> CancellationToken {
        self.closing.clone()
    }

    /// Runs a task that the end of the engine waits for.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.background.spawn(task);
    }

    /// Ends what runs in the background, and waits for it.
    pub(crate) async fn close(&self) {
        self.closing.cancel();
        self.background.close();
        self.background.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn closing_waits_for_the_tasks_that_it_ends() {
        let lifecycle = Arc::new(Lifecycle::default());
        let task = Arc::clone(&lifecycle);
        lifecycle.spawn(async move { task.closed().await });
        assert!(lifecycle.check_taking_work().is_ok());
        lifecycle.begin_draining();
        let refusal = lifecycle.check_taking_work().unwrap_err();
        assert_eq!(refusal.code, ErrorCode::Unavailable);
        lifecycle.close().await;
        assert!(lifecycle.background.is_empty());
    }
}
