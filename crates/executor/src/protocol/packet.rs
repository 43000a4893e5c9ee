//! Runs in: server (no capabilities), spawner (root) and packer. One packet over a seqpacket
//! socket: JSON, and file descriptors beside it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use cloche_jail::sys::{self, Errno};
use serde::{Deserialize, Serialize};

/// The longest packet.
const MAX_PACKET: usize = 64 << 10;

/// Why a packet could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProtocolError {
    /// The other process closed its socket, or ended.
    #[error("the other process closed its socket")]
    Closed,
    /// There is no packet to receive, or no space to send one.
    #[error("the socket is not ready")]
    WouldBlock,
    /// Any other error of the kernel, by its number.
    #[error("system error {0}")]
    System(i32),
    /// The bytes are not a packet of this protocol.
    #[error("malformed packet: {0}")]
    Malformed(String),
}

impl From<Errno> for ProtocolError {
    fn from(errno: Errno) -> Self {
        match errno.0 {
            11 => Self::WouldBlock,
            32 | 104 => Self::Closed,
            other => Self::System(other),
        }
    }
}

/// Sends one packet.
pub(crate) fn send_packet<T: Serialize>(
    socket: BorrowedFd<'_>,
    packet: &T,
    fds: &[BorrowedFd<'_>],
) -> Result<(), ProtocolError> {
    let bytes = serde_json::to_vec(packet).map_err(|e| ProtocolError::Malformed(e.to_string()))?;
    let fds: Vec<i32> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    Ok(sys::sendmsg(socket.as_raw_fd(), &bytes, &fds)?)
}

/// A buffer for one packet, reused for every packet.
pub(crate) struct PacketBuffer(Box<[u8]>);

impl PacketBuffer {
    pub(crate) fn new() -> Self {
        Self(vec![0; MAX_PACKET].into())
    }

    /// Receives one packet with its file descriptors.
    pub(crate) fn receive<T: for<'a> Deserialize<'a>>(
        &mut self,
        socket: impl AsFd,
    ) -> Result<(T, Vec<OwnedFd>), ProtocolError> {
        let (len, fds) = sys::recvmsg(socket.as_fd().as_raw_fd(), &mut self.0)?;
        let fds = fds.into_iter().flatten().map(sys::into_owned_fd).collect();
        if len == 0 {
            return Err(ProtocolError::Closed);
        }
        let packet = serde_json::from_slice(&self.0[..len]);
        packet.map(|packet| (packet, fds)).map_err(|e| ProtocolError::Malformed(e.to_string()))
    }
}
