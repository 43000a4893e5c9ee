//! Runs in: mount server (no capabilities). The operations of a directory mount, as results.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{ffi::OsStrExt as _, fs::FileExt as _},
    },
    sync::Arc,
    time::{Duration, SystemTime},
};

use fuser::{FileAttr, FileType, TimeOrNow};
use parking_lot::Mutex;
use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags, RenameFlags, Statx, StatxFlags, Timespec, Timestamps},
    io::{Errno, Result},
};

use super::{
    handles::{Handle, HandleTable, OpenDirectory, OpenFile},
    nodes::{FileIdentity, NodeTable},
    quota::QuotaGuard,
};
use crate::{
    server::{
        attributes::{FileFacts, ROOT},
        meter::MountMeter,
    },
    volume::{Beneath, VolumeLedger, VolumeQuota, VolumeUsage, open_beneath, to_errno},
};

/// Bits of a mode that are kept on the host. The owner can always read a file and use a directory,
/// because the mount server has no privilege to do it otherwise.
const FILE_MODE: (u32, u32) = (0o777, 0o400);
const DIRECTORY_MODE: (u32, u32) = (0o777, 0o700);

/// A directory that is mounted.
pub(in crate::server) struct DirectoryMount {
    root: OwnedFd,
    quota: QuotaGuard,
    nodes: Mutex<NodeTable>,
    handles: Mutex<HandleTable>,
    /// The host ids of the guest, which owns every file here.
    owner: (u32, u32),
    most_bytes: u64,
    pub(super) meter: Arc<MountMeter>,
}

/// What is changed of a file.
#[derive(Debug, Default)]
pub(super) struct AttributeChange {
    pub(super) mode: Option<u32>,
    pub(super) size: Option<u64>,
    pub(super) accessed: Option<TimeOrNow>,
    pub(super) modified: Option<TimeOrNow>,
}

impl DirectoryMount {
    pub(in crate::server) fn new(
        root: OwnedFd,
        ledger: Option<VolumeLedger>,
        owner: (u32, u32),
        most_bytes: u64,
    ) -> Self {
        Self {
            root,
            quota: QuotaGuard(ledger),
            nodes: Mutex::new(NodeTable::new()),
            handles: Mutex::default(),
            owner,
            most_bytes,
            meter: Arc::default(),
        }
    }

    pub(in crate::server) fn meter(&self) -> &MountMeter {
        &self.meter
    }

    /// Whether the guest has a file open to write.
    pub(in crate::server) fn has_writers(&self) -> bool {
        self.handles.lock().files().iter().any(|open| open.writes)
    }

    /// Gives the volume back: nothing of this process will change it any more.
    pub(in crate::server) fn finish(&self) {
        for open in self.handles.lock().files() {
            let _ = self.quota.close(&open.file);
        }
        if let Some(ledger) = &self.quota.0 {
            ledger.leave();
        }
    }

    pub(super) fn owner(&self) -> (u32, u32) {
        self.owner
    }

    fn find(&self, path: &[u8]) -> Result<Statx> {
        if path.is_empty() {
            return stat_file(&self.root);
        }
        let at = Beneath::open_parent(&self.root, path)?;
        stat_at(&at)
    }

    pub(super) fn lookup(&self, parent: u64, name: &OsStr) -> Result<FileAttr> {
        let path = self.nodes.lock().path_in(parent, name)?;
        let found = self.find(&path)?;
        self.entry(parent, name, &found)
    }

    fn entry(&self, parent: u64, name: &OsStr, found: &Statx) -> Result<FileAttr> {
        let kind = kind_of(found)?;
        let node = self.nodes.lock().remember(parent, name, identity_of(found))?;
        Ok(facts_of(node, kind, found).to_attributes(self.owner))
    }

    pub(super) fn forget(&self, node: u64, lookups: u64) {
        self.nodes.lock().forget(node, lookups);
    }

    pub(super) fn attributes(&self, node: u64, handle: Option<u64>) -> Result<FileAttr> {
        let found = match self.open_file(node, handle) {
            Some(open) => stat_file(&open.file)?,
            None => self.find(&self.nodes.lock().path_of(node)?)?,
        };
        Ok(facts_of(node, kind_of(&found)?, &found).to_attributes(self.owner))
    }

