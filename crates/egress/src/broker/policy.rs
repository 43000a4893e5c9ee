//! Runs in: broker (no capabilities).
//!
//! What the policy of a session says about a destination. The floor is asked after it.

use std::{net::SocketAddr, time::Instant};

use cloche_model::{DenialReason, HostName, NetworkPolicy};

use super::pins::PinTable;

/// How a destination is allowed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Grant {
    /// Whatever the bytes are.
    Direct,
    /// By these names only, one of which the first bytes have to show.
    Named(Vec<HostName>),
}

/// Ports where a connection that was allowed by name has to show the name.
pub(super) fn requires_name(port: u16) -> bool {
    port == 80 || port == 443
}

/// Whether the policy allows a TCP connection.
pub(super) fn judge_tcp(
    policy: &NetworkPolicy,
    pins: &mut PinTable,
    remote: SocketAddr,
) -> Result<Grant, DenialReason> {
    let rules = match policy {
        NetworkPolicy::Blocked => return Err(DenialReason::NotAllowed),
        NetworkPolicy::Unrestricted => return Ok(Grant::Direct),
        NetworkPolicy::Allowlist { rules } => rules,
    };
    // DNS of others, plain and over TLS, would resolve what our resolver does not.
    if remote.port() == 53 || remote.port() == 853 {
        return Err(DenialReason::PortBlocked);
    }
    let covers = |rule: &&cloche_model::NetworkRule| rule.covers_port(remote.port());
    if rules.iter().filter(covers).any(|rule| rule.covers_address(remote.ip())) {
        return Ok(Grant::Direct);
    }
    let mut names = pins.names_of(remote.ip(), Instant::now());
    names.retain(|name| rules.iter().filter(covers).any(|rule| rule.covers_name(name)));
    match names.is_empty() {
        true => Err(DenialReason::NotAllowed),
        false => Ok(Grant::Named(names)),
    }
}

/// Whether the policy allows a UDP flow. Under an allowlist there is none: datagrams show no name.
pub(super) fn judge_udp(policy: &NetworkPolicy, remote: SocketAddr) -> Result<(), DenialReason> {
    match policy {
        NetworkPolicy::Blocked => Err(DenialReason::NotAllowed),
        NetworkPolicy::Unrestricted => Ok(()),
        NetworkPolicy::Allowlist { rules } => {
            let port = remote.port();
            let named = rules.iter().any(|rule| {
                rule.ports.is_some() && rule.covers_port(port) && rule.covers_address(remote.ip())
            });
            // Addresses with a port are allowed as they are, but not QUIC and DNS of others.
            match named && ![53, 443, 853].contains(&port) {
                true => Ok(()),
                false => Err(DenialReason::ProtocolBlocked),
            }
        }
    }
}

/// Whether the policy lets a name be resolved.
pub(super) fn allows_name(policy: &NetworkPolicy, name: &HostName) -> bool {
    match policy {
        NetworkPolicy::Blocked => false,
        NetworkPolicy::Unrestricted => true,
        NetworkPolicy::Allowlist { rules } => rules.iter().any(|rule| rule.covers_name(name)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn allowlist(rules: &[&str]) -> NetworkPolicy {
        NetworkPolicy::from_texts("allowlist", rules).unwrap()
    }

    fn pins(name: &str, address: &str) -> PinTable {
        let mut pins = PinTable::default();
        let (name, address) = (name.parse().unwrap(), address.parse().unwrap());
        pins.pin(&name, &[address], Duration::ZERO, Instant::now());
        pins
    }

    #[test]
    fn a_name_opens_only_the_addresses_it_was_resolved_to() {
        let policy = allowlist(&["a.example", "*.b.example:22"]);
        let mut pinned = pins("a.example", "1.1.1.1");
        let mut judge = |address: &str| judge_tcp(&policy, &mut pinned, address.parse().unwrap());
        assert_eq!(judge("1.1.1.1:443"), Ok(Grant::Named(vec!["a.example".parse().unwrap()])));
        assert_eq!(judge("1.1.1.1:22"), Err(DenialReason::NotAllowed));
        assert_eq!(judge("1.1.1.2:443"), Err(DenialReason::NotAllowed));
        assert_eq!(judge("1.1.1.1:53"), Err(DenialReason::PortBlocked));
        assert_eq!(judge("1.1.1.1:853"), Err(DenialReason::PortBlocked));
    }

    #[test]
    fn addresses_are_allowed_as_they_are() {
        let policy = allowlist(&["8.8.8.0/24:5000-5001", "9.9.9.9"]);
        let mut none = PinTable::default();
        let mut judge = |address: &str| judge_tcp(&policy, &mut none, address.parse().unwrap());
        assert_eq!(judge("8.8.8.8:5001"), Ok(Grant::Direct));
        assert_eq!(judge("8.8.8.8:443"), Err(DenialReason::NotAllowed));
        assert_eq!(judge("9.9.9.9:1234"), Ok(Grant::Direct));
        assert!(judge_udp(&policy, "8.8.8.8:5000".parse().unwrap()).is_ok());
        assert!(judge_udp(&policy, "9.9.9.9:443".parse().unwrap()).is_err());
        assert!(judge_udp(&policy, "9.9.9.9:1234".parse().unwrap()).is_err());
    }
}
