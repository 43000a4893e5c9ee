//! Runs in: server (no capabilities), broker (no capabilities), stack worker (no capabilities).
//!
//! What the processes say to each other: packets on seqpacket sockets, some with one descriptor.
//! The server and the broker trust each other. The broker treats a worker as broken into: it has
//! parsed packets of a guest.

mod packet;
mod packet_socket;

use std::net::SocketAddr;

use cloche_model::{DenialReason, NetworkLimits, NetworkProtocol, NetworkReport};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub(crate) use packet::{receive_packet, send_packet, set_nonblocking, set_packet_buffers};
pub(crate) use packet_socket::PacketSocket;

use crate::{EgressSettings, SessionSpec};

/// The longest packet between server and broker.
pub(crate) const MAX_CONTROL_PACKET: usize = 160 * 1024;
/// The longest part of the operator's certificate authorities in one packet.
pub(crate) const AUTHORITIES_PART: usize = 64 * 1024;
/// The longest packet between broker and worker.
pub(crate) const MAX_STACK_PACKET: usize = 24 * 1024;
/// The most bytes that a guest may send before the broker has found a name in them.
pub(crate) const MAX_FIRST_BYTES: usize = 16 * 1024;
/// The longest DNS message over UDP.
pub(crate) const MAX_DNS_DATAGRAM: usize = 4096;

/// The number of a connection or a flow, given by the worker. Never used twice in a session.
pub(crate) type FlowId = u64;

/// What the server asks of the broker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum BrokerRequest {
    /// A part of the operator's certificate authorities, before the settings: a file of them may be
    /// longer than a packet.
    Authorities(Vec<u8>),
    /// The settings, once.
    Configure(EgressSettings),
    /// Opens a session.
    Open { session: u64, spec: SessionSpec },
    /// Ends a session and asks for its report.
    Finish { session: u64 },
    /// Ends a session whose report is not wanted.
    Close { session: u64 },
}

/// What the broker answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum BrokerReply {
    /// The settings are in force.
    Configured { ipv6: bool },
    /// The descriptor is the socket of the stack worker.
    Opened { session: u64, authority: Option<String> },
    /// The session could not be opened.
    NotOpened { session: u64, why: String },
    /// What the session did.
    Finished { session: u64, report: NetworkReport },
}

/// What a worker tells the broker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum WorkerMessage {
    /// The guest opens a TCP connection.
    OpenTcp { id: FlowId, remote: SocketAddr },
    /// The guest sends a first datagram.
    OpenUdp { id: FlowId, remote: SocketAddr },
    /// The next bytes of the guest on a connection whose name is not known yet; none at their end.
    FirstBytes { id: FlowId, bytes: Vec<u8> },
    /// A DNS query over UDP.
    Query { id: FlowId, bytes: Vec<u8> },
    /// The connection or flow has ended at the guest's side.
    Gone { id: FlowId },
    /// Payload bytes since the last such message.
    Meter { bytes_in: u64, bytes_out: u64 },
    /// Something that the worker denied itself.
    Denied { remote: SocketAddr, protocol: NetworkProtocol, reason: DenialReason },
    /// The cell has ended, and the worker ends.
    Ended,
}

/// What the broker tells a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum StackMessage {
    /// The first packet.
    Start { limits: NetworkLimits, ipv6: bool },
    /// The connection is open; bytes of the guest are asked for before the socket is.
    Established { id: FlowId },
    /// The descriptor is the connection or flow. The first `sent` bytes of the guest were sent.
    Attached { id: FlowId, sent: u32 },
    /// The connection or flow is refused or over.
    Refused { id: FlowId, how: FlowRefusal },
    /// The answer to a query.
    Answer { id: FlowId, bytes: Vec<u8> },
    /// The run is over: send the last meters and end.
    End,
}

/// How the guest sees a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FlowRefusal {
    /// Connection refused, or reset if it was established.
    Reset,
    /// Network unreachable.
    NetworkUnreachable,
    /// Host unreachable.
    HostUnreachable,
    /// No answer at all.
    Silence,
}

/// Encodes a message. Only a message that is too large for its buffer fails.
pub(crate) fn encode_message<T: Serialize>(message: &T) -> postcard::Result<Vec<u8>> {
    postcard::to_stdvec(message)
}

/// Decodes a message that fills the packet.
pub(crate) fn decode_message<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Some(message),
        _ => None,
    }
}
