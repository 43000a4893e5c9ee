//! Runs in: server (no capabilities).
//!
//! Pulls an image from a registry: resolves its tag once, downloads the layers that are not stored
//! yet, and checks everything.

use std::{collections::HashMap, fs::File, path::Path, sync::Arc};

use cloche_layers::ExpectedLayer;
use cloche_model::{ImageDigest, ImageName, ImageReference, LayerDigest, Moment};
use futures::{StreamExt, TryStreamExt, stream};

use crate::{
    ClientSource, ImageAssembler, ImageError, NewImage, ProgressPhase, RegistryAccess,
    assemble::chain_digest,
    documents::{
        CONFIG_BYTES, ConfigDocument, Descriptor, ImageManifest, MANIFEST_BYTES, ManifestDocument,
        check_document, sha256_of,
    },
    import::{FoundImage, LayerFile},
    platform::choose_for_host,
    registry::{PartialDir, RegistryClient},
};

/// How many indexes may be nested.
const DEPTH: usize = 3;
/// How many layers are downloaded at the same time.
const AT_ONCE: usize = 3;

/// An image to pull.
#[derive(Clone, Debug)]
pub struct PullRequest {
    /// Which image. It has a name.
    pub reference: ImageReference,
    /// How to reach its registry.
    pub access: RegistryAccess,
}

impl ImageAssembler {
    /// Pulls an image. Layers that arrive stay in `partial` if the registry fails, so that a second
    /// pull goes on there. They are removed when the image is stored or turns out to be invalid.
    ///
    /// # Errors
    /// If the registry refuses or fails, or anything is not what it claims to be.
    pub async fn pull_image(
        &self,
        source: Arc<dyn ClientSource>,
        request: PullRequest,
        partial: &Path,
        now: Moment,
    ) -> Result<NewImage, ImageError> {
        let PullRequest { reference, access } = request;
        let Some(name) = reference.name.clone() else {
            return Err(ImageError::invalid("a pull needs the name of an image"));
        };
        self.progress.begin_phase(ProgressPhase::Resolving, 0, 0);
        let registry = RegistryClient::connect(source, access, &name).await?;
        let (digest, manifest) = self.resolve(&registry, &name, reference.digest.as_ref()).await?;
        let partial = PartialDir(partial.to_owned());
        let pulled = self.pull_layers(&registry, &manifest, &partial).await;
        let stored = match pulled {
            Ok((config, layers)) => {
                let names = names_for(&reference, name);
                self.store_image(FoundImage { digest, config, layers, names }, now).await
            }
            Err(error) => Err(error),
        };
        // What a registry could not deliver may be wanted again, unlike what is wrong.
        if matches!(stored, Ok(_) | Err(ImageError::Invalid(_) | ImageError::Full)) {
            for layer in &manifest.layers {
                partial.remove(&layer.digest);
            }
        }
        stored
    }

    /// The manifest of the image for this host. The tag is looked at once, so that it does not
    /// matter if it moves meanwhile.
    async fn resolve(
        &self,
        registry: &RegistryClient,
        name: &ImageName,
        wanted: Option<&ImageDigest>,
    ) -> Result<(ImageDigest, ImageManifest), ImageError> {
        let known: Option<LayerDigest> = match wanted {
            Some(digest) => Some(to_layer_digest(digest)?),
            None => registry.find_tag_digest(name.tag()).await?.and_then(|text| text.parse().ok()),
        };
        let reference = known.as_ref().map_or(name.tag(), LayerDigest::as_str);
        let mut bytes = registry.fetch_manifest(reference, MANIFEST_BYTES).await?;
        let mut digest = sha256_of(&bytes);
        if known.as_ref().is_some_and(|known| *known != digest) {
            return Err(ImageError::invalid(format!(
                "the manifest {reference} has the digest {digest}"
            )));
        }
        for _ in 0..DEPTH {
            let entries = match ManifestDocument::parse(&bytes, self.limits.layers)? {
                ManifestDocument::Manifest(manifest) => {
                    let digest = digest.as_str().parse();
                    let malformed = |_| ImageError::invalid("the digest is malformed");
                    return Ok((digest.map_err(malformed)?, manifest));
                }
                ManifestDocument::Index(entries) => entries,
            };
            let chosen = choose_for_host(&entries).into_iter().next().cloned();
            let Some(chosen) = chosen else {
                return Err(ImageError::invalid("the image does not exist for this host"));
            };
            bytes = registry.fetch_manifest(chosen.digest.as_str(), MANIFEST_BYTES).await?;
            check_document(&bytes, &chosen)?;
            digest = chosen.digest;
        }
        Err(ImageError::invalid("the image has too many nested indexes"))
    }

