//! Runs in: stack worker (no capabilities).
//!
//! UDP flows: one connected socket of the broker for each pair of ends. And queries to the
//! resolver, which are messages to the broker.

use std::{
    collections::HashMap,
    net::SocketAddr,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{SendFlags, send},
};

use super::{
    budget::Rates,
    connection::Pumped,
    device::TunDevice,
    ingress::FlowKey,
    replies::{Unreachable, build_datagram, build_unreachable},
};
use crate::protocol::FlowId;

/// How long a flow without a datagram is kept.
const IDLE: Duration = Duration::from_secs(60);
/// Bytes that wait for the broker's answer, for each flow.
const MOST_WAITING: usize = 8 * 1024;
/// Datagrams read from one flow before others have their turn.
const MOST_READ: usize = 64;
/// Queries under way.
const MOST_QUERIES: usize = 64;
/// How long an answer may take.
const QUERY_AGE: Duration = Duration::from_secs(15);

/// The UDP flows of the cell.
#[derive(Default)]
pub(super) struct DatagramFlows {
    by_flow: HashMap<FlowKey, FlowId>,
    flows: HashMap<FlowId, DatagramFlow>,
}

struct DatagramFlow {
    flow: FlowKey,
    /// The first packet, which an ICMP error quotes.
    first: Vec<u8>,
    socket: Option<OwnedFd>,
    waiting: Vec<Vec<u8>>,
    used: Instant,
}

impl DatagramFlows {
    pub(super) fn len(&self) -> usize {
        self.flows.len()
    }

    /// Sends a datagram of a flow that is known. `false` if it is not.
    pub(super) fn send(
        &mut self,
        key: &FlowKey,
        payload: &[u8],
        now: Instant,
        rates: &mut Rates,
    ) -> bool {
        let Some(flow) = self.by_flow.get(key).and_then(|id| self.flows.get_mut(id)) else {
            return false;
        };
        flow.used = now;
        flow.send(payload, now, rates);
        true
    }

    /// Adds a flow with its first packet.
    pub(super) fn add(&mut self, id: FlowId, flow: FlowKey, packet: &[u8], payload: &[u8]) {
        let first = packet.get(..64).unwrap_or(packet).to_vec();
        let waiting = vec![payload.to_vec()];
        let used = Instant::now();
        self.by_flow.insert(flow, id);
        self.flows.insert(id, DatagramFlow { flow, first, socket: None, waiting, used });
    }

    /// Connects a flow with its socket and sends what waited. Gives the socket back if there is no
    /// such flow.
    pub(super) fn attach(
        &mut self,
        id: FlowId,
        fd: OwnedFd,
        rates: &mut Rates,
    ) -> Option<&OwnedFd> {
        let flow = self.flows.get_mut(&id)?;
        flow.socket = Some(fd);
        for payload in std::mem::take(&mut flow.waiting) {
            flow.send(&payload, Instant::now(), rates);
        }
        flow.socket.as_ref()
    }

    /// Tells the guest that a flow is refused, and forgets it.
    pub(super) fn refuse(&mut self, id: FlowId, why: Unreachable, device: &mut TunDevice) {
        if let Some(flow) = self.remove(id)
            && let Some(packet) = build_unreachable(&flow.first, why)
        {
            device.send_packet(&packet);
        }
    }

    fn remove(&mut self, id: FlowId) -> Option<DatagramFlow> {
        let flow = self.flows.remove(&id)?;
        self.by_flow.remove(&flow.flow);
        Some(flow)
    }

    /// Reads datagrams of the other end.
    pub(super) fn receive(
        &mut self,
        id: FlowId,
        device: &mut TunDevice,
        rates: &mut Rates,
    ) -> Pumped {
        let Some(flow) = self.flows.get_mut(&id) else {
            return Pumped::Idle;
        };
        let Some(socket) = &flow.socket else {
            return Pumped::Idle;
        };
        let now = Instant::now();
        let mut buffer = [0; 65_536];
        for _ in 0..MOST_READ {
            match rustix::io::read(socket, &mut buffer) {
                Ok(len) => {
                    flow.used = now;
                    // What exceeds a rate is lost, as on any slow link.
                    if rates.inward_available(now) < len {
                        continue;
                    }
                    rates.count_inward(len);
                    let packet =
                        build_datagram(flow.flow.remote, flow.flow.cell_port, &buffer[..len]);
                    if let Some(packet) = packet {
                        device.send_packet(&packet);
                    }
                }
                Err(Errno::AGAIN) => return Pumped::Idle,
                Err(Errno::INTR) => {}
                Err(Errno::CONNREFUSED) => {
                    if let Some(packet) = build_unreachable(&flow.first, Unreachable::Port) {
                        device.send_packet(&packet);
                    }
                }
                Err(_) => {
                    self.refuse(id, Unreachable::Host, device);
                    return Pumped::Gone;
                }
            }
        }
        Pumped::Busy
    }

    /// Forgets flows that were not used for a while.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<FlowId> {
        let old = |flow: &DatagramFlow| now.saturating_duration_since(flow.used) > IDLE;
        let ids: Vec<FlowId> =
            self.flows.iter().filter(|(_, flow)| old(flow)).map(|(id, _)| *id).collect();
        for id in &ids {
            self.remove(*id);
        }
        ids
    }
}

impl DatagramFlow {
    fn send(&mut self, payload: &[u8], now: Instant, rates: &mut Rates) {
        let Some(socket) = &self.socket else {
            let held: usize = self.waiting.iter().map(Vec::len).sum();
            if held + payload.len() <= MOST_WAITING && self.waiting.len() < 16 {
                self.waiting.push(payload.to_vec());
            }
            return;
        };
        if rates.outward_available(now) < payload.len() {
            return;
        }
        // A datagram that the socket does not take is lost. An error of an earlier one is shown by
        // the next read.
        if send(socket, payload, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok() {
            rates.count_outward(payload.len());
        }
    }
}

/// The queries to the resolver that are under way.
#[derive(Default)]
pub(super) struct Queries {
    asked: HashMap<FlowId, (SocketAddr, u16, Instant)>,
}

impl Queries {
    /// Notes a query. `false` if there are too many.
    pub(super) fn add(&mut self, id: FlowId, flow: &FlowKey, now: Instant) -> bool {
        if self.asked.len() >= MOST_QUERIES {
            self.asked.retain(|_, (_, _, since)| now.saturating_duration_since(*since) < QUERY_AGE);
        }
        let fits = self.asked.len() < MOST_QUERIES;
        if fits {
            self.asked.insert(id, (flow.remote, flow.cell_port, now));
        }
        fits
    }

    /// Brings an answer to the guest.
    pub(super) fn answer(&mut self, id: FlowId, bytes: &[u8], device: &mut TunDevice) {
        if let Some((from, cell_port, _)) = self.asked.remove(&id)
            && let Some(packet) = build_datagram(from, cell_port, bytes)
        {
            device.send_packet(&packet);
        }
    }
}
