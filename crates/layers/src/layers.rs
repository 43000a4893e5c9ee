//! All layers of this host: what their operations share, and the shortest of them.

use std::{
    collections::HashMap,
    io::Read,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
    time::Instant,
};

use cloche_model::{Layer, LayerDigest};
use futures::TryStreamExt;
use parking_lot::Mutex;
use tempfile::NamedTempFile;
use tokio::io::AsyncRead;
use tokio_util::io::SyncIoBridge;

use crate::{
    LayerBounds, LayerError, LayerIndex, LayersConfig,
    blob_store::{BlobStore, run_blocking},
    checked_blob, crash,
    index_cache::IndexCache,
    ingest::{self, EmptyHomePolicy, ingest_archive},
    layer_cache::LayerCache,
    layer_index::IndexBuilder,
};

/// The mode of a home that nobody has changed.
pub(crate) const NEW_HOME: u32 = 0o755;

/// All layers of this host: where they are kept and what of them is unpacked.
#[derive(Clone)]
pub struct Layers(pub(crate) Arc<LayersInner>);

pub(crate) struct LayersInner {
    pub(crate) config: LayersConfig,
    pub(crate) blobs: BlobStore,
    pub(crate) cache: Arc<LayerCache>,
    pub(crate) indexes: IndexCache,
    /// Layers that were stored and that their owners have not settled: not swept within the grace.
    pub(crate) pins: Mutex<HashMap<LayerDigest, LayerPin>>,
    /// Whether files of runs without a thread are stored; not while the disk is short.
    pub(crate) keeps_output: AtomicBool,
    /// Held shared while a blob is published, and alone while one is deleted.
    pub(crate) gate: tokio::sync::RwLock<()>,
}

/// A layer that was stored, and how often since its owners settled it.
pub(crate) struct LayerPin {
    pub(crate) stored_at: Instant,
    pub(crate) stores: u32,
}

/// A layer that is durable.
#[derive(Clone, Debug)]
pub struct StoredLayer {
    /// What it is found by, and its sizes.
    pub layer: Layer,
    /// What is in it.
    pub index: Arc<LayerIndex>,
}

/// How much there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayersUsage {
    /// Disk that unpacked layers take.
    pub cache_bytes: u64,
    /// How many are unpacked.
    pub cached: u64,
    /// How many of those are in use.
    pub in_use: u64,
    /// Layers in the store.
    pub blobs: u64,
    /// Their size as stored.
    pub blob_bytes: u64,
}

/// Says what is in an archive, and keeps none of it; none if it holds nothing but the home itself.
/// It is read where it may block.
///
/// # Errors
/// If the archive is not one that `pack` could have made, or is too large.
pub async fn survey_archive(
    archive: impl Read + Send + 'static,
    bounds: LayerBounds,
) -> Result<Option<LayerIndex>, LayerError> {
    let work =
        move || ingest::index_archive(std::io::BufReader::with_capacity(1 << 17, archive), bounds);
    run_blocking(work).await
}

