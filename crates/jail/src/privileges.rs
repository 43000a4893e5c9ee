//! Giving up the privileges of a process that has started its spawner and needs none itself.

use std::io;

use crate::sys::{self, Errno, PrctlOption};

/// Gives up every capability of this thread, for good, and of all it starts.
///
/// Threads have capabilities each: to be called while there is only one.
pub fn drop_all_capabilities() -> io::Result<()> {
    drop_bounding_set()?;
    drop_capabilities()
}

/// The same after becoming another user, with that group and no other. Others of that user cannot
/// look into this process.
pub fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    drop_bounding_set()?;
    sys::become_user(uid, gid, true).map_err(to_io_error)?;
    drop_capabilities()
}

/// Lets no other process of the same user look into this one, and leaves no core dumps.
pub fn forbid_inspection() -> io::Result<()> {
    sys::prctl(PrctlOption::Dumpable, 0).map_err(to_io_error)
}

fn drop_bounding_set() -> io::Result<()> {
    let last = std::fs::read_to_string("/proc/sys/kernel/cap_last_cap")?;
    for capability in 0..=last.trim().parse::<usize>().unwrap_or(63) {
        match sys::prctl(PrctlOption::DropBounding, capability) {
            // An ordinary user has none to drop, and cannot get any without the next step.
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

fn to_io_error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}
