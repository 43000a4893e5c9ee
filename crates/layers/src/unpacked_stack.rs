//! Unpacks a stack of layers so that it can be mounted.

use std::{collections::HashMap, fs, sync::Arc};

use cloche_model::LayerDigest;
use futures::{StreamExt, TryStreamExt};

use crate::{
    LayerError, Layers, beneath,
    blob_store::run_blocking,
    checked_blob,
    entry::Mtime,
    layer_cache::{CacheKey, HeldLayer},
    unpack::unpack_archive,
};

/// How many layers of one stack are unpacked at the same time.
const AT_ONCE: usize = 4;

/// An unpacked stack. Its layers are not removed before this is dropped.
#[derive(Debug)]
pub struct UnpackedStack(Vec<HeldLayer>);

impl UnpackedStack {
    /// The names of the layers' directories in `Layers::cache_dir`, oldest first.
    #[must_use]
    pub fn layer_names(&self) -> Vec<&str> {
        self.0.iter().map(|layer| &layer.name[..]).collect()
    }

    /// The mode and time of the home itself, from the newest layer. `None` if the stack is empty.
    /// An overlay shows those of its upper directory, so the caller must set them there when it
    /// mounts.
    #[must_use]
    pub fn root_metadata(&self) -> Option<(u32, Mtime)> {
        self.0.last().map(|layer| layer.root)
    }
}

impl Layers {
    /// Unpacks the missing layers of a stack, oldest first, and keeps all layers until the result
    /// is dropped. Concurrent calls for the same layer wait for one unpacking.
    ///
    /// # Errors
    /// If a layer is missing or damaged, or does not fit on the disk.
    pub async fn unpack_stack(&self, stack: &[LayerDigest]) -> Result<UnpackedStack, LayerError> {
        let mut copies: HashMap<&LayerDigest, u32> = HashMap::new();
        let keys: Vec<CacheKey> = stack
            .iter()
            .map(|digest| {
                let copy = copies.entry(digest).or_default();
                *copy += 1;
                (digest.clone(), *copy - 1)
            })
            .collect();
        let held = futures::stream::iter(keys.into_iter().map(|key| self.hold_layer(key)));
        Ok(UnpackedStack(held.buffered(AT_ONCE).try_collect().await?))
    }

    /// Starts to unpack a layer that will be needed.
    pub fn unpack_ahead(&self, layer: LayerDigest) {
        let layers = self.clone();
        tokio::spawn(async move {
            if let Err(error) = layers.hold_layer((layer, 0)).await {
                tracing::warn!(%error, "could not unpack a layer ahead of use");
            }
        });
    }

    async fn hold_layer(&self, key: CacheKey) -> Result<HeldLayer, LayerError> {
        if let Some(held) = self.0.cache.hold_layer(&key) {
            return Ok(held);
        }
        // A separate task, because others may wait for the layer after this caller was cancelled.
        let layers = self.clone();
        let task = tokio::spawn(async move {
            let lock = layers.0.cache.unpack_lock(&key);
            let _guard = lock.lock().await;
            match layers.0.cache.hold_layer(&key) {
                Some(held) => Ok(held),
                None => layers.unpack_layer(key).await,
            }
        });
        match task.await {
            Ok(held) => held,
            Err(error) => {
                Err(LayerError::from_io("unpacking a layer", std::io::Error::other(error)))
            }
        }
    }

    async fn unpack_layer(&self, key: CacheKey) -> Result<HeldLayer, LayerError> {
        let bytes = self.load_index(&key.0).await?.disk_bytes();
        let blob = self.0.blobs.open_blob(&key.0).await?;
        let bounds = self.0.config.bounds;
        let cache = Arc::clone(&self.0.cache);
        run_blocking(move || {
            cache.make_room(bytes);
            let unpacking = || LayerError::io_context("unpacking a layer");
            let directory = tempfile::Builder::new()
                .prefix("new-")
                .disable_cleanup(true)
                .tempdir_in(cache.dir())
                .map_err(unpacking())?;
            let name =
                directory.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
            let top = fs::File::open(directory.path()).map_err(unpacking())?;
            let done = checked_blob::read_checked(blob, &key.0, |archive| {
                unpack_archive(archive, top.into(), bounds)
            });
            let adopted = done.and_then(|unpacked| {
                cache.adopt_unpacked(&key, &name, &unpacked, bytes).map_err(unpacking())
            });
            if adopted.is_err()
                && let Ok(dir) = fs::File::open(cache.dir())
                && let Err(error) = beneath::remove_tree(dir, &name)
            {
                tracing::warn!(%error, "could not remove an unfinished layer");
            }
            adopted
        })
        .await
    }
}
