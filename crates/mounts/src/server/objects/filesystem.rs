//! Runs in: mount server (no capabilities). Answers the kernel's requests for an object mount. A
//! request that must wait for the store is a task of its own; others are answered at once.

use std::{ffi::OsStr, future::Future, path::Path, sync::Arc, time::SystemTime};

use fuser::{
    BsdFileFlags, Errno as FuseErrno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use rustix::{fs::OFlags, io::Errno};

use super::{
    mount::ObjectMount,
    replies::{
        answer_at_once, kind, list, moment, name_text, reply_attributes, reply_empty, reply_entry,
    },
};
use crate::server::attributes::{BLOCK, check_owner, fuse_errno, unknown_attributes};

/// The space that a bucket seems to have.
const SPACE: u64 = 1 << 50;

/// The file system of an object mount.
pub(in crate::server) struct ObjectFs(pub(in crate::server) Arc<ObjectMount>);

impl ObjectFs {
    /// Answers one request after the other, as far as they need not wait: a name that was found must
    /// not be forgotten before it is counted.
    fn answer<F>(&self, work: impl FnOnce(Arc<ObjectMount>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let _turn = self.0.turn.lock();
        answer_at_once(&self.0, work(Arc::clone(&self.0)));
    }

    /// Stores what a handle has written, in a task of its own: hashing takes a while.
    fn flush_handle(&self, handle: FileHandle, reply: ReplyEmpty) {
        let mount = Arc::clone(&self.0);
        if let Some(runtime) = self.0.runtime.get() {
            runtime.spawn(async move { reply_empty(reply, mount.flush(handle.0).await) });
        }
    }
}

impl Filesystem for ObjectFs {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name_text(name);
        self.answer(|mount| async move {
            let found = match name {
                Ok(name) => mount.lookup(parent.0, &name).await,
                // There is no such key.
                Err(_) => Err(Errno::NOENT),
            };
            reply_entry(reply, &mount, found);
        });
    }

    fn forget(&self, _: &Request, node: INodeNo, lookups: u64) {
        let _turn = self.0.turn.lock();
        self.0.forget(node.0, lookups);
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.answer(|mount| async move {
            let found = mount.attributes(node.0).await;
            reply_attributes(reply, &mount, found);
        });
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
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let times = (accessed.map(moment), modified.map(moment));
        self.answer(|mount| async move {
            let changed = async {
                check_owner(mount.settings.owner, uid, gid)?;
                if let Some(size) = size {
                    mount.resize(node.0, size).await?;
                }
                mount.set_local(node.0, mode, times)?;
                mount.attributes_of(node.0)
            };
            let changed = changed.await;
            reply_attributes(reply, &mount, changed);
        });
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
        let name = name_text(name);
        self.answer(|mount| async move {
            let made = match name {
                Ok(name) => mount.make_directory(parent.0, &name, mode).await,
                Err(errno) => Err(errno),
            };
            reply_entry(reply, &mount, made);
        });
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name_text(name);
        self.answer(|mount| async move {
            let done = match name {
                Ok(name) => mount.unlink(parent.0, &name).await,
                Err(errno) => Err(errno),
            };
            reply_empty(reply, done);
        });
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name_text(name);
        self.answer(|mount| async move {
            let done = match name {
                Ok(name) => mount.remove_directory(parent.0, &name).await,
                Err(errno) => Err(errno),
            };
            reply_empty(reply, done);
        });
    }

    fn symlink(&self, _: &Request, _: INodeNo, _: &OsStr, _: &Path, reply: ReplyEntry) {
        reply.error(FuseErrno::EPERM);
    }

    fn link(&self, _: &Request, _: INodeNo, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.error(FuseErrno::EPERM);
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
        let names = name_text(name).and_then(|name| Ok((name, name_text(new_name)?)));
        let replaces = match flags {
            flags if flags.is_empty() => true,
            RenameFlags::RENAME_NOREPLACE => false,
            _ => return reply.error(FuseErrno::EINVAL),
        };
        self.answer(|mount| async move {
            let done = match names {
                Ok((name, new_name)) => {
                    let (from, to) = ((parent.0, &*name), (new_parent.0, &*new_name));
                    mount.rename(from, to, replaces).await
                }
                Err(errno) => Err(errno),
            };
            reply_empty(reply, done);
        });
    }

    fn open(&self, _: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let flags = OFlags::from_bits_retain(flags.0.cast_unsigned());
        self.answer(|mount| async move {
            let writes = flags.intersects(OFlags::WRONLY | OFlags::RDWR);
            let (opened, flags) = match writes {
                true => {
                    let truncates = flags.contains(OFlags::TRUNC);
                    (mount.open_writer(node.0, truncates).await, FopenFlags::empty())
                }
                // Nothing is stored when a reader closes, so the kernel need not ask for it.
                false => (mount.open_reader(node.0).await, FopenFlags::FOPEN_NOFLUSH),
            };
            match opened {
                Ok(handle) => reply.opened(FileHandle(handle), flags),
                Err(errno) => reply.error(fuse_errno(errno)),
            }
        });
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
        let name = name_text(name);
        let exclusive = OFlags::from_bits_retain(flags.cast_unsigned()).contains(OFlags::EXCL);
        self.answer(|mount| async move {
            let created = match name {
                Ok(name) => mount.create(parent.0, &name, mode, exclusive).await,
                Err(errno) => Err(errno),
            };
            match created {
                Ok((attributes, handle)) => {
                    let (handle, flags) = (FileHandle(handle), FopenFlags::empty());
                    reply.created(&mount.ttl(), &attributes, Generation(0), handle, flags);
                }
                Err(errno) => reply.error(fuse_errno(errno)),
            }
        });
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
        let mount = Arc::clone(&self.0);
        // Beside others: an answer can be long, and changes nothing.
        answer_at_once(&self.0, async move {
            match mount.read(handle.0, offset, size.into()).await {
                Ok(data) => reply.data(&data),
                Err(errno) => reply.error(fuse_errno(errno)),
            }
        });
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
        match self.0.write(handle.0, offset, data) {
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)),
            Err(errno) => reply.error(fuse_errno(errno)),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, handle: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        self.flush_handle(handle, reply);
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
        self.answer(|mount| async move {
            mount.close(handle.0).await;
            reply.ok();
        });
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        self.flush_handle(handle, reply);
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
        self.answer(|mount| async move {
            let each = |next, name: &str, is_directory, _: Option<&FileAttr>| {
                reply.add(INodeNo(u64::MAX), next, kind(is_directory), name)
            };
            match list(&mount, handle.0, offset, false, each).await {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(fuse_errno(errno)),
            }
        });
    }

    fn readdirplus(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.answer(|mount| async move {
            let ttl = mount.ttl();
            let each = |next, name: &str, is_directory, attributes: Option<&FileAttr>| {
                let unknown = unknown_attributes(kind(is_directory));
                let attributes = attributes.unwrap_or(&unknown);
                reply.add(INodeNo(u64::MAX), next, name, &ttl, attributes, Generation(0))
            };
            match list(&mount, handle.0, offset, true, each).await {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(fuse_errno(errno)),
            }
        });
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.0.handles.lock().remove(handle.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let blocks = SPACE / u64::from(BLOCK);
        reply.statfs(blocks, blocks, blocks, SPACE, SPACE, BLOCK, 255, BLOCK);
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
            0 => reply_empty(reply, self.0.extend(handle.0, offset.saturating_add(length))),
            _ => reply.error(FuseErrno::EOPNOTSUPP),
        }
    }
}
