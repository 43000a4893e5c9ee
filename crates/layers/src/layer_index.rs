//! The index of a layer: its entries without their content. It is checked and built while an
//! archive is read, and stored beside the blob.

use std::{
    collections::HashMap,
    io::{Read, Write},
};

use cloche_model::{ByteSize, Layer, LayerDigest};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    LayerBounds, LayerError,
    archive::{
        read::{ArchiveItem, ArchiveReader},
        split_path,
    },
    entry::{EntryKind, LayerEntry},
    error::NAMES_BYTES,
};

/// The entries of a layer, without their content.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerIndex {
    entries: Vec<LayerEntry>,
    frames: Vec<FrameStart>,
    stored: u64,
}

/// A position in a blob where decompression can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FrameStart {
    /// Offset in the archive.
    pub(crate) archive_at: u64,
    /// Offset in the blob.
    pub(crate) blob_at: u64,
}

impl LayerIndex {
    /// All entries, sorted by path. The home itself (the empty path) is the first.
    #[must_use]
    pub fn entries(&self) -> &[LayerEntry] {
        &self.entries
    }

    /// The entry at a path.
    #[must_use]
    pub fn get(&self, path: &[u8]) -> Option<&LayerEntry> {
        let at = self.entries.binary_search_by(|entry| entry.path[..].cmp(path)).ok()?;
        self.entries.get(at)
    }

    /// The files with their sizes, sorted by path. Hard links are included.
    pub fn files(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.entries.iter().filter_map(|entry| match &entry.kind {
            EntryKind::File { size, .. } => Some((&entry.path[..], *size)),
            EntryKind::HardLink { target } => match self.get(target)?.kind {
                EntryKind::File { size, .. } => Some((&entry.path[..], size)),
                _ => None,
            },
            _ => None,
        })
    }

    /// The bytes of data in all files.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.kind.data_bytes()).sum()
    }

    /// How many paths the layer adds, changes or removes.
    #[must_use]
    pub fn change_count(&self) -> u64 {
        self.entries.len().saturating_sub(1) as u64
    }

    /// Whether any directory was renamed.
    pub(crate) fn has_redirects(&self) -> bool {
        let moved = |entry: &LayerEntry| {
            matches!(entry.kind, EntryKind::Directory { redirect: Some(_), .. })
        };
        self.entries.iter().any(moved)
    }

    /// Approximate disk space of the unpacked layer.
    pub(crate) fn disk_bytes(&self) -> u64 {
        let blocks = |entry: &LayerEntry| 4096 + entry.kind.data_bytes().next_multiple_of(4096);
        self.entries.iter().map(blocks).sum()
    }

    /// The last frame that starts at or before `start`, and the offset in the blob after the last
    /// frame that is needed to read up to `end`.
    pub(crate) fn frames_for(&self, start: u64, end: u64) -> (FrameStart, u64) {
        let first = self.frames.partition_point(|frame| frame.archive_at <= start);
        let after = self.frames.partition_point(|frame| frame.archive_at < end);
        let begin = self.frames.get(first.saturating_sub(1)).copied();
        let stop = self.frames.get(after).map_or(self.stored, |frame| frame.blob_at);
        (begin.unwrap_or(FrameStart { archive_at: 0, blob_at: 0 }), stop)
    }

    /// The layer's digest and sizes, for other crates.
    pub(crate) fn to_layer(&self, digest: LayerDigest) -> Layer {
        Layer {
            digest,
            stored: ByteSize(self.stored),
            bytes: ByteSize(self.data_bytes()),
            entries: self.change_count(),
        }
    }

    /// The stored form: compressed, with a hash before it.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, LayerError> {
        let refused = |error| LayerError::Refused(format!("the layer cannot be indexed: {error}"));
        let plain = postcard::to_stdvec(self).map_err(|error| refused(error.to_string()))?;
        let mut bytes = index_hash(&plain).to_vec();
        let mut encoder =
            zstd::Encoder::new(&mut bytes, 1).map_err(LayerError::io_context("indexing"))?;
        encoder.write_all(&plain).map_err(LayerError::io_context("indexing"))?;
        encoder.finish().map_err(LayerError::io_context("indexing"))?;
        Ok(bytes)
    }

    /// Returns `None` if the bytes are damaged or were written by another version of this program.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (hash, compressed) = bytes.split_at_checked(32)?;
        let mut plain = Vec::new();
        let decoder = zstd::Decoder::new(compressed).ok()?;
        decoder.take(4 * NAMES_BYTES).read_to_end(&mut plain).ok()?;
        if index_hash(&plain) != *hash {
            return None;
        }
        postcard::from_bytes(&plain).ok()
    }
}

/// The hash of an index. Another version of the format has another hash, so its indexes are
/// rebuilt.
fn index_hash(plain: &[u8]) -> [u8; 32] {
    const VERSION: &[u8] = b"content by BLAKE3";
    Sha256::new().chain_update(VERSION).chain_update(plain).finalize().into()
}

