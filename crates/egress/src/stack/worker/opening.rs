//! Runs in: stack worker (no capabilities).
//!
//! From a SYN of the guest to a connection. The SYN waits until the broker has dialled, so a
//! refusal is a real one: the guest's `connect` fails as it would on the host.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Instant,
};

use cloche_model::{DenialReason, NetworkProtocol};
use rustix::event::epoll;
use smoltcp::iface::SocketSet;

use super::{OpeningConnection, StackWorker};
use crate::{
    protocol::{FlowId, FlowRefusal, WorkerMessage, set_nonblocking},
    stack::{
        connection::Connection,
        ingress::FlowKey,
        replies::{Unreachable, build_unreachable},
    },
};

impl StackWorker {
    /// Asks the broker for the connection that the packet read last wants.
    pub(super) fn ask_for_connection(&mut self, len: usize, flow: FlowKey) -> io::Result<()> {
        let open = self.connections.len() + self.opening.len();
        let over = self.rates.left == Some(0);
        if over || open >= usize::from(self.limits.connections) {
            self.reset_packet(len);
            let limit = DenialReason::LimitReached;
            return self.report_denial(flow.remote, NetworkProtocol::Tcp, limit);
        }
        let half_open = self.opening.len() >= usize::from(self.limits.half_open);
        if half_open || !self.new_flows.try_take(Instant::now()) {
            // Not answered: the guest's kernel sends the SYN again in a second.
            let limit = DenialReason::LimitReached;
            return self.report_denial(flow.remote, NetworkProtocol::Tcp, limit);
        }
        let id = self.take_id();
        let syn = self.device.packet(len).to_vec();
        self.by_flow.insert(flow, id);
        self.opening.insert(id, OpeningConnection { flow, syn });
        self.link.send(&WorkerMessage::OpenTcp { id, remote: flow.remote })
    }

    /// The broker has a connection: takes the SYN, which is answered now.
    pub(super) fn establish(&mut self, id: FlowId, fd: Option<OwnedFd>) -> io::Result<()> {
        let Some(opening) = self.opening.remove(&id) else {
            return Ok(());
        };
        let now = self.stack_now();
        let mut connection = Connection::new(opening.flow, &mut self.buffers)
            .map_err(|_| io::ErrorKind::InvalidInput)?;
        self.device.offer_copy(&opening.syn);
        connection.take_packet(now, self.stacks.of(&opening.flow), &mut self.device);
        if !connection.is_opening() {
            self.by_flow.remove(&opening.flow);
            self.buffers.give_back(connection.send_buffer);
            return self.link.send(&WorkerMessage::Gone { id });
        }
        if let Some(fd) = fd {
            self.watch(id, fd.as_fd())?;
            connection.attach(fd, 0, &mut self.rates);
        }
        self.connections.insert(id, connection);
        self.active.insert(id);
        Ok(())
    }

    /// The broker has sent the socket of a connection or a flow.
    pub(super) fn attach(&mut self, id: FlowId, fd: OwnedFd, sent: usize) -> io::Result<()> {
        set_nonblocking(fd.as_fd())?;
        if self.opening.contains_key(&id) {
            return self.establish(id, Some(fd));
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            if connection.host_fd().is_none() {
                connection.attach(fd, sent, &mut self.rates);
                self.watch_connection(id)?;
                self.active.insert(id);
            }
            return Ok(());
        }
        if let Some(fd) = self.datagrams.attach(id, fd, &mut self.rates) {
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&self.epoll, fd, epoll::EventData::new_u64(id), flags)?;
        }
        Ok(())
    }

    fn watch(&self, id: FlowId, fd: BorrowedFd<'_>) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(id), flags)?)
    }

    fn watch_connection(&self, id: FlowId) -> io::Result<()> {
        match self.connections.get(&id).and_then(Connection::host_fd) {
            Some(fd) => self.watch(id, fd.as_fd()),
            None => Ok(()),
        }
    }

    /// The broker refuses or ends a connection or a flow.
    pub(super) fn refuse(&mut self, id: FlowId, how: FlowRefusal) -> io::Result<()> {
        let error = match how {
            FlowRefusal::NetworkUnreachable => Some(Unreachable::Network),
            FlowRefusal::HostUnreachable => Some(Unreachable::Host),
            FlowRefusal::Reset | FlowRefusal::Silence => None,
        };
        if let Some(opening) = self.opening.remove(&id) {
            self.by_flow.remove(&opening.flow);
            match (how, error) {
                (FlowRefusal::Reset, _) => self.reset_copy(&opening.syn),
                (_, Some(error)) => {
                    if let Some(packet) = build_unreachable(&opening.syn, error) {
                        self.device.send_packet(&packet);
                    }
                }
                (_, None) => {}
            }
            return Ok(());
        }
        let now = self.stack_now();
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.reset(now, self.stacks.of(&connection.flow), &mut self.device);
            return self.forget_connection(id);
        }
        self.datagrams.refuse(id, error.unwrap_or(Unreachable::Port), &mut self.device);
        Ok(())
    }

    fn reset_copy(&mut self, packet: &[u8]) {
        let now = self.stack_now();
        self.device.offer_copy(packet);
        let mut none = SocketSet::new(Vec::new());
        let stack = self.stacks.of_packet(packet);
        stack.poll_ingress_single(now, &mut self.device, &mut none);
    }
}
