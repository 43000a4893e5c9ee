//! Runs in: stack worker (no capabilities).
//!
//! The other end of a connection of the guest: a socket of the broker.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Instant,
};

use rustix::{
    io::Errno,
    net::{SendFlags, Shutdown, send, shutdown},
};
use smoltcp::socket::tcp;

use crate::stack::budget::Rates;

/// Bytes read from the other end before the stack sends them on: 16 of its longest segments. A rest
/// would be a segment of its own, and wake the program for a few bytes.
const READ_AT_ONCE: usize = 16 * 65_495;

/// The socket, and how far both sides have come.
pub(super) struct HostSocket {
    pub(super) fd: OwnedFd,
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// It has sent everything.
    pub(super) ended: bool,
    /// The guest has sent everything.
    pub(super) guest_ended: bool,
    /// Everything of the guest was sent, and its end too.
    pub(super) shut: bool,
}

/// Whether the guest has sent everything and said so.
pub(super) fn has_guest_ended(socket: &tcp::Socket<'_>) -> bool {
    matches!(
        socket.state(),
        tcp::State::CloseWait | tcp::State::LastAck | tcp::State::Closing | tcp::State::TimeWait
    )
}

/// What became of the bytes of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// All that there were, or as many as fit.
    All,
    /// There may be more at once.
    More,
    /// A rate stopped them.
    Throttled,
}

impl HostSocket {
    /// A socket of which nothing is known yet.
    pub(super) fn new(fd: OwnedFd) -> Self {
        let (ended, guest_ended, shut) = (false, false, false);
        Self { fd, readable: true, writable: true, ended, guest_ended, shut }
    }

    /// Sends what the guest has sent, and its end.
    pub(super) fn send_outward(
        &mut self,
        socket: &mut tcp::Socket<'_>,
        now: Instant,
        rates: &mut Rates,
    ) -> io::Result<Moved> {
        while self.writable && socket.can_recv() {
            let most = rates.outward_available(now);
            if most == 0 {
                return Ok(Moved::Throttled);
            }
            let sent = socket.recv(|data| {
                let data = &data[..data.len().min(most)];
                match send(&self.fd, data, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                    Ok(len) => (len, Ok(len)),
                    Err(error) => (0, Err(error)),
                }
            });
            match sent {
                Ok(Ok(len)) => rates.count_outward(len),
                Ok(Err(Errno::AGAIN)) => self.writable = false,
                Ok(Err(Errno::INTR)) => {}
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => break,
            }
        }
        self.guest_ended |= has_guest_ended(socket);
        if self.guest_ended && !self.shut && socket.recv_queue() == 0 {
            self.shut = true;
            // The other end may have reset the connection; reading says so.
            let _ = shutdown(&self.fd, Shutdown::Write);
        }
        Ok(Moved::All)
    }

    /// Reads what the other end has sent, and its end.
    pub(super) fn read_inward(
        &mut self,
        socket: &mut tcp::Socket<'_>,
        now: Instant,
        rates: &mut Rates,
    ) -> io::Result<Moved> {
        let mut read = 0;
        while self.readable && !self.ended && socket.can_send() {
            let most = rates.inward_available(now);
            if most == 0 {
                return Ok(Moved::Throttled);
            }
            if read >= READ_AT_ONCE {
                return Ok(Moved::More);
            }
            let received = socket.send(|space| {
                let len = space.len().min(most).min(READ_AT_ONCE);
                match rustix::io::read(self.fd.as_fd(), &mut space[..len]) {
                    Ok(len) => (len, Ok(len)),
                    Err(error) => (0, Err(error)),
                }
            });
            match received {
                Ok(Ok(0)) => self.ended = true,
                Ok(Ok(len)) => {
                    read += len;
                    rates.count_inward(len);
                }
                Ok(Err(Errno::AGAIN)) => self.readable = false,
                Ok(Err(Errno::INTR)) => {}
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => break,
            }
        }
        if self.ended && socket.may_send() {
            socket.close();
        }
        Ok(Moved::All)
    }
}
