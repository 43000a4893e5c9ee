//! Takes layers from an OCI image layout. Nothing in it is trusted: every document and blob must be
//! what its digest says, and every layer one that could have been packed here.

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
    Config, Descriptor, ImageIndex, LAYER_GZIP, LAYER_PLAIN, LAYER_ZSTD, Layout, MANIFEST,
    Manifest,
    foreign::{Packing, take_in},
};
use crate::{
    Bounds, Index, LayerError, Layers, Stored, beneath,
    blobs::blocking,
    entry::{Entry, Xattr},
    error::{KEPT_XATTR_BYTES, XATTR_PLACE},
    index::Builder,
    ingest::Ingested,
    verified::{self, Blob},
    wire::read::Archive,
};

/// The largest document.
const DOCUMENT: u64 = 4 << 20;
/// The most layers of an image: as many as an overlay can have.
const LAYERS: usize = 500;

impl Layers {
    /// Stores the layers of the only image in an OCI image layout, the oldest first.
    ///
    /// # Errors
    /// If the directory holds anything else, or what it holds is not what it claims to be. No layer
    /// is stored then.
    pub async fn import(&self, dir: &Path) -> Result<Vec<Stored>, LayerError> {
        let layers = self.clone();
        let dir = dir.to_owned();
        let checked = blocking(move || {
            let top = File::open(&dir).map_err(LayerError::io("opening the image"))?;
            let image = Image { top: top.into() };
            let mut checked = Vec::new();
            for (layer, diff_id) in image.layers()? {
                let file = layers.0.blobs.new_file()?;
                let ingested = image.check(&layer, &diff_id, &file, layers.0.config.bounds)?;
                checked.push((file, ingested));
            }
            Ok(checked)
        })
        .await?;
        let mut stored = Vec::new();
        for (file, Ingested { digest, index }) in checked {
            stored.push(self.publish(file, digest, index).await?);
        }
        Ok(stored)
    }
}

/// Reads an image as `import` does, without a store. Each layer goes to a file of its own.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn read_image(
    dir: &Path,
    bounds: Bounds,
    mut took: impl FnMut(&File, &Ingested),
) -> Result<(), LayerError> {
    let top = File::open(dir).map_err(LayerError::io("opening the image"))?;
    let image = Image { top: top.into() };
    for (layer, diff_id) in image.layers()? {
        let file = NamedTempFile::new_in(dir).map_err(LayerError::io("making a file"))?;
        let ingested = image.check(&layer, &diff_id, &file, bounds)?;
        took(file.as_file(), &ingested);
    }
    Ok(())
}

struct Image {
    top: OwnedFd,
}

impl Image {
    /// The layers that the documents speak of, and the digests of their archives.
    fn layers(&self) -> Result<Vec<(Descriptor, LayerDigest)>, LayerError> {
        let layout: Layout = parse("oci-layout", &self.document(b"oci-layout")?)?;
        if layout.image_layout_version != "1.0.0" {
            return Err(bad("its layout has an unknown version"));
        }
        let index: ImageIndex = parse("index.json", &self.document(b"index.json")?)?;
        let [described] = &index.manifests[..] else {
            return Err(bad("it must hold exactly one image"));
        };
        if described.media_type != MANIFEST {
            return Err(bad("its manifest is of an unknown kind"));
        }
        let manifest: Manifest = parse("the manifest", &self.blob_document(described)?)?;
        let config: Config = parse("the configuration", &self.blob_document(&manifest.config)?)?;
        if manifest.layers.len() > LAYERS {
            return Err(bad("it has too many layers"));
        }
        if config.rootfs.diff_ids.len() != manifest.layers.len() {
            return Err(bad("manifest and configuration differ in their layers"));
        }
        Ok(manifest.layers.into_iter().zip(config.rootfs.diff_ids).collect())
    }

    /// Reads a layer into a file of ours.
    fn check(
        &self,
        layer: &Descriptor,
        diff_id: &LayerDigest,
        file: &NamedTempFile,
        bounds: Bounds,
    ) -> Result<Ingested, LayerError> {
        let packing = match &layer.media_type[..] {
            LAYER_ZSTD => Packing::Zstd,
            LAYER_GZIP => Packing::Gzip,
            LAYER_PLAIN => Packing::Plain,
            other => return Err(bad(&format!("a layer of the kind {other:?}"))),
        };
        let taken = match packing {
            Packing::Zstd => self.as_it_is(layer, file, bounds),
            _ => Err(LayerError::Refused("a layer that is packed in another way".to_owned())),
        };
        let (ingested, found) = match taken {
            // Not as we would have packed it, which is not to say that it is wrong.
            Err(LayerError::Refused(_)) => self.as_ours(layer, packing, file, bounds)?,
            taken => taken?,
        };
        if found != *diff_id {
            return Err(bad(&format!("the archive of layer {} is not {diff_id}", layer.digest)));
        }
        let place = |(name, value): &Xattr| name.len() + value.len() + XATTR_PLACE;
        let bytes = |entry: &Entry| entry.xattrs.iter().map(place).sum::<usize>();
        if ingested.index.entries().iter().any(|entry| bytes(entry) > KEPT_XATTR_BYTES) {
            return Err(LayerError::TooMuch("attributes that are too large"));
        }
        Ok(ingested)
    }

