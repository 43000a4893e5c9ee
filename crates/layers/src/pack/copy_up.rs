//! Makes an overlay copy up every name of some files, not only the names that were used. A layer
//! must contain all names of a file that was changed under one of them.

use std::{
    collections::HashSet,
    ffi::CString,
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::fs::{AtFlags, Mode, Stat, Timespec, Timestamps, UTIME_OMIT};

use super::DIRECTORY;
use crate::beneath::list_names;

/// A directory that is being walked: its identity, and the directories in it that remain.
struct RelinkLevel {
    identity: (u64, u64),
    directories: Vec<CString>,
}

/// Walks an overlay and makes it copy up all names of files with one of these inode numbers. The
/// overlay must be mounted with `index=on`, or each name becomes a separate file.
///
/// # Errors
/// If a directory cannot be read, or the upper directory is out of space.
pub fn copy_up_hard_links(merged: BorrowedFd<'_>, inodes: &HashSet<u64>) -> io::Result<()> {
    let mut here = rustix::fs::openat(merged, ".", DIRECTORY, Mode::empty())?;
    let mut levels = vec![visit_directory(&here, inodes)?];
    while let Some(level) = levels.last_mut() {
        if let Some(name) = level.directories.pop() {
            here = rustix::fs::openat(&here, &name, DIRECTORY, Mode::empty())?;
            levels.push(visit_directory(&here, inodes)?);
            continue;
        }
        levels.pop();
        let Some(above) = levels.last() else { break };
        here = rustix::fs::openat(&here, "..", DIRECTORY, Mode::empty())?;
        if inode_identity(&rustix::fs::fstat(&here)?) != above.identity {
            return Err(io::Error::other("a directory was moved while it was read"));
        }
    }
    Ok(())
}

fn visit_directory(here: &OwnedFd, inodes: &HashSet<u64>) -> io::Result<RelinkLevel> {
    let (directories, others) = list_names(here)?;
    for name in others {
        let stat = rustix::fs::statat(here, &name, AtFlags::SYMLINK_NOFOLLOW)?;
        if inodes.contains(&stat.st_ino) {
            copy_up(here, &name, &stat)?;
        }
    }
    Ok(RelinkLevel { identity: inode_identity(&rustix::fs::fstat(here)?), directories })
}

/// Sets the modification time to its current value. The overlay treats that as a change and copies
/// up.
fn copy_up(here: &OwnedFd, name: &CString, stat: &Stat) -> io::Result<()> {
    let nanos = stat.st_mtime_nsec as _;
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: stat.st_mtime, tv_nsec: nanos },
    };
    Ok(rustix::fs::utimensat(here, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn inode_identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}
