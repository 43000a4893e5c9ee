//! Runs in: server (no capabilities), mount server (no capabilities). What the two say to each
//! other, one packet each: JSON, and file descriptors beside it.
//!
//! The socket goes from the server through the spawner to the mount server; the spawner reads
//! nothing from it. So credentials are known to the two ends only.

use std::{
    net::IpAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use cloche_jail::sys::{self, Errno};
use cloche_model::{
    KeyPrefix, MountReport, MountSlug, ObjectConnection, ObjectCredentials, ObjectStoreKind, Secret,
};
use serde::{Deserialize, Serialize};

/// The longest packet. A service account has some kilobytes.
const MAX_PACKET: usize = 128 << 10;

/// A command of the server.
#[derive(Debug, Serialize, Deserialize)]
pub enum MountCommand {
    /// Serve this mount on the next FUSE connection. Carries what its source needs.
    Mount(MountSetup),
    /// All mounts were sent. Carries a file with the trusted certificates, and the directory for
    /// spool files, if a mount is an object store.
    Start {
        /// Whether the two come with it.
        has_network: bool,
    },
    /// The answer to [`MountServerRequest::Resolve`].
    Resolved {
        /// Which question.
        id: u64,
        /// The addresses, or why there is none.
        addresses: Result<Vec<IpAddr>, String>,
    },
    /// The program has ended: store what is closed, report, and end.
    Finish,
    /// The program is stopped: store nothing more, report, and end.
    Stop,
}

/// What the mount server asks and reports.
#[derive(Debug, Serialize, Deserialize)]
pub enum MountServerRequest {
    /// Resolve a host name and check its addresses.
    Resolve {
        /// Names the question.
        id: u64,
        /// The name.
        host: String,
        /// Whether private addresses are allowed for the connection that asks.
        private: bool,
    },
    /// The guest uses a mount. Sent before its first request is answered, so a server that has not
    /// heard this knows that no byte was read or written.
    Used,
    /// The answer to the first [`MountCommand::Finish`] if a file is open to write: a mapping may
    /// still change it. Processes that end close it. The server ends them and sends another.
    Busy,
    /// The last packet.
    Report(Vec<MountReport>),
}

/// One mount.
#[derive(Debug, Serialize, Deserialize)]
pub struct MountSetup {
    /// Its name in the cell.
    pub slug: MountSlug,
    /// Whether it is mounted read-only.
    pub read_only: bool,
    /// The most bytes of a file that is written.
    pub file_size: u64,
    /// The most bytes of files that are being written.
    pub spool: u64,
    /// What is mounted.
    pub source: MountSetupSource,
}

/// What is mounted.
#[derive(Debug, Serialize, Deserialize)]
pub enum MountSetupSource {
    /// A prefix of a bucket.
    Objects(Box<WireConnection>),
    /// A volume. Carries the root of the mount, the root of the volume, the ledger, and the file
    /// that its users lock.
    Volume {
        /// The most bytes of its files.
        quota: u64,
        /// Differs after each start of the host.
        boot: u64,
    },
    /// A directory. Carries it.
    Directory,
}

/// A connection with its secrets as text, which the model's type never serializes.
#[derive(Serialize, Deserialize)]
pub struct WireConnection {
    kind: ObjectStoreKind,
    endpoint: Option<String>,
    bucket: String,
    region: Option<String>,
    credentials: WireCredentials,
    allows_private_endpoint: bool,
    prefix: KeyPrefix,
}

#[derive(Serialize, Deserialize)]
enum WireCredentials {
    Anonymous,
    AccessKey { id: String, secret: String, session_token: Option<String> },
    ServiceAccount(String),
    AccountKey { account: String, key: String },
}

impl std::fmt::Debug for WireConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WireConnection").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl WireConnection {
    /// The form for the wire.
    #[must_use]
    pub fn new(connection: &ObjectConnection, prefix: &KeyPrefix) -> Self {
        let text = |secret: &Secret| secret.reveal().to_owned();
        let credentials = match &connection.credentials {
            ObjectCredentials::Anonymous => WireCredentials::Anonymous,
            ObjectCredentials::AccessKey { id, secret, session_token } => {
                WireCredentials::AccessKey {
                    id: id.clone(),
                    secret: text(secret),
                    session_token: session_token.as_ref().map(text),
                }
            }
            ObjectCredentials::ServiceAccount(document) => {
                WireCredentials::ServiceAccount(text(document))
            }
            ObjectCredentials::AccountKey { account, key } => {
                WireCredentials::AccountKey { account: account.clone(), key: text(key) }
            }
        };
        Self {
            kind: connection.kind,
            endpoint: connection.endpoint.clone(),
            bucket: connection.bucket.clone(),
            region: connection.region.clone(),
            credentials,
            allows_private_endpoint: connection.allows_private_endpoint,
            prefix: prefix.clone(),
        }
    }

    /// The connection and the prefix.
    pub(crate) fn into_parts(self) -> (ObjectConnection, KeyPrefix) {
        let credentials = match self.credentials {
            WireCredentials::Anonymous => ObjectCredentials::Anonymous,
            WireCredentials::AccessKey { id, secret, session_token } => {
                ObjectCredentials::AccessKey {
                    id,
                    secret: Secret::new(secret),
                    session_token: session_token.map(Secret::new),
                }
            }
            WireCredentials::ServiceAccount(document) => {
                ObjectCredentials::ServiceAccount(Secret::new(document))
            }
            WireCredentials::AccountKey { account, key } => {
                ObjectCredentials::AccountKey { account, key: Secret::new(key) }
            }
        };
        let connection = ObjectConnection {
            kind: self.kind,
            endpoint: self.endpoint,
            bucket: self.bucket,
            region: self.region,
            credentials,
            allows_private_endpoint: self.allows_private_endpoint,
        };
        (connection, self.prefix)
    }
}

