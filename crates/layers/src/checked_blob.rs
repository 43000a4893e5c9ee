//! Decompresses a blob and checks its digest.

use std::io::{self, BufReader, Read};

use cloche_model::LayerDigest;
use sha2::{Digest, Sha256};

use crate::{LayerError, archive::read::ArchiveReader, error::RATIO_FREE};

/// Passes the archive of a blob to `work`, which must read it to its end. The result of `work` is
/// returned only if the digest matches.
pub(crate) fn read_checked<T>(
    blob: impl Read,
    digest: &LayerDigest,
    work: impl FnOnce(&mut ArchiveReader<BlobReader<'_>>) -> Result<T, LayerError>,
) -> Result<T, LayerError> {
    let (done, _) = decompress_checked(blob, digest, (None, None), work)?;
    Ok(done)
}

/// Like [`read_checked`], and returns the digest of the uncompressed archive. A blob from outside
/// may not unpack to more than `ratio` times its size.
pub(crate) fn read_and_hash<T>(
    blob: impl Read,
    digest: &LayerDigest,
    ratio: Option<u64>,
    work: impl FnOnce(&mut ArchiveReader<BlobReader<'_>>) -> Result<T, LayerError>,
) -> Result<(T, LayerDigest), LayerError> {
    let (done, hash) = decompress_checked(blob, digest, (ratio, Some(Sha256::new())), work)?;
    Ok((done, LayerDigest::from_sha256(hash.unwrap_or_default().finalize().into())))
}

fn decompress_checked<T>(
    mut blob: impl Read,
    digest: &LayerDigest,
    (ratio, plain): (Option<u64>, Option<Sha256>),
    work: impl FnOnce(&mut ArchiveReader<BlobReader<'_>>) -> Result<T, LayerError>,
) -> Result<(T, Option<Sha256>), LayerError> {
    let damaged = |what: String| LayerError::Damaged { digest: digest.clone(), what };
    let hashed = HashingReader { from: &mut blob, hash: Sha256::new(), count: 0, failed: false };
    let decoder = zstd::Decoder::new(hashed).map_err(LayerError::io_context("decompressing"))?;
    let mut archive = ArchiveReader::new(BlobReader { decoder, ratio, plain, count: 0 });
    let done = work(&mut archive);
    let blob = archive.into_inner();
    let done = match done {
        // A stored blob was an archive, so a malformed one is damaged.
        Err(LayerError::Refused(what)) if ratio.is_none() => return Err(damaged(what)),
        // Neither the store nor the disk failed, so the error is the decompressor's.
        Err(LayerError::Io { source, .. })
            if source.kind() == io::ErrorKind::Other
                && source.raw_os_error().is_none()
                && !blob.decoder.get_ref().get_ref().failed =>
        {
            return Err(damaged(source.to_string()));
        }
        other => other?,
    };
    let mut buffered = blob.decoder.finish();
    let rest = io::copy(&mut buffered, &mut io::sink());
    if rest.map_err(LayerError::io_context("reading a layer"))? != 0 {
        return Err(damaged("bytes follow its end".to_owned()));
    }
    let found = LayerDigest::from_sha256(buffered.into_inner().hash.finalize().into());
    if found == *digest {
        Ok((done, blob.plain))
    } else {
        Err(damaged(format!("its digest is {found}")))
    }
}

/// Reads the archive in a blob.
pub(crate) struct BlobReader<'a> {
    decoder: zstd::Decoder<'static, BufReader<HashingReader<'a>>>,
    ratio: Option<u64>,
    plain: Option<Sha256>,
    count: u64,
}

impl Read for BlobReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.decoder.read(buffer)?;
        self.count += count as u64;
        if let Some(plain) = &mut self.plain {
            plain.update(&buffer[..count]);
        }
        if let Some(ratio) = self.ratio
            && self.count > RATIO_FREE
            && self.count / ratio > self.decoder.get_ref().get_ref().count
        {
            return Err(LayerError::TooMuch("a compression ratio that is too high").into_io());
        }
        Ok(count)
    }
}

struct HashingReader<'a> {
    from: &'a mut dyn Read,
    hash: Sha256,
    count: u64,
    failed: bool,
}

impl Read for HashingReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer).inspect_err(|_| self.failed = true)?;
        self.hash.update(&buffer[..count]);
        self.count += count as u64;
        Ok(count)
    }
}