    /// An open file for operations that the kernel sends without a path: a file that was deleted
    /// while it is open has no other way to it.
    fn open_file(&self, node: u64, handle: Option<u64>) -> Option<Arc<OpenFile>> {
        let handle = handle.or_else(|| self.nodes.lock().open_handle(node))?;
        self.handles.lock().file(handle)
    }

    pub(super) fn change(
        &self,
        node: u64,
        handle: Option<u64>,
        change: &AttributeChange,
    ) -> Result<FileAttr> {
        let open = self.open_file(node, handle);
        let path = self.nodes.lock().path_of(node);
        if let Some(size) = change.size {
            if size > self.most_bytes {
                return Err(Errno::FBIG);
            }
            match open.as_ref().filter(|open| open.writes) {
                Some(open) => self.quota.resize(&open.file, size)?,
                None => {
                    let path = path.as_ref().map_err(|error| *error)?;
                    let flags = OFlags::WRONLY | OFlags::NONBLOCK;
                    let file = open_beneath(&self.root, path, flags, Mode::empty())?;
                    self.quota.resize(&file, size)?;
                }
            }
        }
        if let Some(mode) = change.mode {
            self.change_mode(open.as_deref(), &path, mode)?;
        }
        if change.accessed.is_some() || change.modified.is_some() {
            let times = timestamps(change.accessed, change.modified);
            match (&path, &open) {
                (Ok(path), _) if path.is_empty() => rustix::fs::futimens(&self.root, &times)?,
                (Ok(path), _) => {
                    let at = Beneath::open_parent(&self.root, path)?;
                    let flags = AtFlags::SYMLINK_NOFOLLOW;
                    rustix::fs::utimensat(&at.parent, at.name, &times, flags)?;
                }
                (Err(_), Some(open)) => rustix::fs::futimens(&open.file, &times)?,
                (Err(error), None) => return Err(*error),
            }
        }
        self.attributes(node, handle)
    }

    fn change_mode(
        &self,
        open: Option<&OpenFile>,
        path: &Result<Vec<u8>>,
        mode: u32,
    ) -> Result<()> {
        match (open, path) {
            (Some(open), _) => rustix::fs::fchmod(&open.file, host_mode(mode, FILE_MODE)),
            (None, Ok(path)) => {
                let flags = OFlags::RDONLY | OFlags::NONBLOCK;
                let file = open_beneath(&self.root, path, flags, Mode::empty())?;
                let is_directory = kind_of(&stat_file(&file)?)? == FileType::Directory;
                let bits = if is_directory { DIRECTORY_MODE } else { FILE_MODE };
                rustix::fs::fchmod(&file, host_mode(mode, bits))
            }
            (None, Err(error)) => Err(*error),
        }
    }

    pub(super) fn read_link(&self, node: u64) -> Result<Vec<u8>> {
        let path = self.nodes.lock().path_of(node)?;
        let at = Beneath::open_parent(&self.root, &path)?;
        Ok(rustix::fs::readlinkat(&at.parent, at.name, Vec::new())?.into_bytes())
    }

    pub(super) fn make_directory(&self, parent: u64, name: &OsStr, mode: u32) -> Result<FileAttr> {
        let path = self.nodes.lock().path_in(parent, name)?;
        let at = Beneath::open_parent(&self.root, &path)?;
        let mode = host_mode(mode, DIRECTORY_MODE);
        self.quota.add_entry(|| rustix::fs::mkdirat(&at.parent, at.name, mode))?;
        self.entry(parent, name, &stat_at(&at)?)
    }

    pub(super) fn make_link(&self, parent: u64, name: &OsStr, target: &OsStr) -> Result<FileAttr> {
        let path = self.nodes.lock().path_in(parent, name)?;
        let at = Beneath::open_parent(&self.root, &path)?;
        self.quota.add_entry(|| rustix::fs::symlinkat(target, &at.parent, at.name))?;
        self.entry(parent, name, &stat_at(&at)?)
    }

