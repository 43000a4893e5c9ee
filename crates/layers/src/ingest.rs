//! Turns an archive into a blob while it passes: checked, compressed and hashed in one go. A large
//! one is compressed by a thread beside the one that reads it.

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Read, Write},
    mem,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::{self, JoinHandle},
};

use cloche_model::LayerDigest;
use sha2::{Digest, Sha256};

use crate::{
    Bounds, Index, LayerError,
    entry::{Entry, Xattr},
    index::{Builder, Frame},
    wire::read::Archive,
};

/// The reply waits for it. Level 3 takes 60 % longer and saves 15 %, of numpy and pandas.
const LEVEL: i32 = 1;
/// How much of the archive goes into one frame. Files are read from the beginning of theirs.
const FRAME: u64 = 4 << 20;

/// A blob that was written to a file, and what is in it.
pub(crate) struct Ingested {
    pub(crate) digest: LayerDigest,
    pub(crate) index: Index,
}

/// What a home without files is worth.
#[derive(Clone, Debug)]
pub(crate) enum Bare {
    /// Nothing.
    Nothing,
    /// A layer, unless it has the mode and attributes that it had before.
    Unless(u32, Vec<Xattr>),
}

impl Bare {
    fn is_nothing(&self, home: Option<&Entry>) -> bool {
        match (self, home) {
            (Self::Unless(mode, xattrs), Some(home)) => {
                (*mode, xattrs) == (home.mode, &home.xattrs)
            }
            _ => true,
        }
    }
}

/// Reads an archive and writes the blob. None if the archive holds nothing but the home itself, and
/// that is nothing.
pub(crate) fn ingest(
    archive: impl Read,
    blob: &File,
    bounds: Bounds,
    bare: &Bare,
) -> Result<Option<Ingested>, LayerError> {
    let blob = blob.try_clone().map_err(LayerError::io("writing a layer"))?;
    let tee = Tee { from: archive, to: Compressor::Small(Vec::new(), blob) };
    let mut archive = Archive::new(BufReader::with_capacity(PIECE, tee));
    let read = Builder::read(&mut archive, bounds);
    let compressed = archive.into_inner().into_inner().to.finish();
    let builder = match (read, &compressed) {
        // The reader only sees that nobody takes what it reads.
        (Err(LayerError::Io { source, .. }), Err(_))
            if source.kind() == io::ErrorKind::BrokenPipe =>
        {
            return compressed.map(|_| None);
        }
        (read, _) => read?,
    };
    let (frames, digest, stored) = compressed?;
    if builder.len() == 1 && bare.is_nothing(builder.at(b"")) {
        return Ok(None);
    }
    let index = builder.finish(frames, stored)?;
    Ok(Some(Ingested { digest, index }))
}

/// Reads an archive and keeps nothing but what is in it. None if that is only the home itself.
pub(crate) fn survey(archive: impl Read, bounds: Bounds) -> Result<Option<Index>, LayerError> {
    let builder = Builder::read(&mut Archive::new(archive), bounds)?;
    if builder.len() == 1 {
        return Ok(None);
    }
    builder.finish(Vec::new(), 0).map(Some)
}

/// How much of an archive is read at once.
const PIECE: usize = 1 << 17;
/// An archive that is no larger is not worth a thread.
const SMALL: usize = 1 << 18;
/// How many pieces may wait to be compressed.
const WAITING: usize = 16;

/// The frames of a blob, its digest and its size.
type Compressed = (Vec<Frame>, LayerDigest, u64);

/// Gives on what it reads, and has a copy compressed.
struct Tee<R> {
    from: R,
    to: Compressor,
}

impl<R: Read> Read for Tee<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.to.take(&buffer[..count])?;
        Ok(count)
    }
}

/// Compresses what it is given into a file: at the end, or as it comes once it is much.
enum Compressor {
    Small(Vec<u8>, File),
    Large(SyncSender<Vec<u8>>, JoinHandle<Result<Compressed, LayerError>>),
}

impl Compressor {
    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Small(held, file) => {
                held.extend_from_slice(bytes);
                if held.len() > SMALL {
                    let (pieces, inbox) = sync_channel(WAITING);
                    let (held, file) = (mem::take(held), file.try_clone()?);
                    let work = move || compress(&file, &held, Some(&inbox));
                    let worker = thread::Builder::new().name("compress".to_owned()).spawn(work)?;
                    *self = Self::Large(pieces, worker);
                }
                Ok(())
            }
            Self::Large(pieces, _) if !bytes.is_empty() => {
                pieces.send(bytes.to_vec()).map_err(|_| io::ErrorKind::BrokenPipe.into())
            }
            Self::Large(..) => Ok(()),
        }
    }

    fn finish(self) -> Result<Compressed, LayerError> {
        match self {
            Self::Small(held, file) => compress(&file, &held, None),
            Self::Large(pieces, worker) => {
                drop(pieces);
                let stopped = |_| io::Error::other("compressing stopped");
                worker.join().map_err(stopped).map_err(LayerError::io("compressing"))?
            }
        }
    }
}

fn compress(
    blob: &File,
    first: &[u8],
    rest: Option<&Receiver<Vec<u8>>>,
) -> Result<Compressed, LayerError> {
    let mut frames = Frames::new(blob)?;
    frames.write_all(first).map_err(LayerError::io("writing a layer"))?;
    for piece in rest.into_iter().flatten() {
        frames.write_all(&piece).map_err(LayerError::io("writing a layer"))?;
    }
    frames.finish()
}

/// Compresses into frames that can each be read by itself.
struct Frames<'a> {
    encoder: Option<zstd::Encoder<'static, Hashed<'a>>>,
    frames: Vec<Frame>,
    written: u64,
}

impl<'a> Frames<'a> {
    fn new(blob: &'a File) -> Result<Self, LayerError> {
        let out = BufWriter::with_capacity(1 << 17, blob);
        let hashed = Hashed { out, hash: Sha256::new(), count: 0 };
        let mut frames = Self { encoder: None, frames: Vec::new(), written: 0 };
        frames.begin(hashed).map_err(LayerError::io("compressing"))?;
        Ok(frames)
    }

    fn begin(&mut self, out: Hashed<'a>) -> io::Result<()> {
        self.frames.push(Frame { archive_at: self.written, blob_at: out.count });
        let mut encoder = zstd::Encoder::new(out, LEVEL)?;
        encoder.include_checksum(true)?;
        self.encoder = Some(encoder);
        Ok(())
    }

    fn finish(self) -> Result<Compressed, LayerError> {
        let missing = || io::Error::other("no frame");
        let encoder = self.encoder.ok_or_else(missing).map_err(LayerError::io("compressing"))?;
        let mut hashed = encoder.finish().map_err(LayerError::io("compressing"))?;
        hashed.out.flush().map_err(LayerError::io("writing a layer"))?;
        let digest = LayerDigest::from_sha256(hashed.hash.finalize().into());
        Ok((self.frames, digest, hashed.count))
    }
}

impl Write for Frames<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let begun = self.frames.last().map_or(0, |frame| frame.archive_at);
        if self.written - begun >= FRAME
            && let Some(encoder) = self.encoder.take()
        {
            self.begin(encoder.finish()?)?;
        }
        let encoder = self.encoder.as_mut().ok_or_else(|| io::Error::other("no frame"))?;
        let count = encoder.write(bytes)?;
        self.written += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Hashed<'a> {
    out: BufWriter<&'a File>,
    hash: Sha256,
    count: u64,
}

impl Write for Hashed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        self.hash.update(&bytes[..count]);
        self.count += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
