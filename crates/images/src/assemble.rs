//! Runs in: server (no capabilities).
//!
//! Stores the layers of an image whose documents are read, and describes the image.

use std::{
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use cloche_layers::{ConversionNotes, Layers};
use cloche_model::{
    ImageLayer, ImageName, ImageRecord, InterpreterTable, Layer, LayerDigest, Moment,
};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::{
    ArchiveDir, ArchiveLimits, ImageError, ImageLimits, ImageProgress, ImportChoice, ProgressPhase,
    discover::find_interpreters,
    import::{FoundImage, LayerFile, find_image},
    platform::ImagePlatform,
};

/// How many files an archive may have beside its layers.
const MORE_FILES: usize = 4096;
/// How many bytes an archive may have beside its layers.
const MORE_BYTES: u64 = 64 << 20;

/// What the caller knows about layers of images.
#[async_trait]
pub trait LayerCatalog: Send + Sync {
    /// A layer that was made of this source before.
    async fn find_layer(
        &self,
        source: &LayerDigest,
    ) -> Result<Option<ImageLayer>, Box<dyn std::error::Error + Send + Sync>>;
}

/// An image whose layers are stored. Its record is for the caller to keep.
#[derive(Debug)]
pub struct NewImage {
    /// The image.
    pub image: ImageRecord,
    /// The names that lead to it from now on.
    pub names: Vec<ImageName>,
}

/// Stores images. Layers that it stores or uses again stay pinned until `take_pins` or
/// `Layers::release_pin` releases them, whether the work succeeds or not.
pub struct ImageAssembler {
    pub(crate) layers: Layers,
    pub(crate) limits: ImageLimits,
    pub(crate) progress: ImageProgress,
    pub(crate) catalog: Arc<dyn LayerCatalog>,
    /// A directory for temporary files.
    pub(crate) spool: PathBuf,
    pins: Mutex<Vec<LayerDigest>>,
}

impl ImageAssembler {
    /// An assembler for one image. `spool` is a directory for its temporary files.
    #[must_use]
    pub fn new(
        layers: Layers,
        (limits, progress): (ImageLimits, ImageProgress),
        catalog: Arc<dyn LayerCatalog>,
        spool: &Path,
    ) -> Self {
        let (spool, pins) = (spool.to_owned(), Mutex::default());
        Self { layers, limits, progress, catalog, spool, pins }
    }

    /// The layers that are pinned, each as often as it is. The caller releases them.
    pub fn take_pins(&self) -> Vec<LayerDigest> {
        std::mem::take(&mut self.pins.lock())
    }

    /// Imports the image in a tar: an OCI layout, or the output of `docker save`.
    ///
    /// # Errors
    /// If it is not such an archive, or anything in it is not what it claims to be.
    pub async fn import_tar(
        &self,
        tar: impl Read + Send + 'static,
        choice: ImportChoice,
        now: Moment,
    ) -> Result<NewImage, ImageError> {
        self.progress.begin_phase(ProgressPhase::Receiving, 0, 0);
        let limits = ArchiveLimits {
            files: self.limits.layers + MORE_FILES,
            bytes: self.limits.bytes.bytes().saturating_add(MORE_BYTES),
        };
        let (spool, progress, most) =
            (self.spool.clone(), self.progress.clone(), self.limits.layers);
        let read = tokio::task::spawn_blocking(move || {
            let dir = ArchiveDir::read_tar(tar, &spool, limits, &progress)?;
            // The open files keep the layers; everything else can go.
            find_image(&dir, &choice, most)
        });
        let found = read.await.map_err(|error| ImageError::Io {
            what: "reading the archive",
            source: std::io::Error::other(error),
        })??;
        self.store_image(found, now).await
    }

    /// Stores the layers of an image, lowest first.
    pub(crate) async fn store_image(
        &self,
        found: FoundImage,
        now: Moment,
    ) -> Result<NewImage, ImageError> {
        let FoundImage { digest, config, layers, names } = found;
        let mut notes = Vec::new();
        let settings = config.settings(&mut notes)?;
        let bytes = layers.iter().map(|layer| layer.size).sum();
        self.progress.begin_phase(ProgressPhase::Storing, layers.len(), bytes);
        let mut stack = ImageStack::default();
        for layer in layers {
            let size = layer.size;
            self.add_layer(&mut stack, layer).await?;
            self.progress.end_layer(size);
        }
        describe_omissions(stack.omitted, &mut notes);
        self.progress.begin_phase(ProgressPhase::Searching, stack.layers.len(), 0);
        let interpreters = self.search(&stack, &settings).await?;
        let platform = ImagePlatform::of_host().to_text();
        let layers = stack.layers;
        let image = ImageRecord {
            digest,
            platform,
            settings,
            layers,
            interpreters,
            probes: Vec::new(),
            notes,
            added_at: now,
        };
        Ok(NewImage { image, names })
    }

    async fn search(
        &self,
        stack: &ImageStack,
        settings: &cloche_model::ImageSettings,
    ) -> Result<InterpreterTable, ImageError> {
        find_interpreters(&self.layers, &stack.digests, settings).await
    }

    /// Adds a layer to the stack: one that is stored already, or a new one.
    async fn add_layer(&self, stack: &mut ImageStack, layer: LayerFile) -> Result<(), ImageError> {
        let chained = stack.chain_with(&layer.diff_id);
        let known = self.find_stored(&layer.diff_id, &chained).await?;
        let done = match known {
            Some(known) => ImageLayer { diff_id: layer.diff_id, ..known },
            None => self.convert_layer(stack, layer, &chained).await?,
        };
        stack.push(done, chained);
        if stack.entries > self.limits.entries {
            return Err(ImageError::invalid("the image has too many entries"));
        }
        Ok(())
    }

    /// A stored layer of another image that was made of the same.
    pub(crate) async fn find_stored(
        &self,
        diff_id: &LayerDigest,
        chained: &LayerDigest,
    ) -> Result<Option<ImageLayer>, ImageError> {
        for source in [diff_id, chained] {
            let found = self.catalog.find_layer(source).await.map_err(ImageError::Catalog)?;
            let Some(layer) = found else { continue };
            let Some(stored) = &layer.stored else { return Ok(Some(layer)) };
            if self.layers.pin_stored(&stored.digest).await? {
                self.pins.lock().push(stored.digest.clone());
                return Ok(Some(layer));
            }
        }
        Ok(None)
    }

    async fn convert_layer(
        &self,
        stack: &mut ImageStack,
        layer: LayerFile,
        chained: &LayerDigest,
    ) -> Result<ImageLayer, ImageError> {
        let LayerFile { diff_id, file, expected, .. } = layer;
        let Some(file) = file else {
            let what = format!("the layer {diff_id} was removed while it was needed; try again");
            return Err(ImageError::Invalid(what));
        };
        let limits = self.limits.of_next_layer(stack.bytes, stack.entries);
        let progress = self.progress.begin_layer();
        let converted =
            self.layers.convert_layer(file, &stack.digests, (expected, limits), progress).await?;
        if let Some(stored) = &converted.stored {
            self.pins.lock().push(stored.layer.digest.clone());
        }
        stack.omitted.devices += converted.notes.devices;
        stack.omitted.privileged += converted.notes.privileged;
        stack.omitted.attributes += converted.notes.attributes;
        let source = if converted.needs_below { chained.clone() } else { diff_id.clone() };
        Ok(ImageLayer { diff_id, source, stored: converted.stored.map(|stored| stored.layer) })
    }
}

/// The layers of an image so far.
#[derive(Default)]
pub(crate) struct ImageStack {
    layers: Vec<ImageLayer>,
    digests: Vec<LayerDigest>,
    chain: Option<LayerDigest>,
    bytes: u64,
    entries: u64,
    omitted: ConversionNotes,
}

impl ImageStack {
    /// Identifies a layer together with all below it.
    pub(crate) fn chain_with(&self, diff_id: &LayerDigest) -> LayerDigest {
        chain_digest(self.chain.as_ref(), diff_id)
    }

    fn push(&mut self, layer: ImageLayer, chained: LayerDigest) {
        if let Some(Layer { digest, bytes, entries, .. }) = &layer.stored {
            self.digests.push(digest.clone());
            self.bytes = self.bytes.saturating_add(bytes.bytes());
            self.entries = self.entries.saturating_add(*entries);
        }
        self.layers.push(layer);
        self.chain = Some(chained);
    }
}

/// The digest of a layer and everything below it. Never that of a layer alone.
pub(crate) fn chain_digest(below: Option<&LayerDigest>, diff_id: &LayerDigest) -> LayerDigest {
    let below = below.map_or("", LayerDigest::as_str);
    LayerDigest::from_sha256(Sha256::digest(format!("stack\n{below}\n{diff_id}\n")).into())
}

fn describe_omissions(omitted: ConversionNotes, notes: &mut Vec<String>) {
    for (count, what) in [
        (omitted.devices, "device nodes were left out"),
        (omitted.privileged, "files lost their set-user-id or set-group-id bit"),
        (omitted.attributes, "extended attributes were left out"),
    ] {
        if count > 0 {
            notes.push(format!("{count} {what}"));
        }
    }
}
