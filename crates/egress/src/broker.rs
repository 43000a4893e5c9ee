//! Runs in: broker (no capabilities).
//!
//! The process that decides what a cell reaches. It answers DNS, dials, and checks names in first
//! bytes. `cli` starts it as the hidden command `cloche __network-broker` before the server confines
//! itself, in the host's network namespace, and confines it.

use std::{io, os::fd::OwnedFd};

/// Serves the server behind `control`, a seqpacket socket, until the other end is closed.
///
/// # Errors
/// If the runtime cannot start, or the first packet is not a configuration.
pub fn run(control: OwnedFd) -> io::Result<()> {
    drop(control);
    Err(io::ErrorKind::Unsupported.into())
}
