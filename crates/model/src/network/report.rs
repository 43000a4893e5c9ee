//! What the network of a run did: bytes, connections, and what was denied.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What the network of one run did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkReport {
    /// Bytes of payload towards the program: TCP, UDP and DNS answers.
    pub bytes_in: u64,
    /// Bytes of payload from the program.
    pub bytes_out: u64,
    /// TCP connections that were established.
    pub connections: u64,
    /// Destinations that were denied, each once with its count, in the order of their first
    /// attempts; at most [`Self::MOST_DENIED`].
    pub denied: Vec<DeniedAttempt>,
    /// Denied attempts to destinations beyond those in `denied`.
    pub denied_more: u64,
    /// Why the network ended before the run, if it did.
    pub lost: Option<String>,
}

impl NetworkReport {
    /// The most denied destinations that a report lists.
    pub const MOST_DENIED: usize = 64;

    /// Counts one denied attempt.
    pub fn count_denied(
        &mut self,
        host: &str,
        port: u16,
        protocol: NetworkProtocol,
        reason: DenialReason,
    ) {
        let known = self.denied.iter_mut().find(|attempt| {
            attempt.host == host
                && attempt.port == port
                && attempt.protocol == protocol
                && attempt.reason == reason
        });
        if let Some(attempt) = known {
            attempt.count = attempt.count.saturating_add(1);
            return;
        }
        if self.denied.len() == Self::MOST_DENIED {
            self.denied_more = self.denied_more.saturating_add(1);
            return;
        }
        let host = host.to_owned();
        self.denied.push(DeniedAttempt { host, port, protocol, reason, count: 1 });
    }
}

/// A destination that a run was not allowed to reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeniedAttempt {
    /// The name if the program asked by name, otherwise the address.
    pub host: String,
    /// The port; 53 for a name that was not resolved.
    pub port: u16,
    /// How it tried.
    pub protocol: NetworkProtocol,
    /// Why it was denied.
    pub reason: DenialReason,
    /// How often.
    pub count: u64,
}

/// How a program tried to reach a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkProtocol {
    /// A TCP connection.
    Tcp,
    /// A UDP datagram.
    Udp,
    /// A question to the resolver.
    Dns,
    /// An ICMP message, for example of `ping`.
    Icmp,
    /// A TLS handshake.
    Tls,
    /// A plain HTTP request.
    Http,
}

impl NetworkProtocol {
    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Dns => "dns",
            Self::Icmp => "icmp",
            Self::Tls => "tls",
            Self::Http => "http",
        }
    }
}

/// Why a destination was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DenialReason {
    /// No rule of the allowlist covers it.
    NotAllowed,
    /// The address is private, link-local, reserved, or one of the host or the operator.
    AddressBlocked,
    /// The port is closed in every policy, for example 25.
    PortBlocked,
    /// The name in the TLS handshake or HTTP request is missing or not the one that was allowed.
    NameMismatch,
    /// The name in the TLS handshake is encrypted, so that it cannot be compared.
    NameHidden,
    /// The first bytes were neither TLS nor HTTP where one of them is required.
    UnknownProtocol,
    /// The protocol is not relayed: ICMP, fragments, UDP under an allowlist.
    ProtocolBlocked,
    /// A limit of connections, flows, queries or bytes.
    LimitReached,
    /// The pattern of destinations is that of a port scan.
    ScanDetected,
}

impl DenialReason {
    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotAllowed => "not_allowed",
            Self::AddressBlocked => "address_blocked",
            Self::PortBlocked => "port_blocked",
            Self::NameMismatch => "name_mismatch",
            Self::NameHidden => "name_hidden",
            Self::UnknownProtocol => "unknown_protocol",
            Self::ProtocolBlocked => "protocol_blocked",
            Self::LimitReached => "limit_reached",
            Self::ScanDetected => "scan_detected",
        }
    }
}

impl fmt::Display for DenialReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for NetworkProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denied_attempts_are_counted_and_bounded() {
        let mut report = NetworkReport::default();
        for port in 1..=100 {
            for _ in 0..2 {
                let reason = DenialReason::NotAllowed;
                report.count_denied("a.example", port, NetworkProtocol::Tcp, reason);
            }
        }
        assert_eq!(report.denied.len(), NetworkReport::MOST_DENIED);
        assert!(report.denied.iter().all(|attempt| attempt.count == 2));
        assert_eq!(report.denied_more, 72);
    }
}
