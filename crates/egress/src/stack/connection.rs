//! Runs in: stack worker (no capabilities).
//!
//! One TCP connection of the guest: its end in the stack, the socket of the broker, and the bytes
//! between them.
//!
//! Each connection has a socket set of its own. The stack searches a set for every packet, so a
//! packet costs the same with one connection as with 256; and what a connection sends can be
//! bounded.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Instant,
};

use rustix::{
    io::Errno,
    net::{SendFlags, Shutdown, send, shutdown, sockopt},
};
use smoltcp::{
    iface::{Interface, PollResult, SocketHandle, SocketSet},
    socket::tcp,
    time::Instant as StackInstant,
};

use super::{
    budget::{BufferBudget, ByteRate},
    device::TunDevice,
    ingress::FlowKey,
};
use crate::protocol::MAX_FIRST_BYTES;

/// Egress passes of one connection before others have their turn.
const MOST_PASSES: usize = 32;
/// Bytes read from the other end before others have their turn.
const MOST_READ: usize = 1024 * 1024;
/// Empty segments in a row without a packet of the guest, after which a connection is reset. A
/// peer that brings the timer of window probes into a state from which it does not recover would
/// otherwise keep the worker sending.
const MOST_EMPTY_SEGMENTS: u32 = 64;

pub(super) struct Connection {
    pub(super) flow: FlowKey,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    pub(super) send_buffer: usize,
    host: HostSide,
    /// When the stack wants to send something by itself.
    pub(super) wakes_at: Option<StackInstant>,
    /// Stopped by a rate: to be tried again soon.
    pub(super) throttled: bool,
    empty_segments: u32,
}

/// The other end.
enum HostSide {
    /// The broker waits for the first bytes of the guest, of which it has so many.
    Unnamed {
        shown: usize,
    },
    Attached(HostSocket),
}

struct HostSocket {
    fd: OwnedFd,
    readable: bool,
    writable: bool,
    /// It has sent everything.
    ended: bool,
    /// Everything of the guest was sent, and its end too.
    shut: bool,
}

/// What both directions may still move.
pub(super) struct Rates {
    pub(super) inward: ByteRate,
    pub(super) outward: ByteRate,
    /// What is left of the bytes of the run.
    pub(super) left: Option<u64>,
}

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pumped {
    /// It waits for events.
    Idle,
    /// It has more to do at once.
    Busy,
    /// It is over.
    Gone,
}

impl Connection {
    /// A connection that waits for the guest's SYN, to be offered next.
    pub(super) fn new(flow: FlowKey, budget: &mut BufferBudget) -> Result<Self, tcp::ListenError> {
        let send_buffer = budget.take_send_buffer();
        let receive = tcp::SocketBuffer::new(vec![0; BufferBudget::RECEIVE]);
        let send = tcp::SocketBuffer::new(vec![0; send_buffer]);
        let mut socket = tcp::Socket::new(receive, send);
        // Segments come as the other end sent them: the programs decide when to wait.
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        // The guest's kernel is always there to acknowledge.
        socket.set_timeout(Some(smoltcp::time::Duration::from_secs(60)));
        socket.listen((flow.remote.ip(), flow.remote.port()))?;
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        Ok(Self {
            flow,
            sockets,
            handle,
            send_buffer,
            host: HostSide::Unnamed { shown: 0 },
            wakes_at: None,
            throttled: false,
            empty_segments: 0,
        })
    }

    fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    /// Gives the packet that the device offers to the stack.
    pub(super) fn take_packet(
        &mut self,
        now: StackInstant,
        stack: &mut Interface,
        device: &mut TunDevice,
    ) {
        self.empty_segments = 0;
        stack.poll_ingress_single(now, device, &mut self.sockets);
    }

    /// Whether the SYN was taken.
    pub(super) fn is_opening(&mut self) -> bool {
        self.socket().state() == tcp::State::SynReceived
    }

    /// Connects it with the other end, to which the first `sent` bytes of the guest were sent.
    pub(super) fn attach(&mut self, fd: OwnedFd, sent: usize, rates: &mut Rates) {
        let mut left = sent;
        while left > 0 {
            let taken = self.socket().recv(|data| {
                let len = data.len().min(left);
                (len, len)
            });
            match taken {
                Ok(len) if len > 0 => left -= len,
                _ => break,
            }
        }
        rates.count_outward(sent - left);
        self.host = HostSide::Attached(HostSocket {
            fd,
            readable: true,
            writable: true,
            ended: false,
            shut: false,
        });
    }

    /// The descriptor of the other end.
    pub(super) fn host_fd(&self) -> Option<&OwnedFd> {
        match &self.host {
            HostSide::Attached(host) => Some(&host.fd),
            HostSide::Unnamed { .. } => None,
        }
    }

