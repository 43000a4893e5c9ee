//! Runs in: server (no capabilities). The managed volumes in a directory of this host.
//!
//! A volume is a directory with `files`, which a mount shows, and its ledger beside it. The server
//! reads and writes files for clients here; the mount server does it for guests.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read},
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    time::SystemTime,
};

use cloche_model::{ByteSize, KeyPrefix, VolumeId};
use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags},
    io::Errno,
};

use super::{Beneath, VolumeFull, VolumeLedger, VolumeQuota, VolumeUsage, open_beneath};

/// The files of a volume.
const FILES: &str = "files";
const LEDGER: &str = "ledger";
const USERS: &str = "users";
/// Files that clients are uploading. No guest and no client sees them there.
pub(super) const UPLOADS: &str = "uploads";
/// How many bytes are copied between two looks at the ledger.
const COPY_CHUNK: usize = 1 << 20;

/// The volumes of a host.
#[derive(Clone, Debug)]
pub struct VolumeStore {
    pub(super) directory: PathBuf,
}

/// One entry of a directory of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeEntry {
    /// Its name; escaped where it is not UTF-8.
    pub name: String,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Its bytes; zero for a directory.
    pub size: u64,
    /// When it was changed.
    pub modified: SystemTime,
}

/// The open files of a volume, for the mount server.
#[derive(Debug)]
pub struct VolumeFiles {
    /// The directory that is the root of the mount.
    pub root: OwnedFd,
    /// The root of the volume.
    pub files: OwnedFd,
    /// The ledger and the file that its users lock, opened for this mount.
    pub ledger: [File; 2],
    /// Differs after each start of the host.
    pub boot: u64,
}

