//! Runs in: mount server (no capabilities). The operations of a directory mount, as results.

use std::{
    ffi::OsStr,
    fs::File,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt as _, fs::FileExt as _},
    },
    sync::Arc,
};

use fuser::{FileAttr, FileType};
use parking_lot::Mutex;
use rustix::{
    fs::{AtFlags, Mode, OFlags, RenameFlags, Statx},
    io::{Errno, Result},
};

use super::{
    attribute_change::AttributeChange,
    handles::{Handle, HandleTable, OpenDirectory, OpenMountFile},
    host_files::{
        STATX, facts_of, host_flags, identity_of, kind_of, read_entries, stat_at, stat_file,
    },
    kept_modes::KeptModes,
    nodes::NodeTable,
    quota::QuotaGuard,
};
use crate::{
    server::meter::MountMeter,
    volume::{Beneath, VolumeLedger, VolumeQuota, VolumeUsage, open_beneath, to_errno},
};

/// A directory that is mounted.
pub(in crate::server) struct DirectoryMount {
    pub(super) root: OwnedFd,
    pub(super) quota: QuotaGuard,
    pub(super) modes: KeptModes,
    pub(super) nodes: Mutex<NodeTable>,
    handles: Mutex<HandleTable>,
    /// The host ids of the guest, which owns every file here.
    owner: (u32, u32),
    pub(super) most_bytes: u64,
    pub(super) meter: Arc<MountMeter>,
}

impl DirectoryMount {
    pub(in crate::server) fn new(
        root: OwnedFd,
        ledger: Option<VolumeLedger>,
        owner: (u32, u32),
        most_bytes: u64,
    ) -> Self {
        let modes = if ledger.is_some() { KeptModes::Marked } else { KeptModes::Plain };
        Self {
            root,
            modes,
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
        Ok(self.attributes_from(node, kind, found))
    }

    fn attributes_from(&self, node: u64, kind: FileType, found: &Statx) -> FileAttr {
        let mode = self.modes.to_guest(found.stx_mode.into(), kind);
        facts_of(node, (kind, mode), found).to_attributes(self.owner)
    }

    pub(super) fn forget(&self, node: u64, lookups: u64) {
        self.nodes.lock().forget(node, lookups);
    }

    pub(super) fn attributes(&self, node: u64, handle: Option<u64>) -> Result<FileAttr> {
        let found = match self.open_file(node, handle) {
            Some(open) => stat_file(&open.file)?,
            None => self.find(&self.nodes.lock().path_of(node)?)?,
        };
        Ok(self.attributes_from(node, kind_of(&found)?, &found))
    }

    /// An open file for operations that the kernel sends without a path: a file that was deleted
    /// while it is open has no other way to it.
    pub(super) fn open_file(&self, node: u64, handle: Option<u64>) -> Option<Arc<OpenMountFile>> {
        let handle = handle.or_else(|| self.nodes.lock().open_handle(node))?;
        self.handles.lock().file(handle)
    }

    pub(super) fn read_link(&self, node: u64) -> Result<Vec<u8>> {
        let path = self.nodes.lock().path_of(node)?;
        let at = Beneath::open_parent(&self.root, &path)?;
        Ok(rustix::fs::readlinkat(&at.parent, at.name, Vec::new())?.into_bytes())
    }

    pub(super) fn make_directory(&self, parent: u64, name: &OsStr, mode: u32) -> Result<FileAttr> {
        let path = self.nodes.lock().path_in(parent, name)?;
        let at = Beneath::open_parent(&self.root, &path)?;
        let mode = self.modes.to_host(mode, FileType::Directory);
        self.quota.add_entry(|| rustix::fs::mkdirat(&at.parent, at.name, mode))?;
        if mode.as_raw_mode() > 0o777 {
            // A new directory gets no marks.
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let made = rustix::fs::openat(&at.parent, at.name, flags, Mode::empty())?;
            rustix::fs::fchmod(made, mode)?;
        }
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
        let file = open_beneath(&self.root, &path, host_flags(flags), Mode::empty())?;
        self.add_file(node, File::from(file), flags)
    }

    /// Adds an open file, emptied if the guest asked for that. Returns the handle, and whether its
    /// writes go past the page cache of the cell.
    fn add_file(&self, node: u64, file: File, flags: i32) -> Result<(u64, bool)> {
        let flags = OFlags::from_bits_retain(flags.cast_unsigned());
        if flags.contains(OFlags::TRUNC) {
            let change = AttributeChange { size: Some(0), ..AttributeChange::default() };
            self.change(node, None, &change)?;
        }
        self.quota.hold(&file)?;
        let appends = flags.contains(OFlags::APPEND);
        let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
        let open = Arc::new(OpenMountFile { file, node, appends, writes });
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
        let (asked, flags) = (flags, host_flags(flags));
        let mode = self.modes.to_host(mode, FileType::RegularFile);
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
        let (handle, direct) = self.add_file(attributes.ino.0, file, asked)?;
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
            let attributes = match (with_attributes, is_dots) {
                (false, _) => None,
                // The kernel takes these two for what it knows, and counts no lookup.
                (true, true) => self.attributes(open.node, None).ok(),
                (true, false) if !self.nodes.lock().has_space() => return Err(Errno::NFILE),
                // It was removed in the meantime.
                (true, false) => match self.list_entry(&open, name) {
                    None => continue,
                    found => found,
                },
            };
            if each(at as u64 + 1, name, *kind, attributes.as_ref()) {
                if let Some(attributes) = attributes.filter(|_| !is_dots) {
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
