//! Where layers are kept, and how much of them.

use std::path::PathBuf;

use cloche_model::ByteSize;

use crate::LayerBounds;

/// What `Layers::open` needs to know.
#[derive(Clone, Debug)]
pub struct LayersConfig {
    /// A directory of our own: the cache, unfinished work and, if local, the blobs.
    pub dir: PathBuf,
    /// Where blobs are kept.
    pub store: StoreConfig,
    /// How much of the disk unpacked layers may take. Layers in use are kept beyond it.
    pub cache_bytes: ByteSize,
    /// How large layers may be.
    pub bounds: LayerBounds,
}

/// Where blobs are kept.
#[derive(Clone, Debug)]
pub enum StoreConfig {
    /// In the directory itself.
    Local,
    /// In a bucket.
    S3(S3Config),
}

/// A bucket of an S3-compatible service.
#[derive(Clone, Debug)]
pub struct S3Config {
    /// Its name.
    pub bucket: String,
    /// The address of the service; Amazon's own for the region if there is none.
    pub endpoint: Option<String>,
    /// The region.
    pub region: String,
    /// What our keys begin with; may be empty.
    pub prefix: String,
    /// The environment variable that holds the access key's id.
    pub access_key_env: String,
    /// The environment variable that holds the secret.
    pub secret_key_env: String,
}
