//! Runs in: server (no capabilities).
//!
//! Disk space of layers: the size of each, the immediate removal of layers that are not needed, and
//! what is stored while disk space is short.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use cloche_model::LayerDigest;
use futures::TryStreamExt;

use crate::{LayerError, Layers, blob_store::run_blocking, layers::LayerPin};

impl Layers {
    /// Protects a layer that was just stored from removal, until it is released.
    pub(crate) fn pin_layer(&self, digest: &LayerDigest) {
        let mut pins = self.0.pins.lock();
        let pin = LayerPin { stored_at: Instant::now(), stores: 0 };
        let pin = pins.entry(digest.clone()).or_insert(pin);
        pin.stored_at = Instant::now();
        pin.stores = pin.stores.saturating_add(1);
    }

    /// Protects a stored layer from removal, until it is released. Returns false if there is none.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn pin_stored(&self, digest: &LayerDigest) -> Result<bool, LayerError> {
        // Nothing is deleted while this lock is held.
        let _shared = self.0.gate.read().await;
        let found = self.0.blobs.blob_meta(digest).await?.is_some();
        if found {
            self.pin_layer(digest);
        }
        Ok(found)
    }

    /// Releases one pin of a layer. The caller has committed a record that refers to the layer, or
    /// has given the layer up. Without pins the layer can be removed.
    pub fn release_pin(&self, digest: &LayerDigest) {
        let mut pins = self.0.pins.lock();
        let Entry::Occupied(mut pin) = pins.entry(digest.clone()) else { return };
        pin.get_mut().stores = pin.get().stores.saturating_sub(1);
        if pin.get().stores == 0 {
            pin.remove();
        }
    }

    /// Removes a layer at once, unless another pin protects it or `needed` returns true. Returns
    /// whether it was removed.
    ///
    /// # Errors
    /// If the store fails, or `needed` does.
    pub async fn remove_unless<E: From<LayerError>>(
        &self,
        digest: &LayerDigest,
        needed: impl Future<Output = Result<bool, E>>,
    ) -> Result<bool, E> {
        {
            // Nothing is published while this lock is held. A publisher keeps its pin until the
            // record that needs the layer is committed, so either the pin or the record is visible
            // here.
            let _alone = self.0.gate.write().await;
            let is_held = self.holds_deletions() || self.0.pins.lock().contains_key(digest);
            if is_held || needed.await? {
                return Ok(false);
            }
            self.0.blobs.delete_blob(digest).await?;
            self.0.indexes.forget(digest);
        }
        let (cache, digest) = (Arc::clone(&self.0.cache), digest.clone());
        run_blocking(move || {
            cache.evict(&digest);
            Ok(())
        })
        .await?;
        Ok(true)
    }

    /// The stored size of every layer.
    ///
    /// # Errors
    /// If the store does not respond.
    pub async fn layer_sizes(&self) -> Result<HashMap<LayerDigest, u64>, LayerError> {
        let mut sizes = HashMap::new();
        let mut blobs = self.0.blobs.list_blobs();
        while let Some((digest, meta)) = blobs.try_next().await? {
            sizes.insert(digest, meta.size);
        }
        Ok(sizes)
    }

    /// The stored size of one layer.
    ///
    /// # Errors
    /// If the layer does not exist or is damaged.
    pub async fn stored_size(&self, digest: &LayerDigest) -> Result<u64, LayerError> {
        Ok(self.load_index(digest).await?.to_layer(digest.clone()).stored.bytes())
    }

    /// Sets whether files of runs without a thread are stored.
    pub fn set_keeps_output(&self, keeps: bool) {
        self.0.keeps_output.store(keeps, Ordering::Relaxed);
    }

    /// Whether files of runs without a thread are stored.
    #[must_use]
    pub fn keeps_output(&self) -> bool {
        self.0.keeps_output.load(Ordering::Relaxed)
    }

    /// Removes every unpacked layer that is not in use. They can be unpacked again.
    ///
    /// # Errors
    /// If the blocking task panicked.
    pub async fn empty_cache(&self) -> Result<(), LayerError> {
        let cache = Arc::clone(&self.0.cache);
        run_blocking(move || {
            cache.make_room(u64::MAX);
            Ok(())
        })
        .await
    }
}