/// Why a packet could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum MountWireError {
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
    #[error("malformed packet")]
    Malformed,
}

impl From<Errno> for MountWireError {
    fn from(errno: Errno) -> Self {
        match errno.0 {
            11 => Self::WouldBlock,
            32 | 104 => Self::Closed,
            other => Self::System(other),
        }
    }
}

/// Sends one packet.
///
/// # Errors
/// When the socket is closed or full.
pub fn send_mount_packet<T: Serialize>(
    socket: BorrowedFd<'_>,
    packet: &T,
    fds: &[BorrowedFd<'_>],
) -> Result<(), MountWireError> {
    let bytes = serde_json::to_vec(packet).map_err(|_| MountWireError::Malformed)?;
    let fds: Vec<i32> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    Ok(sys::sendmsg(socket.as_raw_fd(), &bytes, &fds)?)
}

/// Receives one packet with its file descriptors.
///
/// # Errors
/// When the socket is closed or empty, or the packet is none of this protocol.
pub fn receive_mount_packet<T: for<'a> Deserialize<'a>>(
    socket: impl AsFd,
) -> Result<(T, Vec<OwnedFd>), MountWireError> {
    let mut buffer = vec![0; MAX_PACKET];
    const EINTR: i32 = 4;
    const ECONNRESET: i32 = 104;
    let (len, fds) = loop {
        match sys::recvmsg(socket.as_fd().as_raw_fd(), &mut buffer) {
            // The kernel says once that the other process ended without reading everything. What it
            // sent before is still there.
            Err(Errno(EINTR | ECONNRESET)) => {}
            received => break received?,
        }
    };
    let fds = fds.into_iter().flatten().map(sys::into_owned_fd).collect();
    if len == 0 {
        return Err(MountWireError::Closed);
    }
    let packet = serde_json::from_slice(&buffer[..len]);
    packet.map(|packet| (packet, fds)).map_err(|_| MountWireError::Malformed)
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn a_report_is_received_although_its_sender_left_packets_unread() {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        send_mount_packet(ours.as_fd(), &MountCommand::Finish, &[]).unwrap();
        send_mount_packet(theirs.as_fd(), &MountServerRequest::Report(Vec::new()), &[]).unwrap();
        drop(theirs);
        let (said, _) = receive_mount_packet::<MountServerRequest>(&ours).unwrap();
        assert!(matches!(said, MountServerRequest::Report(_)));
        let ended = receive_mount_packet::<MountServerRequest>(&ours);
        assert!(matches!(ended, Err(MountWireError::Closed)));
    }

    #[test]
    fn a_connection_survives_the_wire_and_prints_no_secret() {
        let connection = ObjectConnection {
            kind: ObjectStoreKind::S3,
            endpoint: Some("https://example.com".to_owned()),
            bucket: "b".to_owned(),
            region: None,
            credentials: ObjectCredentials::AccessKey {
                id: "AKIA".to_owned(),
                secret: Secret::new("hunter2"),
                session_token: Some(Secret::new("hunter3")),
            },
            allows_private_endpoint: false,
        };
        let prefix: KeyPrefix = "team/a".parse().unwrap();
        let wire = WireConnection::new(&connection, &prefix);
        assert!(!format!("{wire:?}").contains("hunter"));
        let bytes = serde_json::to_vec(&wire).unwrap();
        let back: WireConnection = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(back.into_parts(), (connection, prefix));
    }
}
