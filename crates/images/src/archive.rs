//! Runs in: server (no capabilities).
//!
//! The files of an image archive: an OCI layout or the output of `docker save`, as a tar in any
//! order. Its files go to temporary files. Names are only keys of a map and never reach the disk.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufReader, Read, Write},
    path::Path,
};

use cloche_layers::{EntryKind, LayerError, visit_archive};
use cloche_model::LayerDigest;
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use crate::{ImageError, ImageProgress};

/// The limits of an image archive.
#[derive(Clone, Copy, Debug)]
pub struct ArchiveLimits {
    /// Files and links.
    pub files: usize,
    /// Bytes of all files.
    pub bytes: u64,
}

/// The files of an image archive.
#[derive(Debug, Default)]
pub struct ArchiveDir {
    files: HashMap<String, ArchiveFile>,
    links: HashMap<String, String>,
}

/// One file of an archive.
#[derive(Debug)]
pub(crate) struct ArchiveFile {
    file: NamedTempFile,
    pub(crate) size: u64,
    pub(crate) sha256: LayerDigest,
}

impl ArchiveFile {
    pub(crate) fn open(&self) -> Result<File, ImageError> {
        self.file.reopen().map_err(ImageError::io("opening a file of the image"))
    }

    /// All bytes of a small file.
    pub(crate) fn read(&self, most: u64) -> Result<Vec<u8>, ImageError> {
        if self.size > most {
            return Err(ImageError::invalid("a document of the image is too large"));
        }
        let mut bytes = Vec::new();
        let read = self.open()?.take(most).read_to_end(&mut bytes);
        read.map_err(ImageError::io("reading a file of the image"))?;
        Ok(bytes)
    }
}

impl ArchiveDir {
    /// Reads a tar to its end. Its files go to `spool`, and are removed when this is dropped. Must
    /// be called on a blocking thread.
    ///
    /// # Errors
    /// If it is not a tar, has something twice, or is too large.
    pub fn read_tar(
        tar: impl Read,
        spool: &Path,
        limits: ArchiveLimits,
        progress: &ImageProgress,
    ) -> Result<Self, ImageError> {
        let mut counted = CountingReader { from: tar, progress };
        let mut first = [0; 6];
        let filled =
            read_full(&mut counted, &mut first).map_err(ImageError::io("receiving the image"))?;
        if let Some(kind) = known_compression(&first[..filled]) {
            return Err(ImageError::invalid(format!(
                "the archive is compressed with {kind}: decompress it first"
            )));
        }
        let tar = BufReader::with_capacity(1 << 17, (&first[..filled]).chain(counted));
        let mut dir = Self::default();
        let mut room = limits.bytes;
        let read = visit_archive(tar, |entry, data| {
            if dir.files.len() + dir.links.len() >= limits.files {
                return Err(ImageError::invalid("the archive has too many files"));
            }
            // Names of images are ASCII, and no other file is looked up.
            let Ok(name) = String::from_utf8(entry.path) else { return Ok(()) };
            match entry.kind {
                EntryKind::File { size, extents: None, .. } => {
                    room = room
                        .checked_sub(size)
                        .ok_or_else(|| ImageError::invalid("the archive is too large"))?;
                    let file = spool_file(data, size, spool)?;
                    dir.add_name(name, |dir, name| dir.files.insert(name, file).is_none())
                }
                EntryKind::Symlink { target } => {
                    let Ok(target) = String::from_utf8(target) else { return Ok(()) };
                    let target = join_link(&name, &target)?;
                    dir.add_name(name, |dir, name| dir.links.insert(name, target).is_none())
                }
                EntryKind::HardLink { target } => {
                    let Ok(target) = String::from_utf8(target) else { return Ok(()) };
                    dir.add_name(name, |dir, name| dir.links.insert(name, target).is_none())
                }
                EntryKind::Directory { .. } => Ok(()),
                _ => Err(ImageError::invalid("the archive has a file of an unknown kind")),
            }
        });
        read.map(|()| dir).map_err(name_archive)
    }

    fn add_name(
        &mut self,
        name: String,
        insert: impl FnOnce(&mut Self, String) -> bool,
    ) -> Result<(), ImageError> {
        let taken = self.files.contains_key(&name) || self.links.contains_key(&name);
        if taken || !insert(self, name.clone()) {
            return Err(ImageError::invalid(format!("the archive has {name:?} twice")));
        }
        Ok(())
    }

