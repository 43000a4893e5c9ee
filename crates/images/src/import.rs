//! Runs in: server (no capabilities).
//!
//! Finds the image in an archive: in an OCI layout by its index, in the output of `docker save` by
//! `manifest.json`.

use std::fs::File;

use cloche_layers::ExpectedLayer;
use cloche_model::{ImageDigest, ImageName, LayerDigest};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::{
    ArchiveDir, ImageError,
    archive::ArchiveFile,
    documents::{
        CONFIG_BYTES, ConfigDocument, Descriptor, ImageManifest, MANIFEST_BYTES, ManifestDocument,
        check_document, check_layer_count, parse_json,
    },
    platform::choose_for_host,
};

/// How many indexes may be nested.
const DEPTH: usize = 3;
/// The annotation that names an image of a layout, often only by its tag.
const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// The annotation with the whole name.
const IMAGE_NAME: &str = "io.containerd.image.name";

/// Which image of an archive is imported, and under which names.
#[derive(Clone, Debug, Default)]
pub struct ImportChoice {
    /// Its name or tag in the archive. Needed only if the archive has several images.
    pub reference: Option<String>,
    /// The name that it gets. Without one it keeps those of the archive.
    pub name: Option<ImageName>,
}

/// An image whose documents are read and whose layers are in files.
pub(crate) struct FoundImage {
    pub(crate) digest: ImageDigest,
    pub(crate) config: ConfigDocument,
    pub(crate) layers: Vec<LayerFile>,
    pub(crate) names: Vec<ImageName>,
}

/// A layer in a file.
pub(crate) struct LayerFile {
    pub(crate) diff_id: LayerDigest,
    pub(crate) size: u64,
    /// The open file. `None` if the layer is known to be stored already.
    pub(crate) file: Option<File>,
    pub(crate) expected: ExpectedLayer,
}

#[derive(Deserialize)]
struct LayoutMark {
    #[serde(rename = "imageLayoutVersion")]
    version: String,
}

/// One entry of `manifest.json`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SavedImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Vec<String>,
}

/// Finds the image in an archive.
pub(crate) fn find_image(
    dir: &ArchiveDir,
    choice: &ImportChoice,
    most_layers: usize,
) -> Result<FoundImage, ImageError> {
    let mut found = match (dir.get("oci-layout"), dir.get("manifest.json")) {
        (Some(mark), saved) => {
            let mark: LayoutMark = parse_json("oci-layout", &mark.read(MANIFEST_BYTES)?)?;
            if !mark.version.starts_with("1.") {
                return Err(ImageError::invalid("the OCI layout has an unknown version"));
            }
            let found = find_in_layout(dir, choice, most_layers);
            match (found, saved) {
                // Some versions of docker save write manifests without layers.
                (Ok(found), Some(saved)) if found.layers.is_empty() => {
                    find_saved(dir, saved, choice, most_layers)?
                }
                (found, _) => found?,
            }
        }
        (None, Some(saved)) => find_saved(dir, saved, choice, most_layers)?,
        (None, None) => {
            return Err(ImageError::invalid(
                "the archive has neither an OCI layout nor the output of docker save",
            ));
        }
    };
    if let Some(name) = &choice.name {
        found.names = vec![name.clone()];
    }
    Ok(found)
}

fn find_in_layout(
    dir: &ArchiveDir,
    choice: &ImportChoice,
    most_layers: usize,
) -> Result<FoundImage, ImageError> {
    let index = dir.require("index.json")?.read(MANIFEST_BYTES)?;
    let ManifestDocument::Index(entries) = ManifestDocument::parse(&index, most_layers)? else {
        return Err(ImageError::invalid("index.json is not an index"));
    };
    let top = choose_entry(&entries, choice.reference.as_deref())?;
    let names = names_of(top);
    let mut described = top.clone();
    for _ in 0..DEPTH {
        let bytes = dir.blob(&described.digest)?.read(MANIFEST_BYTES)?;
        check_document(&bytes, &described)?;
        match ManifestDocument::parse(&bytes, most_layers)? {
            ManifestDocument::Index(entries) => described = choose_entry(&entries, None)?.clone(),
            ManifestDocument::Manifest(manifest) => {
                let digest = image_digest(&described.digest)?;
                return read_manifest(dir, digest, &manifest, names);
            }
        }
    }
    Err(ImageError::invalid("the image has too many nested indexes"))
}

fn image_digest(digest: &LayerDigest) -> Result<ImageDigest, ImageError> {
    digest.as_str().parse().map_err(|_| ImageError::invalid("the digest is malformed"))
}

/// The entry of an index that was asked for, or the only one for this host.
fn choose_entry<'a>(
    entries: &'a [Descriptor],
    reference: Option<&str>,
) -> Result<&'a Descriptor, ImageError> {
    let labels = |entry: &Descriptor| {
        let label = |name| entry.annotation(name).map(str::to_owned);
        [label(REF_NAME), label(IMAGE_NAME)].into_iter().flatten().collect::<Vec<_>>()
    };
    let mut candidates = choose_for_host(entries);
    if let Some(reference) = reference {
        let is_named = |entry: &Descriptor| {
            let same_name = |label: &String| {
                let parsed = (label.parse::<ImageName>(), reference.parse::<ImageName>());
                matches!(parsed, (Ok(label), Ok(reference)) if label == reference)
            };
            labels(entry).iter().any(|label| label == reference || same_name(label))
        };
        candidates.retain(|entry| is_named(entry));
    }
    candidates.dedup_by_key(|entry| entry.digest.clone());
    match candidates[..] {
        [only] => Ok(only),
        [] => Err(ImageError::invalid(match reference {
            Some(reference) => format!("the archive has no image {reference:?} for this host"),
            None => "the index has no image for this host".to_owned(),
        })),
        _ => {
            let labels: Vec<String> = candidates.iter().flat_map(|entry| labels(entry)).collect();
            Err(ImageError::invalid(format!(
                "the archive has several images; choose one with --ref: {}",
                labels.join(", ")
            )))
        }
    }
}