impl VolumeStore {
    /// The volumes in this directory, which is made if it does not exist.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn open(directory: impl Into<PathBuf>) -> io::Result<Self> {
        let directory = directory.into();
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        Ok(Self { directory })
    }

    /// Makes a volume; no error if it exists.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create(&self, id: &VolumeId) -> io::Result<()> {
        let path = self.path_of(id);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path.join(FILES))?;
        for name in [LEDGER, USERS] {
            open_private(&path.join(name))?;
        }
        // The volume must survive a crash once its row does.
        File::open(&path)?.sync_all()?;
        File::open(&self.directory)?.sync_all()
    }

    /// How much of a volume is used.
    ///
    /// # Errors
    /// When the volume does not exist.
    pub fn usage(&self, id: &VolumeId) -> io::Result<VolumeUsage> {
        let ledger = self.open_ledger(id, ByteSize(u64::MAX))?;
        // The first look may count the files.
        drop(ledger.lock()?);
        Ok(ledger.usage())
    }

    /// Opens a volume for a mount whose root is a directory of it. The directory is made if it does
    /// not exist and the mount may write.
    ///
    /// # Errors
    /// When the volume or the directory does not exist, or the directory is reached by a link.
    pub fn open_files(
        &self,
        id: &VolumeId,
        sub_path: &KeyPrefix,
        read_only: bool,
    ) -> io::Result<VolumeFiles> {
        let files = self.open_root(id)?;
        let mut root =
            open_beneath(&files, b"", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        for name in sub_path.segments() {
            let made = match read_only {
                true => Ok(()),
                false => rustix::fs::mkdirat(&root, name, Mode::from_raw_mode(0o755)),
            };
            match made {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            root = open_beneath(&root, name.as_bytes(), flags, Mode::empty())?;
        }
        let ledger = self.open_ledger_files(id)?;
        Ok(VolumeFiles { root, files, ledger, boot: boot_number() })
    }

    /// Lists a directory of a volume, by plain names joined by `/`; empty for its root.
    ///
    /// # Errors
    /// When there is no such directory.
    pub fn list(&self, id: &VolumeId, path: &str) -> io::Result<Vec<VolumeEntry>> {
        check_path(path, true)?;
        let root = self.open_root(id)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let directory = open_beneath(root, path.as_bytes(), flags, Mode::empty())?;
        let mut entries = Vec::new();
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            let Ok(found) = rustix::fs::statat(&directory, name, flags) else { continue };
            let is_directory = match FileType::from_raw_mode(found.st_mode) {
                FileType::Directory => true,
                FileType::RegularFile => false,
                _ => continue,
            };
            let size = if is_directory { 0 } else { u64::try_from(found.st_size).unwrap_or(0) };
            entries.push(VolumeEntry {
                name: cloche_model::HomePath::text_of(name.to_bytes()),
                is_directory,
                size,
                modified: moment(found.st_mtime),
            });
        }
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }

    /// Opens a regular file of a volume for reading.
    ///
    /// # Errors
    /// When there is none of this path.
    pub fn open_file(&self, id: &VolumeId, path: &str) -> io::Result<File> {
        check_path(path, false)?;
        let root = self.open_root(id)?;
        // Without NONBLOCK a named pipe would hang.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = open_beneath(root, path.as_bytes(), flags, Mode::empty())?;
        let file = File::from(file);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    /// Writes a file of a volume; its directories are made. The file is complete and durable when
    /// this returns, and the old content is there until then.
    ///
    /// # Errors
    /// [`io::ErrorKind::QuotaExceeded`] when the quota is used up; when the path leads through a
    /// file or a link; or when the content cannot be read.
    pub fn write_file(
        &self,
        id: &VolumeId,
        quota: ByteSize,
        path: &str,
        content: &mut dyn Read,
    ) -> io::Result<u64> {
        check_path(path, false)?;
        let ledger = self.open_ledger(id, quota)?;
        let root = self.open_root(id)?;
        make_parents(&root, &ledger, path)?;
        let Beneath { parent, name } = Beneath::open_parent(&root, path.as_bytes())?;
        let uploads = self.open_uploads(id)?;
        let partial = format!("{:016x}", random_number());
        reserve(&ledger, 0, 1)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o644);
        let mut written = 0;
        let copied = rustix::fs::openat(&uploads, &*partial, flags, mode)
            .map_err(io::Error::from)
            .and_then(|file| copy_counted(&ledger, &mut File::from(file), content, &mut written));
        let replaced = copied.and_then(|()| {
            let mut locked = ledger.lock()?;
            let old = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).ok();
            rustix::fs::renameat(&uploads, &*partial, &parent, name)?;
            if let Some(old) = old {
                let is_last = old.st_nlink < 2
                    && FileType::from_raw_mode(old.st_mode) == FileType::RegularFile;
                let bytes = if is_last { u64::try_from(old.st_size).unwrap_or(0) } else { 0 };
                locked.release(bytes, 1);
            }
            Ok(())
        });
        match replaced {
            Ok(()) => {
                let parent = rustix::fs::openat(
                    &parent,
                    ".",
                    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
                    Mode::empty(),
                )?;
                rustix::fs::fsync(parent)?;
                Ok(written)
            }
            Err(error) => {
                let _ = rustix::fs::unlinkat(&uploads, &*partial, AtFlags::empty());
                if let Ok(mut locked) = ledger.lock() {
                    locked.release(written, 1);
                }
                Err(error)
            }
        }
    }

    /// Deletes a file or an empty directory.
    ///
    /// # Errors
    /// When there is none, or the directory has entries.
    pub fn delete(&self, id: &VolumeId, path: &str) -> io::Result<()> {
        check_path(path, false)?;
        let ledger = self.open_ledger(id, ByteSize(u64::MAX))?;
        let root = self.open_root(id)?;
        let Beneath { parent, name } = Beneath::open_parent(&root, path.as_bytes())?;
        let mut locked = ledger.lock()?;
        let found = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(found.st_mode);
        let flags = if kind == FileType::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        rustix::fs::unlinkat(&parent, name, flags)?;
        let is_last = kind == FileType::RegularFile && found.st_nlink < 2;
        locked.release(if is_last { u64::try_from(found.st_size).unwrap_or(0) } else { 0 }, 1);
        Ok(())
    }

    pub(super) fn path_of(&self, id: &VolumeId) -> PathBuf {
        self.directory.join(id.as_str())
    }

    pub(super) fn open_root(&self, id: &VolumeId) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(rustix::fs::open(self.path_of(id).join(FILES), flags, Mode::empty())?)
    }

    fn open_uploads(&self, id: &VolumeId) -> io::Result<OwnedFd> {
        let path = self.path_of(id).join(UPLOADS);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(rustix::fs::open(path, flags, Mode::empty())?)
    }

    fn open_ledger_files(&self, id: &VolumeId) -> io::Result<[File; 2]> {
        let path = self.path_of(id);
        Ok([open_private(&path.join(LEDGER))?, open_private(&path.join(USERS))?])
    }

    fn open_ledger(&self, id: &VolumeId, quota: ByteSize) -> io::Result<VolumeLedger> {
        let (root, files) = (self.open_root(id)?, self.open_ledger_files(id)?);
        let quota = VolumeQuota { bytes: quota.bytes() };
        Ok(VolumeLedger::new(root, files, quota, boot_number()))
    }
}

