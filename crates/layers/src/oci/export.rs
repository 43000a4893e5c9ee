//! Writes a stack as an OCI image layout.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufWriter, Read, Write},
    path::{Path, PathBuf},
};

use cloche_model::LayerDigest;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::{
    CONFIG, Config, Descriptor, INDEX, ImageIndex, LAYER_ZSTD, Layout, MANIFEST, Manifest,
    REF_NAME, RootFs,
};
use crate::{LayerError, Layers, blobs::blocking, verified};

/// What an exported image says about itself.
#[derive(Clone, Debug, Default)]
pub struct ExportMeta {
    /// The name that tools show (`org.opencontainers.image.ref.name`).
    pub name: String,
    /// When, in RFC 3339; the beginning of 1970 if there is none.
    pub created: Option<String>,
    /// Annotations of the manifest.
    pub annotations: BTreeMap<String, String>,
}

impl Layers {
    /// Writes a stack as an OCI image layout into `dir`, which must be empty or missing. Renamed
    /// directories mean nothing to other tools, so a stack with some becomes one layer.
    ///
    /// # Errors
    /// If the directory is not empty or cannot be written, or a layer is missing or damaged.
    pub async fn export(
        &self,
        stack: &[LayerDigest],
        dir: &Path,
        meta: &ExportMeta,
    ) -> Result<(), LayerError> {
        let mut stack = stack.to_vec();
        let mut moved = false;
        for digest in &stack {
            moved |= self.index(digest).await?.has_redirects();
        }
        if moved {
            stack =
                self.squash(&stack).await?.map(|stored| stored.layer.digest).into_iter().collect();
        }
        let blobs = dir.join("blobs/sha256");
        let made = blobs.clone();
        let top = dir.to_owned();
        blocking(move || make(&top, &made)).await?;
        let (mut layers, mut diff_ids) = (Vec::new(), Vec::new());
        for digest in stack {
            let blob = self.0.blobs.read(&digest).await?;
            let to = blobs.join(digest.hex());
            let (layer, diff_id) = blocking(move || copy(blob, digest, &to)).await?;
            layers.push(layer);
            diff_ids.push(diff_id);
        }
        let (dir, meta) = (dir.to_owned(), meta.clone());
        blocking(move || documents(&dir, &blobs, meta, (layers, diff_ids))).await
    }
}

fn make(dir: &Path, blobs: &Path) -> Result<(), LayerError> {
    fs::create_dir_all(dir).map_err(exporting)?;
    if fs::read_dir(dir).map_err(exporting)?.next().is_some() {
        return Err(LayerError::Config(format!("{} is not empty", dir.display())));
    }
    fs::create_dir_all(blobs).map_err(exporting)
}

/// Copies a blob, checks it on the way, and finds the digest of the archive in it.
fn copy(
    blob: Box<dyn Read + Send>,
    digest: LayerDigest,
    to: &PathBuf,
) -> Result<(Descriptor, LayerDigest), LayerError> {
    let mut file = BufWriter::new(File::create(to).map_err(exporting)?);
    let mut tee = Tee { from: blob, to: &mut file, count: 0 };
    let ((), diff_id) = verified::read_and_hash(&mut tee, &digest, None, |archive| {
        while archive.next()?.is_some() {}
        Ok(())
    })?;
    let size = tee.count;
    file.flush().map_err(exporting)?;
    let (media_type, annotations) = (LAYER_ZSTD.to_owned(), BTreeMap::new());
    Ok((Descriptor { media_type, digest, size, annotations }, diff_id))
}

struct Tee<R, W> {
    from: R,
    to: W,
    count: u64,
}

impl<R: Read, W: Write> Read for Tee<R, W> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.to.write_all(&buffer[..count])?;
        self.count += count as u64;
        Ok(count)
    }
}

fn documents(
    dir: &Path,
    blobs: &Path,
    meta: ExportMeta,
    (layers, diff_ids): (Vec<Descriptor>, Vec<LayerDigest>),
) -> Result<(), LayerError> {
    let architecture = match std::env::consts::ARCH {
        "aarch64" => "arm64",
        "x86_64" => "amd64",
        other => other,
    };
    let config = Config {
        created: meta.created.unwrap_or_else(|| "1970-01-01T00:00:00Z".to_owned()),
        architecture: architecture.to_owned(),
        os: "linux".to_owned(),
        rootfs: RootFs { kind: "layers".to_owned(), diff_ids },
    };
    let manifest = Manifest {
        schema_version: 2,
        media_type: MANIFEST.to_owned(),
        config: put(blobs, CONFIG, &config)?,
        layers,
        annotations: meta.annotations,
    };
    let mut described = put(blobs, MANIFEST, &manifest)?;
    if !meta.name.is_empty() {
        described.annotations.insert(REF_NAME.to_owned(), meta.name);
    }
    let media_type = INDEX.to_owned();
    let index = ImageIndex { schema_version: 2, media_type, manifests: vec![described] };
    write(&dir.join("index.json"), &json(&index)?)?;
    let layout = Layout { image_layout_version: "1.0.0".to_owned() };
    write(&dir.join("oci-layout"), &json(&layout)?)
}

/// Writes a document as a blob.
fn put(blobs: &Path, kind: &str, document: &impl Serialize) -> Result<Descriptor, LayerError> {
    let bytes = json(document)?;
    let digest = LayerDigest::from_sha256(Sha256::digest(&bytes).into());
    write(&blobs.join(digest.hex()), &bytes)?;
    let (media_type, annotations) = (kind.to_owned(), BTreeMap::new());
    Ok(Descriptor { media_type, digest, size: bytes.len() as u64, annotations })
}

fn json(document: &impl Serialize) -> Result<Vec<u8>, LayerError> {
    serde_json::to_vec(document).map_err(|error| exporting(error.into()))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), LayerError> {
    fs::write(path, bytes).map_err(exporting)
}

fn exporting(source: io::Error) -> LayerError {
    LayerError::from_io("exporting layers", source)
}
