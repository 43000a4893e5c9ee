//! Runs in: stack worker (no capabilities).
//!
//! The event loop: packets of the guest, messages of the broker, sockets of connections. Every turn
//! does a bounded amount of work.

mod ending;
mod opening;
mod start;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use cloche_model::{DenialReason, NetworkLimits, NetworkProtocol};
use rustix::event::{Timespec, epoll};
use smoltcp::{iface::SocketSet, time::Instant as StackInstant};

use super::{
    budget::{BufferBudget, Rates, TokenBucket},
    connection::{Connection, Pumped},
    datagrams::{DatagramFlows, Queries},
    device::TunDevice,
    ingress::{FlowKey, GuestPacket, classify_packet},
    ip_stacks::IpStacks,
    link::BrokerLink,
    replies::{Unreachable, build_unreachable},
};
use crate::{
    addresses::is_gateway,
    protocol::{FlowId, MAX_DNS_DATAGRAM, StackMessage, WorkerMessage},
};

/// Packets of the guest that one turn reads.
const MOST_PACKETS: usize = 64;
/// Events that one turn takes.
const MOST_EVENTS: usize = 64;
/// Messages of the broker that one turn reads.
const MOST_MESSAGES: usize = 64;
/// How often bytes are reported.
const METER_PERIOD: Duration = Duration::from_millis(200);
/// When a connection that a rate stopped is tried again.
const THROTTLE_PAUSE: Duration = Duration::from_millis(5);

const TUN: FlowId = 0;
const BROKER: FlowId = 1;
const FIRST_FLOW: FlowId = 2;

pub(crate) struct StackWorker {
    device: TunDevice,
    link: BrokerLink,
    epoll: OwnedFd,
    stacks: IpStacks,
    started: Instant,
    limits: NetworkLimits,
    ipv6: bool,
    next_id: FlowId,
    /// Every TCP connection of the guest by its ends, opening or open.
    by_flow: HashMap<FlowKey, FlowId>,
    opening: HashMap<FlowId, OpeningConnection>,
    connections: HashMap<FlowId, Connection>,
    /// Connections with something to do.
    active: HashSet<FlowId>,
    datagrams: DatagramFlows,
    queries: Queries,
    buffers: BufferBudget,
    rates: Rates,
    new_flows: TokenBucket,
    reported_denials: TokenBucket,
    metered: Instant,
    /// Space for the events of a turn.
    events: Vec<epoll::Event>,
    tun_readable: bool,
    broker_readable: bool,
    ending: bool,
}

/// A SYN that waits for the broker. Nothing is allocated for it but this.
struct OpeningConnection {
    flow: FlowKey,
    syn: Vec<u8>,
}

impl StackWorker {
    /// One turn: waits for something, then does it. `false` at the end of the session.
    ///
    /// # Errors
    /// If the broker or the device is gone.
    pub(crate) fn turn(&mut self) -> io::Result<bool> {
        let timeout = self.next_timeout();
        self.turn_within(timeout)
    }

