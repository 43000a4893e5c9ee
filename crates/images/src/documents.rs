//! Runs in: server (no capabilities).
//!
//! The documents of an image: index, manifest and configuration. They come from a stranger, so every
//! one has limits, and its digest and size are checked before it is read.

use std::collections::BTreeMap;

use cloche_model::{EnvVars, ImageSettings, LayerDigest};
use serde::{Deserialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};

use crate::{ImageError, platform::ImagePlatform};

/// The largest index or manifest.
pub(crate) const MANIFEST_BYTES: u64 = 4 << 20;
/// The largest configuration.
pub(crate) const CONFIG_BYTES: u64 = 8 << 20;
/// The most entries of an index.
const INDEX_ENTRIES: usize = 1000;
/// The limit on bytes of all variables of an image.
const ENV_BYTES: usize = 128 << 10;
/// The limit on variables of an image.
const ENV_VARS: usize = 1000;
/// The limits on labels, which are shown and not used.
const LABELS: usize = 128;
const LABEL_BYTES: usize = 4096;

pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub(crate) const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const CONFIGS: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];
const LAYERS: [&str; 6] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd",
];

/// A reference to a document or a layer. Its `urls` are never used.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) digest: LayerDigest,
    pub(crate) size: u64,
    #[serde(default)]
    pub(crate) platform: Option<ImagePlatform>,
    #[serde(default)]
    pub(crate) annotations: Option<BTreeMap<String, String>>,
}

impl Descriptor {
    /// An annotation.
    pub(crate) fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(name).map(String::as_str)
    }
}

/// An index or a manifest.
#[derive(Debug)]
pub(crate) enum ManifestDocument {
    Index(Vec<Descriptor>),
    Manifest(ImageManifest),
}