    pub(super) fn make_hard_link(&self, node: u64, parent: u64, name: &OsStr) -> Result<FileAttr> {
        let (old, new) = {
            let nodes = self.nodes.lock();
            (nodes.path_of(node)?, nodes.path_in(parent, name)?)
        };
        let (old, new) =
            (Beneath::open_parent(&self.root, &old)?, Beneath::open_parent(&self.root, &new)?);
        self.quota.add_entry(|| {
            rustix::fs::linkat(&old.parent, old.name, &new.parent, new.name, AtFlags::empty())
        })?;
        self.entry(parent, name, &stat_at(&new)?)
    }

    pub(super) fn remove(&self, parent: u64, name: &OsStr, flags: AtFlags) -> Result<()> {
        let path = self.nodes.lock().path_in(parent, name)?;
        let at = Beneath::open_parent(&self.root, &path)?;
        self.quota.remove(&at, flags)?;
        self.nodes.lock().unlink(parent, name);
        Ok(())
    }

    pub(super) fn rename(
        &self,
        from: (u64, &OsStr),
        to: (u64, &OsStr),
        flags: RenameFlags,
    ) -> Result<()> {
        let (old, new) = {
            let nodes = self.nodes.lock();
            (nodes.path_in(from.0, from.1)?, nodes.path_in(to.0, to.1)?)
        };
        let (old_at, new_at) =
            (Beneath::open_parent(&self.root, &old)?, Beneath::open_parent(&self.root, &new)?);
        if flags.contains(RenameFlags::WHITEOUT) {
            return Err(Errno::INVAL);
        }
        let same = match (stat_at(&old_at), stat_at(&new_at)) {
            (Ok(old), Ok(new)) => identity_of(&old) == identity_of(&new),
            _ => false,
        };
        self.quota.rename(&old_at, &new_at, flags)?;
        let mut nodes = self.nodes.lock();
        match flags.contains(RenameFlags::EXCHANGE) {
            true => nodes.exchange(from, to),
            // Two names of one file stay as they are.
            false if same => {}
            false => nodes.rename(from, to),
        }
        Ok(())
    }

    pub(super) fn open(&self, node: u64, flags: i32) -> Result<(u64, bool)> {
        let path = self.nodes.lock().path_of(node)?;
        let flags = host_flags(flags);
        let file = File::from(open_beneath(&self.root, &path, flags, Mode::empty())?);
        self.add_file(node, file, flags)
    }

    /// Returns the handle, and whether its writes go past the page cache of the cell.
    fn add_file(&self, node: u64, file: File, flags: OFlags) -> Result<(u64, bool)> {
        self.quota.hold(&file)?;
        let appends = flags.contains(OFlags::APPEND);
        let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        let open = Arc::new(OpenFile { file, node, appends, writes });
        let id = self.handles.lock().insert(Handle::File(open)).ok_or(Errno::MFILE)?;
        self.nodes.lock().opened(node, id);
        Ok((id, appends))
    }

    pub(super) fn create(
        &self,
        (parent, name): (u64, &OsStr),
        mode: u32,
        flags: i32,
    ) -> Result<(FileAttr, u64, bool)> {
        let path = self.nodes.lock().path_in(parent, name)?;
        let at = Beneath::open_parent(&self.root, &path)?;
        let exclusive = OFlags::from_bits_retain(flags.cast_unsigned()).contains(OFlags::EXCL);
        let flags = host_flags(flags);
        let mode = host_mode(mode, FILE_MODE);
        let new = flags | OFlags::CREATE | OFlags::EXCL;
        let made = self.quota.add_entry(|| rustix::fs::openat(&at.parent, at.name, new, mode));
        let file = match made {
            Err(Errno::EXIST) if !exclusive => {
                open_beneath(&self.root, &path, flags, Mode::empty())?
            }
            made => made?,
        };
        let file = File::from(file);
        let attributes = self.entry(parent, name, &stat_file(&file)?)?;
        let (handle, direct) = self.add_file(attributes.ino.0, file, flags)?;
        Ok((attributes, handle, direct))
    }

