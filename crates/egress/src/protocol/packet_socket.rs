//! Runs in: server (no capabilities), broker (no capabilities).
//!
//! A seqpacket socket on a tokio runtime that carries messages.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use serde::{Serialize, de::DeserializeOwned};
use tokio::io::{Interest, unix::AsyncFd};

use super::{decode_message, encode_message, receive_packet, send_packet, set_nonblocking};

pub(crate) struct PacketSocket {
    socket: AsyncFd<OwnedFd>,
}

impl PacketSocket {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        set_nonblocking(socket.as_fd())?;
        #[expect(deprecated, reason = "unsound only for types that may change their descriptor")]
        let socket = AsyncFd::new(socket)?;
        Ok(Self { socket })
    }

    /// Sends a message, with a descriptor if there is one.
    pub(crate) async fn send<T: Serialize>(
        &self,
        message: &T,
        fd: Option<&OwnedFd>,
    ) -> io::Result<()> {
        let bytes = encode_message(message).map_err(|_| io::ErrorKind::InvalidInput)?;
        let fd = fd.map(AsFd::as_fd);
        let send = |socket: &OwnedFd| send_packet(socket.as_fd(), &bytes, fd);
        self.socket.async_io(Interest::WRITABLE, send).await
    }

    /// Receives a message and its descriptor; `None` at the end. Safe to cancel.
    ///
    /// # Errors
    /// `InvalidData` if it is not a message.
    pub(crate) async fn receive<T: DeserializeOwned>(
        &self,
        buffer: &mut [u8],
    ) -> io::Result<Option<(T, Option<OwnedFd>)>> {
        let receive = |socket: &OwnedFd| receive_packet(socket.as_fd(), buffer);
        let (len, fd) = self.socket.async_io(Interest::READABLE, receive).await?;
        if len == 0 {
            return Ok(None);
        }
        match decode_message(&buffer[..len]) {
            Some(message) => Ok(Some((message, fd))),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}