fn names_of(entry: &Descriptor) -> Vec<ImageName> {
    let whole = entry.annotation(IMAGE_NAME);
    // A tag alone is not a name.
    let named = entry.annotation(REF_NAME).filter(|name| name.contains([':', '/']));
    let name = whole.or(named).and_then(|name| name.parse().ok());
    name.into_iter().collect()
}

fn read_manifest(
    dir: &ArchiveDir,
    digest: ImageDigest,
    manifest: &ImageManifest,
    names: Vec<ImageName>,
) -> Result<FoundImage, ImageError> {
    let config = dir.blob(&manifest.config.digest)?.read(CONFIG_BYTES)?;
    check_document(&config, &manifest.config)?;
    let config = ConfigDocument::parse(&config, manifest.layers.len())?;
    let mut layers = Vec::with_capacity(manifest.layers.len());
    for (layer, diff_id) in manifest.layers.iter().zip(config.diff_ids()) {
        let file = dir.blob(&layer.digest)?;
        check_layer_file(file, layer)?;
        layers.push(LayerFile {
            diff_id: diff_id.clone(),
            size: layer.size,
            file: Some(file.open()?),
            expected: ExpectedLayer {
                blob: Some(layer.digest.clone()),
                diff_id: Some(diff_id.clone()),
            },
        });
    }
    Ok(FoundImage { digest, config, layers, names })
}

fn check_layer_file(file: &ArchiveFile, described: &Descriptor) -> Result<(), ImageError> {
    if file.size != described.size {
        return Err(ImageError::invalid(format!(
            "the layer {} has {} bytes instead of {}",
            described.digest, file.size, described.size
        )));
    }
    if file.sha256 != described.digest {
        return Err(ImageError::invalid(format!(
            "the layer {} has the digest {}",
            described.digest, file.sha256
        )));
    }
    Ok(())
}

/// Reads the output of `docker save`. It has no manifest, so the image gets the digest of its
/// configuration and the archives of its layers.
fn find_saved(
    dir: &ArchiveDir,
    saved: &ArchiveFile,
    choice: &ImportChoice,
    most_layers: usize,
) -> Result<FoundImage, ImageError> {
    let images: Vec<SavedImage> = parse_json("manifest.json", &saved.read(MANIFEST_BYTES)?)?;
    let image = choose_saved(images, choice.reference.as_deref())?;
    check_layer_count(image.layers.len(), most_layers)?;
    let config_file = dir.require(&image.config)?;
    let config = ConfigDocument::parse(&config_file.read(CONFIG_BYTES)?, image.layers.len())?;
    let mut hash = Sha256::new();
    hash.update(format!("docker save\n{}\n", config_file.sha256));
    let mut layers = Vec::with_capacity(image.layers.len());
    for (name, diff_id) in image.layers.iter().zip(config.diff_ids()) {
        let file = dir.require(name)?;
        hash.update(format!("{diff_id}\n"));
        layers.push(LayerFile {
            diff_id: diff_id.clone(),
            size: file.size,
            file: Some(file.open()?),
            expected: ExpectedLayer { blob: None, diff_id: Some(diff_id.clone()) },
        });
    }
    let names = image.repo_tags.unwrap_or_default();
    let names = names.iter().filter_map(|name| name.parse().ok()).collect();
    let digest = ImageDigest::from_sha256(hash.finalize().into());
    Ok(FoundImage { digest, config, layers, names })
}

fn choose_saved(
    images: Vec<SavedImage>,
    reference: Option<&str>,
) -> Result<SavedImage, ImageError> {
    let tags = |image: &SavedImage| image.repo_tags.clone().unwrap_or_default();
    let wanted = reference.map(|reference| (reference, reference.parse::<ImageName>()));
    let is_wanted = |image: &SavedImage| match &wanted {
        None => true,
        Some((text, name)) => tags(image).iter().any(|tag| {
            tag == text || matches!((tag.parse::<ImageName>(), name), (Ok(a), Ok(b)) if a == *b)
        }),
    };
    let all: Vec<String> = images.iter().flat_map(tags).collect();
    let mut chosen: Vec<SavedImage> = images.into_iter().filter(is_wanted).collect();
    match (chosen.pop(), chosen.is_empty()) {
        (Some(image), true) => Ok(image),
        (None, _) => Err(ImageError::invalid(match reference {
            Some(reference) => format!("the archive has no image {reference:?}"),
            None => "the archive has no image".to_owned(),
        })),
        (Some(_), false) => Err(ImageError::invalid(format!(
            "the archive has several images; choose one with --ref: {}",
            all.join(", ")
        ))),
    }
}
