//! Runs in: stack worker (no capabilities).
//!
//! Terminates TCP and UDP of one cell. It reads packets from the cell's tun device and asks the
//! broker for each connection; the broker answers with a connected socket or a refusal.
//!
//! The spawner forks it for each cell, without exec. It opens nothing itself, so its seccomp filter
//! has neither `socket` nor `connect`. It ends when the cell's network namespace or the broker's end
//! of the socket is gone.

pub(crate) mod budget;
mod connection;
mod datagrams;
mod device;
mod ingress;
mod ip_stacks;
mod link;
mod replies;
pub(crate) mod worker;

use std::{
    io,
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind},
};

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use device::VNET_HEADER;
#[cfg(test)]
pub(crate) use ingress::tests::v4_packet;
use worker::StackWorker;

/// Serves the cell behind `tun`, a device of `cloche_jail::sys::make_tun`, with the socket of a
/// session, until the cell or the session ends. The limits come from the broker.
///
/// # Errors
/// If the device or the socket fails, or if a packet of the guest made the stack panic. The cell
/// has no network then.
pub fn run(tun: OwnedFd, broker: OwnedFd) -> io::Result<()> {
    let served = catch_unwind(AssertUnwindSafe(|| {
        let mut worker = StackWorker::start(tun, broker)?;
        while worker.turn()? {}
        Ok(())
    }));
    served.unwrap_or_else(|_| Err(io::Error::other("the network stack of a cell panicked")))
}
