//! Runs in: server (no capabilities), mount server (no capabilities). Opens paths beneath a
//! directory. No path leads out of it, and none goes through a symbolic link or to another file
//! system.

use std::{
    ffi::OsStr,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
};

use rustix::{
    fs::{Mode, OFlags, ResolveFlags},
    io::{Errno, Result},
};

/// How paths are resolved.
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// A path below a directory: the open parent, and one plain name in it.
pub(crate) struct Beneath<'p> {
    pub(crate) parent: OwnedFd,
    pub(crate) name: &'p OsStr,
}

/// Opens a path beneath a directory; an empty path is the directory itself.
pub(crate) fn open_beneath(
    root: impl AsFd,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd> {
    let path = if path.is_empty() { b"." } else { path };
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    loop {
        // The kernel asks for another attempt if something was renamed on the way.
        match rustix::fs::openat2(&root, OsStr::from_bytes(path), flags, mode, RESOLVE) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return opened,
        }
    }
}

impl<'p> Beneath<'p> {
    /// Opens the parent of a path. The name is one component, whatever it is called.
    pub(crate) fn open_parent(root: impl AsFd, path: &'p [u8]) -> Result<Self> {
        let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&b""[..], path),
        };
        if matches!(name, b"" | b"." | b"..") {
            return Err(Errno::INVAL);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let parent = open_beneath(root, parent, flags, Mode::empty())?;
        Ok(Self { parent, name: OsStr::from_bytes(name) })
    }
}
