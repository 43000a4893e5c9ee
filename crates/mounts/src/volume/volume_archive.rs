//! Runs in: server (no capabilities), `cloche restore`. The files of a volume as a tar archive.
//!
//! A volume has no snapshot: its users write while it is copied. Each file is copied as a whole; one
//! that changed meanwhile is copied again, a few times, and named in the report if it never held
//! still. The report is the last entry, so an archive without it is not complete.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read, Write},
    os::unix::ffi::OsStrExt as _,
    path::{Component, Path, PathBuf},
};

use cloche_model::VolumeId;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use serde::{Deserialize, Serialize};
use tar::{Builder, EntryType, Header};

use super::{VolumeStore, open_beneath};

/// The directory of the files in the archive, and the entry with the report.
const FILES: &str = "files";
const REPORT: &str = "report.json";
/// How often a file that changes is copied.
const ATTEMPTS: usize = 3;
/// The most paths of each kind that a report names, and the longest report that is read.
const MOST_NAMED: usize = 100;
const MOST_REPORT: u64 = 4 << 20;

/// What became of the files of a volume in an archive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeArchiveReport {
    /// Files, directories and links in the archive.
    pub entries: u64,
    /// Files whose content changed while it was copied: how many, and the first of them.
    pub changed: u64,
    /// Names of changed files.
    pub changed_paths: Vec<String>,
    /// What could not be read: how many, and the first of them.
    pub skipped: u64,
    /// Names of what could not be read.
    pub skipped_paths: Vec<String>,
}

impl VolumeArchiveReport {
    fn note_changed(&mut self, path: &Path) {
        self.changed += 1;
        push_name(&mut self.changed_paths, path);
    }

    fn note_skipped(&mut self, path: &Path) {
        self.skipped += 1;
        push_name(&mut self.skipped_paths, path);
    }
}

fn push_name(names: &mut Vec<String>, path: &Path) {
    if names.len() < MOST_NAMED {
        names.push(path.display().to_string());
    }
}

impl VolumeStore {
    /// Writes the files of a volume to `out`. A volume that was removed meanwhile is empty.
    ///
    /// # Errors
    /// When `out` fails. What cannot be read of the volume is in the report.
    pub fn write_archive(&self, id: &VolumeId, out: impl Write) -> io::Result<VolumeArchiveReport> {
        let mut archive = VolumeArchive {
            builder: Builder::new(out),
            links: HashMap::new(),
            report: VolumeArchiveReport::default(),
        };
        match self.open_root(id) {
            Ok(root) => archive.append_tree(&root)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        archive.finish()
    }

    /// Makes a volume from an archive. The volume must not exist.
    ///
    /// # Errors
    /// When the archive is not complete, names anything outside of the volume, or cannot be read.
    pub fn restore_archive(
        &self,
        id: &VolumeId,
        archive: impl Read,
    ) -> io::Result<VolumeArchiveReport> {
        self.create(id)?;
        let top = self.path_of(id);
        let mut archive = tar::Archive::new(archive);
        archive.set_preserve_mtime(true);
        archive.set_preserve_permissions(true);
        archive.set_preserve_ownerships(false);
        archive.set_overwrite(true);
        let mut report = None;
        // The modes of directories come last: one without `w` must be filled first.
        let mut modes = Vec::new();
        for entry in archive.entries()? {
            let mut entry = entry?;
            let path = entry.path()?.into_owned();
            if report.is_some() {
                return Err(invalid("an entry follows the report"));
            }
            if path == Path::new(REPORT) {
                let mut text = Vec::new();
                entry.take(MOST_REPORT).read_to_end(&mut text)?;
                report = Some(serde_json::from_slice(&text)?);
                continue;
            }
            check_inside(&path)?;
            if entry.header().entry_type() == EntryType::Directory {
                modes.push((top.join(&path), entry.header().mode()?));
                entry.set_preserve_permissions(false);
            }
            if !entry.unpack_in(&top)? {
                return Err(invalid("an entry leads outside of the volume"));
            }
        }
        for (path, mode) in modes.into_iter().rev() {
            let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode & 0o7777);
            std::fs::set_permissions(path, permissions)?;
        }
        report.ok_or_else(|| invalid("the archive is not complete"))
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Only names below the directory of the files.
fn check_inside(path: &Path) -> io::Result<()> {
    let mut parts = path.components();
    let is_below = parts.next() == Some(Component::Normal(FILES.as_ref()));
    if is_below && parts.all(|part| matches!(part, Component::Normal(_))) {
        return Ok(());
    }
    Err(invalid("an entry leads outside of the volume"))
}

struct VolumeArchive<W: Write> {
    builder: Builder<W>,
    /// The first path of each file with several names.
    links: HashMap<(u64, u64), PathBuf>,
    report: VolumeArchiveReport,
}

impl<W: Write> VolumeArchive<W> {
    /// Adds everything below `root`. Directories are opened by their path below it, without
    /// following links, so neither depth nor a directory that is replaced by a link matters.
    fn append_tree(&mut self, root: &impl std::os::fd::AsFd) -> io::Result<()> {
        let mut waiting = vec![PathBuf::new()];
        while let Some(directory) = waiting.pop() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let path = directory.as_os_str().as_bytes();
            let Ok(opened) = open_beneath(root, path, flags, Mode::empty()) else {
                self.report.note_skipped(&directory);
                continue;
            };
            let found = rustix::fs::fstat(&opened)?;
            self.append_plain(&directory, &found, EntryType::Directory, io::empty())?;
            for entry in Dir::read_from(&opened)? {
                let Ok(entry) = entry else {
                    self.report.note_skipped(&directory);
                    break;
                };
                let name = entry.file_name();
                if matches!(name.to_bytes(), b"." | b"..") {
                    continue;
                }
                let path = directory.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
                // Removed since the directory was read.
                let stat = rustix::fs::statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW);
                let Ok(stat) = stat else { continue };
                match FileType::from_raw_mode(stat.st_mode) {
                    FileType::Directory => waiting.push(path),
                    FileType::RegularFile => self.append_file(&opened, name, &path, &stat)?,
                    FileType::Symlink => self.append_symlink(&opened, name, &path, &stat)?,
                    _ => self.report.note_skipped(&path),
                }
            }
        }
        Ok(())
    }

