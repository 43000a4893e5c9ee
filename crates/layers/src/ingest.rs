//! Turns an archive into a blob while it passes: checked, compressed and hashed in one go. A large
//! one is compressed by a thread beside the one that reads it.

use std::{
    borrow::Cow,
    fs::File,
    io::{self, BufReader, BufWriter, Read, Write},
    mem,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::{self, JoinHandle},
};

use cloche_model::LayerDigest;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use zstd::{stream::raw::CParameter, zstd_safe::CCtx};

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
const PIECE: usize = 1 << 16;
/// An archive that is no larger is not worth a thread.
const SMALL: usize = 1 << 17;
/// How many pieces may wait to be compressed.
const WAITING: usize = 32;

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

/// Compresses into frames that can each be read by itself.
fn compress(
    blob: &File,
    first: &[u8],
    rest: Option<&Receiver<Vec<u8>>>,
) -> Result<Compressed, LayerError> {
    let mut context = Context::take();
    let out = BufWriter::with_capacity(PIECE, blob);
    let mut hashed = Hashed { out, hash: Sha256::new(), count: 0 };
    let (mut frames, mut written) = (Vec::new(), 0);
    let mut pieces = rest.into_iter().flatten();
    let mut piece = Some(Cow::Borrowed(first));
    while piece.is_some() {
        let begun = written;
        frames.push(Frame { archive_at: begun, blob_at: hashed.count });
        let mut encoder = context.encoder(hashed).map_err(LayerError::io("compressing"))?;
        while let Some(bytes) = piece.take_if(|_| written == begun || written - begun < FRAME) {
            encoder.write_all(&bytes).map_err(LayerError::io("writing a layer"))?;
            written += bytes.len() as u64;
            piece = pieces.next().map(Cow::Owned);
        }
        hashed = encoder.finish().map_err(LayerError::io("compressing"))?;
    }
    hashed.out.flush().map_err(LayerError::io("writing a layer"))?;
    let digest = LayerDigest::from_sha256(hashed.hash.finalize().into());
    context.give_back();
    Ok((frames, digest, hashed.count))
}

/// What a compressor works with: more than a megabyte, which takes longer to be had from the kernel
/// than a small archive takes to be compressed. So a few are kept.
struct Context(CCtx<'static>);

static CONTEXTS: Mutex<Vec<CCtx<'static>>> = Mutex::new(Vec::new());
/// How many are kept.
const MOST_CONTEXTS: usize = 4;

impl Context {
    fn take() -> Self {
        Self(CONTEXTS.lock().pop().unwrap_or_else(CCtx::create))
    }

    /// An encoder of one frame.
    fn encoder<W: Write>(&mut self, out: W) -> io::Result<zstd::Encoder<'_, W>> {
        let mut encoder = zstd::Encoder::with_context(out, &mut self.0);
        encoder.set_parameter(CParameter::CompressionLevel(LEVEL))?;
        encoder.include_checksum(true)?;
        Ok(encoder)
    }

    /// After frames that have all been finished.
    fn give_back(self) {
        let mut contexts = CONTEXTS.lock();
        if contexts.len() < MOST_CONTEXTS {
            contexts.push(self.0);
        }
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
