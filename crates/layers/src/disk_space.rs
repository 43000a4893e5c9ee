//! Runs in: server (no capabilities).
//!
//! The disk that layers take: what each one has, which were stored for nothing and go at once, and
//! what happens while the disk is short.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use cloche_model::LayerDigest;
use futures::TryStreamExt;

use crate::{LayerError, Layers, blob_store::run_blocking, layers::LayerPin};

impl Layers {
    /// Keeps a layer that was just stored from being removed, until it is settled.
    pub(crate) fn pin_layer(&self, digest: &LayerDigest) {
        let mut pins = self.0.pins.lock();
        let pin = LayerPin { stored_at: Instant::now(), stores: 0 };
        let pin = pins.entry(digest.clone()).or_insert(pin);
        pin.stored_at = Instant::now();
        pin.stores = pin.stores.saturating_add(1);
    }

    /// Says that one who stored this layer has written down that it is needed, or gave it up. From
    /// then on it can be removed.
    pub fn release_pin(&self, digest: &LayerDigest) {
        let mut pins = self.0.pins.lock();
        let Entry::Occupied(mut pin) = pins.entry(digest.clone()) else { return };
        pin.get_mut().stores = pin.get().stores.saturating_sub(1);
        if pin.get().stores == 0 {
            pin.remove();
        }
    }

    /// Removes a layer at once, unless somebody else has stored it and not settled it, or `needed`
    /// says that it is needed. Gives back whether it is gone.
    ///
    /// # Errors
    /// If the store fails, or `needed` does.
    pub async fn remove_unless<E: From<LayerError>>(
        &self,
        digest: &LayerDigest,
        needed: impl Future<Output = Result<bool, E>>,
    ) -> Result<bool, E> {
        {
            // Nothing is published meanwhile. A publisher has a pin until the record
            // that needs the layer is committed, so that one of the two is seen here.
            let _alone = self.0.gate.write().await;
            if self.0.pins.lock().contains_key(digest) || needed.await? {
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

    /// The size of every layer, as stored.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn layer_sizes(&self) -> Result<HashMap<LayerDigest, u64>, LayerError> {
        let mut sizes = HashMap::new();
        let mut blobs = self.0.blobs.list_blobs();
        while let Some((digest, meta)) = blobs.try_next().await? {
            sizes.insert(digest, meta.size);
        }
        Ok(sizes)
    }

    /// The size of one layer, as stored.
    ///
    /// # Errors
    /// If there is no such layer, or it is damaged.
    pub async fn stored_size(&self, digest: &LayerDigest) -> Result<u64, LayerError> {
        Ok(self.load_index(digest).await?.to_layer(digest.clone()).stored.bytes())
    }

    /// Says whether files of runs without a thread are to be stored.
    pub fn set_keeps_output(&self, keeps: bool) {
        self.0.keeps_output.store(keeps, Ordering::Relaxed);
    }

    /// Whether files of runs without a thread are stored.
    #[must_use]
    pub fn keeps_output(&self) -> bool {
        self.0.keeps_output.load(Ordering::Relaxed)
    }

    /// Removes every unpacked layer that is not in use; they can be unpacked again.
    ///
    /// # Errors
    /// If the work was stopped.
    pub async fn empty_cache(&self) -> Result<(), LayerError> {
        let cache = Arc::clone(&self.0.cache);
        run_blocking(move || {
            cache.make_room(u64::MAX);
            Ok(())
        })
        .await
    }
}
