//! Runs in: spawner (root), server before it is confined, pid 1 of a cell.
//!
//! The calls for mounts and file handles that take pointers. Core only.

use core::ffi::CStr;

use super::{
    RawFd,
    errno::Result,
    raw::{AT_RECURSIVE, syscall},
    syscall_table::Call,
};

const AT_EMPTY_PATH: usize = 0x1000;

/// mount(2) with all five arguments.
pub fn mount(source: &CStr, target: &CStr, kind: &CStr, flags: u64, data: &CStr) -> Result<()> {
    // SAFETY: all four strings are NUL-terminated, outlive the call and are only read.
    unsafe {
        let [source, target] = [source, target].map(|text| text.as_ptr() as usize);
        let [kind, data] = [kind, data].map(|text| text.as_ptr() as usize);
        syscall(Call::Mount, [source, target, kind, flags as usize, data, 0])
    }
    .map(drop)
}

/// Maps the owners of files in a detached mount by a user namespace.
pub fn idmap_mount(mount: RawFd, user_namespace: RawFd) -> Result<()> {
    const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
    let attr = [MOUNT_ATTR_IDMAP, 0, 0, user_namespace as u64];
    let (empty, attr_at) = (c"".as_ptr() as usize, attr.as_ptr() as usize);
    // SAFETY: struct mount_attr is four 64-bit words, which is the size given; the path is a
    // static empty string; both are only read.
    unsafe {
        let flags = AT_EMPTY_PATH | AT_RECURSIVE;
        syscall(Call::MountSetattr, [mount as usize, empty, flags, attr_at, 32, 0])
    }
    .map(drop)
}

/// Makes a detached mount read-only.
pub fn make_mount_read_only(mount: RawFd) -> Result<()> {
    const MOUNT_ATTR_RDONLY: u64 = 1;
    let attr = [MOUNT_ATTR_RDONLY, 0, 0, 0];
    let (empty, attr_at) = (c"".as_ptr() as usize, attr.as_ptr() as usize);
    // SAFETY: struct mount_attr is four 64-bit words, which is the size given; the path is a
    // static empty string; both are only read.
    unsafe { syscall(Call::MountSetattr, [mount as usize, empty, AT_EMPTY_PATH, attr_at, 32, 0]) }
        .map(drop)
}

/// Opens a file of a mount by its handle: its length, its type, and space for the longest one.
pub fn open_by_handle(mount: RawFd, handle: &[u32; 34], flags: i32) -> Result<RawFd> {
    let args = [mount as usize, handle.as_ptr() as usize, flags as usize, 0, 0, 0];
    // SAFETY: the kernel takes no handle of more than 128 bytes, and so reads within `handle`.
    unsafe { syscall(Call::OpenByHandleAt, args) }.map(|fd| fd as RawFd)
}
