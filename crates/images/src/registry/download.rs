//! Runs in: server (no capabilities).
//!
//! Downloads a layer into a file, and goes on where an earlier attempt stopped.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    time::Duration,
};

use cloche_model::LayerDigest;
use reqwest::{Method, Response, StatusCode, header::CONTENT_RANGE};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncSeekExt, AsyncWriteExt};

use super::{
    RegistryClient,
    requests::{RegistryRequest, TRIES, describe},
};
use crate::{ImageError, ImageProgress, documents::Descriptor};

/// A download takes at most this long, and longer by its size at the slowest rate.
const LEAST_TIME: Duration = Duration::from_secs(120);
const SLOWEST_RATE: u64 = 32 << 10;

/// Layers that are not complete yet, each in a file named by its digest.
#[derive(Clone, Debug)]
pub(crate) struct PartialDir(pub(crate) PathBuf);

impl PartialDir {
    fn path(&self, digest: &LayerDigest) -> PathBuf {
        self.0.join(digest.hex_digits())
    }

    /// Removes what is there of a layer.
    pub(crate) fn remove(&self, digest: &LayerDigest) {
        if let Err(error) = std::fs::remove_file(self.path(digest))
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "could not remove a downloaded layer");
        }
    }
}

/// A file that grows, and the hash of what is in it.
struct PartialFile {
    file: tokio::fs::File,
    path: PathBuf,
    hash: Sha256,
    length: u64,
}

impl PartialFile {
    /// Opens what an earlier attempt has left, or an empty file.
    async fn open(path: &Path, most: u64) -> Result<Self, ImageError> {
        let path = path.to_owned();
        let opened = tokio::task::spawn_blocking(move || {
            let mut options = File::options();
            let mut file =
                options.create(true).truncate(false).read(true).write(true).open(&path)?;
            if file.metadata()?.len() > most {
                file.set_len(0)?;
            }
            let (mut hash, mut length) = (Sha256::new(), 0);
            let mut buffer = vec![0; 1 << 17];
            loop {
                match file.read(&mut buffer)? {
                    0 => break,
                    count => {
                        hash.update(&buffer[..count]);
                        length += count as u64;
                    }
                }
            }
            Ok(Self { file: tokio::fs::File::from_std(file), path, hash, length })
        });
        let opened = opened.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        opened.map_err(ImageError::io("opening a downloaded layer"))
    }

    async fn append(&mut self, bytes: &[u8]) -> Result<(), ImageError> {
        self.hash.update(bytes);
        self.length += bytes.len() as u64;
        self.file.write_all(bytes).await.map_err(ImageError::io("writing a downloaded layer"))
    }

    async fn flush(&mut self) -> Result<(), ImageError> {
        self.file.flush().await.map_err(ImageError::io("writing a downloaded layer"))
    }

    async fn empty(&mut self) -> Result<(), ImageError> {
        let emptied = async {
            self.file.flush().await?;
            self.file.set_len(0).await?;
            self.file.rewind().await
        };
        emptied.await.map_err(ImageError::io("writing a downloaded layer"))?;
        (self.hash, self.length) = (Sha256::new(), 0);
        Ok(())
    }

    fn digest(&self) -> LayerDigest {
        LayerDigest::from_sha256(self.hash.clone().finalize().into())
    }
}

impl RegistryClient {
    /// Downloads a layer. What arrived of it stays if the registry fails, for the next attempt.
    pub(crate) async fn download_layer(
        &self,
        described: &Descriptor,
        partial: &PartialDir,
        progress: &ImageProgress,
    ) -> Result<File, ImageError> {
        let time = LEAST_TIME + Duration::from_secs(described.size / SLOWEST_RATE);
        let work = self.download_within(described, partial, progress);
        match tokio::time::timeout(time, work).await {
            Ok(done) => done,
            Err(_) => Err(ImageError::Registry(format!(
                "the registry {} is too slow; pull again to go on",
                self.host()
            ))),
        }
    }

