//! Runs in: server (no capabilities).
//!
//! Deletes what is old: responses, execution records, decisions, and the layers that no row refers
//! to. Teams that are over their storage budget are pruned.

use std::{sync::Arc, time::Duration};

use cloche_store::Store;

use crate::{
    Console, Images, Refusal, StorageBudgets, Threads, clock, lifecycle::Lifecycle,
    shared_parts::SharedParts,
};

/// What is looked after at intervals.
pub(crate) struct Maintenance {
    store: Arc<dyn Store>,
    storage: Arc<StorageBudgets>,
    threads: Arc<Threads>,
    images: Arc<Images>,
    lifecycle: Arc<Lifecycle>,
    /// How long decisions are kept.
    keep_decisions: Duration,
    /// Sign-ins and the audit log.
    console: Option<Arc<Console>>,
}

impl Maintenance {
    pub(crate) fn new(
        shared: &SharedParts,
        storage: &Arc<StorageBudgets>,
        (threads, images): (&Arc<Threads>, &Arc<Images>),
        keep_decisions: Duration,
    ) -> Self {
        Self {
            store: Arc::clone(&shared.store),
            storage: Arc::clone(storage),
            threads: Arc::clone(threads),
            images: Arc::clone(images),
            lifecycle: Arc::clone(&shared.lifecycle),
            keep_decisions,
            console: None,
        }
    }

    /// The same, which also deletes old sign-ins and entries of the audit log.
    pub(crate) fn with_console(self, console: Arc<Console>) -> Self {
        Self { console: Some(console), ..self }
    }

    /// Runs at these intervals, and when a deleted thread asks for it, until the engine closes.
    pub(crate) async fn run(self, every: Duration) {
        let mut tick = tokio::time::interval(every);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = self.threads.sweep_requested() => {}
                () = self.lifecycle.closed() => return,
            }
            self.delete_old_rows().await;
            log_failure(self.storage.prune_teams_over_budget().await, "teams were not pruned");
            log_failure(self.threads.sweep_layers().await, "layers were not swept");
            self.images.remove_old_partials();
        }
    }

    async fn delete_old_rows(&self) {
        if let Err(error) = self.store.prune_responses(clock::now()).await {
            tracing::error!(%error, "old responses were not deleted");
        }
        match self.store.prune_executions(clock::now()).await {
            Ok(0) => {}
            Ok(pruned) => tracing::info!(pruned, "old execution records deleted"),
            Err(error) => tracing::error!(%error, "old execution records were not deleted"),
        }
        let old = clock::now().saturating_sub(self.keep_decisions);
        if let Err(error) = self.store.prune_gates(old).await {
            tracing::error!(%error, "old decisions were not deleted");
        }
        if let Some(console) = &self.console {
            console.delete_old_rows().await;
        }
    }
}

fn log_failure(result: Result<(), Refusal>, what: &str) {
    if let Err(refusal) = result {
        tracing::error!(error = %refusal, source = ?refusal.source, "{what}");
    }
}
