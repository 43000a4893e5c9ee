//! Runs in: driver (root), and its child that enters the user namespace of the guest.
//!
//! Limits of the guest's user namespace for objects that the kernel also charges to the user who
//! made the namespace. A bundle cannot express them.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use cloche_jail::{
    proc_masks::NAMESPACE_LIMITS,
    sys::{self, CloneRequest, CloneSide},
};
use rustix::process::{WaitId, WaitIdOptions, waitid};

/// Sets the limits of the user namespace of this process, which has run nothing yet.
pub(super) fn limit_namespace(guest: &OwnedFd) -> io::Result<()> {
    let os = |errno: sys::Errno| io::Error::from_raw_os_error(errno.0);
    match sys::clone(CloneRequest::default()).map_err(os)? {
        CloneSide::Child => sys::exit(i32::from(write_limits(guest).is_err())),
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

/// The files show the limits of the namespace that the process is in.
fn write_limits(guest: &OwnedFd) -> io::Result<()> {
    let entered = sys::setns(guest.as_raw_fd(), sys::CLONE_NEWUSER);
    entered.map_err(|errno| io::Error::from_raw_os_error(errno.0))?;
    for (name, value) in NAMESPACE_LIMITS {
        fs::write(format!("/proc/sys/user/{name}"), value.to_string())?;
    }
    Ok(())
}
