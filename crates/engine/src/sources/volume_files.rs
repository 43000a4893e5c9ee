//! Runs in: server (no capabilities).
//!
//! Files of volumes for the files API: list, upload, download, by callers that a volume is bound to.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt as _,
    sync::Arc,
};

use cloche_model::{
    ErrorCode, HomePath, Invalid, KeyId, KeyPrefix, Moment, StorageId, Team, VolumeSettings,
};
use cloche_mounts::{VolumeEntry, VolumeStore};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncRead;
use tokio_util::io::SyncIoBridge;

use super::{StorageSources, volumes::volume_refusal};
use crate::{Caller, FileFilter, FileInfo, FilePage, Refusal};

/// A volume as one caller may use it.
#[derive(Clone, Debug)]
pub struct VolumeAccess {
    /// The row.
    pub id: StorageId,
    /// Its files and its quota.
    pub(super) volume: VolumeSettings,
    /// What the caller is bounded to.
    pub(super) scope: KeyPrefix,
    /// Whether the caller may not write.
    pub(super) read_only: bool,
}

/// An open file of a volume.
#[derive(Debug)]
pub struct VolumeFile {
    pub(crate) file: File,
    pub(crate) size: u64,
    pub(crate) modified: Moment,
    pub(crate) tag: String,
}

/// The same answer for a volume of another team, one that is not bound to the key, and none.
fn missing_volume() -> Refusal {
    Refusal::not_found("volume")
}

impl VolumeAccess {
    /// The path of a file as text, if the caller may read it.
    fn readable_path(&self, path: &HomePath) -> Result<String, Refusal> {
        let missing = || Refusal::not_found("file");
        let text = std::str::from_utf8(path.as_bytes()).map_err(|_| missing())?;
        self.scope.strip(text).map(|_| text.to_owned()).ok_or_else(missing)
    }

    /// The path of a file as text, if the caller may write it.
    fn writable_path(&self, path: &HomePath) -> Result<String, Refusal> {
        if self.read_only {
            let message = "this key may read the volume but not write to it";
            return Err(Refusal::new(ErrorCode::Forbidden, message));
        }
        let text = std::str::from_utf8(path.as_bytes())
            .map_err(|_| Invalid::new("path: names in a volume must be UTF-8"))?;
        if self.scope.strip(text).is_none() {
            let message = "path: it is not within what this key may use of the volume";
            return Err(Refusal::new(ErrorCode::Forbidden, message));
        }
        Ok(text.to_owned())
    }
}

impl StorageSources {
    /// A volume of a team as a caller may use it: a key what is bound to it, the operator all.
    ///
    /// # Errors
    /// When there is none that the caller may see.
    pub async fn find_volume(
        &self,
        team: &Team,
        caller: Option<&Caller>,
        name: &str,
    ) -> Result<VolumeAccess, Refusal> {
        let Some(caller) = caller else {
            let source = self.store.find_source_by_name(&team.id, name).await?;
            let source = source.ok_or_else(missing_volume)?;
            let volume = source.volume().cloned().ok_or_else(missing_volume)?;
            let (id, scope) = (source.id, KeyPrefix::default());
            return Ok(VolumeAccess { id, volume, scope, read_only: false });
        };
        let bound = caller.storage.iter().find(|bound| bound.source.name == name);
        let bound = bound.ok_or_else(missing_volume)?;
        let volume = bound.source.volume().cloned().ok_or_else(missing_volume)?;
        let scope = bound.scope.clone().ok_or_else(missing_volume)?;
        let (id, read_only) = (bound.source.id.clone(), bound.read_only);
        Ok(VolumeAccess { id, volume, scope, read_only })
    }

    /// The volume of a signed URL, as its key may use it now.
    pub(crate) async fn find_granted_volume(
        &self,
        team: &Team,
        key: Option<&KeyId>,
        id: &StorageId,
    ) -> Result<VolumeAccess, Refusal> {
        let source = self.store.find_source(id).await?.ok_or_else(missing_volume)?;
        if source.team != team.id {
            return Err(missing_volume());
        }
        let volume = source.volume().cloned().ok_or_else(missing_volume)?;
        let id = source.id;
        let Some(key) = key else {
            return Ok(VolumeAccess { id, volume, scope: KeyPrefix::default(), read_only: false });
        };
        let key = self.store.find_key(key).await?.ok_or_else(missing_volume)?;
        let bound = self.store.bound_storage(&key.sandbox, &key.id).await?;
        let bound = bound.into_iter().find(|bound| bound.source.id == id);
        let bound = bound.ok_or_else(missing_volume)?;
        let scope = bound.scope.ok_or_else(missing_volume)?;
        Ok(VolumeAccess { id, volume, scope, read_only: bound.read_only })
    }

