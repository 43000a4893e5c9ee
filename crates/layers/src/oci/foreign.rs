//! Layers of other tools: decompressed, completed by the directories that their archives leave out,
//! and packed as ours. What they may hold is decided where all archives are read.

use std::{
    collections::HashSet,
    fs::File,
    io::{self, BufReader, BufWriter, Read, Write},
    thread,
};

use cloche_model::LayerDigest;
use flate2::read::MultiGzDecoder;
use sha2::{Digest, Sha256};

use crate::{
    Bounds, LayerError,
    entry::{Entry, Kind, Mtime},
    error::RATIO_FREE,
    ingest::{Bare, Ingested, ingest},
    wire::{
        read::{Archive, Item},
        split, write,
    },
};

/// How a layer is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    Plain,
    Gzip,
    Zstd,
}

/// A layer that was read, and what it was before.
pub(super) struct Foreign {
    /// As it is now; none if it held nothing.
    pub(super) ingested: Option<Ingested>,
    /// The digest of the file.
    pub(super) blob: LayerDigest,
    /// The digest of its archive.
    pub(super) archive: LayerDigest,
}

/// Reads a layer to its end, and writes what it holds as a blob of ours.
pub(super) fn take_in(
    from: File,
    packing: Packing,
    to: &File,
    bounds: Bounds,
) -> Result<Foreign, LayerError> {
    let mut plain = Plain::new(from, packing, bounds.ratio).map_err(reading)?;
    let (ours, theirs) = io::pipe().map_err(reading)?;
    let (complete, ingested) = thread::scope(|scope| {
        let complete = scope.spawn(|| complete(&mut plain, theirs));
        let ours = BufReader::with_capacity(1 << 17, ours);
        let ingested = ingest(ours, to, bounds, &Bare::Nothing);
        (complete.join(), ingested)
    });
    let complete = complete.map_err(|_| reading(io::Error::other("reading stopped")))?;
    // Whichever failed first: the other only says that the pipe ended.
    let ingested = match (complete, ingested) {
        (Err(LayerError::Io { source, .. }), Err(error))
            if source.kind() == io::ErrorKind::BrokenPipe =>
        {
            return Err(error);
        }
        (complete, ingested) => complete.and(ingested)?,
    };
    let (blob, archive) = plain.finish().map_err(reading)?;
    Ok(Foreign { ingested, blob, archive })
}

/// Writes an archive again, with the home itself first and each directory before what is in it.
fn complete(from: &mut impl Read, to: impl Write) -> Result<(), LayerError> {
    let mut archive = Archive::new(BufReader::with_capacity(1 << 17, from));
    let mut out = BufWriter::with_capacity(1 << 17, to);
    let mut directories: HashSet<Vec<u8>> = HashSet::new();
    while let Some(item) = archive.next()? {
        let path = match &item {
            Item::Entry(entry) => entry.path.clone(),
            Item::Opaque(path) => path.clone(),
        };
        let inner = matches!(item, Item::Opaque(_));
        for directory in above(&path, inner) {
            if directories.insert(directory.to_vec()) {
                write::head(&mut out, &plain_directory(directory)).map_err(writing)?;
            }
        }
        match item {
            Item::Opaque(path) => write::opaque(&mut out, &path).map_err(writing)?,
            Item::Entry(entry) => {
                if let Kind::Directory { .. } = &entry.kind {
                    directories.insert(entry.path.clone());
                }
                write::head(&mut out, &entry).map_err(writing)?;
                io::copy(&mut archive, &mut out).map_err(writing)?;
                write::pad(&mut out, entry.kind.data_bytes()).map_err(writing)?;
            }
        }
    }
    write::end(&mut out).map_err(writing)
}

/// The directories that must be there before a path, the home first; also the path, if it must be
/// one itself.
fn above(path: &[u8], itself: bool) -> impl Iterator<Item = &[u8]> {
    let home = (itself || !path.is_empty()).then_some(&b""[..]);
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let last = (itself && !split(path).1.is_empty()).then_some(path);
    home.into_iter().chain(slashes.map(|(at, _)| &path[..at])).chain(last)
}

fn plain_directory(path: &[u8]) -> Entry {
    Entry {
        path: path.to_vec(),
        kind: Kind::Directory { opaque: false, redirect: None },
        mode: 0o755,
        mtime: Mtime::default(),
        xattrs: Vec::new(),
    }
}

/// The archive in a layer, hashed as it was and as it is.
struct Plain {
    decoder: Decoder,
    ratio: u64,
    hash: Sha256,
    count: u64,
}

enum Decoder {
    Plain(Hashed),
    Gzip(MultiGzDecoder<Hashed>),
    Zstd(zstd::Decoder<'static, BufReader<Hashed>>),
}

impl Plain {
    fn new(from: File, packing: Packing, ratio: u64) -> io::Result<Self> {
        let hashed = Hashed { from, hash: Sha256::new(), count: 0 };
        let decoder = match packing {
            Packing::Plain => Decoder::Plain(hashed),
            Packing::Gzip => Decoder::Gzip(MultiGzDecoder::new(hashed)),
            Packing::Zstd => Decoder::Zstd(zstd::Decoder::new(hashed)?),
        };
        Ok(Self { decoder, ratio, hash: Sha256::new(), count: 0 })
    }

    fn packed(&mut self) -> &mut Hashed {
        match &mut self.decoder {
            Decoder::Plain(hashed) => hashed,
            Decoder::Gzip(decoder) => decoder.get_mut(),
            Decoder::Zstd(decoder) => decoder.get_mut().get_mut(),
        }
    }

    /// The digests of the file and of the archive.
    fn finish(mut self) -> io::Result<(LayerDigest, LayerDigest)> {
        io::copy(self.packed(), &mut io::sink())?;
        let packed = std::mem::take(&mut self.packed().hash);
        let digest = |hash: Sha256| LayerDigest::from_sha256(hash.finalize().into());
        Ok((digest(packed), digest(self.hash)))
    }
}

impl Read for Plain {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = match &mut self.decoder {
            Decoder::Plain(hashed) => hashed.read(buffer)?,
            Decoder::Gzip(decoder) => decoder.read(buffer)?,
            Decoder::Zstd(decoder) => decoder.read(buffer)?,
        };
        self.hash.update(&buffer[..count]);
        self.count += count as u64;
        if self.count > RATIO_FREE && self.count / self.ratio > self.packed().count {
            return Err(LayerError::TooMuch("been compressed too well").into_io());
        }
        Ok(count)
    }
}

struct Hashed {
    from: File,
    hash: Sha256,
    count: u64,
}

impl Read for Hashed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.hash.update(&buffer[..count]);
        self.count += count as u64;
        Ok(count)
    }
}

fn reading(source: io::Error) -> LayerError {
    LayerError::from_io("reading a layer", source)
}

fn writing(source: io::Error) -> LayerError {
    LayerError::from_io("writing a layer", source)
}
