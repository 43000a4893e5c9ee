//! What is in a layer without the content: checked while an archive passes, kept beside the blob.

use std::{
    collections::HashMap,
    io::{Read, Write},
};

use cloche_model::{ByteSize, Layer, LayerDigest};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    Bounds, LayerError,
    entry::{Entry, Kind},
    error::NAMES_BYTES,
    wire::{
        read::{Archive, Item},
        split,
    },
};

/// What is in a layer, without the content.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    entries: Vec<Entry>,
    frames: Vec<Frame>,
    stored: u64,
}

/// A place in a blob where decompression can begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Frame {
    /// How much of the archive comes before it.
    pub(crate) archive_at: u64,
    /// How much of the blob comes before it.
    pub(crate) blob_at: u64,
}

impl Index {
    /// All entries, in the order of their paths; the home itself (an empty path) is the first.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// What the layer says about a path.
    #[must_use]
    pub fn get(&self, path: &[u8]) -> Option<&Entry> {
        let at = self.entries.binary_search_by(|entry| entry.path[..].cmp(path)).ok()?;
        self.entries.get(at)
    }

    /// The files with their sizes, in the order of their paths; other names of a file too.
    pub fn files(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.entries.iter().filter_map(|entry| match &entry.kind {
            Kind::File { size, .. } => Some((&entry.path[..], *size)),
            Kind::HardLink { target } => match self.get(target)?.kind {
                Kind::File { size, .. } => Some((&entry.path[..], size)),
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
    pub fn changes(&self) -> u64 {
        self.entries.len().saturating_sub(1) as u64
    }

    /// Whether any directory was renamed.
    pub(crate) fn has_redirects(&self) -> bool {
        let moved = |entry: &Entry| matches!(entry.kind, Kind::Directory { redirect: Some(_), .. });
        self.entries.iter().any(moved)
    }

    /// What unpacking it takes on a disk, roughly.
    pub(crate) fn disk_bytes(&self) -> u64 {
        let blocks = |entry: &Entry| 4096 + entry.kind.data_bytes().next_multiple_of(4096);
        self.entries.iter().map(blocks).sum()
    }

    /// The last place to begin decompression at that is not behind this part of the archive, and
    /// the first place of the blob that is not needed for reading up to `end`.
    pub(crate) fn frames_for(&self, start: u64, end: u64) -> (Frame, u64) {
        let first = self.frames.partition_point(|frame| frame.archive_at <= start);
        let after = self.frames.partition_point(|frame| frame.archive_at < end);
        let begin = self.frames.get(first.saturating_sub(1)).copied();
        let stop = self.frames.get(after).map_or(self.stored, |frame| frame.blob_at);
        (begin.unwrap_or(Frame { archive_at: 0, blob_at: 0 }), stop)
    }

    /// What others are told about the layer.
    pub(crate) fn layer(&self, digest: LayerDigest) -> Layer {
        Layer {
            digest,
            stored: ByteSize(self.stored),
            bytes: ByteSize(self.data_bytes()),
            entries: self.changes(),
        }
    }

    /// As it is kept beside the blob: compressed, with a hash before it.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, LayerError> {
        let refused = |error| LayerError::Refused(format!("it cannot be indexed: {error}"));
        let plain = postcard::to_stdvec(self).map_err(|error| refused(error.to_string()))?;
        let mut bytes = seal(&plain).to_vec();
        let mut encoder = zstd::Encoder::new(&mut bytes, 1).map_err(LayerError::io("indexing"))?;
        encoder.write_all(&plain).map_err(LayerError::io("indexing"))?;
        encoder.finish().map_err(LayerError::io("indexing"))?;
        Ok(bytes)
    }

    /// None if the bytes are damaged or of another version of this program.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (hash, compressed) = bytes.split_at_checked(32)?;
        let mut plain = Vec::new();
        let decoder = zstd::Decoder::new(compressed).ok()?;
        decoder.take(4 * NAMES_BYTES).read_to_end(&mut plain).ok()?;
        if seal(&plain) != *hash {
            return None;
        }
        postcard::from_bytes(&plain).ok()
    }
}

/// The hash of an index. Indexes of another version have another one, and are made anew.
fn seal(plain: &[u8]) -> [u8; 32] {
    const VERSION: &[u8] = b"content by BLAKE3";
    Sha256::new().chain_update(VERSION).chain_update(plain).finalize().into()
}

/// Checks entries as they come, and keeps them.
pub(crate) struct Builder {
    bounds: Bounds,
    entries: Vec<Entry>,
    places: HashMap<Vec<u8>, usize>,
    names: u64,
    bytes: u64,
}

impl Builder {
    /// Reads an archive to its end.
    pub(crate) fn read<R: Read>(
        archive: &mut Archive<R>,
        bounds: Bounds,
    ) -> Result<Self, LayerError> {
        let mut builder = Self::new(bounds);
        let mut buffer = vec![0; 1 << 16];
        while let Some(item) = archive.next()? {
            builder.add(&item)?;
            let last = builder.entries.last_mut().map(|entry| &mut entry.kind);
            if let (Item::Entry(_), Some(Kind::File { hash, .. })) = (&item, last) {
                let mut data = blake3::Hasher::new();
                loop {
                    match archive.read(&mut buffer).map_err(LayerError::io("reading a layer"))? {
                        0 => break,
                        count => data.update(&buffer[..count]),
                    };
                }
                hash.copy_from_slice(&data.finalize().as_bytes()[..16]);
            }
        }
        Ok(builder)
    }

    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { bounds, entries: Vec::new(), places: HashMap::new(), names: 0, bytes: 0 }
    }

    /// Takes the next item, if it can be where it is.
    pub(crate) fn add(&mut self, item: &Item) -> Result<(), LayerError> {
        match item {
            Item::Opaque(path) => match self.at_mut(path).map(|entry| &mut entry.kind) {
                Some(Kind::Directory { opaque, .. }) => {
                    *opaque = true;
                    Ok(())
                }
                _ => Err(refused("an opaque directory that is none", path)),
            },
            Item::Entry(entry) => self.entry(entry),
        }
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn finish(mut self, frames: Vec<Frame>, stored: u64) -> Result<Index, LayerError> {
        if self.entries.is_empty() {
            return Err(LayerError::Refused("an archive without a home".to_owned()));
        }
        self.entries.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        Ok(Index { entries: self.entries, frames, stored })
    }

    fn at_mut(&mut self, path: &[u8]) -> Option<&mut Entry> {
        let at = *self.places.get(path)?;
        self.entries.get_mut(at)
    }

    pub(crate) fn at(&self, path: &[u8]) -> Option<&Entry> {
        self.entries.get(*self.places.get(path)?)
    }

    fn entry(&mut self, entry: &Entry) -> Result<(), LayerError> {
        self.count(entry)?;
        if self.places.contains_key(&entry.path) {
            return Err(refused("a path that is there twice", &entry.path));
        }
        if !entry.path.is_empty() {
            let parent = self.at(split(&entry.path).0).map(|parent| &parent.kind);
            if !matches!(parent, Some(Kind::Directory { .. })) {
                return Err(refused("a path whose directory is not there", &entry.path));
            }
        }
        if let Kind::HardLink { target } = &entry.kind {
            let target = self.at(target).map(|target| &target.kind);
            if !matches!(target, Some(Kind::File { .. } | Kind::Symlink { .. } | Kind::Fifo)) {
                return Err(refused("a hard link to what is not there", &entry.path));
            }
        }
        self.places.insert(entry.path.clone(), self.entries.len());
        self.entries.push(entry.clone());
        Ok(())
    }

    fn count(&mut self, entry: &Entry) -> Result<(), LayerError> {
        if self.entries.len() as u64 >= self.bounds.entries {
            return Err(LayerError::TooMuch("too many entries"));
        }
        self.bytes = self.bytes.saturating_add(entry.kind.data_bytes());
        if self.bytes > self.bounds.bytes.bytes() {
            return Err(LayerError::TooMuch("too many bytes"));
        }
        let attributes: usize = entry.xattrs.iter().map(|(k, v)| k.len() + v.len()).sum();
        let more = match &entry.kind {
            Kind::Symlink { target } | Kind::HardLink { target } => target.len(),
            Kind::Directory { redirect: Some(path), .. } => path.len(),
            Kind::File { extents: Some(extents), .. } => 16 * extents.len(),
            _ => 0,
        };
        self.names += (entry.path.len() + attributes + more) as u64;
        if self.names > NAMES_BYTES {
            return Err(LayerError::TooMuch("names that are too long"));
        }
        Ok(())
    }
}

fn refused(what: &str, path: &[u8]) -> LayerError {
    LayerError::Refused(format!("{what}: {:?}", String::from_utf8_lossy(path)))
}