/// Checks entries in archive order, and collects them.
pub(crate) struct IndexBuilder {
    bounds: LayerBounds,
    entries: Vec<LayerEntry>,
    places: HashMap<Vec<u8>, usize>,
    names: u64,
    bytes: u64,
}

impl IndexBuilder {
    /// Reads an archive to its end.
    pub(crate) fn from_archive<R: Read>(
        archive: &mut ArchiveReader<R>,
        bounds: LayerBounds,
    ) -> Result<Self, LayerError> {
        let mut builder = Self::new(bounds);
        let mut buffer = vec![0; 1 << 16];
        while let Some(item) = archive.next_item()? {
            builder.add_item(&item)?;
            let last = builder.entries.last_mut().map(|entry| &mut entry.kind);
            if let (ArchiveItem::Entry(_), Some(EntryKind::File { hash, .. })) = (&item, last) {
                let mut data = blake3::Hasher::new();
                loop {
                    match archive
                        .read(&mut buffer)
                        .map_err(LayerError::io_context("reading a layer"))?
                    {
                        0 => break,
                        count => data.update(&buffer[..count]),
                    };
                }
                hash.copy_from_slice(&data.finalize().as_bytes()[..16]);
            }
        }
        Ok(builder)
    }

    pub(crate) fn new(bounds: LayerBounds) -> Self {
        Self { bounds, entries: Vec::new(), places: HashMap::new(), names: 0, bytes: 0 }
    }

    /// Adds the next item, if it is valid at this position.
    pub(crate) fn add_item(&mut self, item: &ArchiveItem) -> Result<(), LayerError> {
        match item {
            ArchiveItem::Opaque(path) => match self.entry_at_mut(path).map(|entry| &mut entry.kind)
            {
                Some(EntryKind::Directory { opaque, .. }) => {
                    *opaque = true;
                    Ok(())
                }
                _ => Err(refused_path("an opaque mark for a path that is not a directory", path)),
            },
            ArchiveItem::Entry(entry) => self.add_entry(entry),
        }
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn finish(
        mut self,
        frames: Vec<FrameStart>,
        stored: u64,
    ) -> Result<LayerIndex, LayerError> {
        if self.entries.is_empty() {
            return Err(LayerError::Refused("an archive without a home".to_owned()));
        }
        self.entries.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        Ok(LayerIndex { entries: self.entries, frames, stored })
    }

    fn entry_at_mut(&mut self, path: &[u8]) -> Option<&mut LayerEntry> {
        let at = *self.places.get(path)?;
        self.entries.get_mut(at)
    }

    pub(crate) fn entry_at(&self, path: &[u8]) -> Option<&LayerEntry> {
        self.entries.get(*self.places.get(path)?)
    }

    fn add_entry(&mut self, entry: &LayerEntry) -> Result<(), LayerError> {
        self.check_bounds(entry)?;
        if self.places.contains_key(&entry.path) {
            return Err(refused_path("a duplicate path", &entry.path));
        }
        if !entry.path.is_empty() {
            let parent = self.entry_at(split_path(&entry.path).0).map(|parent| &parent.kind);
            if !matches!(parent, Some(EntryKind::Directory { .. })) {
                return Err(refused_path("a path without its parent directory", &entry.path));
            }
        }
        if let EntryKind::HardLink { target } = &entry.kind {
            let target = self.entry_at(target).map(|target| &target.kind);
            if !matches!(
                target,
                Some(EntryKind::File { .. } | EntryKind::Symlink { .. } | EntryKind::Fifo)
            ) {
                return Err(refused_path("a hard link to a missing target", &entry.path));
            }
        }
        self.places.insert(entry.path.clone(), self.entries.len());
        self.entries.push(entry.clone());
        Ok(())
    }

    fn check_bounds(&mut self, entry: &LayerEntry) -> Result<(), LayerError> {
        if self.entries.len() as u64 >= self.bounds.entries {
            return Err(LayerError::TooMuch("too many entries"));
        }
        self.bytes = self.bytes.saturating_add(entry.kind.data_bytes());
        if self.bytes > self.bounds.bytes.bytes() {
            return Err(LayerError::TooMuch("too many bytes"));
        }
        let attributes: usize = entry.xattrs.iter().map(|(k, v)| k.len() + v.len()).sum();
        let more = match &entry.kind {
            EntryKind::Symlink { target } | EntryKind::HardLink { target } => target.len(),
            EntryKind::Directory { redirect: Some(path), .. } => path.len(),
            EntryKind::File { extents: Some(extents), .. } => 16 * extents.len(),
            _ => 0,
        };
        self.names += (entry.path.len() + attributes + more) as u64;
        if self.names > NAMES_BYTES {
            return Err(LayerError::TooMuch("names that are too long"));
        }
        Ok(())
    }
}

fn refused_path(what: &str, path: &[u8]) -> LayerError {
    LayerError::Refused(format!("{what}: {:?}", String::from_utf8_lossy(path)))
}
