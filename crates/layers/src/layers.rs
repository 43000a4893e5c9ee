//! The layers of one host: the state that all operations share, and the shortest operations.

use std::{
    collections::HashMap,
    io::{self, Read},
    os::fd::OwnedFd,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize},
    },
    time::Instant,
};

use cloche_model::{Layer, LayerDigest, LayerStoreId};
use futures::TryStreamExt;
use parking_lot::Mutex;
use tempfile::NamedTempFile;
use tokio::io::AsyncRead;
use tokio_util::io::SyncIoBridge;

use crate::{
    LayerBounds, LayerError, LayerIndex, LayersConfig,
    blob_store::{BlobStore, UnsyncedBlob, run_blocking},
    checked_blob, crash,
    index_cache::IndexCache,
    ingest::{self, EmptyHomePolicy, IngestedLayer, ingest_archive},
    layer_cache::LayerCache,
    layer_index::IndexBuilder,
};

/// The mode of a home that was never changed.
pub(crate) const NEW_HOME: u32 = 0o755;

/// The layers of one host: the blob store and the cache of unpacked layers.
#[derive(Clone)]
pub struct Layers(pub(crate) Arc<LayersInner>);

pub(crate) struct LayersInner {
    pub(crate) config: LayersConfig,
    pub(crate) blobs: BlobStore,
    pub(crate) cache: Arc<LayerCache>,
    pub(crate) indexes: IndexCache,
    /// Layers that were stored and whose owners have not released them. They are not swept within
    /// the grace period.
    pub(crate) pins: Mutex<HashMap<LayerDigest, LayerPin>>,
    /// Whether files of runs without a thread are stored. False while disk space is short.
    pub(crate) keeps_output: AtomicBool,
    /// Locked shared while a blob is published, and exclusively while one is deleted.
    pub(crate) gate: tokio::sync::RwLock<()>,
    /// How many wish that nothing is deleted. Deletions read it while they hold `gate`.
    pub(crate) holds: AtomicUsize,
    /// The name of the store, once it was read.
    pub(crate) store_id: tokio::sync::OnceCell<LayerStoreId>,
    /// The lock of the one process that removes layers from a shared directory.
    pub(crate) claim: Mutex<Option<OwnedFd>>,
}

/// When a layer was last stored, and how many stores of it have not been released.
pub(crate) struct LayerPin {
    pub(crate) stored_at: Instant,
    pub(crate) stores: u32,
}

/// A layer that is durable.
#[derive(Clone, Debug)]
pub struct StoredLayer {
    /// Its digest and its sizes.
    pub layer: Layer,
    /// Its entries.
    pub index: Arc<LayerIndex>,
}

/// Counts and sizes of cached and stored layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayersUsage {
    /// Disk space of unpacked layers.
    pub cache_bytes: u64,
    /// Number of unpacked layers.
    pub cached: u64,
    /// Number of unpacked layers that are in use.
    pub in_use: u64,
    /// Number of layers in the store.
    pub blobs: u64,
    /// Size of those layers as stored.
    pub blob_bytes: u64,
}

/// Lists the content of an archive without storing it. Returns `None` if the archive contains
/// nothing but the home itself. The archive is read on a blocking thread.
///
/// # Errors
/// If `pack_upper_dir` could not have made the archive, or if it is too large.
pub async fn survey_archive(
    archive: impl Read + Send + 'static,
    bounds: LayerBounds,
) -> Result<Option<LayerIndex>, LayerError> {
    let work =
        move || ingest::index_archive(io::BufReader::with_capacity(1 << 17, archive), bounds);
    run_blocking(work).await
}

impl Layers {
    /// Opens the store and the cache, and removes unfinished work of an earlier process. Creates
    /// the directory if it is missing. Only one process may use it at a time.
    ///
    /// # Errors
    /// If the configuration cannot be used, or another process has locked the directory.
    pub async fn open(config: LayersConfig) -> Result<Self, LayerError> {
        let inner = run_blocking(move || {
            let cache = Arc::new(LayerCache::open(&config)?);
            let blobs = BlobStore::open(&config)?;
            Ok(LayersInner {
                config,
                blobs,
                cache,
                indexes: IndexCache::default(),
                pins: Mutex::default(),
                keeps_output: AtomicBool::new(true),
                gate: tokio::sync::RwLock::default(),
                holds: AtomicUsize::new(0),
                store_id: tokio::sync::OnceCell::new(),
                claim: Mutex::default(),
            })
        });
        Ok(Self(Arc::new(inner.await?)))
    }

