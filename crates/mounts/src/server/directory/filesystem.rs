//! Runs in: mount server (no capabilities). Answers the kernel's requests for a directory mount.

use std::{ffi::OsStr, path::Path, sync::Arc, time::SystemTime};

use fuser::{
    BsdFileFlags, Errno as FuseErrno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use rustix::fs::AtFlags;

use super::{DirectoryMount, attribute_change::AttributeChange};
use crate::server::attributes::{BLOCK, SHORT_TTL, check_owner, fuse_errno, unknown_attributes};

/// The file system of a directory mount.
pub(in crate::server) struct DirectoryFs(pub(in crate::server) Arc<DirectoryMount>);

impl DirectoryFs {
    fn reply_entry(reply: ReplyEntry, found: rustix::io::Result<fuser::FileAttr>) {
        match found {
            Ok(attributes) => reply.entry(&SHORT_TTL, &attributes, Generation(0)),
            Err(errno) => reply.error(fuse_errno(errno)),
        }
    }

    fn reply_empty(reply: ReplyEmpty, done: rustix::io::Result<()>) {
        match done {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(fuse_errno(errno)),
        }
    }

    fn open_flags(direct: bool) -> FopenFlags {
        if direct { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::empty() }
    }
}

impl Filesystem for DirectoryFs {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        Self::reply_entry(reply, self.0.lookup(parent.0, name));
    }

    fn forget(&self, _: &Request, node: INodeNo, lookups: u64) {
        self.0.forget(node.0, lookups);
    }

    fn getattr(&self, _: &Request, node: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.0.attributes(node.0, handle.map(|handle| handle.0)) {
            Ok(attributes) => reply.attr(&SHORT_TTL, &attributes),
            Err(errno) => reply.error(fuse_errno(errno)),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = AttributeChange { mode, size, accessed, modified };
        let changed = check_owner(self.0.owner(), uid, gid)
            .and_then(|()| self.0.change(node.0, handle.map(|handle| handle.0), &change));
        match changed {
            Ok(attributes) => reply.attr(&SHORT_TTL, &attributes),
            Err(errno) => reply.error(fuse_errno(errno)),
        }
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        match self.0.read_link(node.0) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(fuse_errno(errno)),
        }
    }

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(FuseErrno::EPERM);
    }

    fn mkdir(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        Self::reply_entry(reply, self.0.make_directory(parent.0, name, mode));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        Self::reply_empty(reply, self.0.remove(parent.0, name, AtFlags::empty()));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        Self::reply_empty(reply, self.0.remove(parent.0, name, AtFlags::REMOVEDIR));
    }

    fn symlink(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        Self::reply_entry(reply, self.0.make_link(parent.0, name, target.as_os_str()));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        Self::reply_empty(reply, self.0.rename((parent.0, name), (new_parent.0, new_name), flags));
    }

    fn link(&self, _: &Request, node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        Self::reply_entry(reply, self.0.make_hard_link(node.0, parent.0, name));
    }

    fn open(&self, _: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.0.open(node.0, flags.0) {
            Ok((handle, direct)) => reply.opened(FileHandle(handle), Self::open_flags(direct)),
            Err(errno) => reply.error(fuse_errno(errno)),
        }
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        match self.0.create((parent.0, name), mode, flags) {
            Ok((attributes, handle, direct)) => {
                let (handle, flags) = (FileHandle(handle), Self::open_flags(direct));
                reply.created(&SHORT_TTL, &attributes, Generation(0), handle, flags);
            }
            Err(errno) => reply.error(fuse_errno(errno)),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.0.read(handle.0, offset, size as usize) {
            Ok(data) => reply.data(&data),
            Err(errno) => reply.error(fuse_errno(errno)),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.0.write(handle.0, data, offset) {
            Ok(written) => reply.written(u32::try_from(written).unwrap_or(u32::MAX)),
            Err(errno) => reply.error(fuse_errno(errno)),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.0.close(handle.0);
        reply.ok();
    }

    fn fsync(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        Self::reply_empty(reply, self.0.sync(handle.0, data_only));
    }

    fn opendir(&self, _: &Request, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.0.open_directory(node.0) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(errno) => reply.error(fuse_errno(errno)),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let each = |next, name: &OsStr, kind, _: Option<&fuser::FileAttr>| {
            reply.add(INodeNo(u64::MAX), next, kind, name)
        };
        match self.0.list(handle.0, offset, each, false) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(fuse_errno(errno)),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let each = |next, name: &OsStr, kind, attributes: Option<&fuser::FileAttr>| {
            let unknown = unknown_attributes(kind);
            let attributes = attributes.unwrap_or(&unknown);
            reply.add(INodeNo(u64::MAX), next, name, &SHORT_TTL, attributes, Generation(0))
        };
        match self.0.list(handle.0, offset, each, true) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(fuse_errno(errno)),
        }
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.0.close(handle.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        Self::reply_empty(reply, self.0.sync_directory(handle.0));
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let unit = u64::from(BLOCK);
        match self.0.space() {
            Ok((total, free, entries, free_entries)) => {
                let (total, free) = (total / unit, free / unit);
                reply.statfs(total, free, free, entries, free_entries, BLOCK, 255, BLOCK);
            }
            Err(errno) => reply.error(fuse_errno(errno)),
        }
    }

    fn getxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, reply: ReplyXattr) {
        // The kernel takes this for "not supported" and asks no further.
        reply.error(FuseErrno::ENOSYS);
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        match mode {
            0 => Self::reply_empty(reply, self.0.allocate(handle.0, offset, length)),
            _ => reply.error(FuseErrno::EOPNOTSUPP),
        }
    }
}
