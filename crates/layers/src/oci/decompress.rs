//! Runs in: server (no capabilities).
//!
//! Decompresses a layer of an image, and hashes it in both forms.

use std::{
    fs::File,
    io::{self, BufReader, Read},
};

use cloche_model::LayerDigest;
use flate2::read::MultiGzDecoder;
use sha2::{Digest, Sha256};

use crate::{LayerError, error::RATIO_FREE};

/// The largest window of a zstd frame, as a power of two: 128 MiB.
const ZSTD_WINDOW: u32 = 27;

/// The compression of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LayerCompression {
    Plain,
    Gzip,
    Zstd,
}

impl LayerCompression {
    /// Recognises the compression by the first bytes. Media types are often wrong.
    pub(super) fn from_magic(first: &[u8]) -> Self {
        match first {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            // A frame that decompressors skip.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            _ => Self::Plain,
        }
    }
}

fn open_zstd(from: HashingFile) -> io::Result<zstd::Decoder<'static, BufReader<HashingFile>>> {
    let mut decoder = zstd::Decoder::new(from)?;
    decoder.window_log_max(ZSTD_WINDOW)?;
    Ok(decoder)
}

/// The archive in a layer. Hashes the compressed and the decompressed bytes.
pub(super) struct DecompressedArchive {
    decoder: LayerDecoder,
    ratio: u64,
    hash: Sha256,
    count: u64,
}

enum LayerDecoder {
    Plain(HashingFile),
    Gzip(MultiGzDecoder<HashingFile>),
    Zstd(zstd::Decoder<'static, BufReader<HashingFile>>),
}

impl DecompressedArchive {
    pub(super) fn new(from: File, compression: LayerCompression, ratio: u64) -> io::Result<Self> {
        let hashed = HashingFile { from, hash: Sha256::new(), count: 0 };
        let decoder = match compression {
            LayerCompression::Plain => LayerDecoder::Plain(hashed),
            LayerCompression::Gzip => LayerDecoder::Gzip(MultiGzDecoder::new(hashed)),
            LayerCompression::Zstd => LayerDecoder::Zstd(open_zstd(hashed)?),
        };
        Ok(Self { decoder, ratio, hash: Sha256::new(), count: 0 })
    }

    fn compressed_reader(&mut self) -> &mut HashingFile {
        match &mut self.decoder {
            LayerDecoder::Plain(hashed) => hashed,
            LayerDecoder::Gzip(decoder) => decoder.get_mut(),
            LayerDecoder::Zstd(decoder) => decoder.get_mut().get_mut(),
        }
    }

    /// How many compressed bytes were read so far.
    pub(super) fn compressed_count(&mut self) -> u64 {
        self.compressed_reader().count
    }

    /// The digests of the file and of the archive.
    pub(super) fn finish(mut self) -> io::Result<(LayerDigest, LayerDigest)> {
        io::copy(self.compressed_reader(), &mut io::sink())?;
        let packed = std::mem::take(&mut self.compressed_reader().hash);
        let digest = |hash: Sha256| LayerDigest::from_sha256(hash.finalize().into());
        Ok((digest(packed), digest(self.hash)))
    }
}

impl Read for DecompressedArchive {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = match &mut self.decoder {
            LayerDecoder::Plain(hashed) => hashed.read(buffer)?,
            LayerDecoder::Gzip(decoder) => decoder.read(buffer)?,
            LayerDecoder::Zstd(decoder) => decoder.read(buffer)?,
        };
        self.hash.update(&buffer[..count]);
        self.count += count as u64;
        if self.count > RATIO_FREE && self.count / self.ratio > self.compressed_reader().count {
            return Err(LayerError::TooMuch("a compression ratio that is too high").into_io());
        }
        Ok(count)
    }
}

struct HashingFile {
    from: File,
    hash: Sha256,
    count: u64,
}

impl Read for HashingFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.hash.update(&buffer[..count]);
        self.count += count as u64;
        Ok(count)
    }
}
