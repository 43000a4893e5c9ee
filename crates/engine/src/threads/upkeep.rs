//! What is done for threads in the background: leases are kept, deep stacks are made flat, and
//! layers that nothing needs are swept.

use std::{collections::HashSet, time::Duration};

use cloche_model::{ErrorCode, ExecutionStart, Team};
use cloche_store::{HeadMoveOutcome, LayerSquash, ThreadKey};
use tokio_util::task::AbortOnDropHandle;

use super::homes::layer_refusal;
use crate::{Engine, Refusal, clock};

impl Engine {
    /// Keeps the thread of an execution until what this gives back is dropped.
    pub(crate) fn keep_lease(&self, start: &ExecutionStart) -> Option<AbortOnDropHandle<()>> {
        start.thread.as_ref()?;
        let (engine, trace_id) = (self.clone(), start.trace_id.clone());
        let lease = self.inner.config.lease;
        Some(AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                tokio::time::sleep(lease / 3).await;
                match engine
                    .inner
                    .store
                    .renew_lease(&trace_id, clock::now().saturating_add(lease))
                    .await
                {
                    Ok(true) => {}
                    // The end of the execution will find that out, too, and say so.
                    Ok(false) => return,
                    Err(error) => tracing::error!(%error, %trace_id, "a lease was not renewed"),
                }
            }
        })))
    }

    /// Looks whether a thread has become deep, without making anybody wait.
    pub(crate) fn squash_in_background(&self, thread: Option<ThreadKey>) {
        let Some(key) = thread.filter(|_| self.inner.config.homes.layers.is_some()) else { return };
        let engine = self.clone();
        self.inner.background.spawn(async move {
            let closing = engine.inner.closing.clone();
            tokio::select! {
                () = engine.squash_if_deep(&key) => {}
                () = closing.cancelled() => {}
            }
        });
    }

    async fn squash_if_deep(&self, key: &ThreadKey) {
        let thread = match self.inner.store.find_thread(key).await {
            Ok(thread) => thread,
            Err(error) => return tracing::error!(%error, "a thread was not looked after"),
        };
        let depth = thread.map_or(0, |thread| thread.layers.len());
        if depth < self.inner.config.homes.squash_depth {
            return;
        }
        // One of each thread at a time; who comes second leaves it to the first.
        let Some(_turn) = SquashGuard::take(self, key) else { return };
        let squashed = match self.inner.store.find_team(key.team.as_str()).await {
            Ok(Some(team)) => self.squash_thread(key, &team).await,
            Ok(None) => return,
            Err(error) => Err(error.into()),
        };
        let thread = &key.id;
        match squashed {
            Err(refusal) if refusal.code == ErrorCode::QuotaExceeded => {
                tracing::debug!(%thread, "not squashed: the team has no room for it");
            }
            Err(refusal) => {
                tracing::error!(error = %refusal, source = ?refusal.source, %thread, "not squashed");
            }
            Ok(()) => {}
        }
    }

    /// Puts one layer in the place of all. Runs go on meanwhile: what they add stays on top.
    pub(crate) async fn squash_thread(&self, key: &ThreadKey, team: &Team) -> Result<(), Refusal> {
        let (store, layers) = (&self.inner.store, self.layers()?);
        let Some(thread) = store.find_thread(key).await? else { return Ok(()) };
        let bound = self.squash_bound(&thread.layers).await?;
        let reservation = self.reserve_storage(team, bound).await?;
        let stored = layers.squash_stack(&thread.layers).await.map_err(layer_refusal)?;
        let by = stored.map(|stored| stored.layer);
        let squash = LayerSquash {
            thread: key.clone(),
            layers: thread.layers,
            by: by.clone(),
            at: clock::now(),
            budget: reservation.append_budget(),
        };
        let moved = store.squash_layers(squash).await;
        let Some(by) = by.map(|layer| layer.digest) else {
            return moved.map(drop).map_err(Into::into);
        };
        match moved? {
            HeadMoveOutcome::Done(_) => {
                layers.release_pin(&by);
                layers.unpack_ahead(by);
            }
            // It went back, or it is gone, or there is no room: nothing needs the layer.
            moved => {
                tracing::debug!(?moved, "a squash came too late");
                self.discard_layer(&by).await;
            }
        }
        Ok(())
    }

    /// Deletes old records and the layers that nothing needs, now and then.
    pub(crate) async fn run_maintenance(self, every: Duration) {
        let mut tick = tokio::time::interval(every);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = self.inner.sweep_now.notified() => {}
                () = self.inner.closing.cancelled() => return,
            }
            if let Err(error) = self.inner.store.prune_responses(clock::now()).await {
                tracing::error!(%error, "old responses were not deleted");
            }
            match self.inner.store.prune_executions(clock::now()).await {
                Ok(0) => {}
                Ok(pruned) => tracing::info!(pruned, "old execution records deleted"),
                Err(error) => tracing::error!(%error, "old execution records were not deleted"),
            }
            if let Err(refusal) = self.prune_teams_over_budget().await {
                tracing::error!(error = %refusal, source = ?refusal.source, "teams were not pruned");
            }
            let old = clock::now().saturating_sub(self.inner.config.gates.keep);
            if let Err(error) = self.inner.store.prune_gates(old).await {
                tracing::error!(%error, "old decisions were not deleted");
            }
            if let Err(refusal) = self.sweep_layers().await {
                tracing::error!(error = %refusal, source = ?refusal.source, "layers were not swept");
            }
        }
    }

    async fn sweep_layers(&self) -> Result<(), Refusal> {
        let Some(layers) = &self.inner.config.homes.layers else { return Ok(()) };
        // A layer that is stored after this list was made is younger than the grace period.
        let needed: HashSet<_> = self.inner.store.layers_in_use().await?;
        let swept = layers
            .sweep_unreferenced(&needed, self.inner.config.homes.grace)
            .await
            .map_err(layer_refusal)?;
        if swept.deleted > 0 {
            tracing::info!(deleted = swept.deleted, bytes = swept.bytes, "layers swept");
        }
        Ok(())
    }
}

/// The right to squash a thread.
struct SquashGuard<'a> {
    engine: &'a Engine,
    key: ThreadKey,
}

impl<'a> SquashGuard<'a> {
    fn take(engine: &'a Engine, key: &ThreadKey) -> Option<Self> {
        let free = engine.inner.squashing.lock().insert(key.clone());
        free.then(|| Self { engine, key: key.clone() })
    }
}

impl Drop for SquashGuard<'_> {
    fn drop(&mut self) {
        self.engine.inner.squashing.lock().remove(&self.key);
    }
}
