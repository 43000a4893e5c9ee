//! Runs in: broker supervisor (no capabilities).
//!
//! Starts the broker, and a new one when it has ended. The server cannot: it is confined before the
//! first request. The supervisor sends the server one socket for each broker, reads nothing from
//! it, and ends with it. It must not know a policy, a name or a secret.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    process::Child,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
    process::{Pid, PidfdFlags, pidfd_open},
};
use serde::{Deserialize, Serialize};

use crate::protocol::{encode_message, send_packet};

/// The pause before a broker that ended at once is started again, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// A broker that has lived so long did not end by its start.
const LIVED: Duration = Duration::from_secs(10);

/// What a supervisor tells the server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SupervisorMessage {
    /// The descriptor is the socket of a broker that was just started.
    BrokerStarted,
}

/// Supervises brokers until the server closes its end of `server`, a seqpacket socket.
/// `start_broker` starts a process with its end of a socket.
///
/// # Errors
/// If a broker cannot be started at all.
pub fn run(
    server: OwnedFd,
    mut start_broker: impl FnMut(OwnedFd) -> io::Result<Child>,
) -> io::Result<()> {
    let message =
        encode_message(&SupervisorMessage::BrokerStarted).map_err(|_| io::ErrorKind::Other)?;
    let mut pause = PAUSES.0;
    loop {
        let flags = SocketFlags::CLOEXEC;
        let (control, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let started = Instant::now();
        let mut broker = start_broker(theirs)?;
        if send_packet(server.as_fd(), &message, Some(control.as_fd())).is_err() {
            // The server is gone. Without its socket the broker ends, too.
            return Ok(());
        }
        drop(control);
        if !wait_for_end(server.as_fd(), &broker)? {
            return Ok(());
        }
        broker.wait()?;
        if started.elapsed() >= LIVED {
            pause = PAUSES.0;
        }
        if is_closed(server.as_fd(), pause)? {
            return Ok(());
        }
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// Waits until the broker has ended. `false` if the server has ended before.
fn wait_for_end(server: BorrowedFd<'_>, broker: &Child) -> io::Result<bool> {
    let pid = i32::try_from(broker.id()).ok().and_then(Pid::from_raw);
    let pidfd = pidfd_open(pid.ok_or(io::ErrorKind::InvalidInput)?, PidfdFlags::empty())?;
    loop {
        let mut fds = [PollFd::new(&server, PollFlags::RDHUP), PollFd::new(&pidfd, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        if !fds[0].revents().is_empty() {
            return Ok(false);
        }
        if !fds[1].revents().is_empty() {
            return Ok(true);
        }
    }
}

/// Whether the server closes its socket within this time.
fn is_closed(server: BorrowedFd<'_>, within: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(within).ok();
    let mut fds = [PollFd::new(&server, PollFlags::RDHUP)];
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) => Ok(!fds[0].revents().is_empty()),
        // Too early is not too late: the broker is started a little sooner.
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
