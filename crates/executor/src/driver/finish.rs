//! Runs in: driver (root), and its child that enters the mount namespace of the guest.
//!
//! Adds to a cell what the runtime has left out, before its guest starts. crun drops the flags of
//! `/proc`, and both runtimes those of its masks.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use cloche_jail::{
    proc_masks,
    sys::{self, CloneRequest, CloneSide},
};
use rustix::process::{WaitId, WaitIdOptions, waitid};

use super::{
    DriverSetup,
    stage::{NODEV, NOEXEC, NOSUID, RDONLY, mount_at},
};

const REMOUNT_BIND: u64 = 32 | 4096;

/// Sets the flags of the mounts below `/proc` of this process, which has run nothing yet.
pub(super) fn restrict_mounts(setup: &DriverSetup, guest: &OwnedFd) -> io::Result<()> {
    let os = |errno: sys::Errno| io::Error::from_raw_os_error(errno.0);
    match sys::clone(CloneRequest::default()).map_err(os)? {
        CloneSide::Child => sys::exit(i32::from(remount_all(setup, guest).is_err())),
        CloneSide::Parent(_, pidfd) => {
            let pidfd = sys::into_owned_fd(pidfd);
            let ended = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED)?;
            match ended.and_then(|ended| ended.exit_status()) {
                Some(0) => Ok(()),
                _ => Err(io::ErrorKind::PermissionDenied.into()),
            }
        }
    }
}

fn remount_all(setup: &DriverSetup, guest: &OwnedFd) -> io::Result<()> {
    // The root of this process is then the root of that namespace.
    let entered = sys::setns(guest.as_raw_fd(), sys::CLONE_NEWNS);
    entered.map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
    let flags = REMOUNT_BIND | NOSUID | NODEV | NOEXEC;
    mount_at("", "/proc", "", flags, "")?;
    let masks = setup.facts.proc_masks.iter();
    let directories = masks.filter(|(_, is_directory)| *is_directory).map(|(path, _)| &path[..]);
    for path in directories.chain(proc_masks::READ_ONLY) {
        mount_at("", &format!("/proc/{path}"), "", flags | RDONLY, "")?;
    }
    Ok(())
}
