//! Runs in: mount server, before its first thread. Gives up what the process has from the spawner.
//!
//! While it waits it has the limits and, but for a few calls, the filter of a mount server. When it
//! gets its mounts, the spawner's part has it change its user and drop its capabilities. Then it loses
//! the view of every file except the directories of its mounts, and the calls that only served to
//! confine it; without an object store also all sockets.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use cloche_jail::{
    privileges, seccomp,
    sys::{self, Errno, LandlockRuleset, PrctlOption},
};

/// Data that this process may have: buffers of FUSE, read-ahead and parts that are uploaded.
const MAX_DATA: u64 = 1 << 30;
/// RLIMIT_DATA, RLIMIT_CORE and RLIMIT_NOFILE of setrlimit(2).
const RLIMIT_DATA: u32 = 2;
const RLIMIT_CORE: u32 = 4;

/// Landlock's accesses to files, by version, without making devices.
const fn file_accesses(version: u32) -> u64 {
    let bits = match version {
        0 | 1 => 13,
        2 => 14,
        3 | 4 => 15,
        _ => 16,
    };
    (1 << bits) - 1
}

/// Confines a process that will be a mount server, as far as it can be before its mounts are known.
/// It can still become another user, and then has to be confined to its directories. This part takes
/// longer than a short program, so it is done while the process waits.
///
/// # Errors
/// When the kernel refuses a part of it.
pub fn prepare_mount_server() -> io::Result<()> {
    let limit = |which, most| {
        sys::setrlimit(which, most, most).map_err(|Errno(code)| io::Error::from_raw_os_error(code))
    };
    limit(RLIMIT_DATA, MAX_DATA)?;
    limit(RLIMIT_CORE, 0)?;
    privileges::prepare_mount_server()
}

/// Confines this process to these directories.
pub(super) fn confine(directories: &[BorrowedFd<'_>], has_network: bool) -> io::Result<()> {
    let done = || -> Result<(), Errno> {
        sys::prctl(PrctlOption::Dumpable, 0)?;
        restrict_files(directories)?;
        seccomp::confine_mount_server(has_network)
    };
    done().map_err(|Errno(code)| io::Error::from_raw_os_error(code))
}

/// Where the kernel has no Landlock, the private root of the spawner and the change of user remain.
fn restrict_files(directories: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    const MAKE_DEVICES: u64 = 1 << 6 | 1 << 11;
    let version = sys::landlock_version().unwrap_or(0);
    if version == 0 {
        return Ok(());
    }
    let files = file_accesses(version);
    let (scoped, size) = match version {
        0..=3 => (0, 8),
        4 | 5 => (0, 16),
        _ => (0b11, 24),
    };
    let ruleset = sys::landlock_create(&LandlockRuleset { files, network: 0, scoped }, size)?;
    let ruleset = sys::into_owned_fd(ruleset);
    for directory in directories {
        let access = files & !MAKE_DEVICES;
        sys::landlock_allow(ruleset.as_raw_fd(), directory.as_raw_fd(), access)?;
    }
    sys::landlock_restrict(ruleset.as_fd().as_raw_fd())
}