    pub(super) fn read(&self, handle: u64, offset: u64, size: usize) -> Result<Vec<u8>> {
        let open = self.handles.lock().file(handle).ok_or(Errno::BADF)?;
        let mut data = vec![0; size];
        let mut read = 0;
        while read < size {
            match open.file.read_at(&mut data[read..], offset + read as u64) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(to_errno(&error)),
            }
        }
        data.truncate(read);
        self.meter.add_read(read);
        Ok(data)
    }

    pub(super) fn write(&self, handle: u64, data: &[u8], offset: u64) -> Result<usize> {
        let open = self.handles.lock().file(handle).ok_or(Errno::BADF)?;
        if !open.appends && offset.saturating_add(data.len() as u64) > self.most_bytes {
            return Err(Errno::FBIG);
        }
        let written = self.quota.write(&open, data, offset)?;
        self.meter.add_written(written as u64);
        Ok(written)
    }

    pub(super) fn allocate(&self, handle: u64, offset: u64, length: u64) -> Result<()> {
        let open = self.handles.lock().file(handle).ok_or(Errno::BADF)?;
        if offset.saturating_add(length) > self.most_bytes {
            return Err(Errno::FBIG);
        }
        self.quota.allocate(&open.file, offset, length)
    }

    pub(super) fn sync(&self, handle: u64, data_only: bool) -> Result<()> {
        let open = self.handles.lock().file(handle).ok_or(Errno::BADF)?;
        if data_only { rustix::fs::fdatasync(&open.file) } else { rustix::fs::fsync(&open.file) }
    }

    pub(super) fn sync_directory(&self, handle: u64) -> Result<()> {
        let open = self.handles.lock().directory(handle).ok_or(Errno::BADF)?;
        rustix::fs::fsync(&open.directory)
    }

    pub(super) fn close(&self, handle: u64) {
        let removed = self.handles.lock().remove(handle);
        match removed {
            Some(Handle::File(open)) => {
                self.nodes.lock().closed(open.node, handle);
                let _ = self.quota.close(&open.file);
            }
            Some(Handle::Directory(open)) => self.nodes.lock().closed(open.node, handle),
            None => {}
        }
    }

    pub(super) fn open_directory(&self, node: u64) -> Result<u64> {
        let path = self.nodes.lock().path_of(node)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let directory = open_beneath(&self.root, &path, flags, Mode::empty())?;
        let open = Arc::new(OpenDirectory { directory, node, entries: Mutex::default() });
        let mut handles = self.handles.lock();
        handles.insert(Handle::Directory(open)).ok_or(Errno::MFILE)
    }

    /// The entries of an open directory from an offset on; `each` says whether there is space.
    pub(super) fn list(
        &self,
        handle: u64,
        offset: u64,
        mut each: impl FnMut(u64, &OsStr, FileType, Option<&FileAttr>) -> bool,
        with_attributes: bool,
    ) -> Result<()> {
        let open = self.handles.lock().directory(handle).ok_or(Errno::BADF)?;
        let mut entries = open.entries.lock();
        if offset == 0 || entries.is_none() {
            *entries = Some(read_entries(&open.directory)?);
        }
        let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
        let listed = entries.iter().flatten().enumerate().skip(skipped);
        for (at, (name, kind)) in listed {
            let is_dots = matches!(name.as_bytes(), b"." | b"..");
            let attributes = match with_attributes && !is_dots && self.nodes.lock().has_space() {
                true => self.list_entry(&open, name),
                false => None,
            };
            let is_full = each(at as u64 + 1, name, *kind, attributes.as_ref());
            if is_full {
                if let Some(attributes) = attributes {
                    self.forget(attributes.ino.0, 1);
                }
                break;
            }
        }
        Ok(())
    }

    fn list_entry(&self, open: &OpenDirectory, name: &OsStr) -> Option<FileAttr> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let found = rustix::fs::statx(&open.directory, name, flags, STATX).ok()?;
        self.entry(open.node, name, &found).ok()
    }

    /// The quota and what is used, of a volume; the file system of a directory otherwise.
    pub(super) fn space(&self) -> Result<(u64, u64, u64, u64)> {
        if let Some(ledger) = &self.quota.0 {
            let (VolumeUsage { bytes, entries }, quota) = (ledger.usage(), ledger.quota());
            let VolumeQuota { bytes: most } = quota;
            let free = (most.saturating_sub(bytes), quota.entries().saturating_sub(entries));
            return Ok((most, free.0, quota.entries(), free.1));
        }
        let found = rustix::fs::fstatvfs(&self.root)?;
        let unit = found.f_frsize;
        Ok((found.f_blocks * unit, found.f_bavail * unit, found.f_files, found.f_favail))
    }
}