    /// The files of a volume that the caller may see, by their full paths.
    ///
    /// # Errors
    /// When the files cannot be read.
    pub async fn list_volume_files(
        &self,
        access: &VolumeAccess,
        filter: &FileFilter,
    ) -> Result<FilePage, Refusal> {
        let below = match &filter.below {
            None => String::new(),
            Some(path) => match std::str::from_utf8(path.as_bytes()) {
                Ok(text) => text.to_owned(),
                Err(_) => return Ok(empty_page()),
            },
        };
        let scope = access.scope.as_str().trim_end_matches('/');
        let Some(start) = deeper_of(&below, scope) else { return Ok(empty_page()) };
        let (start, volume) = (start.to_owned(), access.volume.id.clone());
        let (after, limit) = (filter.after.clone(), filter.limit);
        let listed = self.with_volumes(move |volumes| {
            let mut walk = VolumeWalk { volumes, volume, after, limit, page: empty_page() };
            match walk.visit_directory(&start) {
                Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                    walk.visit_file(&start)?;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                visited => visited?,
            }
            Ok(walk.page)
        });
        listed.await.map_err(volume_refusal)
    }

    /// Checks that a file of this length can be put there.
    ///
    /// # Errors
    /// When the caller may not write there, or the quota has no room for it.
    pub async fn check_volume_upload(
        &self,
        access: &VolumeAccess,
        path: &HomePath,
        length: u64,
    ) -> Result<(), Refusal> {
        access.writable_path(path)?;
        let (id, quota) = (access.volume.id.clone(), access.volume.quota.bytes());
        let usage = self.with_volumes(move |volumes| volumes.usage(&id)).await;
        let used = usage.map_err(volume_refusal)?.bytes;
        if length > quota.saturating_sub(used) {
            let message = format!("the quota of the volume has no room for {length} more bytes");
            return Err(Refusal::new(ErrorCode::QuotaExceeded, message));
        }
        Ok(())
    }

    /// A file of a volume as it is now.
    ///
    /// # Errors
    /// When there is none that the caller may see.
    pub async fn open_volume_file(
        &self,
        access: &VolumeAccess,
        path: &HomePath,
    ) -> Result<VolumeFile, Refusal> {
        let (id, path) = (access.volume.id.clone(), access.readable_path(path)?);
        let opened = self.with_volumes(move |volumes| {
            let file = volumes.open_file(&id, &path)?;
            let facts = file.metadata()?;
            let micros = facts.mtime().saturating_mul(1_000_000) + facts.mtime_nsec() / 1000;
            let mut hash = Sha256::new();
            for number in [facts.ino(), facts.size()] {
                hash.update(number.to_be_bytes());
            }
            hash.update(facts.mtime().to_be_bytes());
            hash.update(facts.mtime_nsec().to_be_bytes());
            let tag = hex::encode(&hash.finalize()[..16]);
            Ok(VolumeFile { size: facts.size(), modified: Moment(micros), tag, file })
        });
        opened.await.map_err(|error| match error.kind() {
            // A directory or a part of the path that is a file: there is no such file.
            io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory => {
                Refusal::not_found("file")
            }
            _ => volume_refusal(error),
        })
    }

    /// Puts a file of exactly that length into a volume. It is durable when this returns, and the
    /// file that it replaces is there until then.
    pub(crate) async fn write_volume_file(
        &self,
        access: &VolumeAccess,
        path: &HomePath,
        length: u64,
        content: impl AsyncRead + Send + Unpin,
    ) -> Result<(), Refusal> {
        let path = access.writable_path(path)?;
        let volume = access.volume.clone();
        let volumes = Arc::clone(&self.volumes);
        let (mut sender, receiver) = tokio::io::duplex(256 << 10);
        let writing = tokio::task::spawn_blocking(move || {
            let incoming = SyncIoBridge::new(receiver);
            let mut exact = ExactLength { incoming, left: length };
            volumes.write_file(&volume.id, volume.quota, &path, &mut exact)
        });
        let mut content = content;
        let copied = tokio::io::copy(&mut content, &mut sender).await;
        // The writer sees the end of the content, which must be where it was declared.
        drop(sender);
        let written = writing.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        match (written, copied) {
            (Ok(_), _) => Ok(()),
            (Err(error), _) if error.kind() == io::ErrorKind::UnexpectedEof => {
                let message = format!("the content must have exactly {length} bytes");
                Err(Refusal::new(ErrorCode::Validation, message))
            }
            (Err(error), _) => Err(volume_refusal(error)),
        }
    }
}

fn empty_page() -> FilePage {
    FilePage { files: Vec::new(), next: None, unnamed: 0 }
}

