//! Brings a stack of layers to where it can be mounted.

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

/// A stack that is unpacked and stays so until this is dropped.
#[derive(Debug)]
pub struct UnpackedStack(Vec<HeldLayer>);

impl UnpackedStack {
    /// The names of the layers' directories in `Layers::cache_dir`, the oldest first.
    #[must_use]
    pub fn layer_names(&self) -> Vec<&str> {
        self.0.iter().map(|hold| &hold.name[..]).collect()
    }

    /// The mode and time of the home itself, from the newest layer; none if the stack is empty.
    /// An overlay shows those of its upper directory, so whoever mounts it must set them there.
    #[must_use]
    pub fn root_metadata(&self) -> Option<(u32, Mtime)> {
        self.0.last().map(|hold| hold.root)
    }
}

impl Layers {
    /// Unpacks what is missing of a stack, the oldest layer first, and keeps it until the result is
    /// dropped. Who asks for the same layer at the same time waits for it.
    ///
    /// # Errors
    /// If a layer is missing or damaged, or the disk cannot hold it.
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
        let holds = futures::stream::iter(keys.into_iter().map(|key| self.hold_layer(key)));
        Ok(UnpackedStack(holds.buffered(AT_ONCE).try_collect().await?))
    }

    /// Starts unpacking a layer that will be wanted.
    pub fn unpack_ahead(&self, layer: LayerDigest) {
        let layers = self.clone();
        tokio::spawn(async move {
            if let Err(error) = layers.hold_layer((layer, 0)).await {
                tracing::warn!(%error, "a layer could not be unpacked ahead");
            }
        });
    }

    async fn hold_layer(&self, key: CacheKey) -> Result<HeldLayer, LayerError> {
        if let Some(hold) = self.0.cache.hold_layer(&key) {
            return Ok(hold);
        }
        // In a task of its own: whoever waits may go away, others wait for it too.
        let layers = self.clone();
        let flight = tokio::spawn(async move {
            let flight = layers.0.cache.unpack_lock(&key);
            let _first = flight.lock().await;
            match layers.0.cache.hold_layer(&key) {
                Some(hold) => Ok(hold),
                None => layers.unpack_layer(key).await,
            }
        });
        match flight.await {
            Ok(hold) => hold,
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
            let place = tempfile::Builder::new()
                .prefix("new-")
                .disable_cleanup(true)
                .tempdir_in(cache.dir())
                .map_err(unpacking())?;
            let name = place.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
            let top = fs::File::open(place.path()).map_err(unpacking())?;
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
                tracing::warn!(%error, "an unfinished layer could not be removed");
            }
            adopted
        })
        .await
    }
}
