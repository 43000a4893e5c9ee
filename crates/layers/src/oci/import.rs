//! Imports layers from an OCI image layout. Nothing in it is trusted: every document and blob must
//! match its digest, and every layer must be one that could have been packed here.

use std::{
    fs::File,
    io::{self, Read, Seek, Write},
    os::fd::OwnedFd,
    path::Path,
};

use cloche_model::LayerDigest;
use rustix::fs::{FileType, Mode, OFlags};
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use super::{
    ImageIndex, LAYER_GZIP, LAYER_PLAIN, LAYER_ZSTD, MANIFEST, OciConfig, OciDescriptor, OciLayout,
    OciManifest, decompress::LayerCompression, foreign_layer::ingest_foreign,
};
use crate::{
    LayerBounds, LayerError, LayerIndex, Layers, StoredLayer,
    archive::read::ArchiveReader,
    beneath,
    blob_store::run_blocking,
    checked_blob::{self, BlobReader},
    entry::{LayerEntry, Xattr},
    error::{KEPT_XATTR_BYTES, XATTR_PLACE},
    ingest::IngestedLayer,
    layer_index::IndexBuilder,
};

/// The maximum size of a document.
const DOCUMENT: u64 = 4 << 20;
/// The maximum number of layers of an image, which is the limit of overlayfs.
const LAYERS: usize = 500;

impl Layers {
    /// Stores the layers of the only image in an OCI image layout, the oldest first.
    ///
    /// # Errors
    /// If the directory contains anything else, or a part of it does not match its digest or size.
    /// No layer is stored then.
    pub async fn import_image(&self, dir: &Path) -> Result<Vec<StoredLayer>, LayerError> {
        let layers = self.clone();
        let dir = dir.to_owned();
        let checked = run_blocking(move || {
            let top = File::open(&dir).map_err(LayerError::io_context("opening the image"))?;
            let image = ImageDir { top: top.into() };
            let mut checked = Vec::new();
            for (layer, diff_id) in image.list_layers()? {
                let file = layers.0.blobs.new_file()?;
                let ingested =
                    image.ingest_layer(&layer, &diff_id, &file, layers.0.config.bounds)?;
                checked.push((file, ingested));
            }
            Ok(checked)
        })
        .await?;
        let mut stored = Vec::new();
        for (file, IngestedLayer { digest, index }) in checked {
            stored.push(self.publish_layer(file, digest, index).await?);
        }
        Ok(stored)
    }
}

/// Like `import_image` without a store, for fuzzing. Each layer goes to a file of its own.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn read_image(
    dir: &Path,
    bounds: LayerBounds,
    mut on_layer: impl FnMut(&File, &IngestedLayer),
) -> Result<(), LayerError> {
    let top = File::open(dir).map_err(LayerError::io_context("opening the image"))?;
    let image = ImageDir { top: top.into() };
    for (layer, diff_id) in image.list_layers()? {
        let file = NamedTempFile::new_in(dir).map_err(LayerError::io_context("making a file"))?;
        let ingested = image.ingest_layer(&layer, &diff_id, &file, bounds)?;
        on_layer(file.as_file(), &ingested);
    }
    Ok(())
}

struct ImageDir {
    top: OwnedFd,
}

impl ImageDir {
    /// The layers in the manifest, and the digests of their archives.
    fn list_layers(&self) -> Result<Vec<(OciDescriptor, LayerDigest)>, LayerError> {
        let layout: OciLayout = parse_json("oci-layout", &self.read_document(b"oci-layout")?)?;
        if layout.image_layout_version != "1.0.0" {
            return Err(bad_image("the layout has an unknown version"));
        }
        let index: ImageIndex = parse_json("index.json", &self.read_document(b"index.json")?)?;
        let [described] = &index.manifests[..] else {
            return Err(bad_image("the layout must contain exactly one image"));
        };
        if described.media_type != MANIFEST {
            return Err(bad_image("the manifest has an unknown media type"));
        }
        let manifest: OciManifest =
            parse_json("the manifest", &self.read_blob_document(described)?)?;
        let config: OciConfig =
            parse_json("the configuration", &self.read_blob_document(&manifest.config)?)?;
        if manifest.layers.len() > LAYERS {
            return Err(bad_image("the image has too many layers"));
        }
        if config.rootfs.diff_ids.len() != manifest.layers.len() {
            return Err(bad_image("manifest and configuration list different layers"));
        }
        Ok(manifest.layers.into_iter().zip(config.rootfs.diff_ids).collect())
    }

