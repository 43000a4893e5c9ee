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
    Bounds, Index, LayerError, LayersConfig,
    blobs::{Blobs, blocking},
    cache::Cache,
    crash,
    index::Builder,
    indexes::Indexes,
    ingest::{self, Bare, ingest},
    verified,
};

/// The mode of a home that nobody has changed.
pub(crate) const NEW_HOME: u32 = 0o755;

/// All layers of this host: where they are kept and what of them is unpacked.
#[derive(Clone)]
pub struct Layers(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) config: LayersConfig,
    pub(crate) blobs: Blobs,
    pub(crate) cache: Arc<Cache>,
    pub(crate) indexes: Indexes,
    /// Layers that were stored and that their owners have not settled: not swept within the grace.
    pub(crate) pins: Mutex<HashMap<LayerDigest, Pin>>,
    /// Whether files of runs without a thread are stored; not while the disk is short.
    pub(crate) keeps_output: AtomicBool,
    /// Held shared while a blob is published, and alone while one is deleted.
    pub(crate) gate: tokio::sync::RwLock<()>,
}

/// A layer that was stored, and how often since its owners settled it.
pub(crate) struct Pin {
    pub(crate) stored_at: Instant,
    pub(crate) stores: u32,
}

/// A layer that is durable.
#[derive(Clone, Debug)]
pub struct Stored {
    /// What it is found by, and its sizes.
    pub layer: Layer,
    /// What is in it.
    pub index: Arc<Index>,
}

/// How much there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
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
pub async fn survey(
    archive: impl Read + Send + 'static,
    bounds: Bounds,
) -> Result<Option<Index>, LayerError> {
    let work = move || ingest::survey(std::io::BufReader::with_capacity(1 << 17, archive), bounds);
    blocking(work).await
}

impl Layers {
    /// Opens the store and the cache, and removes what an earlier process left unfinished. The
    /// directory is made if it is missing, and is ours alone.
    ///
    /// # Errors
    /// If the configuration cannot be used, or another process has the directory.
    pub async fn open(config: LayersConfig) -> Result<Self, LayerError> {
        let inner = blocking(move || {
            let cache = Arc::new(Cache::open(&config)?);
            let blobs = Blobs::open(&config)?;
            Ok(Inner {
                config,
                blobs,
                cache,
                indexes: Indexes::default(),
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
    pub async fn store(
        &self,
        archive: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<Option<Stored>, LayerError> {
        self.store_unless(archive, Bare::Nothing).await
    }

    /// The same for an archive that is read where it may block.
    ///
    /// # Errors
    /// The same.
    pub async fn store_read(
        &self,
        archive: impl Read + Send + 'static,
    ) -> Result<Option<Stored>, LayerError> {
        self.store_read_unless(archive, Bare::Nothing).await
    }

    /// The same for what a run wrote to a home of this stack: it is also a layer if all that it did
    /// was to give the home itself another mode or other attributes.
    ///
    /// # Errors
    /// The same.
    pub async fn store_on(
        &self,
        stack: &[LayerDigest],
        archive: impl Read + Send + 'static,
    ) -> Result<Option<Stored>, LayerError> {
        let bare = match stack.last() {
            Some(newest) => match self.index(newest).await?.get(b"") {
                Some(home) => Bare::Unless(home.mode, home.xattrs.clone()),
                None => Bare::Nothing,
            },
            None => Bare::Unless(NEW_HOME, Vec::new()),
        };
        self.store_read_unless(archive, bare).await
    }

    pub(crate) async fn store_unless(
        &self,
        archive: impl AsyncRead + Send + Unpin + 'static,
        bare: Bare,
    ) -> Result<Option<Stored>, LayerError> {
        self.store_read_unless(SyncIoBridge::new(archive), bare).await
    }

    async fn store_read_unless(
        &self,
        archive: impl Read + Send + 'static,
        bare: Bare,
    ) -> Result<Option<Stored>, LayerError> {
        let file = self.0.blobs.new_file()?;
        let bounds = self.0.config.bounds;
        let work = move || {
            let ingested = ingest(archive, file.as_file(), bounds, &bare)?;
            Ok(ingested.map(|ingested| (ingested, file)))
        };
        let Some((ingested, file)) = blocking(work).await? else { return Ok(None) };
        self.publish(file, ingested.digest, ingested.index).await.map(Some)
    }

    /// Puts a finished blob to the others, and its index beside it.
    pub(crate) async fn publish(
        &self,
        file: NamedTempFile,
        digest: LayerDigest,
        index: Index,
    ) -> Result<Stored, LayerError> {
        let layer = index.layer(digest.clone());
        let _shared = self.0.gate.read().await;
        self.pin(&digest);
        // An index without its blob does no harm, so it need not wait for the disk.
        let (published, index) = tokio::join!(
            self.0.blobs.publish(file, &digest),
            self.keep_index(digest.clone(), index)
        );
        if let Err(error) = published {
            self.0.indexes.forget(&digest);
            return Err(error);
        }
        crash::point("layer-stored");
        Ok(Stored { layer, index })
    }

    async fn keep_index(&self, digest: LayerDigest, index: Index) -> Arc<Index> {
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
    pub async fn index(&self, digest: &LayerDigest) -> Result<Arc<Index>, LayerError> {
        if let Some(index) = self.0.indexes.get(digest) {
            return Ok(index);
        }
        if let Some(bytes) = self.0.blobs.get_index(digest).await?
            && let Some(index) = blocking(move || Ok(Index::decode(&bytes))).await?
        {
            let index = Arc::new(index);
            self.0.indexes.put(digest.clone(), &index);
            return Ok(index);
        }
        let meta = self.0.blobs.head(digest).await?;
        let stored = meta.ok_or_else(|| LayerError::Missing(digest.clone()))?.size;
        let blob = self.0.blobs.read(digest).await?;
        let (wanted, bounds) = (digest.clone(), self.0.config.bounds);
        let index = blocking(move || {
            verified::read(blob, &wanted, |archive| {
                Builder::read(archive, bounds)?.finish(Vec::new(), stored)
            })
        });
        Ok(self.keep_index(digest.clone(), index.await?).await)
    }

    /// How much there is. Counts the blobs, which takes a while in a large bucket.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn usage(&self) -> Result<Usage, LayerError> {
        let mut usage = self.0.cache.usage();
        let mut blobs = self.0.blobs.list();
        while let Some((_, meta)) = blobs.try_next().await? {
            usage.blobs += 1;
            usage.blob_bytes += meta.size;
        }
        Ok(usage)
    }

    /// The part of `usage` that is known without asking the store: the cache.
    #[must_use]
    pub fn cache_usage(&self) -> Usage {
        self.0.cache.usage()
    }
}
