//! Runs in: spawner (root). The socket through which the code of one run calls web tools.
//!
//! The spawner binds a listener in a tmpfs of its own, mounts that tmpfs in a cell that has run
//! nothing yet, and gives the listener to the server. A socket in the file system is reached by its
//! inode, whatever network namespace a process is in, so the cell needs no network. The socket ends
//! with the cell's mount namespace and with the listener, whichever is first.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
};

use cloche_jail::sys;
use rustix::{
    fs::{AtFlags, CWD, Mode},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};

use super::io_error;
use crate::protocol::{TOOL_SOCKET_DIR, TOOL_SOCKET_NAME};

/// Connections that wait to be accepted. The kernel lets further ones wait in `connect`.
const BACKLOG: i32 = 16;

/// Makes tool sockets.
pub(super) struct ToolSocketMounter {
    /// The mount namespace of the spawner, to return to.
    own_namespace: Option<File>,
}

impl ToolSocketMounter {
    pub(super) fn new() -> Self {
        Self { own_namespace: File::open("/proc/self/ns/mnt").ok() }
    }

    /// Mounts a socket in a cell and returns its listener. `cell` is the pidfd of its pid 1.
    pub(super) fn mount(&self, cell: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let own = self.own_namespace.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let directory = make_directory()?;
        let listener = bind_listener(&directory)?;
        sys::setns(cell.as_raw_fd(), sys::CLONE_NEWNS).map_err(io_error)?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        let moved = rustix::mount::move_mount(&directory, "", CWD, TOOL_SOCKET_DIR, flags);
        if sys::setns(own.as_raw_fd(), sys::CLONE_NEWNS).is_err() {
            // Nothing can be done right in the wrong mount namespace: the supervisor starts a new
            // loop.
            sys::exit(1);
        }
        moved?;
        Ok(listener)
    }
}

/// A tmpfs with room for one socket. The guest does not own it, so it can change nothing there.
fn make_directory() -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in [("size", "4096"), ("nr_inodes", "4"), ("mode", "755")] {
        rustix::mount::fsconfig_set_string(&context, key, value)?;
    }
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

fn bind_listener(directory: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let path = format!("/proc/self/fd/{}/{TOOL_SOCKET_NAME}", directory.as_raw_fd());
    rustix::net::bind(&listener, &SocketAddrUnix::new(path)?)?;
    // Only processes of the guest are in the cell.
    let everyone = Mode::from_raw_mode(0o666);
    rustix::fs::chmodat(directory, TOOL_SOCKET_NAME, everyone, AtFlags::empty())?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}
