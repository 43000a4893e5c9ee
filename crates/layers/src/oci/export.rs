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
use tokio::runtime::Handle;

use super::{
    CONFIG, INDEX, ImageIndex, LAYER_ZSTD, MANIFEST, OciConfig, OciDescriptor, OciLayout,
    OciManifest, REF_NAME, RootFs,
};
use crate::{LayerError, Layers, blob_store::run_blocking, checked_blob};

/// The metadata of an exported image.
#[derive(Clone, Debug, Default)]
pub struct ExportMeta {
    /// The name that tools show (`org.opencontainers.image.ref.name`).
    pub name: String,
    /// The creation time in RFC 3339. Without one: the beginning of 1970.
    pub created: Option<String>,
    /// Annotations of the manifest.
    pub annotations: BTreeMap<String, String>,
}

impl Layers {
    /// Writes a stack as an OCI image layout into `dir`, which must be empty or missing. Other
    /// tools do not support renamed directories, so a stack with redirects is squashed to one
    /// layer.
    ///
    /// # Errors
    /// If the directory is not empty or cannot be written, or a layer is missing or damaged.
    pub async fn export_image(
        &self,
        stack: &[LayerDigest],
        dir: &Path,
        meta: &ExportMeta,
    ) -> Result<(), LayerError> {
        let mut stack = stack.to_vec();
        if self.has_redirects(&stack).await? {
            stack = self
                .squash_stack(&stack)
                .await?
                .map(|stored| stored.layer.digest)
                .into_iter()
                .collect();
        }
        let (layers, dir, meta) = (self.clone(), dir.to_owned(), meta.clone());
        run_blocking(move || {
            make_empty_layout(&dir)?;
            layers.write_image(&stack, meta, &mut DirectorySink { dir, file: None })
        })
        .await
    }

    /// Writes a stack as a tar of an OCI image layout while it is read, without temporary files.
    /// Must be called on a blocking thread. The stack must have no redirects.
    ///
    /// # Errors
    /// If the reader has closed, or a layer is missing or damaged. The tar has no end marker then.
    pub fn export_tar(
        &self,
        stack: &[LayerDigest],
        meta: ExportMeta,
        out: impl Write,
    ) -> Result<(), LayerError> {
        let mut sink = TarSink { out, size: 0 };
        self.write_image(stack, meta, &mut sink)?;
        // Two zero blocks mark the end of a tar.
        sink.out.write_all(&[0; 1024]).and_then(|()| sink.out.flush()).map_err(export_error)
    }

    /// Whether a layer of the stack has a renamed directory, which other tools do not support.
    ///
    /// # Errors
    /// If a layer is missing or damaged.
    pub async fn has_redirects(&self, stack: &[LayerDigest]) -> Result<bool, LayerError> {
        for digest in stack {
            if self.load_index(digest).await?.has_redirects() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes the layers, then the documents that describe them.
    fn write_image(
        &self,
        stack: &[LayerDigest],
        meta: ExportMeta,
        sink: &mut impl ImageSink,
    ) -> Result<(), LayerError> {
        let layout = OciLayout { image_layout_version: "1.0.0".to_owned() };
        write_file(sink, "oci-layout", &to_json(&layout)?)?;
        let (mut layers, mut diff_ids) = (Vec::new(), Vec::new());
        for digest in stack {
            // A layer that occurs twice in a stack is written once.
            if let Some(at) = layers.iter().position(|it: &OciDescriptor| it.digest == *digest) {
                layers.push(layers[at].clone());
                let diff_id: &LayerDigest = &diff_ids[at];
                diff_ids.push(diff_id.clone());
                continue;
            }
            let blobs = &self.0.blobs;
            let meta = Handle::current().block_on(blobs.blob_meta(digest))?;
            let size = meta.ok_or_else(|| LayerError::Missing(digest.clone()))?.size;
            let blob = Handle::current().block_on(blobs.open_blob(digest))?;
            let (layer, diff_id) = copy_blob(blob, digest, size, sink)?;
            layers.push(layer);
            diff_ids.push(diff_id);
        }
        write_documents(sink, meta, (layers, diff_ids))
    }
}

/// The destination of an image's files, one after the other. The content of each is written between
/// `open_file` and `close_file`.
trait ImageSink: Write {
    fn open_file(&mut self, name: &str, size: u64) -> io::Result<()>;
    fn close_file(&mut self) -> io::Result<()>;
}

/// Writes to a directory.
struct DirectorySink {
    dir: PathBuf,
    file: Option<BufWriter<File>>,
}

impl Write for DirectorySink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.as_mut().map_or(Err(io::ErrorKind::NotFound.into()), |file| file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), Write::flush)
    }
}

impl ImageSink for DirectorySink {
    fn open_file(&mut self, name: &str, _size: u64) -> io::Result<()> {
        self.file = Some(BufWriter::new(File::create(self.dir.join(name))?));
        Ok(())
    }

    fn close_file(&mut self) -> io::Result<()> {
        self.file.take().map_or(Ok(()), |mut file| file.flush())
    }
}

