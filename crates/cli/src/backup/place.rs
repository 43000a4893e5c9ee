//! Runs in: `cloche backup`, `cloche restore`.
//!
//! Where backups are: a directory, or a prefix of a bucket. Every object is complete or absent. Layers
//! are shared by all backups of a place; each backup has a directory of its own, and its manifest is
//! written last.

use std::{fs, io, path::PathBuf, sync::Arc};

use bytes::Bytes;
use clap::Args;
use cloche_model::LayerDigest;
use futures::{Stream, TryStreamExt, stream::BoxStream};
use object_store::{
    ClientOptions, ObjectStore, ObjectStoreExt, PutPayload, aws::AmazonS3Builder,
    buffered::BufWriter, local::LocalFileSystem, path::Path as Key,
};
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;

use super::{BackupError, manifest::BackupManifest};

/// The name of a manifest.
const MANIFEST: &str = "manifest.json";

/// A place as it is named on the command line.
#[derive(Args)]
pub(crate) struct PlaceArguments {
    /// A directory, or a bucket with a prefix: s3://BUCKET/PREFIX. Its keys are read from
    /// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
    #[arg(value_name = "DIR|s3://BUCKET/PREFIX")]
    place: String,
    /// The address of the S3-compatible service.
    #[arg(long = "endpoint", env = "AWS_ENDPOINT_URL", value_name = "URL")]
    place_endpoint: Option<String>,
    /// The region of the bucket.
    #[arg(long = "region", env = "AWS_REGION", value_name = "NAME", default_value = "us-east-1")]
    place_region: String,
}

/// The objects of a place.
pub(super) struct BackupPlace {
    store: Arc<dyn ObjectStore>,
    prefix: String,
    /// The directory, if it is one.
    directory: Option<PathBuf>,
    shown: String,
}

/// The size and digest of what was written or read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectDigest {
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

