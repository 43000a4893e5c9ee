//! Runs in: stack worker (no capabilities).
//!
//! One TCP connection of the guest: its end in the stack, the socket of the broker, and the bytes
//! between them.
//!
//! Each connection has a socket set of its own. The stack searches a set for every packet, so a
//! packet costs the same with one connection as with 256; and what a connection sends can be
//! bounded.

mod host_socket;

use std::{io, os::fd::OwnedFd, time::Instant};

use rustix::net::sockopt;
use smoltcp::{
    iface::{Interface, PollResult, SocketHandle, SocketSet},
    socket::tcp,
    time::Instant as StackInstant,
};

use host_socket::{HostSocket, Moved, has_guest_ended};

use super::{
    budget::{BufferBudget, Rates},
    device::TunDevice,
    ingress::FlowKey,
};
use crate::protocol::MAX_FIRST_BYTES;

/// Egress passes of one connection before others have their turn.
const MOST_PASSES: usize = 32;
/// How often a connection reads and sends before others have their turn.
const MOST_ROUNDS: usize = 2;
/// Empty segments in a row without a packet of the guest, after which a connection is reset. A
/// peer that brings the timer of window probes into a state from which it does not recover would
/// otherwise keep the worker sending.
const MOST_EMPTY_SEGMENTS: u32 = 64;
/// How long the guest's kernel may take to answer. It is always there.
const ANSWER_WITHIN: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(60);
/// After this long without a packet the guest's kernel is asked whether it still has the
/// connection. It forgets one that its program has closed, and says so by a reset. And the stack
/// takes every silence of [`ANSWER_WITHIN`] for the loss of the guest, also that of a connection on
/// which nobody has anything to say.
const ASK_AFTER: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(20);

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
    /// Until when the last bytes of the guest, which has ended, may take to reach the other end.
    draining: Option<StackInstant>,
}

/// The other end.
enum HostSide {
    /// The broker waits for the first bytes of the guest, of which it has so many, and it may know
    /// that there are no more.
    Unnamed {
        shown: usize,
        told_end: bool,
    },
    Attached(HostSocket),
}

/// What the guest's side of a connection is about to do.
enum GuestSide {
    /// It sends, receives or waits.
    Serves,
    /// It has ended in order, and the other end has not taken its last bytes.
    Drains(StackInstant),
    /// It is over.
    Over,
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
        socket.set_timeout(Some(ANSWER_WITHIN));
        socket.set_keep_alive(Some(ASK_AFTER));
        socket.listen((flow.remote.ip(), flow.remote.port()))?;
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        Ok(Self {
            flow,
            sockets,
            handle,
            send_buffer,
            host: HostSide::Unnamed { shown: 0, told_end: false },
            wakes_at: None,
            throttled: false,
            empty_segments: 0,
            draining: None,
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
        self.host = HostSide::Attached(HostSocket::new(fd));
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

    /// The next bytes of the guest that the broker has not seen, if it waits for them; none at
    /// their end.
    pub(super) fn next_first_bytes(&mut self) -> Option<Vec<u8>> {
        let HostSide::Unnamed { shown, told_end } = self.host else {
            return None;
        };
        let ended = has_guest_ended(self.socket());
        let bytes = self.socket().peek(MAX_FIRST_BYTES).unwrap_or_default();
        let new = bytes.get(shown..).unwrap_or_default().to_vec();
        let told_end = match new.is_empty() {
            true if told_end || !ended => return None,
            is_end => is_end,
        };
        self.host = HostSide::Unnamed { shown: shown + new.len(), told_end };
        Some(new)
    }

    /// Whether the guest has not acknowledged everything that was read for it.
    pub(super) fn has_unsent(&mut self) -> bool {
        self.socket().send_queue() > 0
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
        let mut busy = true;
        for _ in 0..MOST_ROUNDS {
            let Ok(more) = self.move_bytes(now.0, rates) else {
                self.reset(now.1, stack, device);
                return Pumped::Gone;
            };
            let quiet = self.draining.is_some() || self.send_segments(now.1, stack, device);
            if self.empty_segments > MOST_EMPTY_SEGMENTS {
                self.reset(now.1, stack, device);
                return Pumped::Gone;
            }
            busy = more || !quiet;
            if !more || !quiet {
                break;
            }
        }
        self.wakes_at = match self.guest_side(now.1) {
            GuestSide::Serves => stack.poll_at(now.1, &self.sockets),
            GuestSide::Drains(until) => Some(until),
            GuestSide::Over => {
                self.close_host();
                return Pumped::Gone;
            }
        };
        if busy { Pumped::Busy } else { Pumped::Idle }
    }

    /// Moves bytes between the stack and the other end. Returns whether there may be more to read.
    fn move_bytes(&mut self, now: Instant, rates: &mut Rates) -> io::Result<bool> {
        let HostSide::Attached(host) = &mut self.host else {
            return Ok(false);
        };
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.handle);
        let out = host.send_outward(socket, now, rates)?;
        let inward = host.read_inward(socket, now, rates)?;
        self.throttled = out == Moved::Throttled || inward == Moved::Throttled;
        Ok(inward == Moved::More)
    }

    /// Lets the stack send. Returns whether it has nothing more to send.
    fn send_segments(
        &mut self,
        now: StackInstant,
        stack: &mut Interface,
        device: &mut TunDevice,
    ) -> bool {
        device.take_empty_segments();
        let mut send = || stack.poll_egress(now, device, &mut self.sockets) == PollResult::None;
        let quiet = (0..MOST_PASSES).any(|_| send());
        self.empty_segments += device.take_empty_segments();
        quiet
    }

    /// What the guest's side is about to do.
    fn guest_side(&mut self, now: StackInstant) -> GuestSide {
        // It listens again if the guest reset it before it was established: the program did not
        // wait for the answer.
        let ended = [tcp::State::Closed, tcp::State::TimeWait, tcp::State::Listen];
        if !ended.contains(&self.socket().state()) {
            return GuestSide::Serves;
        }
        match &self.host {
            HostSide::Attached(host) if host.guest_ended && !host.shut => {}
            _ => return GuestSide::Over,
        }
        let until = *self.draining.get_or_insert(now + ANSWER_WITHIN);
        if now < until { GuestSide::Drains(until) } else { GuestSide::Over }
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