    /// The file of this name. A link is followed once: `docker save` links repeated layers.
    pub(crate) fn get(&self, name: &str) -> Option<&ArchiveFile> {
        self.files.get(name).or_else(|| self.files.get(self.links.get(name)?))
    }

    /// The file of this name, which the image needs.
    pub(crate) fn require(&self, name: &str) -> Result<&ArchiveFile, ImageError> {
        self.get(name).ok_or_else(|| {
            let name: String = name.chars().take(200).collect();
            ImageError::invalid(format!("the archive lacks {name:?}"))
        })
    }

    /// The blob of an OCI layout.
    pub(crate) fn blob(&self, digest: &LayerDigest) -> Result<&ArchiveFile, ImageError> {
        self.require(&format!("blobs/sha256/{}", digest.hex_digits()))
    }

    /// The names and contents of small files, for tests.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn names(&self) -> HashMap<&str, u64> {
        self.files.iter().map(|(name, file)| (&name[..], file.size)).collect()
    }
}

fn spool_file(data: &mut dyn Read, size: u64, spool: &Path) -> Result<ArchiveFile, ImageError> {
    let mut file =
        NamedTempFile::new_in(spool).map_err(ImageError::io("making a file for the image"))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 17];
    let mut copied = 0;
    loop {
        let count = match data.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                return Err(ImageError::invalid(format!("the archive cannot be read: {error}")));
            }
        };
        hash.update(&buffer[..count]);
        file.write_all(&buffer[..count]).map_err(ImageError::io("writing a file of the image"))?;
        copied += count as u64;
    }
    if copied != size {
        return Err(ImageError::invalid("the archive ends early"));
    }
    Ok(ArchiveFile { file, size, sha256: LayerDigest::from_sha256(hash.finalize().into()) })
}

/// The name that a symbolic link leads to, which must be inside the archive.
fn join_link(name: &str, target: &str) -> Result<String, ImageError> {
    let outside = || ImageError::invalid("the archive has a link that leads out of it");
    if target.starts_with('/') {
        return Err(outside());
    }
    let mut parts: Vec<&str> = name.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => parts.pop().map(drop).ok_or_else(outside)?,
            part => parts.push(part),
        }
    }
    Ok(parts.join("/"))
}

fn known_compression(first: &[u8]) -> Option<&'static str> {
    match first {
        [0x1f, 0x8b, ..] => Some("gzip"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("zstd"),
        [b'B', b'Z', b'h', ..] => Some("bzip2"),
        [0xfd, b'7', b'z', b'X', b'Z', 0] => Some("xz"),
        _ => None,
    }
}

fn read_full(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read(&mut buffer[filled..])? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

/// Says that the archive itself is wrong, not one of its layers.
fn name_archive(error: ImageError) -> ImageError {
    match error {
        ImageError::Layer(LayerError::Io { source, .. }) => {
            ImageError::Invalid(format!("the archive cannot be read to its end: {source}"))
        }
        ImageError::Invalid(what) => match what.strip_prefix("a layer cannot be used: ") {
            Some(what) => ImageError::Invalid(format!("not an archive of an image: {what}")),
            None => ImageError::Invalid(what),
        },
        error => error,
    }
}

struct CountingReader<'a, R> {
    from: R,
    progress: &'a ImageProgress,
}

impl<R: Read> Read for CountingReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.progress.add_bytes(count as u64);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_stays_inside_the_archive() {
        assert_eq!(join_link("a/layer.tar", "../b/layer.tar").unwrap(), "b/layer.tar");
        assert_eq!(join_link("a/b", "./c").unwrap(), "a/c");
        for target in ["/etc/passwd", "../../x", "../../../x"] {
            assert!(join_link("a/b", target).is_err(), "{target}");
        }
    }

    #[test]
    fn a_compressed_or_foreign_file_is_named() {
        let spool = tempfile::tempdir().unwrap();
        let limits = ArchiveLimits { files: 10, bytes: 1000 };
        let read = |bytes: &[u8]| {
            let progress = ImageProgress::default();
            ArchiveDir::read_tar(bytes, spool.path(), limits, &progress).unwrap_err().to_string()
        };
        assert!(read(&[0x1f, 0x8b, 8, 0, 0, 0, 0]).contains("compressed with gzip"));
        let text = read(&[b'x'; 600]);
        assert!(text.starts_with("not an archive of an image: "), "{text}");
    }
}