    /// A layer that could have been packed here, which keeps its digest.
    fn as_it_is(
        &self,
        layer: &Descriptor,
        file: &NamedTempFile,
        bounds: Bounds,
    ) -> Result<(Ingested, LayerDigest), LayerError> {
        let blob = self.open(&blob_path(&layer.digest), layer.size)?;
        let tee = Tee { from: blob, to: file.as_file() };
        let ratio = Some(bounds.ratio);
        let read = |archive: &mut Archive<Blob<'_>>| Builder::read(archive, bounds);
        let (builder, archive) = verified::read_and_hash(tee, &layer.digest, ratio, read)?;
        let index: Index = builder.finish(Vec::new(), layer.size)?;
        Ok((Ingested { digest: layer.digest.clone(), index }, archive))
    }

    /// Any other, packed again.
    fn as_ours(
        &self,
        layer: &Descriptor,
        packing: Packing,
        file: &NamedTempFile,
        bounds: Bounds,
    ) -> Result<(Ingested, LayerDigest), LayerError> {
        let emptied = file.as_file().set_len(0).and_then(|()| file.as_file().rewind());
        emptied.map_err(LayerError::io("writing a layer"))?;
        let blob = self.open(&blob_path(&layer.digest), layer.size)?;
        let taken = take_in(blob, packing, file.as_file(), bounds)?;
        if taken.blob != layer.digest {
            return Err(bad(&format!("layer {} has the digest {}", layer.digest, taken.blob)));
        }
        let ingested = taken.ingested.ok_or_else(|| bad("a layer is empty"))?;
        Ok((ingested, taken.archive))
    }

    fn blob_document(&self, described: &Descriptor) -> Result<Vec<u8>, LayerError> {
        let bytes = self.document(&blob_path(&described.digest))?;
        let found = LayerDigest::from_sha256(Sha256::digest(&bytes).into());
        if found != described.digest || bytes.len() as u64 != described.size {
            return Err(bad(&format!("the blob {} is not what it should be", described.digest)));
        }
        Ok(bytes)
    }

    fn document(&self, path: &[u8]) -> Result<Vec<u8>, LayerError> {
        let (file, size) = self.file(path)?;
        if size > DOCUMENT {
            return Err(bad("a document of it is too large"));
        }
        let mut bytes = Vec::new();
        file.take(DOCUMENT).read_to_end(&mut bytes).map_err(LayerError::io("reading the image"))?;
        Ok(bytes)
    }

    fn open(&self, path: &[u8], size: u64) -> Result<File, LayerError> {
        let (file, found) = self.file(path)?;
        if found != size {
            return Err(bad(&format!(
                "{} has {found} bytes instead of {size}",
                String::from_utf8_lossy(path)
            )));
        }
        Ok(file)
    }

    /// A file of the layout and its size; links are not followed.
    fn file(&self, path: &[u8]) -> Result<(File, u64), LayerError> {
        let reading = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => {
                bad(&format!("there is no {}", String::from_utf8_lossy(path)))
            }
            _ => LayerError::from_io("opening a file of the image", error),
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = beneath::open(&self.top, path, flags, Mode::empty()).map_err(reading)?;
        let stat = rustix::fs::fstat(&file).map_err(|errno| reading(errno.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(bad(&format!("{} is not a file", String::from_utf8_lossy(path))));
        }
        Ok((file.into(), u64::try_from(stat.st_size).unwrap_or(0)))
    }
}

fn blob_path(digest: &LayerDigest) -> Vec<u8> {
    format!("blobs/sha256/{}", digest.hex()).into_bytes()
}

fn parse<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, LayerError> {
    serde_json::from_slice(bytes).map_err(|error| bad(&format!("{what}: {error}")))
}

fn bad(what: &str) -> LayerError {
    LayerError::BadImage(what.to_owned())
}

struct Tee<'a> {
    from: File,
    to: &'a File,
}

impl Read for Tee<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.to.write_all(&buffer[..count])?;
        Ok(count)
    }
}