impl Layers {
    /// Opens the store and the cache, and removes what an earlier process left unfinished. The
    /// directory is made if it is missing, and is ours alone.
    ///
    /// # Errors
    /// If the configuration cannot be used, or another process has the directory.
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
            })
        });
        Ok(Self(Arc::new(inner.await?)))
    }

    /// Where unpacked layers are: `<dir>/cache`.
    #[must_use]
    pub fn cache_dir(&self) -> &Path {
        self.0.cache.dir()
    }

    /// Stores an archive as a layer. It is durable when this returns; none if the archive holds
    /// nothing but the home itself.
    ///
    /// # Errors
    /// If the archive is not one that `pack` could have made, or is too large, or if it could not
    /// be stored. Nothing is left behind then.
    pub async fn store_archive(
        &self,
        archive: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<Option<StoredLayer>, LayerError> {
        self.store_with_policy(archive, EmptyHomePolicy::AlwaysDrop).await
    }

    /// The same for an archive that is read where it may block.
    ///
    /// # Errors
    /// The same.
    pub async fn store_blocking(
        &self,
        archive: impl Read + Send + 'static,
    ) -> Result<Option<StoredLayer>, LayerError> {
        self.store_blocking_with_policy(archive, EmptyHomePolicy::AlwaysDrop).await
    }

    /// The same for what a run wrote to a home of this stack: it is also a layer if all that it did
    /// was to give the home itself another mode or other attributes.
    ///
    /// # Errors
    /// The same.
    pub async fn store_on_stack(
        &self,
        stack: &[LayerDigest],
        archive: impl Read + Send + 'static,
    ) -> Result<Option<StoredLayer>, LayerError> {
        let bare = match stack.last() {
            Some(newest) => match self.load_index(newest).await?.get(b"") {
                Some(home) => EmptyHomePolicy::DropIfSame(home.mode, home.xattrs.clone()),
                None => EmptyHomePolicy::AlwaysDrop,
            },
            None => EmptyHomePolicy::DropIfSame(NEW_HOME, Vec::new()),
        };
        self.store_blocking_with_policy(archive, bare).await
    }

    pub(crate) async fn store_with_policy(
        &self,
        archive: impl AsyncRead + Send + Unpin + 'static,
        bare: EmptyHomePolicy,
    ) -> Result<Option<StoredLayer>, LayerError> {
        self.store_blocking_with_policy(SyncIoBridge::new(archive), bare).await
    }

    async fn store_blocking_with_policy(
        &self,
        archive: impl Read + Send + 'static,
        bare: EmptyHomePolicy,
    ) -> Result<Option<StoredLayer>, LayerError> {
        let file = self.0.blobs.new_file()?;
        let bounds = self.0.config.bounds;
        let work = move || {
            let ingested = ingest_archive(archive, file.as_file(), bounds, &bare)?;
            Ok(ingested.map(|ingested| (ingested, file)))
        };
        let Some((ingested, file)) = run_blocking(work).await? else { return Ok(None) };
        self.publish_layer(file, ingested.digest, ingested.index).await.map(Some)
    }

    /// Puts a finished blob to the others, and its index beside it.
    pub(crate) async fn publish_layer(
        &self,
        file: NamedTempFile,
        digest: LayerDigest,
        index: LayerIndex,
    ) -> Result<StoredLayer, LayerError> {
        let layer = index.to_layer(digest.clone());
        let _shared = self.0.gate.read().await;
        self.pin_layer(&digest);
        // An index without its blob does no harm, so it need not wait for the disk.
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

    async fn keep_index(&self, digest: LayerDigest, index: LayerIndex) -> Arc<LayerIndex> {
        let index = Arc::new(index);
        let put = match index.encode() {
            Ok(bytes) => self.0.blobs.put_index(&digest, bytes).await,
            Err(error) => Err(error),
        };
        if let Err(error) = put {
            tracing::warn!(%digest, %error, "the index of a layer was not kept; it will be rebuilt");
        }
        self.0.indexes.put(digest, &index);
        index
    }

    /// What is in a layer. It is read from the blob if it is not kept beside it any more.
    ///
    /// # Errors
    /// If there is no such layer, or it is damaged.
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

    /// How much there is. Counts the blobs, which takes a while in a large bucket.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn measure_usage(&self) -> Result<LayersUsage, LayerError> {
        let mut usage = self.0.cache.usage();
        let mut blobs = self.0.blobs.list_blobs();
        while let Some((_, meta)) = blobs.try_next().await? {
            usage.blobs += 1;
            usage.blob_bytes += meta.size;
        }
        Ok(usage)
    }

    /// The part of `usage` that is known without asking the store: the cache.
    #[must_use]
    pub fn cache_usage(&self) -> LayersUsage {
        self.0.cache.usage()
    }
}
