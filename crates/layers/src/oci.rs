//! OCI image layouts, which other tools read: the documents and constants of export and import.

mod convert;
mod decompress;
mod export;
mod foreign_layer;
mod foreign_tree;
mod import;

use std::collections::BTreeMap;

use cloche_model::LayerDigest;
use serde::{Deserialize, Serialize};

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use self::{convert::convert_bytes, import::read_image};
pub use self::{
    convert::{ConversionLimits, ConvertedLayer, ExpectedLayer},
    export::ExportMeta,
};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
const LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const LAYER_PLAIN: &str = "application/vnd.oci.image.layer.v1.tar";
/// The annotation that names an image of a layout.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// `oci-layout`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OciLayout {
    image_layout_version: String,
}

/// `index.json`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ImageIndex {
    schema_version: u32,
    #[serde(default)]
    media_type: String,
    manifests: Vec<OciDescriptor>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OciManifest {
    schema_version: u32,
    #[serde(default)]
    media_type: String,
    config: OciDescriptor,
    layers: Vec<OciDescriptor>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
}

/// A reference to a blob.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OciDescriptor {
    media_type: String,
    digest: LayerDigest,
    size: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
struct OciConfig {
    #[serde(default)]
    created: String,
    architecture: String,
    os: String,
    rootfs: RootFs,
}

#[derive(Serialize, Deserialize)]
struct RootFs {
    #[serde(rename = "type")]
    kind: String,
    diff_ids: Vec<LayerDigest>,
}
