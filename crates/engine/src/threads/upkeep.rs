//! Runs in: server (no capabilities).
//!
//! What is done for threads in the background: deep stacks are squashed, and layers that no row
//! refers to are swept.

use std::{collections::HashSet, sync::Arc};

use cloche_model::{ErrorCode, Layer, LayerDigest, Team};
use cloche_store::{HeadMoveOutcome, LayerSquash, ThreadKey};

use super::{Threads, homes::layer_refusal};
use crate::{Refusal, clock};

impl Threads {
    /// Squashes a thread that has become deep. Returns at once; the work is done in the background.
    pub(crate) fn squash_in_background(self: &Arc<Self>, key: ThreadKey) {
        if self.homes.layers.is_none() {
            return;
        }
        let threads = Arc::clone(self);
        self.lifecycle.spawn(async move {
            tokio::select! {
                () = threads.squash_if_deep(&key) => {}
                () = threads.lifecycle.closed() => {}
            }
        });
    }

    async fn squash_if_deep(&self, key: &ThreadKey) {
        let thread = match self.store.find_thread(key).await {
            Ok(thread) => thread,
            Err(error) => return tracing::error!(%error, "a thread was not looked after"),
        };
        let depth = thread.map_or(0, |thread| thread.layers.len());
        if depth < self.homes.squash_depth {
            return;
        }
        // One squash of each thread at a time; a second one leaves it to the first.
        let Some(_turn) = SquashGuard::take(self, key) else { return };
        let squashed = match self.store.find_team(key.team.as_str()).await {
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

    /// Replaces all layers by one. Runs go on meanwhile: what they add stays on top.
    pub(super) async fn squash_thread(&self, key: &ThreadKey, team: &Team) -> Result<(), Refusal> {
        let (store, layers) = (&self.store, self.layers()?);
        let Some(thread) = store.find_thread(key).await? else { return Ok(()) };
        let bound = self.squash_bound(&thread.layers).await?;
        let reservation = self.storage.reserve(team, bound).await?;
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
                self.storage.discard_layer(&by).await;
            }
        }
        Ok(())
    }

    /// An upper bound of what one layer in the place of a stack takes.
    pub(super) async fn squash_bound(&self, stack: &[LayerDigest]) -> Result<u64, Refusal> {
        let layers = self.layers()?;
        let mut sum = 0_u64;
        for digest in stack {
            let stored = layers.stored_size(digest).await.map_err(layer_refusal)?;
            sum = sum.saturating_add(Layer::disk_bytes_for(stored));
        }
        Ok(sum)
    }

    /// Completes when a sweep is due before its time.
    pub(crate) async fn sweep_requested(&self) {
        self.sweep_now.notified().await;
    }

    /// Deletes the layers that no row refers to.
    pub(crate) async fn sweep_layers(&self) -> Result<(), Refusal> {
        let Some(layers) = &self.homes.layers else { return Ok(()) };
        // A layer that is stored after this list was made is younger than the grace period.
        let needed: HashSet<_> = self.store.layers_in_use().await?;
        let swept =
            layers.sweep_unreferenced(&needed, self.homes.grace).await.map_err(layer_refusal)?;
        if swept.deleted > 0 {
            tracing::info!(deleted = swept.deleted, bytes = swept.bytes, "layers swept");
        }
        Ok(())
    }
}

/// The right to squash a thread.
struct SquashGuard<'a> {
    threads: &'a Threads,
    key: ThreadKey,
}

impl<'a> SquashGuard<'a> {
    fn take(threads: &'a Threads, key: &ThreadKey) -> Option<Self> {
        let free = threads.squashing.lock().insert(key.clone());
        free.then(|| Self { threads, key: key.clone() })
    }
}

impl Drop for SquashGuard<'_> {
    fn drop(&mut self) {
        self.threads.squashing.lock().remove(&self.key);
    }
}
