//! Runs in: server (no capabilities).
//!
//! Converts a layer of an image to a layer of ours and stores it. Homes and images then have one
//! format, one unpacker and one mount path.

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Read, Seek, Write},
    os::unix::fs::FileExt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use cloche_model::{ByteSize, LayerDigest};
use tokio::runtime::Handle;
use tokio_util::io::SyncIoBridge;

use super::{
    decompress::{DecompressedArchive, LayerCompression},
    foreign_tree::{FinishedEntry, ForeignData, ForeignTree},
};
use crate::{
    ConversionNotes, LayerBounds, LayerError, Layers, StoredLayer, Tree, TreeNode,
    archive::{foreign::ForeignArchive, write},
    blob_store::run_blocking,
    entry::EntryKind,
    ingest::{EmptyHomePolicy, IngestedLayer, ingest_archive},
};

/// How many bytes are copied at once.
const PIECE: usize = 1 << 17;

/// The limits of one layer of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConversionLimits {
    /// Bytes of its archive.
    pub bytes: ByteSize,
    /// Files, directories, links and whiteouts.
    pub entries: u64,
    /// How many times larger than its compressed form it may be.
    pub ratio: u64,
}

/// What the documents of an image say about a layer. What they do not say is not checked.
#[derive(Clone, Debug, Default)]
pub struct ExpectedLayer {
    /// The digest of the file.
    pub blob: Option<LayerDigest>,
    /// The digest of the archive in it.
    pub diff_id: Option<LayerDigest>,
}

/// A layer that was converted and stored.
#[derive(Debug)]
pub struct ConvertedLayer {
    /// The layer as stored here, pinned until it is released. `None` if it was empty.
    pub stored: Option<StoredLayer>,
    /// The digest of the file.
    pub blob: LayerDigest,
    /// The digest of the archive in it.
    pub diff_id: LayerDigest,
    /// Whether another stack below it would give another layer.
    pub needs_below: bool,
    /// What was left out.
    pub notes: ConversionNotes,
}

/// A converted layer in a temporary file.
struct UnpublishedLayer {
    ingested: Option<(tempfile::NamedTempFile, IngestedLayer)>,
    blob: LayerDigest,
    diff_id: LayerDigest,
    needs_below: bool,
    notes: ConversionNotes,
}

impl Layers {
    /// Converts the layer in a file, which lies on the stack `below`, and stores it. `progress`
    /// counts the bytes of the file that were read.
    ///
    /// # Errors
    /// If the file is not what is expected, not a layer, or too large, or if it could not be stored.
    /// Nothing is left behind then.
    pub async fn convert_layer(
        &self,
        file: File,
        below: &[LayerDigest],
        (expected, limits): (ExpectedLayer, ConversionLimits),
        progress: Arc<AtomicU64>,
    ) -> Result<ConvertedLayer, LayerError> {
        let below = self.load_tree(below).await?;
        let layers = self.clone();
        let handle = Handle::current();
        let work = move || {
            let bounds =
                LayerBounds { entries: limits.entries, bytes: limits.bytes, ratio: limits.ratio };
            layers.prepare_layer(file, &below, (&expected, bounds), (&progress, &handle))
        };
        let UnpublishedLayer { ingested, blob, diff_id, needs_below, notes } =
            run_blocking(work).await?;
        let stored = match ingested {
            Some((file, IngestedLayer { digest, index })) => {
                Some(self.publish_layer(file, digest, index).await?)
            }
            None => None,
        };
        Ok(ConvertedLayer { stored, blob, diff_id, needs_below, notes })
    }

    /// Reads the layer twice: first to check it and to learn its tree, then to write it.
    fn prepare_layer(
        &self,
        file: File,
        below: &Tree,
        (expected, bounds): (&ExpectedLayer, LayerBounds),
        (progress, handle): (&AtomicU64, &Handle),
    ) -> Result<UnpublishedLayer, LayerError> {
        let new_file = || self.0.blobs.new_file();
        let plain = new_file()?;
        let read = read_layer(file, plain.as_file(), below, bounds, progress)?;
        let LayerReading { entries, needs_below, notes, blob, diff_id } = read;
        check_digest("layer", expected.blob.as_ref(), &blob)?;
        check_digest("archive of layer", expected.diff_id.as_ref(), &diff_id)?;
        let copies = new_file()?;
        let entries = self.copy_from_below(entries, copies.as_file(), handle)?;
        let out = new_file()?;
        let sources = (plain.as_file(), copies.as_file());
        let ingested = write_layer(&entries, sources, out.as_file(), bounds)?;
        let ingested = ingested.map(|ingested| (out, ingested));
        Ok(UnpublishedLayer { ingested, blob, diff_id, needs_below, notes })
    }