/// The manifest of an image.
#[derive(Debug)]
pub(crate) struct ImageManifest {
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDocument {
    schema_version: Option<u32>,
    #[serde(default)]
    media_type: Option<String>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
    manifests: Option<Vec<Descriptor>>,
}

impl ManifestDocument {
    /// Reads an index or a manifest, and checks that it is only one of them.
    pub(crate) fn parse(bytes: &[u8], most_layers: usize) -> Result<Self, ImageError> {
        let raw: RawDocument = parse_json("the manifest", bytes)?;
        if raw.schema_version != Some(2) {
            return Err(ImageError::invalid("the manifest has a version other than 2"));
        }
        let media_type = raw.media_type.as_deref();
        match (raw.manifests, raw.config, raw.layers) {
            (Some(entries), None, None)
                if matches!(media_type, None | Some(OCI_INDEX | DOCKER_INDEX)) =>
            {
                if entries.len() > INDEX_ENTRIES {
                    return Err(ImageError::invalid("the index has too many entries"));
                }
                Ok(Self::Index(entries))
            }
            (None, Some(config), Some(layers))
                if matches!(media_type, None | Some(OCI_MANIFEST | DOCKER_MANIFEST)) =>
            {
                let manifest = ImageManifest { config, layers };
                manifest.check(most_layers)?;
                Ok(Self::Manifest(manifest))
            }
            _ => Err(ImageError::invalid(
                "the document is neither the manifest of an image nor an index",
            )),
        }
    }
}

impl ImageManifest {
    fn check(&self, most_layers: usize) -> Result<(), ImageError> {
        check_layer_count(self.layers.len(), most_layers)?;
        if !CONFIGS.contains(&&self.config.media_type[..]) {
            return Err(wrong_type("the configuration", &self.config.media_type));
        }
        if self.config.size > CONFIG_BYTES {
            return Err(ImageError::invalid("the configuration of the image is too large"));
        }
        match self.layers.iter().find(|layer| !LAYERS.contains(&&layer.media_type[..])) {
            Some(layer) => Err(wrong_type("a layer", &layer.media_type)),
            None => Ok(()),
        }
    }
}

pub(crate) fn check_layer_count(layers: usize, most: usize) -> Result<(), ImageError> {
    if layers > most {
        return Err(ImageError::invalid(format!(
            "the image has {layers} layers, and at most {most} can be used"
        )));
    }
    Ok(())
}

fn wrong_type(what: &str, found: &str) -> ImageError {
    let found: String = found.chars().take(128).collect();
    ImageError::invalid(format!("{what} has the media type {found:?}, which is not of an image"))
}

/// The configuration of an image.
#[derive(Debug, Deserialize)]
pub(crate) struct ConfigDocument {
    #[serde(flatten)]
    pub(crate) platform: ImagePlatform,
    #[serde(default)]
    created: Option<String>,
    #[serde(default)]
    config: Option<RawSettings>,
    rootfs: RootFileSystem,
}

#[derive(Debug, Deserialize)]
struct RootFileSystem {
    #[serde(default)]
    diff_ids: Vec<LayerDigest>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawSettings {
    #[serde(default)]
    env: Option<Vec<String>>,
    #[serde(default)]
    working_dir: Option<String>,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

impl ConfigDocument {
    /// Reads the configuration of an image with this many layers, and checks that it is for this
    /// host.
    pub(crate) fn parse(bytes: &[u8], layers: usize) -> Result<Self, ImageError> {
        let config: Self = parse_json("the configuration of the image", bytes)?;
        let host = ImagePlatform::of_host();
        if !host.runs(&config.platform) {
            return Err(ImageError::invalid(format!(
                "the image is for {}, and this host is {}",
                config.platform.to_text(),
                host.to_text()
            )));
        }
        if config.rootfs.diff_ids.len() != layers {
            return Err(ImageError::invalid(format!(
                "the image has {layers} layers, and its configuration lists {}",
                config.rootfs.diff_ids.len()
            )));
        }
        Ok(config)
    }

    /// The digests of the archives of its layers, lowest first.
    pub(crate) fn diff_ids(&self) -> &[LayerDigest] {
        &self.rootfs.diff_ids
    }

    /// What is kept of the configuration. What cannot be used is left out, with a note.
    pub(crate) fn settings(&self, notes: &mut Vec<String>) -> Result<ImageSettings, ImageError> {
        let none = RawSettings::default();
        let raw = self.config.as_ref().unwrap_or(&none);
        Ok(ImageSettings {
            env: read_env(raw.env.as_deref().unwrap_or_default(), notes)?,
            workdir: raw.working_dir.as_deref().and_then(|dir| check_workdir(dir, notes)),
            user: raw.user.as_deref().filter(|user| !user.is_empty()).map(shorten),
            labels: read_labels(raw.labels.as_ref()),
            created: self.created.as_deref().map(shorten),
        })
    }
}

fn read_env(entries: &[String], notes: &mut Vec<String>) -> Result<EnvVars, ImageError> {
    let bytes: usize = entries.iter().map(String::len).sum();
    if entries.len() > ENV_VARS || bytes > ENV_BYTES {
        return Err(ImageError::invalid(format!(
            "the image sets {} variables of {bytes} bytes; at most {ENV_VARS} of {ENV_BYTES} \
             bytes can be used",
            entries.len()
        )));
    }
    let mut env = EnvVars::new();
    let mut ignored = 0_u32;
    for entry in entries {
        match entry.split_once('=') {
            Some((name, value))
                if !name.is_empty() && !name.contains('\0') && !value.contains('\0') =>
            {
                env.insert(name.to_owned(), value.to_owned());
            }
            _ => ignored += 1,
        }
    }
    if ignored > 0 {
        notes.push(format!("{ignored} variables of the image are malformed and were left out"));
    }
    Ok(env)
}

/// A working directory that is absolute and stays below the root.
fn check_workdir(directory: &str, notes: &mut Vec<String>) -> Option<String> {
    if directory.is_empty() {
        return None;
    }
    let parts = || directory.split('/').filter(|part| !part.is_empty());
    let usable = directory.starts_with('/')
        && directory.len() <= 4096
        && !directory.contains('\0')
        && !parts().any(|part| matches!(part, "." | ".."))
        && !matches!(parts().next(), Some("proc" | "sys" | "dev"));
    if !usable {
        notes.push("the working directory of the image cannot be used".to_owned());
        return None;
    }
    Some(directory.to_owned())
}

fn read_labels(labels: Option<&BTreeMap<String, String>>) -> BTreeMap<String, String> {
    let labels = labels.into_iter().flatten().take(LABELS);
    labels.map(|(name, value)| (shorten(name), shorten(value))).collect()
}

/// Text that is only shown.
fn shorten(text: &str) -> String {
    text.chars().take(LABEL_BYTES).collect()
}

/// Checks that a document or a layer is what its descriptor says.
pub(crate) fn check_document(bytes: &[u8], described: &Descriptor) -> Result<(), ImageError> {
    if bytes.len() as u64 != described.size {
        return Err(ImageError::invalid(format!(
            "the document {} has {} bytes instead of {}",
            described.digest,
            bytes.len(),
            described.size
        )));
    }
    let found = sha256_of(bytes);
    if found != described.digest {
        return Err(ImageError::invalid(format!(
            "the document {} has the digest {found}",
            described.digest
        )));
    }
    Ok(())
}

pub(crate) fn sha256_of(bytes: &[u8]) -> LayerDigest {
    LayerDigest::from_sha256(Sha256::digest(bytes).into())
}

pub(crate) fn parse_json<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, ImageError> {
    serde_json::from_slice(bytes).map_err(|error| {
        let error: String = error.to_string().chars().take(200).collect();
        ImageError::invalid(format!("{what} cannot be read: {error}"))
    })
}
