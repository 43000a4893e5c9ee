//! Runs in: stack worker (no capabilities).
//!
//! Terminates TCP and UDP of one cell. It reads packets from the cell's tun device and asks the
//! broker for each connection; the broker answers with a connected socket or a refusal.
//!
//! The spawner forks it for each cell, without exec. It opens nothing itself, so its seccomp filter
//! has neither `socket` nor `connect`. It ends when the cell's network namespace or the broker's end
//! of the socket is gone.

use std::{io, os::fd::OwnedFd};

/// Serves the cell behind `tun`, a device of `cloche_jail::sys::make_tun`, with the socket of a
/// session, until the cell or the session ends. The limits come from the broker.
///
/// # Errors
/// If the device or the socket fails. The cell has no network then.
pub fn run(tun: OwnedFd, broker: OwnedFd) -> io::Result<()> {
    drop((tun, broker));
    Err(io::ErrorKind::Unsupported.into())
}
