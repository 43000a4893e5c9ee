//! Configuration: where layers are stored, and how many bytes may be cached.

use std::path::{Path, PathBuf};

use cloche_model::ByteSize;

use crate::LayerBounds;

/// The parameters of `Layers::open`.
#[derive(Clone, Debug)]
pub struct LayersConfig {
    /// A directory of our own: the cache, temporary files and, for a local store, the blobs.
    pub dir: PathBuf,
    /// Where blobs are stored.
    pub store: StoreConfig,
    /// Limit of the disk space of unpacked layers. Layers in use are kept beyond it.
    pub cache_bytes: ByteSize,
    /// The maximum size of layers.
    pub bounds: LayerBounds,
}

impl LayersConfig {
    /// The directory of blobs that other processes use, too, if there is one.
    #[must_use]
    pub fn shared_dir(&self) -> Option<&Path> {
        match &self.store {
            StoreConfig::Directory(path) => Some(path),
            StoreConfig::Local | StoreConfig::S3(_) => None,
        }
    }
}

/// Where blobs are stored.
#[derive(Clone, Debug)]
pub enum StoreConfig {
    /// In `dir` itself.
    Local,
    /// In a directory that several processes use, which run as one user.
    Directory(PathBuf),
    /// In a bucket.
    S3(S3Config),
}

/// A bucket of an S3-compatible service.
#[derive(Clone, Debug)]
pub struct S3Config {
    /// The name of the bucket.
    pub bucket: String,
    /// The address of the service. Without one: Amazon's address for the region.
    pub endpoint: Option<String>,
    /// The region.
    pub region: String,
    /// The prefix of our keys; may be empty.
    pub prefix: String,
    /// The environment variable that holds the access key id.
    pub access_key_env: String,
    /// The environment variable that holds the secret access key.
    pub secret_key_env: String,
}