    async fn download_within(
        &self,
        described: &Descriptor,
        partial: &PartialDir,
        progress: &ImageProgress,
    ) -> Result<File, ImageError> {
        let path = partial.path(&described.digest);
        let mut file = PartialFile::open(&path, described.size).await?;
        progress.add_bytes(file.length);
        let mut resumed = file.length > 0;
        loop {
            self.fill_file(&mut file, described, progress).await?;
            let found = file.digest();
            if found == described.digest {
                return File::open(&file.path)
                    .map_err(ImageError::io("opening a downloaded layer"));
            }
            progress.take_back_bytes(file.length);
            file.empty().await?;
            // The part that was there may have been damaged; a whole download was not.
            if !std::mem::take(&mut resumed) {
                partial.remove(&described.digest);
                return Err(ImageError::invalid(format!(
                    "the layer {} has the digest {found}",
                    described.digest
                )));
            }
        }
    }

    /// Requests what is missing until the file is complete. Attempts that bring nothing are counted.
    async fn fill_file(
        &self,
        file: &mut PartialFile,
        described: &Descriptor,
        progress: &ImageProgress,
    ) -> Result<(), ImageError> {
        let path = format!("{}/blobs/{}", self.repository, described.digest);
        let mut tries = 0;
        while file.length < described.size {
            let before = file.length;
            let request = RegistryRequest {
                method: &Method::GET,
                path: &path,
                accept: "*/*",
                offset: file.length,
            };
            let answer = self.request(request).await?;
            let begins_at = first_byte(&answer, file.length);
            if begins_at != Some(file.length) {
                progress.take_back_bytes(file.length);
                file.empty().await?;
            }
            let why = match begins_at {
                // The registry does not know ranges like this one: from the start.
                None => "it sent another part of the layer".to_owned(),
                Some(_) => match self.read_pieces(answer, file, described, progress).await? {
                    Some(why) => why,
                    None => continue,
                },
            };
            tries = if file.length > before { 0 } else { tries + 1 };
            if tries >= TRIES {
                return Err(ImageError::Registry(format!(
                    "the registry {} stopped after {} of {} bytes of a layer: {why}; pull again \
                     to go on",
                    self.host(),
                    file.length,
                    described.size
                )));
            }
            self.pause_before_retry(tries, None).await;
        }
        file.flush().await
    }

    /// Appends what arrives. Returns why it ended too early, if it did.
    async fn read_pieces(
        &self,
        mut answer: Response,
        file: &mut PartialFile,
        described: &Descriptor,
        progress: &ImageProgress,
    ) -> Result<Option<String>, ImageError> {
        loop {
            let piece = match tokio::time::timeout(self.access.stall, answer.chunk()).await {
                Err(_) => return Ok(Some("nothing arrived any more".to_owned())),
                Ok(Err(error)) => return Ok(Some(describe(error))),
                Ok(Ok(None)) if file.length < described.size => {
                    return Ok(Some("it ended early".to_owned()));
                }
                Ok(Ok(None)) => return Ok(None),
                Ok(Ok(Some(piece))) => piece,
            };
            if file.length + piece.len() as u64 > described.size {
                progress.take_back_bytes(file.length);
                file.empty().await?;
                return Err(ImageError::invalid(format!(
                    "the layer {} has more than {} bytes",
                    described.digest, described.size
                )));
            }
            file.append(&piece).await?;
            progress.add_bytes(piece.len() as u64);
        }
    }
}

/// The offset of the first byte of a reply. `None` if it is not the wanted one or the first.
fn first_byte(answer: &Response, wanted: u64) -> Option<u64> {
    match answer.status() {
        StatusCode::OK => Some(0),
        StatusCode::PARTIAL_CONTENT => {
            let range = answer.headers().get(CONTENT_RANGE)?.to_str().ok()?;
            let first = range.strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()?;
            (first == wanted).then_some(first)
        }
        _ => None,
    }
}