/// Writes a tar.
struct TarSink<W> {
    out: W,
    size: u64,
}

impl<W: Write> Write for TarSink<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl<W: Write> ImageSink for TarSink<W> {
    fn open_file(&mut self, name: &str, size: u64) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_path(name)?;
        header.set_mode(0o644);
        header.set_size(size);
        header.set_entry_type(tar::EntryType::Regular);
        header.set_cksum();
        self.size = size;
        self.out.write_all(header.as_bytes())
    }

    fn close_file(&mut self) -> io::Result<()> {
        const BLOCK: usize = 512;
        let last = usize::try_from(self.size % BLOCK as u64).unwrap_or(0);
        self.out.write_all(&[0; BLOCK][..(BLOCK - last) % BLOCK])
    }
}

fn make_empty_layout(dir: &Path) -> Result<(), LayerError> {
    fs::create_dir_all(dir).map_err(export_error)?;
    if fs::read_dir(dir).map_err(export_error)?.next().is_some() {
        return Err(LayerError::Config(format!("{} is not empty", dir.display())));
    }
    fs::create_dir_all(dir.join("blobs/sha256")).map_err(export_error)
}

/// Copies and checks a blob. Returns its descriptor and the digest of the archive in it.
fn copy_blob(
    blob: Box<dyn Read + Send>,
    digest: &LayerDigest,
    size: u64,
    sink: &mut impl ImageSink,
) -> Result<(OciDescriptor, LayerDigest), LayerError> {
    sink.open_file(&blob_name(digest), size).map_err(export_error)?;
    let mut tee = CountingTee { from: blob.take(size), to: &mut *sink, count: 0 };
    let ((), diff_id) = checked_blob::read_and_hash(&mut tee, digest, None, |archive| {
        while archive.next_item()?.is_some() {}
        Ok(())
    })?;
    if tee.count != size {
        let what = format!("it has {} bytes instead of {size}", tee.count);
        return Err(LayerError::Damaged { digest: digest.clone(), what });
    }
    sink.close_file().map_err(export_error)?;
    let (media_type, annotations) = (LAYER_ZSTD.to_owned(), BTreeMap::new());
    Ok((OciDescriptor { media_type, digest: digest.clone(), size, annotations }, diff_id))
}

fn blob_name(digest: &LayerDigest) -> String {
    format!("blobs/sha256/{}", digest.hex_digits())
}

struct CountingTee<R, W> {
    from: R,
    to: W,
    count: u64,
}

impl<R: Read, W: Write> Read for CountingTee<R, W> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.to.write_all(&buffer[..count])?;
        self.count += count as u64;
        Ok(count)
    }
}

fn write_documents(
    sink: &mut impl ImageSink,
    meta: ExportMeta,
    (layers, diff_ids): (Vec<OciDescriptor>, Vec<LayerDigest>),
) -> Result<(), LayerError> {
    let architecture = match std::env::consts::ARCH {
        "aarch64" => "arm64",
        "x86_64" => "amd64",
        other => other,
    };
    let config = OciConfig {
        created: meta.created.unwrap_or_else(|| "1970-01-01T00:00:00Z".to_owned()),
        architecture: architecture.to_owned(),
        os: "linux".to_owned(),
        rootfs: RootFs { kind: "layers".to_owned(), diff_ids },
    };
    let manifest = OciManifest {
        schema_version: 2,
        media_type: MANIFEST.to_owned(),
        config: write_document_blob(sink, CONFIG, &config)?,
        layers,
        annotations: meta.annotations,
    };
    let mut described = write_document_blob(sink, MANIFEST, &manifest)?;
    if !meta.name.is_empty() {
        described.annotations.insert(REF_NAME.to_owned(), meta.name);
    }
    let media_type = INDEX.to_owned();
    let index = ImageIndex { schema_version: 2, media_type, manifests: vec![described] };
    write_file(sink, "index.json", &to_json(&index)?)
}

/// Writes a document as a blob.
fn write_document_blob(
    sink: &mut impl ImageSink,
    kind: &str,
    document: &impl Serialize,
) -> Result<OciDescriptor, LayerError> {
    let bytes = to_json(document)?;
    let digest = LayerDigest::from_sha256(Sha256::digest(&bytes).into());
    write_file(sink, &blob_name(&digest), &bytes)?;
    let (media_type, annotations) = (kind.to_owned(), BTreeMap::new());
    Ok(OciDescriptor { media_type, digest, size: bytes.len() as u64, annotations })
}

fn to_json(document: &impl Serialize) -> Result<Vec<u8>, LayerError> {
    serde_json::to_vec(document).map_err(|error| export_error(error.into()))
}

fn write_file(sink: &mut impl ImageSink, name: &str, bytes: &[u8]) -> Result<(), LayerError> {
    sink.open_file(name, bytes.len() as u64)
        .and_then(|()| sink.write_all(bytes))
        .and_then(|()| sink.close_file())
        .map_err(export_error)
}

fn export_error(source: io::Error) -> LayerError {
    LayerError::from_io("exporting layers", source)
}