    /// Notes what the other end is ready for.
    pub(super) fn mark_ready(&mut self, readable: bool, writable: bool) {
        if let HostSide::Attached(host) = &mut self.host {
            host.readable |= readable;
            host.writable |= writable;
        }
    }

    /// The next bytes of the guest that the broker has not seen, if it waits for them.
    pub(super) fn next_first_bytes(&mut self) -> Option<Vec<u8>> {
        let HostSide::Unnamed { shown } = self.host else {
            return None;
        };
        let bytes = self.socket().peek(MAX_FIRST_BYTES).ok()?;
        let new = bytes.get(shown..).filter(|new| !new.is_empty())?.to_vec();
        self.host = HostSide::Unnamed { shown: shown + new.len() };
        Some(new)
    }

    /// Resets it at the guest's side, and sends the reset.
    pub(super) fn reset(
        &mut self,
        now: StackInstant,
        stack: &mut Interface,
        device: &mut TunDevice,
    ) {
        self.socket().abort();
        stack.poll_egress(now, device, &mut self.sockets);
    }

    /// Moves bytes both ways and lets the stack send.
    pub(super) fn pump(
        &mut self,
        now: (Instant, StackInstant),
        stack: &mut Interface,
        device: &mut TunDevice,
        rates: &mut Rates,
    ) -> Pumped {
        self.throttled = false;
        let mut more = false;
        if let HostSide::Attached(host) = &mut self.host {
            let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.handle);
            let moved = host
                .send_outward(socket, now.0, rates)
                .and_then(|out| Ok((out, host.read_inward(socket, now.0, rates)?)));
            match moved {
                Ok((out, inward)) => {
                    self.throttled = out == Moved::Throttled || inward == Moved::Throttled;
                    more = inward == Moved::More;
                }
                Err(_) => {
                    self.reset(now.1, stack, device);
                    return Pumped::Gone;
                }
            }
        }
        device.take_empty_segments();
        let mut quiet = false;
        for _ in 0..MOST_PASSES {
            if stack.poll_egress(now.1, device, &mut self.sockets) == PollResult::None {
                quiet = true;
                break;
            }
        }
        self.empty_segments += device.take_empty_segments();
        if self.empty_segments > MOST_EMPTY_SEGMENTS {
            self.reset(now.1, stack, device);
            return Pumped::Gone;
        }
        if matches!(self.socket().state(), tcp::State::Closed | tcp::State::TimeWait) {
            self.close_host();
            return Pumped::Gone;
        }
        self.wakes_at = stack.poll_at(now.1, &self.sockets);
        if more || !quiet { Pumped::Busy } else { Pumped::Idle }
    }

    /// A guest that reset the connection resets it at the other end too.
    fn close_host(&mut self) {
        if let HostSide::Attached(host) = &self.host
            && !(host.shut && host.ended)
        {
            // Only TCP sockets have it; for a socket pair closing is enough.
            let _ = sockopt::set_socket_linger(&host.fd, Some(std::time::Duration::ZERO));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moved {
    All,
    More,
    Throttled,
}

impl HostSocket {
    /// Sends what the guest has sent, and its end.
    fn send_outward(
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
        let guest_ended = matches!(
            socket.state(),
            tcp::State::CloseWait
                | tcp::State::LastAck
                | tcp::State::Closing
                | tcp::State::TimeWait
        );
        if guest_ended && !self.shut && socket.recv_queue() == 0 {
            self.shut = true;
            // The other end may have reset the connection; reading says so.
            let _ = shutdown(&self.fd, Shutdown::Write);
        }
        Ok(Moved::All)
    }

    /// Reads what the other end has sent, and its end.
    fn read_inward(
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
            if read >= MOST_READ {
                return Ok(Moved::More);
            }
            let received = socket.send(|space| {
                let len = space.len().min(most);
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

impl Rates {
    fn limit_to_run(&self, most: usize) -> usize {
        match self.left {
            Some(left) => most.min(usize::try_from(left).unwrap_or(usize::MAX)),
            None => most,
        }
    }

    pub(super) fn outward_available(&mut self, now: Instant) -> usize {
        let most = self.outward.available(now);
        self.limit_to_run(most)
    }

    pub(super) fn inward_available(&mut self, now: Instant) -> usize {
        let most = self.inward.available(now);
        self.limit_to_run(most)
    }

    pub(super) fn count_outward(&mut self, bytes: usize) {
        self.outward.count(bytes);
        self.take_from_run(bytes);
    }

    pub(super) fn count_inward(&mut self, bytes: usize) {
        self.inward.count(bytes);
        self.take_from_run(bytes);
    }

    fn take_from_run(&mut self, bytes: usize) {
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(bytes as u64);
        }
    }
}