    /// Reads and checks a layer, and writes it to `file`.
    fn ingest_layer(
        &self,
        layer: &OciDescriptor,
        diff_id: &LayerDigest,
        file: &NamedTempFile,
        bounds: LayerBounds,
    ) -> Result<IngestedLayer, LayerError> {
        let compression = match &layer.media_type[..] {
            LAYER_ZSTD => LayerCompression::Zstd,
            LAYER_GZIP => LayerCompression::Gzip,
            LAYER_PLAIN => LayerCompression::Plain,
            other => {
                return Err(bad_image(&format!("a layer has the unknown media type {other:?}")));
            }
        };
        let taken = match compression {
            LayerCompression::Zstd => self.ingest_unchanged(layer, file, bounds),
            _ => Err(LayerError::Refused("a layer with another compression".to_owned())),
        };
        let (ingested, found) = match taken {
            // Not in our form, but possibly valid.
            Err(LayerError::Refused(_)) => {
                self.ingest_repacked(layer, compression, file, bounds)?
            }
            taken => taken?,
        };
        if found != *diff_id {
            return Err(bad_image(&format!(
                "the archive of layer {} is not {diff_id}",
                layer.digest
            )));
        }
        let size = |(name, value): &Xattr| name.len() + value.len() + XATTR_PLACE;
        let bytes = |entry: &LayerEntry| entry.xattrs.iter().map(size).sum::<usize>();
        if ingested.index.entries().iter().any(|entry| bytes(entry) > KEPT_XATTR_BYTES) {
            return Err(LayerError::TooMuch("attributes that are too large"));
        }
        Ok(ingested)
    }

    /// Takes a layer that could have been packed here. It keeps its digest.
    fn ingest_unchanged(
        &self,
        layer: &OciDescriptor,
        file: &NamedTempFile,
        bounds: LayerBounds,
    ) -> Result<(IngestedLayer, LayerDigest), LayerError> {
        let blob = self.open_with_size(&blob_path(&layer.digest), layer.size)?;
        let tee = FileTee { from: blob, to: file.as_file() };
        let ratio = Some(bounds.ratio);
        let read = |archive: &mut ArchiveReader<BlobReader<'_>>| {
            IndexBuilder::from_archive(archive, bounds)
        };
        let (builder, archive) = checked_blob::read_and_hash(tee, &layer.digest, ratio, read)?;
        let index: LayerIndex = builder.finish(Vec::new(), layer.size)?;
        Ok((IngestedLayer { digest: layer.digest.clone(), index }, archive))
    }

    /// Packs any other layer again.
    fn ingest_repacked(
        &self,
        layer: &OciDescriptor,
        compression: LayerCompression,
        file: &NamedTempFile,
        bounds: LayerBounds,
    ) -> Result<(IngestedLayer, LayerDigest), LayerError> {
        let emptied = file.as_file().set_len(0).and_then(|()| file.as_file().rewind());
        emptied.map_err(LayerError::io_context("writing a layer"))?;
        let blob = self.open_with_size(&blob_path(&layer.digest), layer.size)?;
        let taken = ingest_foreign(blob, compression, file.as_file(), bounds)?;
        if taken.blob != layer.digest {
            return Err(bad_image(&format!(
                "layer {} has the digest {}",
                layer.digest, taken.blob
            )));
        }
        let ingested = taken.ingested.ok_or_else(|| bad_image("a layer is empty"))?;
        Ok((ingested, taken.archive))
    }

    fn read_blob_document(&self, described: &OciDescriptor) -> Result<Vec<u8>, LayerError> {
        let bytes = self.read_document(&blob_path(&described.digest))?;
        let found = LayerDigest::from_sha256(Sha256::digest(&bytes).into());
        if found != described.digest || bytes.len() as u64 != described.size {
            return Err(bad_image(&format!(
                "the blob {} does not match its digest and size",
                described.digest
            )));
        }
        Ok(bytes)
    }

    fn read_document(&self, path: &[u8]) -> Result<Vec<u8>, LayerError> {
        let (file, size) = self.open_file(path)?;
        if size > DOCUMENT {
            return Err(bad_image("a document is too large"));
        }
        let mut bytes = Vec::new();
        file.take(DOCUMENT)
            .read_to_end(&mut bytes)
            .map_err(LayerError::io_context("reading the image"))?;
        Ok(bytes)
    }

    fn open_with_size(&self, path: &[u8], size: u64) -> Result<File, LayerError> {
        let (file, found) = self.open_file(path)?;
        if found != size {
            return Err(bad_image(&format!(
                "{} has {found} bytes instead of {size}",
                String::from_utf8_lossy(path)
            )));
        }
        Ok(file)
    }

    /// Opens a file of the layout and returns its size. Links are not followed.
    fn open_file(&self, path: &[u8]) -> Result<(File, u64), LayerError> {
        let reading = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => {
                bad_image(&format!("{} is missing", String::from_utf8_lossy(path)))
            }
            _ => LayerError::from_io("opening a file of the image", error),
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = beneath::open_path(&self.top, path, flags, Mode::empty()).map_err(reading)?;
        let stat = rustix::fs::fstat(&file).map_err(|errno| reading(errno.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(bad_image(&format!("{} is not a file", String::from_utf8_lossy(path))));
        }
        Ok((file.into(), u64::try_from(stat.st_size).unwrap_or(0)))
    }
}

fn blob_path(digest: &LayerDigest) -> Vec<u8> {
    format!("blobs/sha256/{}", digest.hex_digits()).into_bytes()
}

fn parse_json<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, LayerError> {
    serde_json::from_slice(bytes).map_err(|error| bad_image(&format!("{what}: {error}")))
}

fn bad_image(what: &str) -> LayerError {
    LayerError::BadImage(what.to_owned())
}

struct FileTee<'a> {
    from: File,
    to: &'a File,
}

impl Read for FileTee<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.to.write_all(&buffer[..count])?;
        Ok(count)
    }
}
