//! Layers that other tools made: decompressed, completed with the directories that their archives
//! omit, and packed again. `archive::read` decides what they may contain.

use std::{
    collections::HashSet,
    fs::File,
    io::{self, BufReader, BufWriter, Read, Write},
    thread,
};

use cloche_model::LayerDigest;

use super::decompress::{DecompressedArchive, LayerCompression};
use crate::{
    LayerBounds, LayerError,
    archive::{
        read::{ArchiveItem, ArchiveReader},
        split_path, write,
    },
    entry::{EntryKind, LayerEntry, Mtime},
    ingest::{EmptyHomePolicy, IngestedLayer, ingest_archive},
};

/// A layer that was read, and its original digests.
pub(super) struct ForeignLayer {
    /// The layer as stored here. `None` if it was empty.
    pub(super) ingested: Option<IngestedLayer>,
    /// The digest of the file.
    pub(super) blob: LayerDigest,
    /// The digest of its archive.
    pub(super) archive: LayerDigest,
}

/// Reads a layer to its end, and writes its content as a blob of ours.
pub(super) fn ingest_foreign(
    from: File,
    compression: LayerCompression,
    to: &File,
    bounds: LayerBounds,
) -> Result<ForeignLayer, LayerError> {
    let mut plain =
        DecompressedArchive::new(from, compression, bounds.ratio).map_err(read_error)?;
    let (reader, writer) = io::pipe().map_err(read_error)?;
    let (complete, ingested) = thread::scope(|scope| {
        let complete = scope.spawn(|| complete_archive(&mut plain, writer));
        let reader = BufReader::with_capacity(1 << 17, reader);
        let ingested = ingest_archive(reader, to, bounds, &EmptyHomePolicy::AlwaysDrop);
        (complete.join(), ingested)
    });
    let complete =
        complete.map_err(|_| read_error(io::Error::other("the reading thread panicked")))?;
    // Reports the first failure. The other side only sees a closed pipe.
    let ingested = match (complete, ingested) {
        (Err(LayerError::Io { source, .. }), Err(error))
            if source.kind() == io::ErrorKind::BrokenPipe =>
        {
            return Err(error);
        }
        (complete, ingested) => complete.and(ingested)?,
    };
    let (blob, archive) = plain.finish().map_err(read_error)?;
    Ok(ForeignLayer { ingested, blob, archive })
}

/// Rewrites an archive with the home itself first, and each directory before its content.
fn complete_archive(from: &mut impl Read, to: impl Write) -> Result<(), LayerError> {
    let mut archive = ArchiveReader::new(BufReader::with_capacity(1 << 17, from));
    let mut out = BufWriter::with_capacity(1 << 17, to);
    let mut directories: HashSet<Vec<u8>> = HashSet::new();
    while let Some(item) = archive.next_item()? {
        let path = match &item {
            ArchiveItem::Entry(entry) => entry.path.clone(),
            ArchiveItem::Opaque(path) => path.clone(),
        };
        let inner = matches!(item, ArchiveItem::Opaque(_));
        for directory in parent_directories(&path, inner) {
            if directories.insert(directory.to_vec()) {
                write::write_header(&mut out, &plain_directory(directory)).map_err(write_error)?;
            }
        }
        match item {
            ArchiveItem::Opaque(path) => {
                write::write_opaque(&mut out, &path).map_err(write_error)?
            }
            ArchiveItem::Entry(entry) => {
                if let EntryKind::Directory { .. } = &entry.kind {
                    directories.insert(entry.path.clone());
                }
                write::write_header(&mut out, &entry).map_err(write_error)?;
                io::copy(&mut archive, &mut out).map_err(write_error)?;
                write::write_padding(&mut out, entry.kind.data_bytes()).map_err(write_error)?;
            }
        }
    }
    write::write_end(&mut out).map_err(write_error)
}

/// The directories that must exist before a path, the home first. With `itself`, the path is one of
/// them.
fn parent_directories(path: &[u8], itself: bool) -> impl Iterator<Item = &[u8]> {
    let home = (itself || !path.is_empty()).then_some(&b""[..]);
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let last = (itself && !split_path(path).1.is_empty()).then_some(path);
    home.into_iter().chain(slashes.map(|(at, _)| &path[..at])).chain(last)
}

fn plain_directory(path: &[u8]) -> LayerEntry {
    LayerEntry {
        path: path.to_vec(),
        kind: EntryKind::Directory { opaque: false, redirect: None },
        mode: 0o755,
        mtime: Mtime::default(),
        xattrs: Vec::new(),
    }
}

fn read_error(source: io::Error) -> LayerError {
    LayerError::from_io("reading a layer", source)
}

fn write_error(source: io::Error) -> LayerError {
    LayerError::from_io("writing a layer", source)
}
