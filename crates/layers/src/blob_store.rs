//! Stores blobs and their indexes in a directory or a bucket, through one interface.
//!
//! Only publishing differs. A bucket stores an object whole or not at all. In a directory, a
//! temporary file is synced and renamed, and then its directory is synced.

use std::{
    fs::{self, File},
    io::Read,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use cloche_model::{LayerDigest, LayerStoreId};
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use object_store::{
    ClientOptions, GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload,
    aws::AmazonS3Builder, buffered::BufWriter, local::LocalFileSystem, path::Path as Key,
};
use tempfile::NamedTempFile;
use tokio_util::io::{StreamReader, SyncIoBridge};

use crate::{LayerError, LayersConfig, S3Config, StoreConfig, crash};

/// The age at which a temporary file in a shared directory belongs to a process that died.
const ABANDONED: Duration = Duration::from_hours(24);
/// The object that names the store, and the most bytes that are read of it.
const STORE_ID: &str = "store-id";
const MAX_STORE_ID: u64 = 64;

pub(crate) struct BlobStore {
    store: Arc<dyn ObjectStore>,
    prefix: String,
    /// Temporary files, on the same file system as `local`.
    new: PathBuf,
    /// The directory of the blobs, if the store is local.
    local: Option<PathBuf>,
    /// Whether no other process uses that directory.
    is_private: bool,
}

/// A published blob that a power cut may lose.
pub(crate) struct UnsyncedBlob {
    file: File,
    directory: PathBuf,
}

impl UnsyncedBlob {
    /// Makes the blob durable.
    pub(crate) fn sync(&self) -> Result<(), LayerError> {
        self.file.sync_all().map_err(LayerError::io_context("syncing a layer"))?;
        sync_directory(&self.directory)
    }
}

impl BlobStore {
    pub(crate) fn open(config: &LayersConfig) -> Result<Self, LayerError> {
        let (new, oldest) = match &config.store {
            // Other processes may be writing there now.
            StoreConfig::Directory(root) => (root.join("new"), ABANDONED),
            StoreConfig::Local | StoreConfig::S3(_) => (config.dir.join("new"), Duration::ZERO),
        };
        make_temporary_directory(&new, oldest)
            .map_err(LayerError::io_context("making the directory for new layers"))?;
        let (store, prefix, local): (Arc<dyn ObjectStore>, _, _) = match &config.store {
            StoreConfig::Local | StoreConfig::Directory(_) => {
                let root = match &config.store {
                    StoreConfig::Directory(root) => root.clone(),
                    _ => config.dir.join("blobs"),
                };
                let local = root.join("sha256");
                for directory in [&local, &root.join("index")] {
                    fs::create_dir_all(directory)
                        .map_err(LayerError::io_context("making the directory for layers"))?;
                }
                // The directories themselves must survive a crash too.
                for directory in [&config.dir, &root] {
                    sync_directory(directory)?;
                }
                (Arc::new(LocalFileSystem::new_with_prefix(&root)?), String::new(), Some(local))
            }
            StoreConfig::S3(s3) => (Arc::new(open_bucket(s3)?), s3.prefix.clone(), None),
        };
        let is_private = matches!(config.store, StoreConfig::Local);
        Ok(Self { store, prefix, new, local, is_private })
    }

    /// A temporary file for a new blob. Dropping it deletes it.
    pub(crate) fn new_file(&self) -> Result<NamedTempFile, LayerError> {
        NamedTempFile::new_in(&self.new)
            .map_err(LayerError::io_context("making a file for a new layer"))
    }

    /// Publishes a finished file as the blob of its digest. It is durable when this returns.
    pub(crate) async fn publish(
        &self,
        file: NamedTempFile,
        digest: &LayerDigest,
    ) -> Result<(), LayerError> {
        crash::reach_point("layer-temp-written");
        if let Some(local) = &self.local {
            let (directory, path) = (local.clone(), local.join(digest.hex_digits()));
            return run_blocking(move || publish_locally(file, &directory, &path)).await;
        }
        let mut from = tokio::fs::File::open(file.path())
            .await
            .map_err(LayerError::io_context("reading a new layer"))?;
        let mut to = BufWriter::new(Arc::clone(&self.store), self.blob_key(digest));
        if let Err(error) = tokio::io::copy(&mut from, &mut to).await {
            // Without an abort, uploaded parts would stay in the bucket unseen.
            let _ = to.abort().await;
            return Err(LayerError::from_io("uploading a layer", error));
        }
        crash::reach_point("layer-before-rename");
        tokio::io::AsyncWriteExt::shutdown(&mut to)
            .await
            .map_err(LayerError::io_context("uploading a layer"))?;
        crash::reach_point("layer-after-rename");
        Ok(())
    }

    /// Whether blobs are in the directory of this process, so that one can be published at once.
    pub(crate) const fn is_private(&self) -> bool {
        self.is_private
    }

    /// Publishes a small finished file as the blob of its digest. It is not durable before it was
    /// synced.
    pub(crate) fn publish_unsynced(
        &self,
        file: NamedTempFile,
        digest: &LayerDigest,
    ) -> Result<UnsyncedBlob, LayerError> {
        crash::reach_point("layer-temp-written");
        let directory = self.local.clone().unwrap_or_default();
        crash::reach_point("layer-before-rename");
        let file = file
            .persist(directory.join(digest.hex_digits()))
            .map_err(|error| LayerError::from_io("renaming a layer", error.error))?;
        crash::reach_point("layer-after-rename");
        Ok(UnsyncedBlob { file, directory })
    }

    /// Opens the whole blob, for reading on a blocking thread.
    pub(crate) async fn open_blob(
        &self,
        digest: &LayerDigest,
    ) -> Result<Box<dyn Read + Send>, LayerError> {
        if let Some(local) = &self.local {
            let file = File::open(local.join(digest.hex_digits())).map_err(|error| match error
                .kind()
            {
                std::io::ErrorKind::NotFound => LayerError::Missing(digest.clone()),
                _ => LayerError::from_io("opening a layer", error),
            })?;
            return Ok(Box::new(file));
        }
        let stream = self.stream_blob(digest, None).await?;
        Ok(Box::new(SyncIoBridge::new(StreamReader::new(stream.map_err(std::io::Error::other)))))
    }

    /// Streams the blob or a range of it.
    pub(crate) async fn stream_blob(
        &self,
        digest: &LayerDigest,
        range: Option<Range<u64>>,
    ) -> Result<BoxStream<'static, object_store::Result<Bytes>>, LayerError> {
        let options = GetOptions { range: range.map(Into::into), ..GetOptions::default() };
        match self.store.get_opts(&self.blob_key(digest), options).await {
            Ok(found) => Ok(found.into_stream()),
            Err(object_store::Error::NotFound { .. }) => Err(LayerError::Missing(digest.clone())),
            Err(error) => Err(error.into()),
        }
    }

    /// The blob's time and size, if it exists.
    pub(crate) async fn blob_meta(
        &self,
        digest: &LayerDigest,
    ) -> Result<Option<ObjectMeta>, LayerError> {
        match self.store.head(&self.blob_key(digest)).await {
            Ok(meta) => Ok(Some(meta)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Lists all blobs.
    pub(crate) fn list_blobs(
        &self,
    ) -> BoxStream<'static, Result<(LayerDigest, ObjectMeta), LayerError>> {
        let found = self.store.list(Some(&self.object_key("sha256", None)));
        found
            .filter_map(async |meta| match meta {
                Ok(meta) => {
                    let digest = format!("sha256:{}", meta.location.filename()?).parse().ok()?;
                    Some(Ok((digest, meta)))
                }
                Err(error) => Some(Err(error.into())),
            })
            .boxed()
    }

    /// Deletes the blob and its index.
    pub(crate) async fn delete_blob(&self, digest: &LayerDigest) -> Result<(), LayerError> {
        for key in [self.blob_key(digest), self.index_key(digest)] {
            match self.store.delete(&key).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// The index as it was stored, or `None` if it is missing.
    pub(crate) async fn get_index(
        &self,
        digest: &LayerDigest,
    ) -> Result<Option<Bytes>, LayerError> {
        match self.store.get(&self.index_key(digest)).await {
            Ok(found) => Ok(Some(found.bytes().await?)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Stores the index. It may get lost, because it can be rebuilt from the blob.
    pub(crate) async fn put_index(
        &self,
        digest: &LayerDigest,
        bytes: Vec<u8>,
    ) -> Result<(), LayerError> {
        self.store.put(&self.index_key(digest), PutPayload::from(bytes)).await?;
        Ok(())
    }

    /// The name of this store. The first process that asks writes it.
    pub(crate) async fn read_or_write_id(
        &self,
        new: LayerStoreId,
    ) -> Result<LayerStoreId, LayerError> {
        if let Some(id) = self.read_id().await? {
            return Ok(id);
        }
        let payload = || PutPayload::from(new.to_string().into_bytes());
        let key = self.object_key(STORE_ID, None);
        match self.store.put_opts(&key, payload(), PutMode::Create.into()).await {
            Ok(_) | Err(object_store::Error::AlreadyExists { .. }) => {}
            // A service without conditional writes. Two first starts at once may then differ until
            // the next start.
            Err(
                object_store::Error::NotImplemented { .. }
                | object_store::Error::NotSupported { .. },
            ) => {
                self.store.put(&key, payload()).await?;
            }
            Err(error) => return Err(error.into()),
        }
        let unreadable = || LayerError::Config("the store does not return its store-id".to_owned());
        self.read_id().await?.ok_or_else(unreadable)
    }

    async fn read_id(&self) -> Result<Option<LayerStoreId>, LayerError> {
        let options = GetOptions { range: Some((0..MAX_STORE_ID).into()), ..GetOptions::default() };
        match self.store.get_opts(&self.object_key(STORE_ID, None), options).await {
            Ok(found) => {
                let text = String::from_utf8_lossy(&found.bytes().await?).trim().to_owned();
                let invalid = |error| LayerError::Config(format!("{STORE_ID}: {error}"));
                text.parse().map(Some).map_err(invalid)
            }
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn blob_key(&self, digest: &LayerDigest) -> Key {
        self.object_key("sha256", Some(digest))
    }

    fn index_key(&self, digest: &LayerDigest) -> Key {
        self.object_key("index", Some(digest))
    }

    fn object_key(&self, kind: &str, digest: Option<&LayerDigest>) -> Key {
        let parts = self.prefix.split('/').chain([kind]).chain(digest.map(LayerDigest::hex_digits));
        Key::from_iter(parts.filter(|part| !part.is_empty()))
    }
}

fn publish_locally(file: NamedTempFile, directory: &Path, path: &Path) -> Result<(), LayerError> {
    file.as_file().sync_all().map_err(LayerError::io_context("syncing a layer"))?;
    crash::reach_point("layer-before-rename");
    file.persist(path).map_err(|error| LayerError::from_io("renaming a layer", error.error))?;
    crash::reach_point("layer-after-rename");
    sync_directory(directory)
}

fn sync_directory(path: &Path) -> Result<(), LayerError> {
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    synced.map_err(LayerError::io_context("syncing a directory"))
}

/// Makes a directory that only its owner can enter, and removes files of this age from it.
fn make_temporary_directory(path: &Path, oldest: Duration) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    for left_behind in fs::read_dir(path)? {
        let left_behind = left_behind?;
        let age = || left_behind.metadata().ok()?.modified().ok()?.elapsed().ok();
        if oldest.is_zero() || age().is_some_and(|age| age >= oldest) {
            fs::remove_file(left_behind.path())?;
        }
    }
    Ok(())
}

/// Installs the cryptography provider of this process. The client of buckets uses it, and panics
/// without one.
pub fn install_crypto_provider() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

fn open_bucket(config: &S3Config) -> Result<impl ObjectStore, LayerError> {
    install_crypto_provider();
    let secret = |name: &String| {
        std::env::var(name).map_err(|_| LayerError::Config(format!("{name} is not set")))
    };
    // A large layer may take long, so only a stall is a timeout.
    let client = ClientOptions::new()
        .with_connect_timeout(Duration::from_secs(10))
        .with_read_timeout(Duration::from_secs(30))
        .with_timeout_disabled();
    let mut builder = AmazonS3Builder::new()
        .with_client_options(client)
        .with_bucket_name(&config.bucket)
        .with_region(&config.region)
        .with_access_key_id(secret(&config.access_key_env)?)
        .with_secret_access_key(secret(&config.secret_key_env)?);
    if let Some(endpoint) = &config.endpoint {
        builder = builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
    }
    Ok(builder.build()?)
}

/// Runs `work` on a blocking thread.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LayerError> + Send + 'static,
) -> Result<T, LayerError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(LayerError::from_io("working on a layer", std::io::Error::other(error))),
    }
}
