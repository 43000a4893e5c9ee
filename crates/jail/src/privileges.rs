//! Giving up the privileges of a process that has started its spawner and needs none itself.

use std::io;

use crate::sys::{self, Errno, Prctl};

/// Gives up every capability of this thread, for good, and of all it starts.
///
/// Threads have capabilities each: to be called while there is only one.
pub fn drop_all() -> io::Result<()> {
    let os = |errno: Errno| io::Error::from_raw_os_error(errno.0);
    let last = std::fs::read_to_string("/proc/sys/kernel/cap_last_cap")?;
    for capability in 0..=last.trim().parse::<usize>().unwrap_or(63) {
        match sys::prctl(Prctl::DropBounding, capability) {
            // An ordinary user has none to drop, and cannot get any without the next step.
            Err(Errno::PERM) => break,
            dropped => dropped.map_err(os)?,
        }
    }
    sys::capset_none().map_err(os)?;
    sys::prctl(Prctl::NoNewPrivs, 1).map_err(os)
}
