//! Deletes layers that no record refers to.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use cloche_model::LayerDigest;
use futures::TryStreamExt;

use crate::{LayerError, Layers, blob_store::run_blocking};

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Layers that were deleted.
    pub deleted: u64,
    /// Their size as stored.
    pub bytes: u64,
    /// Layers that still exist.
    pub kept: u64,
}

impl Layers {
    /// Deletes layers that are neither in `keep` nor younger than `grace`. A layer that was stored
    /// after `keep` was collected is safe if `grace` is longer than it takes to refer to a new
    /// layer.
    ///
    /// # Errors
    /// If the store fails. Layers that were deleted before the failure stay deleted.
    pub async fn sweep_unreferenced(
        &self,
        keep: &HashSet<LayerDigest>,
        grace: Duration,
    ) -> Result<SweepReport, LayerError> {
        let mut swept = SweepReport::default();
        let mut blobs = self.0.blobs.list_blobs();
        while let Some((digest, meta)) = blobs.try_next().await? {
            let old = |meta: &object_store::ObjectMeta| {
                let age = SystemTime::now().duration_since(meta.last_modified.into());
                age.is_ok_and(|age| age >= grace)
            };
            if keep.contains(&digest) || !old(&meta) {
                swept.kept += 1;
                continue;
            }
            {
                // Nothing is published while this lock is held, so an old and unpinned layer stays
                // so.
                let _alone = self.0.gate.write().await;
                let pinned = self.is_pinned(&digest, grace) || self.holds_deletions();
                if pinned || !self.0.blobs.blob_meta(&digest).await?.as_ref().is_some_and(old) {
                    swept.kept += 1;
                    continue;
                }
                self.0.blobs.delete_blob(&digest).await?;
                self.0.indexes.forget(&digest);
            }
            let cache = Arc::clone(&self.0.cache);
            run_blocking(move || {
                cache.evict(&digest);
                Ok(())
            })
            .await?;
            swept.deleted += 1;
            swept.bytes += meta.size;
        }
        self.evict_orphans(keep).await?;
        Ok(swept)
    }

    /// Removes unpacked layers that are not stored any more. A process that ends while it uses one
    /// leaves it behind.
    async fn evict_orphans(&self, keep: &HashSet<LayerDigest>) -> Result<(), LayerError> {
        let cached = self.0.cache.cached_digests();
        for digest in cached.into_iter().filter(|digest| !keep.contains(digest)) {
            // Nothing is published meanwhile.
            let _alone = self.0.gate.write().await;
            if self.0.blobs.blob_meta(&digest).await?.is_none() {
                let cache = Arc::clone(&self.0.cache);
                let evict = move || {
                    cache.evict(&digest);
                    Ok(())
                };
                run_blocking(evict).await?;
            }
        }
        Ok(())
    }

    /// Whether this process stored the layer within the grace period.
    fn is_pinned(&self, digest: &LayerDigest, grace: Duration) -> bool {
        let mut pins = self.0.pins.lock();
        let now = Instant::now();
        pins.retain(|_, pin| now.duration_since(pin.stored_at) < grace);
        pins.contains_key(digest)
    }
}