    fn append_file(
        &mut self,
        parent: &impl std::os::fd::AsFd,
        name: &std::ffi::CStr,
        path: &Path,
        stat: &Stat,
    ) -> io::Result<()> {
        if stat.st_nlink > 1 {
            let place = (stat.st_dev, stat.st_ino);
            if let Some(first) = self.links.get(&place).cloned() {
                return self.append_link(
                    path,
                    stat,
                    EntryType::Link,
                    &Path::new(FILES).join(first),
                );
            }
            self.links.insert(place, path.to_owned());
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        for attempt in 1..=ATTEMPTS {
            let Ok(file) = rustix::fs::openat(parent, name, flags, Mode::empty()) else {
                self.report.note_skipped(path);
                return Ok(());
            };
            let file = File::from(file);
            let before = rustix::fs::fstat(&file)?;
            let size = u64::try_from(before.st_size).unwrap_or(0);
            // A file that shrinks is filled up with zeros, so that the archive stays readable.
            let content = (&file).take(size).chain(io::repeat(0)).take(size);
            self.append_plain(path, &before, EntryType::Regular, content)?;
            let after = rustix::fs::fstat(&file)?;
            let times = |stat: &Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
            if times(&before) == times(&after) {
                return Ok(());
            }
            if attempt == ATTEMPTS {
                self.report.note_changed(path);
            }
        }
        Ok(())
    }

    fn append_symlink(
        &mut self,
        parent: &impl std::os::fd::AsFd,
        name: &std::ffi::CStr,
        path: &Path,
        stat: &Stat,
    ) -> io::Result<()> {
        let Ok(target) = rustix::fs::readlinkat(parent, name, Vec::new()) else {
            self.report.note_skipped(path);
            return Ok(());
        };
        let target = Path::new(std::ffi::OsStr::from_bytes(target.to_bytes())).to_owned();
        self.append_link(path, stat, EntryType::Symlink, &target)
    }

    fn append_plain(
        &mut self,
        path: &Path,
        stat: &Stat,
        kind: EntryType,
        content: impl Read,
    ) -> io::Result<()> {
        let mut header = describe_entry(stat, kind);
        if kind == EntryType::Regular {
            header.set_size(u64::try_from(stat.st_size).unwrap_or(0));
        }
        self.report.entries += 1;
        self.builder.append_data(&mut header, Path::new(FILES).join(path), content)
    }

    fn append_link(
        &mut self,
        path: &Path,
        stat: &Stat,
        kind: EntryType,
        target: &Path,
    ) -> io::Result<()> {
        let mut header = describe_entry(stat, kind);
        self.report.entries += 1;
        self.builder.append_link(&mut header, Path::new(FILES).join(path), target)
    }

    fn finish(mut self) -> io::Result<VolumeArchiveReport> {
        let text = serde_json::to_vec(&self.report)?;
        let mut header = Header::new_gnu();
        header.set_mode(0o600);
        header.set_size(text.len() as u64);
        self.builder.append_data(&mut header, REPORT, &text[..])?;
        self.builder.into_inner()?.flush()?;
        Ok(self.report)
    }
}

fn describe_entry(stat: &Stat, kind: EntryType) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(stat.st_mode & 0o7777);
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header.set_size(0);
    header
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    };

    use super::*;

    fn new_store() -> (tempfile::TempDir, VolumeStore, VolumeId) {
        let directory = tempfile::tempdir().unwrap();
        let store = VolumeStore::open(directory.path().join("volumes")).unwrap();
        (directory, store, "vol_a".parse().unwrap())
    }

    #[test]
    fn an_archive_brings_files_links_modes_and_times_back() {
        let (directory, store, id) = new_store();
        store.create(&id).unwrap();
        let files = directory.path().join("volumes/vol_a/files");
        let long = "d".repeat(200);
        fs::create_dir_all(files.join(&long).join(&long)).unwrap();
        fs::write(files.join(&long).join(&long).join("deep"), vec![7; 3 << 20]).unwrap();
        fs::write(files.join("one"), "1").unwrap();
        fs::hard_link(files.join("one"), files.join("two")).unwrap();
        symlink("/etc/passwd", files.join("away")).unwrap();
        fs::set_permissions(files.join(&long), fs::Permissions::from_mode(0o555)).unwrap();
        let mut archive = Vec::new();
        let report = store.write_archive(&id, &mut archive).unwrap();
        assert_eq!((report.entries, report.changed, report.skipped), (7, 0, 0), "{report:?}");

        let (elsewhere, restored, id) = new_store();
        assert_eq!(restored.restore_archive(&id, &archive[..]).unwrap(), report);
        let copy = elsewhere.path().join("volumes/vol_a/files");
        assert_eq!(fs::read(copy.join(&long).join(&long).join("deep")).unwrap().len(), 3 << 20);
        assert_eq!(fs::read_link(copy.join("away")).unwrap(), Path::new("/etc/passwd"));
        let stat = |path: PathBuf| fs::metadata(path).unwrap();
        assert_eq!(stat(copy.join("one")).ino(), stat(copy.join("two")).ino());
        assert_eq!(stat(copy.join("one")).mtime(), stat(files.join("one")).mtime());
        assert_eq!(stat(copy.join(&long)).mode() & 0o777, 0o555);
        assert_eq!(restored.usage(&id).unwrap(), store.usage(&id).unwrap());
    }

    #[test]
    fn an_archive_that_is_cut_short_or_leads_outside_is_refused() {
        let (_directory, store, id) = new_store();
        store.create(&id).unwrap();
        let mut archive = Vec::new();
        store.write_archive(&id, &mut archive).unwrap();
        let (_elsewhere, restored, id) = new_store();
        // Without the report: one header and two empty blocks.
        let error = restored.restore_archive(&id, &archive[..512]).unwrap_err();
        assert!(error.to_string().contains("not complete"), "{error}");

        let mut outside = Builder::new(Vec::new());
        let mut header = Header::new_gnu();
        header.set_size(1);
        header.set_mode(0o600);
        header.as_gnu_mut().unwrap().name[..14].copy_from_slice(b"files/../../up");
        header.set_cksum();
        outside.append(&header, &b"x"[..]).unwrap();
        let outside = outside.into_inner().unwrap();
        let error = restored.restore_archive(&"vol_b".parse().unwrap(), &outside[..]).unwrap_err();
        assert!(error.to_string().contains("outside"), "{error}");
    }
}