    /// The directory of unpacked layers: `<dir>/cache`.
    #[must_use]
    pub fn cache_dir(&self) -> &Path {
        self.0.cache.dir()
    }

    /// Stores an archive as a layer. The layer is durable when this returns. Returns `None` if the
    /// archive contains nothing but the home itself.
    ///
    /// # Errors
    /// If `pack_upper_dir` could not have made the archive, if it is too large, or if it could not
    /// be stored. Nothing is left behind then.
    pub async fn store_archive(
        &self,
        archive: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<Option<StoredLayer>, LayerError> {
        self.store_with_policy(archive, EmptyHomePolicy::AlwaysDrop).await
    }

    /// Like [`store_archive`](Self::store_archive), for an archive that is read on a blocking
    /// thread.
    ///
    /// # Errors
    /// As for `store_archive`.
    pub async fn store_blocking(
        &self,
        archive: impl Read + Send + 'static,
    ) -> Result<Option<StoredLayer>, LayerError> {
        self.store_blocking_with_policy(archive, EmptyHomePolicy::AlwaysDrop).await
    }

    /// Like [`store_blocking`](Self::store_blocking), for the diff of a run on a home with this
    /// stack. If the run only changed the mode or the attributes of the home itself, that is a
    /// layer too.
    ///
    /// # Errors
    /// As for `store_archive`.
    pub async fn store_on_stack(
        &self,
        stack: &[LayerDigest],
        archive: impl Read + Send + 'static,
    ) -> Result<Option<StoredLayer>, LayerError> {
        let policy = match stack.last() {
            Some(newest) => match self.load_index(newest).await?.get(b"") {
                Some(home) => EmptyHomePolicy::DropIfSame(home.mode, home.xattrs.clone()),
                None => EmptyHomePolicy::AlwaysDrop,
            },
            None => EmptyHomePolicy::DropIfSame(NEW_HOME, Vec::new()),
        };
        self.store_blocking_with_policy(archive, policy).await
    }

    pub(crate) async fn store_with_policy(
        &self,
        archive: impl AsyncRead + Send + Unpin + 'static,
        policy: EmptyHomePolicy,
    ) -> Result<Option<StoredLayer>, LayerError> {
        self.store_blocking_with_policy(SyncIoBridge::new(archive), policy).await
    }

    async fn store_blocking_with_policy(
        &self,
        archive: impl Read + Send + 'static,
        policy: EmptyHomePolicy,
    ) -> Result<Option<StoredLayer>, LayerError> {
        let file = self.0.blobs.new_file()?;
        let bounds = self.0.config.bounds;
        let work = move || {
            let ingested = ingest_archive(archive, file.as_file(), bounds, &policy)?;
            Ok(ingested.map(|ingested| (ingested, file)))
        };
        let Some((ingested, file)) = run_blocking(work).await? else { return Ok(None) };
        self.publish_layer(file, ingested.digest, ingested.index).await.map(Some)
    }

    /// Publishes a finished blob, and its index beside it.
    pub(crate) async fn publish_layer(
        &self,
        file: NamedTempFile,
        digest: LayerDigest,
        index: LayerIndex,
    ) -> Result<StoredLayer, LayerError> {
        let layer = index.to_layer(digest.clone());
        let _shared = self.0.gate.read().await;
        self.pin_layer(&digest);
        // An index without its blob is harmless, so the two are written at the same time.
        let (published, index) = tokio::join!(
            self.0.blobs.publish(file, &digest),
            self.keep_index(digest.clone(), index)
        );
        if let Err(error) = published {
            self.0.indexes.forget(&digest);
            return Err(error);
        }
        crash::reach_point("layer-stored");
        Ok(StoredLayer { layer, index })
    }

    /// Stores a small archive of what a run without a thread wrote, on this thread. It is there
    /// when the process is killed after this returns, and it is synced soon: a power cut may lose
    /// it, as it may lose the record of such a run. Returns `None` if the archive contains nothing
    /// but the home itself.
    ///
    /// # Errors
    /// As for `store_archive`.
    pub async fn store_small_output(
        &self,
        archive: Vec<u8>,
    ) -> Result<Option<StoredLayer>, LayerError> {
        if !self.0.blobs.is_private() {
            return self.store_blocking(io::Cursor::new(archive)).await;
        }
        let file = self.0.blobs.new_file()?;
        let (bounds, policy) = (self.0.config.bounds, EmptyHomePolicy::AlwaysDrop);
        let ingested = ingest_archive(&archive[..], file.as_file(), bounds, &policy)?;
        let Some(IngestedLayer { digest, index }) = ingested else { return Ok(None) };
        let layer = index.to_layer(digest.clone());
        let _shared = self.0.gate.read().await;
        self.pin_layer(&digest);
        let unsynced = self.0.blobs.publish_unsynced(file, &digest)?;
        crash::reach_point("layer-stored");
        let index = Arc::new(index);
        self.0.indexes.put(digest.clone(), &index);
        tokio::spawn(self.clone().finish_small_output(digest, Arc::clone(&index), unsynced));
        Ok(Some(StoredLayer { layer, index }))
    }

    /// Syncs a blob, and stores the index beside it.
    async fn finish_small_output(
        self,
        digest: LayerDigest,
        index: Arc<LayerIndex>,
        unsynced: UnsyncedBlob,
    ) {
        if let Err(error) = run_blocking(move || unsynced.sync()).await {
            tracing::error!(%digest, %error, "the output of a run may not survive a power cut");
        }
        self.store_index(&digest, &index).await;
    }

    async fn store_index(&self, digest: &LayerDigest, index: &LayerIndex) {
        let put = match index.encode() {
            Ok(bytes) => self.0.blobs.put_index(digest, bytes).await,
            Err(error) => Err(error),
        };
        if let Err(error) = put {
            tracing::warn!(%digest, %error, "could not store a layer index; it will be rebuilt");
        }
    }

    async fn keep_index(&self, digest: LayerDigest, index: LayerIndex) -> Arc<LayerIndex> {
        let index = Arc::new(index);
        self.store_index(&digest, &index).await;
        self.0.indexes.put(digest, &index);
        index
    }

    /// The index of a layer. It is rebuilt from the blob if it is not stored any more.
    ///
    /// # Errors
    /// If the layer does not exist or is damaged.
    pub async fn load_index(&self, digest: &LayerDigest) -> Result<Arc<LayerIndex>, LayerError> {
        if let Some(index) = self.0.indexes.get(digest) {
            return Ok(index);
        }
        if let Some(bytes) = self.0.blobs.get_index(digest).await?
            && let Some(index) = run_blocking(move || Ok(LayerIndex::decode(&bytes))).await?
        {
            let index = Arc::new(index);
            self.0.indexes.put(digest.clone(), &index);
            return Ok(index);
        }
        let meta = self.0.blobs.blob_meta(digest).await?;
        let stored = meta.ok_or_else(|| LayerError::Missing(digest.clone()))?.size;
        let blob = self.0.blobs.open_blob(digest).await?;
        let (wanted, bounds) = (digest.clone(), self.0.config.bounds);
        let index = run_blocking(move || {
            checked_blob::read_checked(blob, &wanted, |archive| {
                IndexBuilder::from_archive(archive, bounds)?.finish(Vec::new(), stored)
            })
        });
        Ok(self.keep_index(digest.clone(), index.await?).await)
    }

    /// Counts cached and stored layers. Lists all blobs, which takes long in a large bucket.
    ///
    /// # Errors
    /// If the store does not respond.
    pub async fn measure_usage(&self) -> Result<LayersUsage, LayerError> {
        let mut usage = self.0.cache.usage();
        let mut blobs = self.0.blobs.list_blobs();
        while let Some((_, meta)) = blobs.try_next().await? {
            usage.blobs += 1;
            usage.blob_bytes += meta.size;
        }
        Ok(usage)
    }

    /// The part of `measure_usage` that does not need the store: the cache.
    #[must_use]
    pub fn cache_usage(&self) -> LayersUsage {
        self.0.cache.usage()
    }
}