const STATX: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

fn stat_file(file: impl AsFd) -> Result<Statx> {
    rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, STATX)
}

fn stat_at(at: &Beneath<'_>) -> Result<Statx> {
    rustix::fs::statx(&at.parent, at.name, AtFlags::SYMLINK_NOFOLLOW, STATX)
}

fn identity_of(found: &Statx) -> FileIdentity {
    (found.stx_ino, found.stx_btime.tv_sec, found.stx_btime.tv_nsec)
}

/// What a guest can use of a file system of the host: files, directories and links.
fn kind_of(found: &Statx) -> Result<FileType> {
    match rustix::fs::FileType::from_raw_mode(u32::from(found.stx_mode)) {
        rustix::fs::FileType::RegularFile => Ok(FileType::RegularFile),
        rustix::fs::FileType::Directory => Ok(FileType::Directory),
        rustix::fs::FileType::Symlink => Ok(FileType::Symlink),
        _ => Err(Errno::NOENT),
    }
}

fn facts_of(node: u64, kind: FileType, found: &Statx) -> FileFacts {
    FileFacts {
        inode: node,
        kind,
        mode: u32::from(found.stx_mode),
        size: found.stx_size,
        links: if node == ROOT { 2 } else { found.stx_nlink },
        accessed: moment(found.stx_atime.tv_sec, found.stx_atime.tv_nsec),
        modified: moment(found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
        changed: moment(found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec),
    }
}

fn moment(seconds: i64, nanos: u32) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let moment = match seconds < 0 {
        true => SystemTime::UNIX_EPOCH - whole,
        false => SystemTime::UNIX_EPOCH + whole,
    };
    moment + Duration::from_nanos(nanos.into())
}

fn host_mode(mode: u32, (kept, always): (u32, u32)) -> Mode {
    Mode::from_raw_mode(mode & kept | always)
}

/// The flags with which a file of the host is opened for the flags of a guest.
fn host_flags(flags: i32) -> OFlags {
    let asked = OFlags::from_bits_retain(flags.cast_unsigned());
    let kept = asked & (OFlags::ACCMODE | OFlags::APPEND | OFlags::TRUNC);
    kept - OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK
}

fn timestamps(accessed: Option<TimeOrNow>, modified: Option<TimeOrNow>) -> Timestamps {
    let spec = |time: Option<TimeOrNow>| match time {
        None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        Some(TimeOrNow::Now) => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        Some(TimeOrNow::SpecificTime(time)) => match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => Timespec {
                tv_sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: since.subsec_nanos().into(),
            },
            Err(before) => {
                let before = before.duration();
                let whole = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
                match before.subsec_nanos() {
                    0 => Timespec { tv_sec: -whole, tv_nsec: 0 },
                    nanos => {
                        Timespec { tv_sec: -whole - 1, tv_nsec: (1_000_000_000 - nanos).into() }
                    }
                }
            }
        },
    };
    Timestamps { last_access: spec(accessed), last_modification: spec(modified) }
}

fn read_entries(directory: &OwnedFd) -> Result<Vec<(OsString, FileType)>> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let kind = match entry.file_type() {
            rustix::fs::FileType::Directory => FileType::Directory,
            rustix::fs::FileType::Symlink => FileType::Symlink,
            rustix::fs::FileType::RegularFile | rustix::fs::FileType::Unknown => {
                FileType::RegularFile
            }
            _ => continue,
        };
        entries.push((OsStr::from_bytes(entry.file_name().to_bytes()).to_owned(), kind));
    }
    Ok(entries)
}