    /// A turn that waits for nothing.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn turn_without_waiting(&mut self) -> io::Result<bool> {
        self.turn_within(Duration::ZERO)
    }

    fn turn_within(&mut self, timeout: Duration) -> io::Result<bool> {
        self.wait_for_events(timeout)?;
        if self.read_packets()? {
            self.report_bytes()?;
            self.link.send(&WorkerMessage::Ended)?;
            return Ok(false);
        }
        self.link.send_waiting()?;
        if std::mem::take(&mut self.broker_readable) {
            self.read_messages()?;
        }
        self.wake_connections();
        self.pump_connections()?;
        if self.ending || self.metered.elapsed() >= METER_PERIOD {
            self.report_bytes()?;
            for id in self.datagrams.expire(Instant::now()) {
                self.link.send(&WorkerMessage::Gone { id })?;
            }
        }
        if self.ending {
            self.link.send(&WorkerMessage::Ended)?;
        }
        Ok(!self.ending)
    }

    fn wait_for_events(&mut self, timeout: Duration) -> io::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        let timeout = Timespec::try_from(timeout).map_err(|_| io::ErrorKind::InvalidInput)?;
        let space = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.epoll, space, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let flags = event.flags;
            match event.data.u64() {
                TUN => self.tun_readable = true,
                BROKER => self.broker_readable = true,
                id => self.mark_ready(id, flags),
            }
        }
        self.events = events;
        Ok(())
    }

    fn mark_ready(&mut self, id: FlowId, flags: epoll::EventFlags) {
        let over = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR);
        let readable = over || flags.contains(epoll::EventFlags::IN);
        let writable = over || flags.contains(epoll::EventFlags::OUT);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.mark_ready(readable, writable);
            self.active.insert(id);
        } else if readable {
            self.active.insert(id);
        }
    }

    /// How long nothing has to be done without an event.
    fn next_timeout(&self) -> Duration {
        if !self.active.is_empty() || self.tun_readable {
            return Duration::ZERO;
        }
        let now = self.stack_now();
        let mut timeout = METER_PERIOD;
        if self.link.is_waiting() {
            timeout = THROTTLE_PAUSE;
        }
        for connection in self.connections.values() {
            if connection.throttled {
                timeout = timeout.min(THROTTLE_PAUSE);
            }
            if let Some(at) = connection.wakes_at {
                let wait = (at - now).total_micros();
                timeout = timeout.min(Duration::from_micros(if at <= now { 0 } else { wait }));
            }
        }
        // An idle cell wakes its worker only to forget old flows.
        let idle = self.connections.is_empty() && self.rates_are_reported();
        if idle && timeout == METER_PERIOD { Duration::from_secs(10) } else { timeout }
    }

    fn rates_are_reported(&self) -> bool {
        self.rates.inward.unreported == 0 && self.rates.outward.unreported == 0
    }

    fn stack_now(&self) -> StackInstant {
        let passed = i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX);
        // Not zero: the stack takes zero for "at once".
        StackInstant::from_micros(passed.saturating_add(1_000_000))
    }

    /// Reads packets of the guest. `true` if the device is gone.
    fn read_packets(&mut self) -> io::Result<bool> {
        if !std::mem::take(&mut self.tun_readable) {
            return Ok(false);
        }
        for _ in 0..MOST_PACKETS {
            match self.device.read_packet() {
                Ok(Some(0)) => {}
                Ok(Some(len)) => self.take_packet(len)?,
                Ok(None) => return Ok(false),
                // The network namespace of the cell is gone.
                Err(_) => return Ok(true),
            }
        }
        Ok(false)
    }

    fn take_packet(&mut self, len: usize) -> io::Result<()> {
        match classify_packet(self.device.packet(len), self.ipv6) {
            GuestPacket::Invalid => Ok(()),
            GuestPacket::Tcp { flow, opens } => self.take_segment(len, flow, opens),
            GuestPacket::Udp { flow, payload } => {
                let packet = self.device.packet(len).to_vec();
                self.take_datagram(&packet, flow, &packet[payload])
            }
            GuestPacket::NotServed { remote, is_icmp } => {
                let error = build_unreachable(self.device.packet(len), Unreachable::Prohibited);
                if let Some(error) = error {
                    self.device.send_packet(&error);
                }
                let protocol = match is_icmp {
                    true => NetworkProtocol::Icmp,
                    false => NetworkProtocol::Udp,
                };
                self.report_denial(remote, protocol, DenialReason::ProtocolBlocked)
            }
        }
    }

    fn take_segment(&mut self, len: usize, flow: FlowKey, opens: bool) -> io::Result<()> {
        let Some(id) = self.by_flow.get(&flow).copied() else {
            return match opens {
                true => self.ask_for_connection(len, flow),
                false => {
                    self.reset_packet(len);
                    Ok(())
                }
            };
        };
        let now = self.stack_now();
        if let Some(connection) = self.connections.get_mut(&id) {
            self.device.offer_packet(len);
            connection.take_packet(now, self.stacks.of(&flow), &mut self.device);
            self.active.insert(id);
        }
        // A SYN that is sent again while the broker dials is the same SYN.
        Ok(())
    }

    /// Answers the packet that was read last with a reset: a stack without sockets does.
    fn reset_packet(&mut self, len: usize) {
        let now = self.stack_now();
        let stack = self.stacks.of_packet(self.device.packet(len));
        self.device.offer_packet(len);
        let mut none = SocketSet::new(Vec::new());
        stack.poll_ingress_single(now, &mut self.device, &mut none);
    }

    fn take_datagram(&mut self, packet: &[u8], flow: FlowKey, payload: &[u8]) -> io::Result<()> {
        let now = Instant::now();
        if is_gateway(flow.remote.ip()) && flow.remote.port() == 53 {
            return self.ask_resolver(&flow, payload, now);
        }
        if self.datagrams.send(&flow, payload, now, &mut self.rates) {
            return Ok(());
        }
        let full = self.datagrams.len() >= usize::from(self.limits.udp_flows);
        if full || !self.new_flows.try_take(now) {
            let limit = DenialReason::LimitReached;
            return self.report_denial(flow.remote, NetworkProtocol::Udp, limit);
        }
        let id = self.take_id();
        self.datagrams.add(id, flow, packet, payload);
        self.link.send(&WorkerMessage::OpenUdp { id, remote: flow.remote })
    }

    fn ask_resolver(&mut self, flow: &FlowKey, query: &[u8], now: Instant) -> io::Result<()> {
        let id = self.take_id();
        if query.len() > MAX_DNS_DATAGRAM || !self.queries.add(id, flow, now) {
            return Ok(());
        }
        self.rates.count_outward(query.len());
        self.link.send(&WorkerMessage::Query { id, bytes: query.to_vec() })
    }

    fn take_id(&mut self) -> FlowId {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    fn report_denial(
        &mut self,
        remote: SocketAddr,
        protocol: NetworkProtocol,
        reason: DenialReason,
    ) -> io::Result<()> {
        if !self.reported_denials.try_take(Instant::now()) {
            return Ok(());
        }
        self.link.send(&WorkerMessage::Denied { remote, protocol, reason })
    }

    fn report_bytes(&mut self) -> io::Result<()> {
        self.metered = Instant::now();
        let bytes_in = std::mem::take(&mut self.rates.inward.unreported);
        let bytes_out = std::mem::take(&mut self.rates.outward.unreported);
        if bytes_in == 0 && bytes_out == 0 {
            return Ok(());
        }
        self.link.send(&WorkerMessage::Meter { bytes_in, bytes_out })
    }

    fn read_messages(&mut self) -> io::Result<()> {
        for _ in 0..MOST_MESSAGES {
            let Some((message, fd)) = self.link.receive()? else {
                break;
            };
            match message {
                StackMessage::Start { .. } => {}
                StackMessage::Established { id } => self.establish(id, None)?,
                StackMessage::Attached { id, sent } => {
                    let fd = fd.ok_or(io::ErrorKind::InvalidData)?;
                    self.attach(id, fd, sent as usize)?;
                }
                StackMessage::Refused { id, how } => self.refuse(id, how)?,
                StackMessage::Answer { id, bytes } => {
                    self.rates.count_inward(bytes.len());
                    self.queries.answer(id, &bytes, &mut self.device);
                }
                StackMessage::End => self.ending = true,
            }
        }
        Ok(())
    }

    /// Marks the connections whose time has come.
    fn wake_connections(&mut self) {
        let now = self.stack_now();
        let due = |connection: &Connection| {
            connection.throttled || connection.wakes_at.is_some_and(|at| at <= now)
        };
        let ids = self.connections.iter().filter(|(_, c)| due(c)).map(|(id, _)| *id);
        self.active.extend(ids);
    }

    fn pump_connections(&mut self) -> io::Result<()> {
        for id in std::mem::take(&mut self.active) {
            let now = (Instant::now(), self.stack_now());
            let Some(connection) = self.connections.get_mut(&id) else {
                match self.datagrams.receive(id, &mut self.device, &mut self.rates) {
                    Pumped::Idle => {}
                    Pumped::Busy => drop(self.active.insert(id)),
                    Pumped::Gone => self.link.send(&WorkerMessage::Gone { id })?,
                }
                continue;
            };
            let stack = self.stacks.of(&connection.flow);
            let pumped = connection.pump(now, stack, &mut self.device, &mut self.rates);
            while let Some(bytes) = connection.next_first_bytes() {
                self.link.send(&WorkerMessage::FirstBytes { id, bytes })?;
            }
            match pumped {
                Pumped::Idle => {}
                Pumped::Busy => drop(self.active.insert(id)),
                Pumped::Gone => self.forget_connection(id)?,
            }
        }
        if self.rates.left == Some(0) {
            self.end_for_quota()?;
        }
        Ok(())
    }
}
