//! Runs in: server (no capabilities), `cloche restore`.
//!
//! Stored layers as bytes: to copy them out while nothing is deleted, and to put copies back.

use std::{
    io::{self, Read, Write},
    sync::{Arc, atomic::Ordering},
};

use bytes::Bytes;
use cloche_model::LayerDigest;
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use sha2::{Digest, Sha256};

use crate::{LayerError, Layers, blob_store::run_blocking, layers::LayersInner};

/// While this exists, no layer of the store is deleted by this process.
pub struct DeletionHold(Arc<LayersInner>);

impl Drop for DeletionHold {
    fn drop(&mut self) {
        self.0.holds.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Layers {
    /// Deletes no layer until the result is dropped. A deletion that has begun is over when this
    /// returns. What would have been deleted meanwhile is left to the next sweep.
    pub async fn hold_deletions(&self) -> DeletionHold {
        self.0.holds.fetch_add(1, Ordering::SeqCst);
        let hold = DeletionHold(Arc::clone(&self.0));
        // Deletions look at the counter under this lock.
        drop(self.0.gate.write().await);
        hold
    }

    /// Whether deletions wait.
    pub(crate) fn holds_deletions(&self) -> bool {
        self.0.holds.load(Ordering::SeqCst) > 0
    }

    /// The size of a stored layer, if it exists.
    ///
    /// # Errors
    /// If the store does not respond.
    pub async fn blob_size(&self, digest: &LayerDigest) -> Result<Option<u64>, LayerError> {
        Ok(self.0.blobs.blob_meta(digest).await?.map(|meta| meta.size))
    }

    /// The bytes of a stored layer.
    ///
    /// # Errors
    /// If the layer does not exist, or the store does not respond.
    pub async fn read_blob(
        &self,
        digest: &LayerDigest,
    ) -> Result<BoxStream<'static, io::Result<Bytes>>, LayerError> {
        let stream = self.0.blobs.stream_blob(digest, None).await?;
        Ok(stream.map_err(io::Error::other).boxed())
    }

    /// Puts the bytes of a layer into the store. It is durable when this returns.
    ///
    /// # Errors
    /// If the bytes do not have this digest, or cannot be read or stored. Nothing is left then.
    pub async fn restore_blob(
        &self,
        digest: &LayerDigest,
        mut bytes: impl Read + Send + 'static,
    ) -> Result<(), LayerError> {
        let file = self.0.blobs.new_file()?;
        let wanted = digest.clone();
        let file = run_blocking(move || {
            let mut hashed = RestoredBlobWriter { to: file.as_file(), hash: Sha256::new() };
            io::copy(&mut bytes, &mut hashed).map_err(LayerError::io_context("copying a layer"))?;
            let found = LayerDigest::from_sha256(hashed.hash.finalize().into());
            if found != wanted {
                let what = format!("its digest is {found}");
                return Err(LayerError::Damaged { digest: wanted, what });
            }
            Ok(file)
        });
        let file = file.await?;
        let _shared = self.0.gate.read().await;
        self.0.blobs.publish(file, digest).await
    }
}

struct RestoredBlobWriter<'a> {
    to: &'a std::fs::File,
    hash: Sha256,
}

impl Write for RestoredBlobWriter<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let count = self.to.write(buffer)?;
        self.hash.update(&buffer[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