impl BackupPlace {
    /// Opens a place. A directory is made if `create` is set.
    pub(super) fn open(arguments: &PlaceArguments, create: bool) -> Result<Self, BackupError> {
        let shown = arguments.place.clone();
        let unusable = |source: object_store::Error| BackupError::Place {
            place: arguments.place.clone(),
            source,
        };
        if let Some(bucket) = arguments.place.strip_prefix("s3://") {
            let (bucket, prefix) = bucket.split_once('/').unwrap_or((bucket, ""));
            let store = open_bucket(arguments, bucket).map_err(unusable)?;
            let prefix = prefix.trim_matches('/').to_owned();
            return Ok(Self { store, prefix, directory: None, shown });
        }
        let directory = PathBuf::from(&arguments.place);
        let failed = |source| BackupError::File { path: directory.display().to_string(), source };
        if create {
            use std::os::unix::fs::DirBuilderExt;
            // A backup has everything that teams stored.
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory);
            made.map_err(failed)?;
        }
        let store = LocalFileSystem::new_with_prefix(&directory).map_err(unusable)?;
        let store = Arc::new(store.with_fsync(true));
        Ok(Self { store, prefix: String::new(), directory: Some(directory), shown })
    }

    /// The place in words.
    pub(super) fn name(&self) -> &str {
        &self.shown
    }

    fn key(&self, name: &str) -> Key {
        let parts = self.prefix.split('/').chain(name.split('/'));
        Key::from_iter(parts.filter(|part| !part.is_empty()))
    }

    fn failed(&self, name: &str) -> impl FnOnce(object_store::Error) -> BackupError {
        let (name, place) = (name.to_owned(), self.shown.clone());
        move |error| match error {
            error if is_missing_bucket(&error) => BackupError::NoBucket(place),
            object_store::Error::NotFound { .. } => BackupError::Missing(name),
            source => BackupError::Object { name, source },
        }
    }

    /// The name of a layer.
    pub(super) fn layer_name(digest: &LayerDigest) -> String {
        format!("layers/sha256/{}", digest.hex_digits())
    }

    /// The name of a part of a backup.
    pub(super) fn part_name(backup: &str, part: &str) -> String {
        format!("backups/{backup}/{part}")
    }

    /// The names and sizes of the layers that are there.
    pub(super) async fn list_layers(&self) -> Result<Vec<(String, u64)>, BackupError> {
        let failed = self.failed("layers");
        let found = self.store.list(Some(&self.key("layers/sha256")));
        let found = found
            .map_ok(|meta| (meta.location.filename().unwrap_or_default().to_owned(), meta.size));
        found.try_collect().await.map_err(failed)
    }

    /// The ids of the backups, oldest first, and whether each is complete.
    pub(super) async fn list_backups(&self) -> Result<Vec<(String, bool)>, BackupError> {
        let found = self.store.list_with_delimiter(Some(&self.key("backups"))).await;
        let mut backups = Vec::new();
        for directory in found.map_err(self.failed("backups"))?.common_prefixes {
            let Some(id) = directory.filename().map(str::to_owned) else { continue };
            let manifest = self.key(&Self::part_name(&id, MANIFEST));
            let is_complete = match self.store.head(&manifest).await {
                Ok(_) => true,
                Err(object_store::Error::NotFound { .. }) => false,
                Err(error) => return Err(self.failed("backups")(error)),
            };
            backups.push((id, is_complete));
        }
        backups.sort();
        Ok(backups)
    }

    pub(super) async fn read_manifest(&self, backup: &str) -> Result<BackupManifest, BackupError> {
        let name = Self::part_name(backup, MANIFEST);
        let found = match self.store.get(&self.key(&name)).await {
            Err(object_store::Error::NotFound { .. }) => {
                return Err(BackupError::Incomplete(backup.to_owned()));
            }
            found => found.map_err(self.failed(&name))?,
        };
        let text = found.bytes().await.map_err(self.failed(&name))?;
        BackupManifest::parse(&text)
    }

    pub(super) async fn write_manifest(
        &self,
        manifest: &BackupManifest,
    ) -> Result<(), BackupError> {
        let name = Self::part_name(&manifest.id, MANIFEST);
        let text = PutPayload::from(manifest.to_text()?.into_bytes());
        self.sync()?;
        self.store.put(&self.key(&name), text).await.map_err(self.failed(&name))?;
        self.sync()
    }

    /// Makes names in a directory durable. A bucket needs nothing.
    fn sync(&self) -> Result<(), BackupError> {
        let Some(directory) = &self.directory else { return Ok(()) };
        let synced = fs::File::open(directory)
            .and_then(|directory| rustix::fs::syncfs(directory).map_err(io::Error::from));
        synced.map_err(|source| BackupError::File { path: self.shown.clone(), source })
    }

    /// Writes an object whole or not at all. `wanted` is the digest that it must have.
    pub(super) async fn write_object(
        &self,
        name: &str,
        mut pieces: impl Stream<Item = Result<Bytes, BackupError>> + Unpin,
        wanted: Option<&str>,
    ) -> Result<ObjectDigest, BackupError> {
        let mut writer = BufWriter::new(Arc::clone(&self.store), self.key(name));
        let mut hash = Sha256::new();
        let mut bytes = 0;
        let copied = async {
            while let Some(piece) = pieces.try_next().await? {
                hash.update(&piece);
                bytes += piece.len() as u64;
                writer.put(piece).await.map_err(self.failed(name))?;
            }
            let sha256 = hex::encode(hash.finalize());
            match wanted.filter(|wanted| **wanted != sha256) {
                Some(_) => Err(BackupError::Damaged { name: name.to_owned() }),
                None => Ok(sha256),
            }
        };
        match copied.await {
            Ok(sha256) => {
                writer.shutdown().await.map_err(|source| match is_missing_bucket(&source) {
                    true => BackupError::NoBucket(self.shown.clone()),
                    false => BackupError::File { path: name.to_owned(), source },
                })?;
                Ok(ObjectDigest { bytes, sha256 })
            }
            Err(error) => {
                // Without an abort, uploaded parts would stay in the bucket unseen.
                let _ = writer.abort().await;
                Err(error)
            }
        }
    }

    /// The bytes of an object.
    pub(super) async fn read_object(
        &self,
        name: &str,
    ) -> Result<BoxStream<'static, object_store::Result<Bytes>>, BackupError> {
        let found = self.store.get(&self.key(name)).await.map_err(self.failed(name))?;
        Ok(found.into_stream())
    }
}

/// Whether an S3 service answered that there is no such bucket.
fn is_missing_bucket(error: &dyn std::error::Error) -> bool {
    error.to_string().contains("<Code>NoSuchBucket</Code>")
}

fn open_bucket(
    arguments: &PlaceArguments,
    bucket: &str,
) -> object_store::Result<Arc<dyn ObjectStore>> {
    // The client uses the process's default cryptography provider and panics without one.
    cloche_layers::install_crypto_provider();
    let options = ClientOptions::new().with_timeout_disabled();
    let mut builder = AmazonS3Builder::from_env()
        .with_client_options(options)
        .with_bucket_name(bucket)
        .with_region(&arguments.place_region);
    if let Some(endpoint) = &arguments.place_endpoint {
        builder = builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
    }
    Ok(Arc::new(builder.build()?))
}
