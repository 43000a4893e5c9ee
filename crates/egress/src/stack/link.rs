//! Runs in: stack worker (no capabilities).
//!
//! The socket to the broker. Messages that it does not take at once wait here.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use crate::protocol::{
    MAX_STACK_PACKET, StackMessage, WorkerMessage, decode_message, encode_message, receive_packet,
    send_packet,
};

/// More than a worker within its limits ever has; a broker that reads so little is as good as gone.
const MOST_WAITING: usize = 4096;

pub(super) struct BrokerLink {
    socket: OwnedFd,
    waiting: VecDeque<Vec<u8>>,
    buffer: Vec<u8>,
}

impl BrokerLink {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, waiting: VecDeque::new(), buffer: vec![0; MAX_STACK_PACKET] }
    }

    /// Sends a message, now or when the broker reads again.
    pub(super) fn send(&mut self, message: &WorkerMessage) -> io::Result<()> {
        let bytes = encode_message(message).map_err(|_| io::ErrorKind::InvalidInput)?;
        if self.waiting.len() >= MOST_WAITING {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.waiting.push_back(bytes);
        self.send_waiting()
    }

    /// Sends what waits, as far as the broker takes it.
    pub(super) fn send_waiting(&mut self) -> io::Result<()> {
        while let Some(bytes) = self.waiting.front() {
            match send_packet(self.socket.as_fd(), bytes, None) {
                Ok(()) => drop(self.waiting.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether messages wait for the broker.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The next message of the broker; `None` if there is none.
    ///
    /// # Errors
    /// `UnexpectedEof` if the broker has closed the session.
    pub(super) fn receive(&mut self) -> io::Result<Option<(StackMessage, Option<OwnedFd>)>> {
        match receive_packet(self.socket.as_fd(), &mut self.buffer) {
            Ok((0, _)) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((len, fd)) => match decode_message(&self.buffer[..len]) {
                Some(message) => Ok(Some((message, fd))),
                None => Err(io::ErrorKind::InvalidData.into()),
            },
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            },
        }
    }
}

impl AsFd for BrokerLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