fn open_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Only plain names, as a client sends them.
fn check_path(path: &str, may_be_root: bool) -> io::Result<()> {
    let plain = |name: &str| !matches!(name, "" | "." | "..") && name.len() <= 255;
    let is_plain = match path {
        "" => may_be_root,
        path => path.split('/').all(plain) && !path.contains('\0') && path.len() < 4096,
    };
    if is_plain { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

fn reserve(ledger: &VolumeLedger, bytes: u64, entries: u64) -> io::Result<()> {
    let full = |_: VolumeFull| io::Error::from(io::ErrorKind::QuotaExceeded);
    ledger.lock()?.reserve(bytes, entries).map_err(full)
}

fn make_parents(root: &OwnedFd, ledger: &VolumeLedger, path: &str) -> io::Result<()> {
    for (at, _) in path.match_indices('/') {
        let Beneath { parent, name } = Beneath::open_parent(root, &path.as_bytes()[..at])?;
        let mut locked = ledger.lock()?;
        let full = |_: VolumeFull| io::Error::from(io::ErrorKind::QuotaExceeded);
        match rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => continue,
            Err(Errno::NOENT) => locked.reserve(0, 1).map_err(full)?,
            Err(error) => return Err(error.into()),
        }
        rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755))?;
    }
    Ok(())
}

/// Copies content to a new file, reserving what is written, and syncs it.
fn copy_counted(
    ledger: &VolumeLedger,
    file: &mut File,
    content: &mut dyn Read,
    written: &mut u64,
) -> io::Result<()> {
    let mut chunk = vec![0; COPY_CHUNK];
    loop {
        let read = match content.read(&mut chunk) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if read == 0 {
            return file.sync_all();
        }
        reserve(ledger, read as u64, 0)?;
        *written += read as u64;
        io::Write::write_all(file, &chunk[..read])?;
    }
}

fn moment(seconds: i64) -> SystemTime {
    let since = std::time::Duration::from_secs(seconds.unsigned_abs());
    match seconds < 0 {
        true => SystemTime::UNIX_EPOCH - since,
        false => SystemTime::UNIX_EPOCH + since,
    }
}

/// A number that differs after each start of the host.
fn boot_number() -> u64 {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}

