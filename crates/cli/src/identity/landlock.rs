//! Runs in: server (root until it is confined, then its own user).
//!
//! The server's Landlock rules: it writes in its data directory and to `/dev/null`, executes
//! nothing, and lists and reads what a server needs. TCP stays open: webhooks, buckets, models and
//! sidecars are reached by it.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use cloche_jail::sys::{self, Errno, LandlockRuleset};

const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const MAKE_SOCK: u64 = 1 << 9;
const MAKE_BLOCK: u64 = 1 << 11;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;

/// Puts this thread, and all that come from it, under the rules; or says why this kernel cannot.
pub(super) fn restrict_access(
    reads: &[PathBuf],
    data_dir: Option<&Path>,
    governs_reads: bool,
) -> Result<(), String> {
    let version = sys::landlock_version().unwrap_or(0);
    let governed = match version {
        0 => return Err("this kernel has no Landlock, or it is off".to_owned()),
        1 => return Err("version 1 of Landlock lets no file be moved; Linux 5.19 has 2".to_owned()),
        2 => (1 << 14) - 1,
        3 | 4 => (1 << 15) - 1,
        _ => (1 << 16) - 1,
    };
    let files = if governs_reads { governed } else { governed & !READ_FILE };
    enforce_ruleset(version, files, reads, data_dir).map_err(|error| error.to_string())
}

fn enforce_ruleset(
    version: u32,
    files: u64,
    reads: &[PathBuf],
    data_dir: Option<&Path>,
) -> io::Result<()> {
    // From version 6 on: no abstract sockets and no signals to processes outside.
    let (scoped, size) = match version {
        0..=3 => (0, 8),
        4 | 5 => (0, 16),
        _ => (0b11, 24),
    };
    let ruleset = LandlockRuleset { files, network: 0, scoped };
    let rules = sys::into_owned_fd(sys::landlock_create(&ruleset, size).map_err(errno_to_io)?);
    for path in reads {
        // What is not there need not be read.
        if let Ok(place) = File::open(path) {
            let wanted = if place.metadata()?.is_dir() { READ_FILE | READ_DIR } else { READ_FILE };
            allow_path(&rules, &place, wanted & files)?;
        }
    }
    for device in ["/dev/null", "/dev/urandom"] {
        let wanted = if device == "/dev/null" { WRITE_FILE | TRUNCATE } else { 0 };
        allow_path(&rules, &File::open(device)?, (wanted | READ_FILE) & files)?;
    }
    if let Some(data_dir) = data_dir {
        // Whiteouts of layers are character devices, so those can be made; the filter knows which.
        let never = EXECUTE | MAKE_SOCK | MAKE_BLOCK | IOCTL_DEV;
        allow_path(&rules, &File::open(data_dir)?, files & !never)?;
    }
    sys::landlock_restrict(rules.as_raw_fd()).map_err(errno_to_io)
}

fn allow_path(rules: &OwnedFd, place: &File, access: u64) -> io::Result<()> {
    if access == 0 {
        return Ok(());
    }
    sys::landlock_allow(rules.as_raw_fd(), place.as_raw_fd(), access).map_err(errno_to_io)
}

fn errno_to_io(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}
