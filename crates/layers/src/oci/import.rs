//! Takes layers from an OCI image layout. Nothing in it is trusted: every document and blob must be
//! what its digest says, and every layer one that could have been packed here.

use std::{
    fs::File,
    io::{self, BufReader, Read, Write},
    os::fd::OwnedFd,
    path::Path,
};

use cloche_model::LayerDigest;
use rustix::fs::{FileType, Mode, OFlags};
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use super::{Config, Descriptor, ImageIndex, LAYER_PLAIN, LAYER_ZSTD, Layout, MANIFEST, Manifest};
use crate::{
    Bounds, Index, LayerError, Layers, Stored, beneath,
    blobs::blocking,
    index::Builder,
    ingest::{Bare, Ingested, ingest},
    verified,
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
        let blob = self.open(&blob_path(&layer.digest), layer.size)?;
        let (ingested, found) = match &layer.media_type[..] {
            LAYER_ZSTD => {
                let ratio = Some(bounds.ratio);
                let tee = Tee { from: blob, to: file.as_file() };
                let (builder, plain) =
                    verified::read_and_hash(tee, &layer.digest, ratio, |archive| {
                        Builder::read(archive, bounds)
                    })?;
                let index: Index = builder.finish(Vec::new(), layer.size)?;
                (Ingested { digest: layer.digest.clone(), index }, plain)
            }
            LAYER_PLAIN => {
                let mut hash = Hash { from: BufReader::new(blob), hash: Sha256::new() };
                let ingested = ingest(&mut hash, file.as_file(), bounds, &Bare::Nothing)?;
                let ingested = ingested.ok_or_else(|| bad("a layer is empty"))?;
                let found = LayerDigest::from_sha256(hash.hash.finalize().into());
                if found != layer.digest {
                    return Err(bad(&format!("layer {} has the digest {found}", layer.digest)));
                }
                (ingested, found)
            }
            other => {
                return Err(bad(&format!(
                    "a layer of the kind {other:?}; convert it with \
                     `skopeo copy --dest-compress-format zstd`"
                )));
            }
        };
        if found != *diff_id {
            return Err(bad(&format!("the archive of layer {} is not {diff_id}", layer.digest)));
        }
        Ok(ingested)
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

struct Hash<R> {
    from: R,
    hash: Sha256,
}

impl<R: Read> Read for &mut Hash<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.hash.update(&buffer[..count]);
        Ok(count)
    }
}