    /// Downloads the configuration and the layers that are not stored yet.
    async fn pull_layers(
        &self,
        registry: &RegistryClient,
        manifest: &ImageManifest,
        partial: &PartialDir,
    ) -> Result<(ConfigDocument, Vec<LayerFile>), ImageError> {
        let bytes = registry.fetch_config(manifest.config.digest.as_str(), CONFIG_BYTES).await?;
        check_document(&bytes, &manifest.config)?;
        let config = ConfigDocument::parse(&bytes, manifest.layers.len())?;
        let wanted = self.missing_layers(manifest, &config).await?;
        let bytes = wanted.iter().map(|layer| layer.size).fold(0, u64::saturating_add);
        if bytes > self.limits.bytes.bytes() {
            return Err(ImageError::invalid("the image is too large"));
        }
        self.progress.begin_phase(ProgressPhase::Downloading, wanted.len(), bytes);
        let progress = &self.progress;
        let downloads = stream::iter(wanted).map(|layer| async move {
            let file = registry.download_layer(&layer, partial, progress).await?;
            progress.end_layer(0);
            Ok::<_, ImageError>((layer.digest, file))
        });
        let files: HashMap<LayerDigest, File> =
            downloads.buffer_unordered(AT_ONCE).try_collect().await?;
        let mut layers = Vec::with_capacity(manifest.layers.len());
        for (layer, diff_id) in manifest.layers.iter().zip(config.diff_ids()) {
            let file = files.get(&layer.digest).map(File::try_clone).transpose();
            layers.push(LayerFile {
                diff_id: diff_id.clone(),
                size: layer.size,
                file: file.map_err(ImageError::io("opening a downloaded layer"))?,
                expected: ExpectedLayer {
                    blob: Some(layer.digest.clone()),
                    diff_id: Some(diff_id.clone()),
                },
            });
        }
        Ok((config, layers))
    }

    /// The layers that must be downloaded, each once.
    async fn missing_layers(
        &self,
        manifest: &ImageManifest,
        config: &ConfigDocument,
    ) -> Result<Vec<Descriptor>, ImageError> {
        let mut missing: Vec<Descriptor> = Vec::new();
        let mut chain: Option<LayerDigest> = None;
        for (layer, diff_id) in manifest.layers.iter().zip(config.diff_ids()) {
            let chained = chain_digest(chain.as_ref(), diff_id);
            let stored = self.find_stored(diff_id, &chained).await?.is_some();
            if !stored && !missing.iter().any(|other| other.digest == layer.digest) {
                missing.push(layer.clone());
            }
            chain = Some(chained);
        }
        Ok(missing)
    }
}

/// An image that was pulled by its digest does not get the default tag.
fn names_for(reference: &ImageReference, name: ImageName) -> Vec<ImageName> {
    if reference.digest.is_some() && name.tag() == "latest" { Vec::new() } else { vec![name] }
}

fn to_layer_digest(digest: &ImageDigest) -> Result<LayerDigest, ImageError> {
    digest.as_str().parse().map_err(|_| ImageError::invalid("the digest is malformed"))
}
