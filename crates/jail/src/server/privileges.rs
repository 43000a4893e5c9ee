//! Runs in: server and mount server, before their first thread.
//!
//! Gives up the privileges of a process that has started its spawner and needs none itself.

use std::io;

use crate::{
    seccomp::{mount_server_filter, server_filter},
    shared::small_filter::{FilterVerdict, SmallFilter},
    sys::{self, Call, Errno, PrctlOption},
};

/// Gives up every capability of this thread and of its later children, for good.
///
/// Capabilities belong to a thread: call it while there is only one.
pub fn drop_all_capabilities() -> io::Result<()> {
    drop_bounding_set()?;
    drop_capabilities()
}

/// Becomes another user with one group, and gives up every capability. Other processes of that user
/// cannot inspect this one.
pub fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    drop_bounding_set()?;
    sys::become_user(uid, gid, true).map_err(to_io_error)?;
    drop_capabilities()
}

/// Forbids other processes of the same user to inspect this one, and disables core dumps.
pub fn forbid_inspection() -> io::Result<()> {
    sys::prctl(PrctlOption::Dumpable, 0).map_err(to_io_error)
}

fn drop_bounding_set() -> io::Result<()> {
    let last = std::fs::read_to_string("/proc/sys/kernel/cap_last_cap")?;
    for capability in 0..=last.trim().parse::<usize>().unwrap_or(63) {
        match sys::prctl(PrctlOption::DropBounding, capability) {
            // An ordinary user has none to drop. The next step sets `no_new_privs`, so that it
            // never gets one by exec.
            Err(Errno::PERM) => break,
            dropped => dropped.map_err(to_io_error)?,
        }
    }
    Ok(())
}

fn drop_capabilities() -> io::Result<()> {
    sys::capset_none().map_err(to_io_error)?;
    sys::prctl(PrctlOption::NoNewPrivs, 1).map_err(to_io_error)
}

/// Puts this thread and its later children under the server's filter. Refusals are logged, except
/// that of `clone3`: libc tries it for every thread, and then uses `clone`.
///
/// # Errors
/// If the kernel accepts no filter.
pub fn confine_server() -> sys::Result<()> {
    install_silent_refusals(&[Call::Clone3])?;
    sys::install_logged_seccomp(server_filter())
}

/// Confines a mount server that waits for its mounts. It can still become an ordinary user by
/// [`become_waiting_user`], and restrict itself to the directories of its mounts.
pub fn prepare_mount_server() -> io::Result<()> {
    drop_bounding_set()?;
    sys::prctl(PrctlOption::NoNewPrivs, 1).map_err(to_io_error)?;
    install_silent_refusals(&[Call::Clone3]).map_err(to_io_error)?;
    sys::install_logged_seccomp(mount_server_filter()).map_err(to_io_error)
}

/// A process that was prepared becomes another user, if it can, and gives up every capability.
pub fn become_waiting_user(user: Option<(u32, u32)>) -> io::Result<()> {
    if let Some((uid, gid)) = user {
        sys::become_user(uid, gid, true).map_err(to_io_error)?;
    }
    sys::capset_none().map_err(to_io_error)
}

/// Takes from a mount server what it needed to confine itself. From now on it has the calls of the
/// server, and without network no socket: the ones that it has are open.
///
/// # Errors
/// If the kernel accepts no filter.
pub fn confine_mount_server(has_network: bool) -> sys::Result<()> {
    const FINAL: [Call; 9] = [
        Call::Setgroups,
        Call::Setresgid,
        Call::Setresuid,
        Call::Capset,
        Call::LandlockCreateRuleset,
        Call::LandlockAddRule,
        Call::LandlockRestrictSelf,
        Call::Seccomp,
        Call::Socket,
    ];
    let kept = usize::from(has_network);
    install_silent_refusals(&FINAL[..FINAL.len() - kept])
}

/// Answers these calls with `ENOSYS` and without a line in the audit log.
fn install_silent_refusals(calls: &[Call]) -> sys::Result<()> {
    let filter = SmallFilter::of_calls(calls, FilterVerdict::NotImplemented, FilterVerdict::Allow);
    sys::install_seccomp(filter.as_bytes())
}

fn to_io_error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}