    /// Copies the content of hard links to lower layers, and returns where each entry's data is.
    fn copy_from_below(
        &self,
        entries: Vec<FinishedEntry>,
        to: &File,
        handle: &Handle,
    ) -> Result<Vec<PlacedEntry>, LayerError> {
        let (mut placed, mut at) = (Vec::with_capacity(entries.len()), 0);
        let mut out = BufWriter::with_capacity(PIECE, to);
        for FinishedEntry { entry, data } in entries {
            let place = match (&entry.kind, data) {
                (EntryKind::File { .. }, Some(ForeignData::Below(node))) => {
                    let begin = at;
                    at += self.copy_file(&node, &mut out, handle)?;
                    DataPlace::Copies(begin)
                }
                (EntryKind::File { data_at, .. }, Some(ForeignData::Archive)) => {
                    DataPlace::Archive(*data_at)
                }
                _ => DataPlace::Nowhere,
            };
            placed.push(PlacedEntry { entry, place });
        }
        out.flush().map_err(convert_error)?;
        Ok(placed)
    }

    fn copy_file(
        &self,
        node: &TreeNode,
        out: &mut impl Write,
        handle: &Handle,
    ) -> Result<u64, LayerError> {
        let file = handle.block_on(self.open_node(node, None))?;
        let _inside = handle.enter();
        let copied = io::copy(&mut SyncIoBridge::new(file.content), out).map_err(convert_error)?;
        if copied != node.size {
            return Err(LayerError::Damaged {
                digest: node.layer.clone(),
                what: "a file has the wrong size".to_owned(),
            });
        }
        Ok(copied)
    }
}

/// An entry, and where its data is.
struct PlacedEntry {
    entry: crate::LayerEntry,
    place: DataPlace,
}

enum DataPlace {
    Nowhere,
    Archive(u64),
    Copies(u64),
}

/// What the first pass over a layer found.
struct LayerReading {
    entries: Vec<FinishedEntry>,
    needs_below: bool,
    notes: ConversionNotes,
    blob: LayerDigest,
    diff_id: LayerDigest,
}

/// Decompresses a layer to `plain`, and reads its tree and its digests.
fn read_layer(
    mut file: File,
    plain: &File,
    below: &Tree,
    bounds: LayerBounds,
    progress: &AtomicU64,
) -> Result<LayerReading, LayerError> {
    let mut magic = [0; 4];
    let filled = file.read_at(&mut magic, 0).map_err(convert_error)?;
    file.rewind().map_err(convert_error)?;
    let compression = LayerCompression::from_magic(&magic[..filled]);
    let mut archive =
        DecompressedArchive::new(file, compression, bounds.ratio).map_err(convert_error)?;
    let tee = SpoolingReader {
        from: &mut archive,
        to: BufWriter::with_capacity(PIECE, plain),
        room: bounds.bytes.bytes(),
        progress,
    };
    let mut reader = BufReader::with_capacity(PIECE, tee);
    let mut foreign = ForeignArchive::new(&mut reader);
    let mut tree = ForeignTree::new(below, bounds);
    let read = (|| {
        while let Some(item) = foreign.next_item()? {
            tree.add_item(item)?;
        }
        Ok(())
    })();
    let notes = foreign.notes();
    read.map_err(name_decompression_failure)?;
    // The archive ends before its file does if it has no end marker.
    io::copy(&mut reader, &mut io::sink())
        .map_err(convert_error)
        .map_err(name_decompression_failure)?;
    reader.into_inner().to.flush().map_err(convert_error)?;
    let (entries, needs_below) = tree.finish()?;
    let (blob, diff_id) = archive.finish().map_err(convert_error)?;
    Ok(LayerReading { entries, needs_below, notes, blob, diff_id })
}