/// The deeper of two directories of which one contains the other.
fn deeper_of<'a>(one: &'a str, other: &'a str) -> Option<&'a str> {
    let contains = |outer: &str, inner: &str| {
        let rest = inner.strip_prefix(outer);
        outer.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    match (contains(one, other), contains(other, one)) {
        (true, _) => Some(other),
        (_, true) => Some(one),
        _ => None,
    }
}

/// A walk over the files of a volume in the order of their paths.
struct VolumeWalk<'a> {
    volumes: &'a VolumeStore,
    volume: cloche_model::VolumeId,
    after: Option<String>,
    limit: usize,
    page: FilePage,
}

impl VolumeWalk<'_> {
    /// Visits what is below a directory until the page is full. A guest chooses how deep
    /// directories are, so the walk has a stack of its own.
    fn visit_directory(&mut self, directory: &str) -> io::Result<()> {
        let mut open = vec![(directory.to_owned(), self.sorted_entries(directory)?)];
        while let Some((directory, entries)) = open.last_mut() {
            let Some(entry) = entries.next() else {
                open.pop();
                continue;
            };
            let path = match directory.as_str() {
                "" => entry.name,
                directory => format!("{directory}/{}", entry.name),
            };
            if path.len() > HomePath::MAX_BYTES {
                self.page.unnamed += 1;
            } else if !entry.is_directory {
                let modified = entry.modified.duration_since(std::time::UNIX_EPOCH);
                let micros = modified.map_or(0, |since| since.as_micros());
                let modified = Moment(i64::try_from(micros).unwrap_or(i64::MAX));
                if !self.add_file(FileInfo { path, size: entry.size, modified }) {
                    return Ok(());
                }
            } else if !self.is_before_page(&path) {
                match self.sorted_entries(&path) {
                    // Removed meanwhile, or a name that is not text.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    entries => open.push((path, entries?)),
                }
            }
        }
        Ok(())
    }

    /// The entries of a directory in the order of the paths: with its separator, a directory sorts
    /// where the paths below it do.
    fn sorted_entries(&self, directory: &str) -> io::Result<std::vec::IntoIter<VolumeEntry>> {
        let mut entries = self.volumes.list(&self.volume, directory)?;
        entries.sort_by_cached_key(|entry| match entry.is_directory {
            true => format!("{}/", entry.name),
            false => entry.name.clone(),
        });
        Ok(entries.into_iter())
    }

    fn visit_file(&mut self, path: &str) -> io::Result<()> {
        let facts = self.volumes.open_file(&self.volume, path)?.metadata()?;
        let modified = Moment(facts.mtime().saturating_mul(1_000_000));
        self.add_file(FileInfo { path: path.to_owned(), size: facts.size(), modified });
        Ok(())
    }

    /// Whether everything below a directory was on an earlier page.
    fn is_before_page(&self, directory: &str) -> bool {
        let below = format!("{directory}/");
        self.after.as_deref().is_some_and(|after| !after.starts_with(&below) && *below < *after)
    }

    /// Adds a file unless it was on an earlier page; false once the page is full.
    fn add_file(&mut self, file: FileInfo) -> bool {
        if self.after.as_deref().is_some_and(|after| *file.path <= *after) {
            return true;
        }
        if self.page.files.len() == self.limit {
            self.page.next = self.page.files.last().map(|last| last.path.clone());
            return false;
        }
        self.page.files.push(file);
        true
    }
}

/// Content that must have exactly so many bytes; otherwise reading it fails at its end.
struct ExactLength<R> {
    incoming: R,
    left: u64,
}

impl<R: Read> Read for ExactLength<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.incoming.read(buffer)?;
        let count = read as u64;
        if (read == 0 && self.left > 0 && !buffer.is_empty()) || count > self.left {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_of_another_length_is_an_error() {
        let read = |text: &'static str, left| {
            let mut content = ExactLength { incoming: text.as_bytes(), left };
            io::read_to_string(&mut content)
        };
        assert_eq!(read("12345", 5).unwrap(), "12345");
        assert_eq!(read("", 0).unwrap(), "");
        assert!(read("1234", 5).is_err());
        assert!(read("123456", 5).is_err());
    }

    #[test]
    fn a_list_begins_at_the_deeper_of_path_and_scope() {
        assert_eq!(deeper_of("", "a/b"), Some("a/b"));
        assert_eq!(deeper_of("a", "a/b"), Some("a/b"));
        assert_eq!(deeper_of("a/b/c", "a/b"), Some("a/b/c"));
        assert_eq!(deeper_of("a/bc", "a/b"), None);
        assert_eq!(deeper_of("x", "a"), None);
    }
}
