//! Runs in: server (root until it is confined, then its own user).
//!
//! The server's Landlock rules. It may write to its own directories and to `/dev/null`, execute
//! nothing, and list and read what every server needs. TCP is not restricted, because webhooks,
//! buckets, models and sidecars need it.

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

/// Applies the rules to this thread and all its children. Returns why this kernel cannot.
pub(super) fn restrict_access(
    reads: &[PathBuf],
    writes: &[&Path],
    governs_reads: bool,
) -> Result<(), String> {
    let version = sys::landlock_version().unwrap_or(0);
    let governed = match version {
        0 => return Err("this kernel has no Landlock, or it is disabled".to_owned()),
        1 => return Err("Landlock 1 forbids moving files; version 2 needs Linux 5.19".to_owned()),
        2 => (1 << 14) - 1,
        3 | 4 => (1 << 15) - 1,
        _ => (1 << 16) - 1,
    };
    let files = if governs_reads { governed } else { governed & !READ_FILE };
    enforce_ruleset(version, files, reads, writes).map_err(|error| error.to_string())
}

fn enforce_ruleset(
    version: u32,
    files: u64,
    reads: &[PathBuf],
    writes: &[&Path],
) -> io::Result<()> {
    // From version 6 on, abstract sockets and signals to processes outside are blocked.
    let (scoped, size) = match version {
        0..=3 => (0, 8),
        4 | 5 => (0, 16),
        _ => (0b11, 24),
    };
    let ruleset = LandlockRuleset { files, network: 0, scoped };
    let rules = sys::into_owned_fd(sys::landlock_create(&ruleset, size).map_err(errno_to_io)?);
    for path in reads {
        // A missing path needs no rule.
        if let Ok(file) = File::open(path) {
            let wanted = if file.metadata()?.is_dir() { READ_FILE | READ_DIR } else { READ_FILE };
            allow_path(&rules, &file, wanted & files)?;
        }
    }
    for device in ["/dev/null", "/dev/urandom"] {
        let wanted = if device == "/dev/null" { WRITE_FILE | TRUNCATE } else { 0 };
        allow_path(&rules, &File::open(device)?, (wanted | READ_FILE) & files)?;
    }
    for path in writes {
        // Whiteouts of layers are character devices, so those may be created. The seccomp filter
        // restricts the device number.
        let never = EXECUTE | MAKE_SOCK | MAKE_BLOCK | IOCTL_DEV;
        allow_path(&rules, &File::open(path)?, files & !never)?;
    }
    sys::landlock_restrict(rules.as_raw_fd()).map_err(errno_to_io)
}

fn allow_path(rules: &OwnedFd, file: &File, access: u64) -> io::Result<()> {
    if access == 0 {
        return Ok(());
    }
    sys::landlock_allow(rules.as_raw_fd(), file.as_raw_fd(), access).map_err(errno_to_io)
}

fn errno_to_io(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}