/// Writes the entries as an archive of ours, compressed. Returns `None` if there are none.
fn write_layer(
    entries: &[PlacedEntry],
    (plain, copies): (&File, &File),
    out: &File,
    bounds: LayerBounds,
) -> Result<Option<IngestedLayer>, LayerError> {
    let (reader, writer) = io::pipe().map_err(convert_error)?;
    let (written, ingested) = thread::scope(|scope| {
        let written = scope.spawn(|| {
            let mut to = BufWriter::with_capacity(PIECE, writer);
            let mut buffer = vec![0; PIECE];
            for PlacedEntry { entry, place } in entries {
                write::write_header(&mut to, entry)?;
                let count = entry.kind.data_bytes();
                match place {
                    DataPlace::Nowhere => continue,
                    DataPlace::Archive(at) => copy_range(plain, *at, count, &mut to, &mut buffer)?,
                    DataPlace::Copies(at) => copy_range(copies, *at, count, &mut to, &mut buffer)?,
                }
                write::write_padding(&mut to, count)?;
            }
            write::write_end(&mut to)
        });
        let reader = BufReader::with_capacity(PIECE, reader);
        let ingested = ingest_archive(reader, out, bounds, &EmptyHomePolicy::AlwaysDrop);
        (written.join(), ingested)
    });
    let written =
        written.map_err(|_| convert_error(io::Error::other("the writing thread panicked")))?;
    match (written, ingested) {
        // The writer only sees the closed pipe.
        (Err(error), Err(first)) if error.kind() == io::ErrorKind::BrokenPipe => Err(first),
        (Err(error), _) => Err(convert_error(error)),
        (Ok(()), ingested) => ingested,
    }
}

fn copy_range(
    from: &File,
    mut at: u64,
    mut count: u64,
    to: &mut impl Write,
    buffer: &mut [u8],
) -> io::Result<()> {
    while count > 0 {
        let most = usize::try_from(count).unwrap_or(usize::MAX).min(buffer.len());
        from.read_exact_at(&mut buffer[..most], at)?;
        to.write_all(&buffer[..most])?;
        at += most as u64;
        count -= most as u64;
    }
    Ok(())
}

/// Like `convert_layer` without a store and without lower layers, for fuzzing.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn convert_bytes(
    bytes: &[u8],
    bounds: LayerBounds,
) -> Result<Option<(File, IngestedLayer)>, LayerError> {
    let new_file = || tempfile::tempfile().map_err(convert_error);
    let (mut file, plain, out) = (new_file()?, new_file()?, new_file()?);
    file.write_all(bytes).map_err(convert_error)?;
    let read = read_layer(file, &plain, &Tree::default(), bounds, &AtomicU64::new(0))?;
    let placed = read.entries.into_iter().map(|FinishedEntry { entry, .. }| {
        let place = match entry.kind {
            EntryKind::File { data_at, .. } => DataPlace::Archive(data_at),
            _ => DataPlace::Nowhere,
        };
        PlacedEntry { entry, place }
    });
    let placed: Vec<PlacedEntry> = placed.collect();
    let ingested = write_layer(&placed, (&plain, &plain), &out, bounds)?;
    Ok(ingested.map(|ingested| (out, ingested)))
}

/// Writes what it reads to a file, up to a limit.
struct SpoolingReader<'a, W> {
    from: &'a mut DecompressedArchive,
    to: W,
    room: u64,
    progress: &'a AtomicU64,
}

impl<W: Write> Read for SpoolingReader<'_, W> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.room = self
            .room
            .checked_sub(count as u64)
            .ok_or_else(|| LayerError::TooMuch("too many bytes").into_io())?;
        self.to
            .write_all(&buffer[..count])
            .map_err(|error| LayerError::Io { what: "writing a layer", source: error }.into_io())?;
        self.progress.store(self.from.compressed_count(), Ordering::Relaxed);
        Ok(count)
    }
}

fn check_digest(
    what: &str,
    expected: Option<&LayerDigest>,
    found: &LayerDigest,
) -> Result<(), LayerError> {
    match expected {
        Some(expected) if expected != found => {
            Err(LayerError::BadImage(format!("the {what} {expected} has the digest {found}")))
        }
        _ => Ok(()),
    }
}

/// An error of the decompressor is a fault of the layer, unlike one of our disk.
fn name_decompression_failure(error: LayerError) -> LayerError {
    match error {
        LayerError::Io { what: "reading an archive" | "converting a layer", source }
            if source.raw_os_error().is_none() =>
        {
            LayerError::BadImage(format!("a layer cannot be decompressed: {source}"))
        }
        error => error,
    }
}

fn convert_error(source: io::Error) -> LayerError {
    LayerError::from_io("converting a layer", source)
}
