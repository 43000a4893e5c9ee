//! Runs in: server, sidecar (no capabilities).
//!
//! A store that several hosts use: its name, and layers that another process stored in it.

use std::fmt;

use cloche_model::{Layer, LayerDigest, LayerStoreId};

use crate::{
    LayerError, Layers,
    layer_cache::{LockError, lock_file},
};

impl Layers {
    /// The name of the store, which is the same for every process that uses it. It is read once.
    ///
    /// # Errors
    /// If the store does not respond.
    pub async fn store_id(&self) -> Result<LayerStoreId, LayerError> {
        let read = async || {
            let mut random = [0; 16];
            getrandom::fill(&mut random).map_err(|error| {
                LayerError::Config(format!("could not read random bytes from the kernel: {error}"))
            })?;
            self.0.blobs.read_or_write_id(LayerStoreId::from_random(random)).await
        };
        self.0.store_id.get_or_try_init(read).await.copied()
    }

    /// The name of the store, if it was read before.
    #[must_use]
    pub fn known_store_id(&self) -> Option<LayerStoreId> {
        self.0.store_id.get().copied()
    }

    /// Makes this process the one that removes layers from a shared directory, while it lives. A
    /// second server would remove layers that only the first one knows to be needed. Other stores
    /// have one server by their configuration.
    ///
    /// # Errors
    /// If another process has claimed the directory.
    pub fn claim_store(&self) -> Result<(), LayerError> {
        let Some(root) = self.0.config.shared_dir() else { return Ok(()) };
        let lock = lock_file(&root.join("server-lock")).map_err(|error| match error {
            LockError::Held => {
                LayerError::Config(format!("{} is in use by another server", root.display()))
            }
            LockError::Io(source) => LayerError::from_io("locking the layer store", source),
        })?;
        *self.0.claim.lock() = Some(lock);
        Ok(())
    }

    /// Takes over a layer that another process stored. It is pinned from now on, as if it was
    /// stored here, and a sweep of this process does not remove it.
    ///
    /// # Errors
    /// If the store does not have the layer, or does not respond.
    pub async fn adopt_layer(&self, digest: &LayerDigest) -> Result<Layer, LayerError> {
        // Nothing is removed while this lock is held, and nothing that is pinned afterwards.
        let _shared = self.0.gate.read().await;
        let (meta, index) = tokio::join!(self.0.blobs.blob_meta(digest), self.load_index(digest));
        if meta?.is_none() {
            self.0.indexes.forget(digest);
            return Err(LayerError::Missing(digest.clone()));
        }
        let layer = index?.to_layer(digest.clone());
        self.pin_layer(digest);
        Ok(layer)
    }
}

impl fmt::Debug for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layers").field("dir", &self.0.config.dir).finish_non_exhaustive()
    }
}
