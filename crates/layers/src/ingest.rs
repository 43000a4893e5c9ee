//! Turns an archive into a blob while it passes: checked, compressed and hashed in one go.

use std::{
    fs::File,
    io::{self, BufWriter, Read, Write},
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
    let tee = Tee { from: archive, to: Frames::new(blob)? };
    let mut archive = Archive::new(tee);
    let builder = Builder::read(&mut archive, bounds)?;
    let (frames, digest, stored) = archive.into_inner().to.finish()?;
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

/// Gives on what it reads, and keeps a copy.
struct Tee<R, W> {
    from: R,
    to: W,
}

impl<R: Read, W: Write> Read for Tee<R, W> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.to.write_all(&buffer[..count])?;
        Ok(count)
    }
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

    fn finish(self) -> Result<(Vec<Frame>, LayerDigest, u64), LayerError> {
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
