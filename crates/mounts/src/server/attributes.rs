//! Runs in: mount server (no capabilities). Words of FUSE that both kinds of mount use.

use std::time::{Duration, SystemTime};

use fuser::{Errno as FuseErrno, FileAttr, FileType, INodeNo, InitFlags, KernelConfig};
use rustix::io::Errno;

/// How long the kernel may use what it knows, on a mount that others may change.
pub(super) const SHORT_TTL: Duration = Duration::from_secs(1);
/// The same on a read-only object store.
pub(super) const LONG_TTL: Duration = Duration::from_secs(60);
/// The most bytes of one request.
pub(super) const MAX_REQUEST: u32 = 1 << 20;
/// The inode number of the root of a mount.
pub(super) const ROOT: u64 = 1;
/// The block size that programs see.
pub(super) const BLOCK: u32 = 4096;

/// The error as the FUSE library has it.
pub(super) fn fuse_errno(errno: Errno) -> FuseErrno {
    FuseErrno::from_i32(errno.raw_os_error())
}

/// Settings of a connection that both kinds of mount have. The writeback cache stays off: the kernel
/// would own sizes and reorder writes.
pub(super) fn configure(config: &mut KernelConfig, more: InitFlags) {
    let wanted = InitFlags::FUSE_AUTO_INVAL_DATA
        | InitFlags::FUSE_PARALLEL_DIROPS
        | InitFlags::FUSE_DO_READDIRPLUS
        | InitFlags::FUSE_READDIRPLUS_AUTO
        | more;
    let supported = config.capabilities();
    // What an older kernel does not have is left out.
    let _ = config.add_capabilities(wanted & supported);
    let _ = config.set_max_write(MAX_REQUEST);
    let _ = config.set_max_readahead(MAX_REQUEST);
    let _ = config.set_max_background(64);
}

/// What is reported of one file.
pub(super) struct FileFacts {
    pub(super) inode: u64,
    pub(super) kind: FileType,
    pub(super) mode: u32,
    pub(super) size: u64,
    pub(super) links: u32,
    pub(super) accessed: SystemTime,
    pub(super) modified: SystemTime,
    pub(super) changed: SystemTime,
}

impl FileFacts {
    /// The attributes, with the guest as the owner.
    pub(super) fn to_attributes(&self, (uid, gid): (u32, u32)) -> FileAttr {
        FileAttr {
            ino: INodeNo(self.inode),
            size: self.size,
            blocks: self.size.div_ceil(512),
            atime: self.accessed,
            mtime: self.modified,
            ctime: self.changed,
            crtime: SystemTime::UNIX_EPOCH,
            kind: self.kind,
            perm: u16::try_from(self.mode & 0o777).unwrap_or(0),
            nlink: self.links,
            uid,
            gid,
            rdev: 0,
            blksize: BLOCK,
            flags: 0,
        }
    }
}

/// A chown that changes nothing is allowed, every other is not: files have no owner in storage.
pub(super) fn check_owner(
    (uid, gid): (u32, u32),
    new_uid: Option<u32>,
    new_gid: Option<u32>,
) -> Result<(), Errno> {
    let same = new_uid.is_none_or(|new| new == uid) && new_gid.is_none_or(|new| new == gid);
    if same { Ok(()) } else { Err(Errno::PERM) }
}

/// Attributes with the number 0: the kernel then looks the entry up when it needs it.
pub(super) fn unknown_attributes(kind: FileType) -> FileAttr {
    let epoch = SystemTime::UNIX_EPOCH;
    let facts = FileFacts {
        inode: 0,
        kind,
        mode: 0,
        size: 0,
        links: 1,
        accessed: epoch,
        modified: epoch,
        changed: epoch,
    };
    facts.to_attributes((0, 0))
}
