//! Deletes layers that nobody refers to.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use cloche_model::LayerDigest;
use futures::TryStreamExt;

use crate::{LayerError, Layers, blob_store::run_blocking};

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Layers that were deleted.
    pub deleted: u64,
    /// Their size as stored.
    pub bytes: u64,
    /// Layers that are still there.
    pub kept: u64,
}

impl Layers {
    /// Deletes what is neither in `keep` nor younger than `grace`. A layer that was stored after
    /// `keep` was put together is safe if `grace` is longer than it takes to refer to a new layer.
    ///
    /// # Errors
    /// If the store fails. What was deleted until then is gone.
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
                // Nothing is published meanwhile, so what is old and not pinned now stays so.
                let _alone = self.0.gate.write().await;
                let pinned = self.is_pinned(&digest, grace);
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
        Ok(swept)
    }

    /// Whether the layer was stored by this process within the grace.
    fn is_pinned(&self, digest: &LayerDigest, grace: Duration) -> bool {
        let mut pins = self.0.pins.lock();
        let now = Instant::now();
        pins.retain(|_, pin| now.duration_since(pin.stored_at) < grace);
        pins.contains_key(digest)
    }
}