fn random_number() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    // Only has to differ from names of uploads at the same time; it is opened exclusively.
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, VolumeStore, VolumeId) {
        let directory = tempfile::tempdir().unwrap();
        let store = VolumeStore::open(directory.path().join("volumes")).unwrap();
        let id: VolumeId = "vol_a".parse().unwrap();
        store.create(&id).unwrap();
        (directory, store, id)
    }

    fn write(store: &VolumeStore, id: &VolumeId, path: &str, size: usize) -> io::Result<u64> {
        store.write_file(id, ByteSize(1000), path, &mut &vec![7; size][..])
    }

    #[test]
    fn files_are_written_replaced_listed_and_deleted() {
        let (_directory, store, id) = store();
        assert_eq!(write(&store, &id, "d/e/f", 600).unwrap(), 600);
        assert_eq!(store.usage(&id).unwrap(), VolumeUsage { bytes: 600, entries: 3 });
        assert_eq!(write(&store, &id, "d/e/f", 300).unwrap(), 300);
        assert_eq!(store.usage(&id).unwrap(), VolumeUsage { bytes: 300, entries: 3 });
        let names: Vec<_> = store.list(&id, "d").unwrap();
        assert!(names.len() == 1 && names[0].name == "e" && names[0].is_directory);
        assert_eq!(store.list(&id, "d/e").unwrap()[0].size, 300);
        let mut content = Vec::new();
        store.open_file(&id, "d/e/f").unwrap().read_to_end(&mut content).unwrap();
        assert_eq!(content, vec![7; 300]);
        assert!(store.delete(&id, "d").is_err(), "it has entries");
        store.delete(&id, "d/e/f").unwrap();
        assert_eq!(store.usage(&id).unwrap(), VolumeUsage { bytes: 0, entries: 2 });
    }

    #[test]
    fn a_write_beyond_the_quota_leaves_nothing_behind() {
        let (_directory, store, id) = store();
        write(&store, &id, "a", 900).unwrap();
        let error = write(&store, &id, "b", 101).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
        assert_eq!(store.usage(&id).unwrap(), VolumeUsage { bytes: 900, entries: 1 });
        assert_eq!(store.list(&id, "").unwrap().len(), 1);
        write(&store, &id, "b", 100).unwrap();
    }

    #[test]
    fn an_upload_is_unseen_until_it_is_whole_and_a_dead_one_is_removed() {
        let (directory, store, id) = store();
        write(&store, &id, "a", 100).unwrap();
        let uploads = directory.path().join("volumes/vol_a/uploads");
        // A client whose content breaks off after it was seen by no one.
        struct Watched<'w>(&'w VolumeStore, &'w Path, usize);
        impl Read for Watched<'_> {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                self.2 += 1;
                let seen = self.0.list(&"vol_a".parse().unwrap(), "").unwrap();
                assert_eq!((seen.len(), seen[0].size), (1, 100));
                assert_eq!(fs::read_dir(self.1).unwrap().count(), 1);
                into[..10].fill(1);
                if self.2 > 3 { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(10) }
            }
        }
        let mut broken = Watched(&store, &uploads, 0);
        store.write_file(&id, ByteSize(1000), "a", &mut broken).unwrap_err();
        assert_eq!(fs::read_dir(&uploads).unwrap().count(), 0);
        assert_eq!(store.usage(&id).unwrap(), VolumeUsage { bytes: 100, entries: 1 });
        // One that a dead server has left.
        fs::write(uploads.join("0123"), "x").unwrap();
        store.remove_partial_uploads().unwrap();
        assert!(!uploads.exists());
        write(&store, &id, "a", 200).unwrap();
        assert_eq!(store.usage(&id).unwrap(), VolumeUsage { bytes: 200, entries: 1 });
    }

    #[test]
    fn no_path_leads_out_of_a_volume() {
        let (directory, store, id) = store();
        fs::write(directory.path().join("secret"), "x").unwrap();
        let files = directory.path().join("volumes/vol_a/files");
        std::os::unix::fs::symlink(directory.path(), files.join("out")).unwrap();
        for path in
            ["../ledger", "..", "a/../../ledger", "/etc/passwd", "", "a//b", "./a", "out/secret"]
        {
            assert!(store.open_file(&id, path).is_err(), "{path}");
            assert!(write(&store, &id, path, 1).is_err(), "{path}");
            assert!(path.is_empty() || store.list(&id, path).is_err(), "{path}");
        }
        let out: KeyPrefix = "out".parse().unwrap();
        assert!(store.open_files(&id, &out, false).is_err());
        assert_eq!(fs::read(directory.path().join("secret")).unwrap(), b"x");
    }

    #[test]
    fn after_a_crash_the_files_are_counted_anew() {
        let (directory, store, id) = store();
        write(&store, &id, "a", 500).unwrap();
        let ledger = store.open_ledger(&id, ByteSize(1000)).unwrap();
        ledger.lock().unwrap().reserve(400, 1).unwrap();
        // A process that is killed drops nothing; its locks end with its files.
        let files = store.open_ledger_files(&id).unwrap();
        std::mem::forget(ledger);
        let path = directory.path().join("volumes/vol_a/users");
        // Another user sees what the first one has reserved, until that one is gone.
        assert_eq!(store.usage(&id).unwrap().bytes, 900);
        // The lock of the forgotten file remains in this process, so a new file takes its place.
        fs::remove_file(&path).unwrap();
        drop(files);
        assert_eq!(store.usage(&id).unwrap(), VolumeUsage { bytes: 500, entries: 1 });
    }

    #[test]
    fn writers_of_one_volume_never_pass_its_quota_together() {
        let (_directory, store, id) = store();
        let written: u64 = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..8)
                .map(|writer| {
                    let (store, id) = (&store, &id);
                    scope.spawn(move || {
                        let each = (0..10).map(|n| write(store, id, &format!("{writer}-{n}"), 30));
                        each.map(|done| done.unwrap_or(0)).sum::<u64>()
                    })
                })
                .collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).sum()
        });
        assert!(written <= 1000 && written > 1000 - 30, "{written}");
        assert_eq!(store.usage(&id).unwrap().bytes, written);
    }
}
