//! Runs in: mount server (no capabilities). A file system that is known after its connection: the
//! kernel's first request is answered while the process waits for its mounts.

use std::{
    ffi::OsStr,
    io,
    path::Path,
    sync::{Arc, OnceLock},
    time::SystemTime,
};

use fuser::{
    BsdFileFlags, FileHandle, Filesystem, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use super::attributes::configure;

/// A file system that another one takes the place of, before its mount is attached in a cell.
#[derive(Clone, Default)]
pub(super) struct LateFilesystem(Arc<OnceLock<Box<dyn Filesystem>>>);

impl LateFilesystem {
    /// Passes all requests on to this one from now on.
    pub(super) fn become_one(&self, filesystem: impl Filesystem) {
        // A second one is not made.
        let _ = self.0.set(Box::new(filesystem));
    }
}

/// Operations that are passed on. Before there is something to pass them on to, there are none; a
/// reply that is dropped is an error.
macro_rules! pass_on {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {$(
        fn $name(&self, request: &Request, $($argument: $kind),*) {
            if let Some(filesystem) = self.0.get() {
                filesystem.$name(request, $($argument),*);
            }
        }
    )*};
}

impl Filesystem for LateFilesystem {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        configure(config, InitFlags::FUSE_ATOMIC_O_TRUNC);
        Ok(())
    }

    pass_on! {
        lookup(parent: INodeNo, name: &OsStr, reply: ReplyEntry);
        forget(node: INodeNo, lookups: u64);
        getattr(node: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr);
        setattr(
            node: INodeNo, mode: Option<u32>, uid: Option<u32>, gid: Option<u32>,
            size: Option<u64>, accessed: Option<TimeOrNow>, modified: Option<TimeOrNow>,
            changed: Option<SystemTime>, handle: Option<FileHandle>, created: Option<SystemTime>,
            changed_too: Option<SystemTime>, backed_up: Option<SystemTime>,
            flags: Option<BsdFileFlags>, reply: ReplyAttr
        );
        readlink(node: INodeNo, reply: ReplyData);
        mknod(
            parent: INodeNo, name: &OsStr, mode: u32, mask: u32, device: u32, reply: ReplyEntry
        );
        mkdir(parent: INodeNo, name: &OsStr, mode: u32, mask: u32, reply: ReplyEntry);
        unlink(parent: INodeNo, name: &OsStr, reply: ReplyEmpty);
        rmdir(parent: INodeNo, name: &OsStr, reply: ReplyEmpty);
        symlink(parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry);
        rename(
            parent: INodeNo, name: &OsStr, new_parent: INodeNo, new_name: &OsStr,
            flags: RenameFlags, reply: ReplyEmpty
        );
        link(node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry);
        open(node: INodeNo, flags: OpenFlags, reply: ReplyOpen);
        create(
            parent: INodeNo, name: &OsStr, mode: u32, mask: u32, flags: i32, reply: ReplyCreate
        );
        read(
            node: INodeNo, handle: FileHandle, offset: u64, size: u32, flags: OpenFlags,
            owner: Option<LockOwner>, reply: ReplyData
        );
        write(
            node: INodeNo, handle: FileHandle, offset: u64, data: &[u8], how: WriteFlags,
            flags: OpenFlags, owner: Option<LockOwner>, reply: ReplyWrite
        );
        flush(node: INodeNo, handle: FileHandle, owner: LockOwner, reply: ReplyEmpty);
        release(
            node: INodeNo, handle: FileHandle, flags: OpenFlags, owner: Option<LockOwner>,
            flushes: bool, reply: ReplyEmpty
        );
        fsync(node: INodeNo, handle: FileHandle, data_only: bool, reply: ReplyEmpty);
        opendir(node: INodeNo, flags: OpenFlags, reply: ReplyOpen);
        readdir(node: INodeNo, handle: FileHandle, offset: u64, reply: ReplyDirectory);
        readdirplus(node: INodeNo, handle: FileHandle, offset: u64, reply: ReplyDirectoryPlus);
        releasedir(node: INodeNo, handle: FileHandle, flags: OpenFlags, reply: ReplyEmpty);
        fsyncdir(node: INodeNo, handle: FileHandle, data_only: bool, reply: ReplyEmpty);
        statfs(node: INodeNo, reply: ReplyStatfs);
        getxattr(node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr);
        fallocate(
            node: INodeNo, handle: FileHandle, offset: u64, length: u64, mode: i32,
            reply: ReplyEmpty
        );
    }
}
