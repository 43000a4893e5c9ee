//! Runs in: mount server (no capabilities). What a file of the host is to a guest.

use std::{
    ffi::{OsStr, OsString},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    time::{Duration, SystemTime},
};

use fuser::{FileType, TimeOrNow};
use rustix::{
    fs::{AtFlags, Dir, OFlags, Statx, StatxFlags, Timespec, Timestamps},
    io::{Errno, Result},
};

use super::nodes::FileIdentity;
use crate::{
    server::attributes::{FileFacts, ROOT},
    volume::Beneath,
};

pub(super) const STATX: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

pub(super) fn stat_file(file: impl AsFd) -> Result<Statx> {
    rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, STATX)
}

pub(super) fn stat_at(at: &Beneath<'_>) -> Result<Statx> {
    rustix::fs::statx(&at.parent, at.name, AtFlags::SYMLINK_NOFOLLOW, STATX)
}

pub(super) fn identity_of(found: &Statx) -> FileIdentity {
    (found.stx_ino, found.stx_btime.tv_sec, found.stx_btime.tv_nsec)
}

/// What a guest can use of a file system of the host: files, directories and links.
pub(super) fn kind_of(found: &Statx) -> Result<FileType> {
    match rustix::fs::FileType::from_raw_mode(u32::from(found.stx_mode)) {
        rustix::fs::FileType::RegularFile => Ok(FileType::RegularFile),
        rustix::fs::FileType::Directory => Ok(FileType::Directory),
        rustix::fs::FileType::Symlink => Ok(FileType::Symlink),
        _ => Err(Errno::NOENT),
    }
}

pub(super) fn facts_of(node: u64, (kind, mode): (FileType, u32), found: &Statx) -> FileFacts {
    FileFacts {
        inode: node,
        kind,
        mode,
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

/// The flags with which a file of the host is opened for the flags of a guest. It is emptied
/// afterwards, if at all: the quota counts that.
pub(super) fn host_flags(flags: i32) -> OFlags {
    let asked = OFlags::from_bits_retain(flags.cast_unsigned());
    let kept = asked & (OFlags::ACCMODE | OFlags::APPEND);
    kept | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK
}

pub(super) fn timestamps(accessed: Option<TimeOrNow>, modified: Option<TimeOrNow>) -> Timestamps {
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

pub(super) fn read_entries(directory: &OwnedFd) -> Result<Vec<(OsString, FileType)>> {
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
