//! Runs in: broker (no capabilities).
//!
//! The floor: addresses and ports that no policy reaches. It is asked last, with the address that
//! is about to be dialled, and only its answer can be dialled.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use cloche_model::{DenialReason, NetworkProtocol, is_public_address};
use ipnet::IpNet;

use crate::{EgressSettings, addresses};

/// TCP: mail, and what Windows networks answer on.
const CLOSED_TCP: [u16; 6] = [25, 135, 137, 138, 139, 445];
/// UDP: services that answer a small question with a large datagram, and those of the local link.
const CLOSED_UDP: [u16; 12] = [17, 19, 111, 137, 138, 139, 161, 389, 1900, 5353, 5355, 11211];
/// Addresses of metadata services that are inside of networks an operator may open.
const METADATA: [IpAddr; 5] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe)),
];
/// The beginning of such addresses of a cloud that has several: metadata and credentials of pods.
const METADATA_NET: [u16; 2] = [0xfd00, 0xec2];

pub(super) struct AddressFloor {
    deny: Vec<IpNet>,
    reachable_private: Vec<IpNet>,
    deny_ports: Vec<u16>,
}

/// An address that the floor permits.
#[derive(Clone, Copy, Debug)]
pub(super) struct PermittedAddress(SocketAddr);

impl PermittedAddress {
    pub(super) fn get(self) -> SocketAddr {
        self.0
    }
}

impl AddressFloor {
    pub(super) fn new(settings: &EgressSettings) -> Self {
        Self {
            deny: settings.deny.clone(),
            reachable_private: settings.reachable_private.clone(),
            deny_ports: settings.deny_ports.clone(),
        }
    }

    /// Permits an address and a port, or says why not.
    pub(super) fn permit(
        &self,
        address: SocketAddr,
        protocol: NetworkProtocol,
    ) -> Result<PermittedAddress, DenialReason> {
        let closed: &[u16] = match protocol {
            NetworkProtocol::Udp => &CLOSED_UDP,
            _ => &CLOSED_TCP,
        };
        let port = address.port();
        if port == 0 || closed.contains(&port) || self.deny_ports.contains(&port) {
            return Err(DenialReason::PortBlocked);
        }
        match self.permits_ip(address.ip()) {
            true => Ok(PermittedAddress(address)),
            false => Err(DenialReason::AddressBlocked),
        }
    }

    /// Whether an address is reachable at all; resolved addresses are filtered with it.
    pub(super) fn permits_ip(&self, ip: IpAddr) -> bool {
        // An IPv4 address in an IPv6 one is another spelling. Nothing dials by it.
        if ip.to_canonical() != ip {
            return false;
        }
        let embedded = embedded_v4(ip).map(IpAddr::V4);
        [Some(ip), embedded].into_iter().flatten().all(|ip| self.permits_plain(ip))
    }

    fn permits_plain(&self, ip: IpAddr) -> bool {
        let listed = |nets: &[IpNet]| nets.iter().any(|net| net.contains(&ip));
        !is_never_reachable(ip)
            && !listed(&self.deny)
            && (is_public_address(ip) || listed(&self.reachable_private))
            && !is_own_address(ip)
    }
}

/// The IPv4 address behind the well-known NAT64 prefix.
fn embedded_v4(ip: IpAddr) -> Option<Ipv4Addr> {
    match ip {
        IpAddr::V6(ip) => match ip.segments() {
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                Some(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)))
            }
            _ => None,
        },
        IpAddr::V4(_) => None,
    }
}

/// Addresses that no setting opens.
fn is_never_reachable(ip: IpAddr) -> bool {
    let local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast() || ip.octets()[0] == 0,
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.segments().starts_with(&METADATA_NET),
    };
    local
        || ip.is_loopback()
        || ip.is_multicast()
        || ip.is_unspecified()
        || METADATA.contains(&ip)
        || addresses::is_gateway(ip)
}

/// Whether the host itself has this address. The kernel binds a socket only to such addresses, so
/// the answer is as new as the question. A host that binds to any address reaches nothing.
fn is_own_address(ip: IpAddr) -> bool {
    match UdpSocket::bind((ip, 0)) {
        Ok(_) => true,
        Err(error) => error.kind() != std::io::ErrorKind::AddrNotAvailable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floor(deny: &str, reachable: &str) -> AddressFloor {
        AddressFloor::new(&EgressSettings {
            deny: vec![deny.parse().unwrap()],
            reachable_private: vec![reachable.parse().unwrap()],
            deny_ports: vec![6379],
            ..EgressSettings::default()
        })
    }

    #[test]
    fn no_setting_opens_loopback_metadata_or_the_hosts_own_addresses() {
        let floor = floor("9.9.9.0/24", "0.0.0.0/0");
        for ip in [
            "127.0.0.1",
            "169.254.169.254",
            "100.100.100.200",
            "168.63.129.16",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "192.0.0.1",
            "9.9.9.9",
            "64:ff9b::909:909",
            "64:ff9b::7f00:1",
            "::ffff:1.1.1.1",
            "::ffff:169.254.169.254",
            "::1",
            "fe80::1",
            "fd00:ec2::254",
            "fd12::1",
        ] {
            let address = SocketAddr::new(ip.parse().unwrap(), 443);
            let permitted = floor.permit(address, NetworkProtocol::Tcp);
            assert_eq!(permitted.err(), Some(DenialReason::AddressBlocked), "{ip}");
        }
        for ip in ["1.1.1.1", "10.1.2.3", "192.168.77.7"] {
            let address = SocketAddr::new(ip.parse().unwrap(), 443);
            assert!(floor.permit(address, NetworkProtocol::Tcp).is_ok(), "{ip}");
        }
    }

    #[test]
    fn metadata_is_out_of_reach_where_its_network_was_opened() {
        for (opened, ip) in [
            ("fd00::/8", "fd00:ec2::254"),
            ("fd00::/8", "fd00:ec2::23"),
            ("fd00::/8", "fd20:ce::254"),
            ("fd00::/8", "fd00:c1::a9fe:a9fe"),
            ("100.64.0.0/10", "100.100.100.200"),
            ("168.63.0.0/16", "168.63.129.16"),
            ("192.0.0.0/24", "192.0.0.192"),
            ("169.254.0.0/16", "169.254.170.23"),
        ] {
            assert!(!floor("9.9.9.0/24", opened).permits_ip(ip.parse().unwrap()), "{ip}");
        }
    }

    #[test]
    fn ports_of_mail_and_of_the_operator_are_closed() {
        let floor = floor("9.9.9.0/24", "10.0.0.0/8");
        for (port, protocol) in [
            (25, NetworkProtocol::Tcp),
            (445, NetworkProtocol::Tcp),
            (6379, NetworkProtocol::Tcp),
            (6379, NetworkProtocol::Udp),
            (1900, NetworkProtocol::Udp),
            (0, NetworkProtocol::Tcp),
        ] {
            let address = SocketAddr::new("1.1.1.1".parse().unwrap(), port);
            let permitted = floor.permit(address, protocol);
            assert_eq!(permitted.err(), Some(DenialReason::PortBlocked), "{port}");
        }
    }
}
