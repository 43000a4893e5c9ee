//! Runs in: server (root until it is confined, then its own user).
//!
//! A private root file system for the server: an empty tmpfs, some directories of the host bound
//! read-only at their own paths, and the directories that it writes to at theirs. So those may be
//! below a directory that only root can enter, and the rest of the host cannot be read.

use std::{
    ffi::CString,
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::symlink},
    },
    path::{Path, PathBuf},
};

use cloche_jail::sys::{self, Errno};
use rustix::fs::Mode;

const PRIVATE_REC: u64 = 1 << 18 | 16384;
const READ_ONLY: u64 = 1;
const NOSUID_NODEV: u64 = 2 | 4;
const NOEXEC: u64 = 8;
const REMOUNT_BIND: u64 = 32 | 4096;
const REMOUNT: u64 = 32;
/// Where the new root is built. It covers the host's directory only in our own mount namespace.
const STAGE: &str = "/tmp";
/// Devices that libraries open by name.
const DEVICES: [&str; 4] = ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"];

/// An open part of the host, and its path in the new root.
struct RootPart {
    path: PathBuf,
    tree: OwnedFd,
    is_directory: bool,
    writable: bool,
}

/// Replaces the host's mounts by a root with these parts. After an error everything is as visible
/// as before.
pub(super) fn enter_private_root(reads: &[PathBuf], writes: &[&Path]) -> io::Result<()> {
    let is_root = rustix::process::geteuid().is_root() && sys::unshare(sys::CLONE_NEWNS).is_ok();
    if !is_root {
        enter_user_namespace()?;
    }
    mount_at(c"", Path::new("/"), c"", PRIVATE_REC, c"")?;
    let mut parts = Vec::new();
    let mut links = Vec::new();
    for path in reads.iter().map(PathBuf::as_path).chain(DEVICES.map(Path::new)) {
        match fs::read_link(path) {
            // The links of a merged /usr.
            Ok(target) if path.parent() == Some(Path::new("/")) => {
                links.push((path.to_owned(), target));
            }
            _ => parts.extend(RootPart::open(path, false)),
        }
    }
    for path in writes {
        parts.push(RootPart::open(path, true)?);
    }
    // Outer directories first, because they would cover the inner ones.
    parts.sort_by_key(|part| part.path.components().count());
    let umask = rustix::process::umask(Mode::WGRP | Mode::WOTH);
    let built = build_root(&parts, &links);
    rustix::process::umask(umask);
    if let Err(error) = built {
        let _ = rustix::mount::unmount(STAGE, rustix::mount::UnmountFlags::DETACH);
        return Err(error);
    }
    std::env::set_current_dir(STAGE)?;
    sys::pivot_to_current_dir().map_err(errno_to_io)?;
    mount_at(c"", Path::new("/"), c"", REMOUNT | READ_ONLY | NOSUID_NODEV, c"")?;
    std::env::set_current_dir(writes.first().copied().unwrap_or(Path::new("/")))
}

fn build_root(parts: &[RootPart], links: &[(PathBuf, PathBuf)]) -> io::Result<()> {
    let root = Path::new(STAGE);
    mount_at(c"cloche", root, c"tmpfs", NOSUID_NODEV, c"mode=755,size=1m")?;
    for (path, target) in links {
        symlink(target, path_in_stage(path))?;
    }
    for part in parts {
        let target = path_in_stage(&part.path);
        match part.is_directory {
            true => fs::create_dir_all(&target)?,
            false => {
                fs::create_dir_all(target.parent().unwrap_or(root))?;
                if !target.exists() {
                    fs::write(&target, "")?;
                }
            }
        }
        if part.path == Path::new("/proc") && mount_own_proc(&target).is_ok() {
            continue;
        }
        sys::attach_mount(part.tree.as_raw_fd(), &to_c_path(&target)).map_err(errno_to_io)?;
        if !part.writable && part.is_directory {
            // The kernel refuses this where the host's own flags are locked. Modes and Landlock
            // forbid writing anyway.
            let flags = REMOUNT_BIND | READ_ONLY | NOSUID_NODEV;
            let _ = mount_at(c"", &target, c"", flags, c"");
        }
    }
    Ok(())
}

/// Mounts a `/proc` that hides processes of other users. Only root may mount one.
fn mount_own_proc(target: &Path) -> io::Result<()> {
    mount_at(c"proc", target, c"proc", NOSUID_NODEV | NOEXEC, c"hidepid=2")
}

/// An ordinary user may mount in a user namespace. The ids are mapped to themselves.
fn enter_user_namespace() -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    sys::unshare(sys::CLONE_NEWUSER | sys::CLONE_NEWNS).map_err(errno_to_io)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
}

impl RootPart {
    fn open(path: &Path, writable: bool) -> io::Result<Self> {
        let is_directory = fs::metadata(path)?.is_dir();
        let tree = sys::into_owned_fd(sys::open_tree(&to_c_path(path)).map_err(errno_to_io)?);
        Ok(Self { path: path.to_owned(), tree, is_directory, writable })
    }
}

/// The path in the new root while it is being built.
fn path_in_stage(path: &Path) -> PathBuf {
    Path::new(STAGE).join(path.strip_prefix("/").unwrap_or(path))
}

fn mount_at(
    source: &std::ffi::CStr,
    target: &Path,
    kind: &std::ffi::CStr,
    flags: u64,
    data: &std::ffi::CStr,
) -> io::Result<()> {
    sys::mount(source, &to_c_path(target), kind, flags, data).map_err(errno_to_io)
}

fn to_c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

fn errno_to_io(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}
