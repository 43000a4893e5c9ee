//! Runs in: stack worker (no capabilities).
//!
//! Packets that the worker writes itself: datagrams of the other end, and ICMP errors.

use std::net::{IpAddr, SocketAddr};

use crate::addresses::{CELL_V4, CELL_V6, GATEWAY_V4, GATEWAY_V6};

const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMP_V6: u8 = 58;

/// Why something cannot be reached, as an ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreachable {
    Network,
    Host,
    Port,
    Prohibited,
}

impl Unreachable {
    fn code(self, ipv6: bool) -> u8 {
        match (self, ipv6) {
            (Self::Network, _) => 0,
            (Self::Host, false) => 1,
            (Self::Host, true) => 3,
            (Self::Port, false) => 3,
            (Self::Port, true) => 4,
            (Self::Prohibited, false) => 13,
            (Self::Prohibited, true) => 1,
        }
    }
}

/// A datagram from `from` to a port of the cell. Longer than the MTU is fine: tun takes it.
pub(super) fn build_datagram(from: SocketAddr, cell_port: u16, payload: &[u8]) -> Option<Vec<u8>> {
    let len = u16::try_from(8 + payload.len()).ok()?;
    let mut datagram = Vec::with_capacity(usize::from(len));
    datagram.extend(from.port().to_be_bytes());
    datagram.extend(cell_port.to_be_bytes());
    datagram.extend(len.to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    let mut packet = ip_packet(from.ip(), UDP, &datagram)?;
    let at = packet.len() - datagram.len();
    let checksum = match transport_checksum(from.ip(), UDP, &datagram) {
        0 => 0xffff,
        checksum => checksum,
    };
    packet[at + 6..at + 8].copy_from_slice(&checksum.to_be_bytes());
    Some(packet)
}

/// The ICMP error for a packet of the guest.
pub(super) fn build_unreachable(packet: &[u8], why: Unreachable) -> Option<Vec<u8>> {
    let ipv6 = packet.first()? >> 4 == 6;
    // The header and the ports of the packet are enough for the guest's kernel to find the socket.
    let quoted = packet.get(..if ipv6 { 48 } else { 28 }).unwrap_or(packet);
    let mut message = vec![if ipv6 { 1 } else { 3 }, why.code(ipv6), 0, 0, 0, 0, 0, 0];
    message.extend(quoted);
    let (from, protocol) = match ipv6 {
        true => (IpAddr::from(GATEWAY_V6), ICMP_V6),
        false => (IpAddr::from(GATEWAY_V4), ICMP),
    };
    let checksum = match ipv6 {
        true => transport_checksum(from, protocol, &message),
        false => fold_checksum(sum_words(0, &message)),
    };
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    ip_packet(from, protocol, &message)
}

/// An IP packet to the cell.
fn ip_packet(from: IpAddr, protocol: u8, payload: &[u8]) -> Option<Vec<u8>> {
    const HOP_LIMIT: u8 = 64;
    let mut packet = Vec::with_capacity(40 + payload.len());
    match from {
        IpAddr::V4(from) => {
            let total = u16::try_from(20 + payload.len()).ok()?;
            packet.extend([0x45, 0]);
            packet.extend(total.to_be_bytes());
            packet.extend([0, 0, 0x40, 0, HOP_LIMIT, protocol, 0, 0]);
            packet.extend(from.octets());
            packet.extend(CELL_V4.octets());
            let checksum = fold_checksum(sum_words(0, &packet));
            packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        IpAddr::V6(from) => {
            let len = u16::try_from(payload.len()).ok()?;
            packet.extend([0x60, 0, 0, 0]);
            packet.extend(len.to_be_bytes());
            packet.extend([protocol, HOP_LIMIT]);
            packet.extend(from.octets());
            packet.extend(CELL_V6.octets());
        }
    }
    packet.extend(payload);
    Some(packet)
}

/// The checksum over the pseudo-header and a payload whose own checksum field is zero.
fn transport_checksum(from: IpAddr, protocol: u8, payload: &[u8]) -> u16 {
    let addresses = match from {
        IpAddr::V4(from) => sum_words(sum_words(0, &from.octets()), &CELL_V4.octets()),
        IpAddr::V6(from) => sum_words(sum_words(0, &from.octets()), &CELL_V6.octets()),
    };
    let start = addresses + u64::from(protocol) + payload.len() as u64;
    fold_checksum(sum_words(start, payload))
}

fn sum_words(start: u64, bytes: &[u8]) -> u64 {
    bytes.chunks(2).fold(start, |sum, pair| {
        let low = pair.get(1).copied().unwrap_or(0);
        sum + u64::from(u16::from_be_bytes([pair[0], low]))
    })
}

fn fold_checksum(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use smoltcp::wire::{Icmpv4Packet, Ipv4Packet, Ipv6Packet, UdpPacket};

    use super::*;

    #[test]
    fn datagrams_have_the_checksums_that_another_stack_expects() {
        let from: SocketAddr = "9.9.9.9:53".parse().unwrap();
        let packet = build_datagram(from, 4000, b"hello").unwrap();
        let ip = Ipv4Packet::new_checked(&packet[..]).unwrap();
        assert!(ip.verify_checksum());
        let udp = UdpPacket::new_checked(ip.payload()).unwrap();
        assert!(udp.verify_checksum(&ip.src_addr().into(), &ip.dst_addr().into()));
        assert_eq!(udp.payload(), b"hello");

        let from: SocketAddr = "[2606:4700::1111]:53".parse().unwrap();
        let packet = build_datagram(from, 4000, b"hello!").unwrap();
        let ip = Ipv6Packet::new_checked(&packet[..]).unwrap();
        let udp = UdpPacket::new_checked(ip.payload()).unwrap();
        assert!(udp.verify_checksum(&ip.src_addr().into(), &ip.dst_addr().into()));
        assert!(build_datagram(from, 4000, &[0; 65_536]).is_none());
    }

    #[test]
    fn an_unreachable_error_quotes_the_packet() {
        let original = super::super::ingress::tests::v4_packet(UDP, [1, 1, 1, 1], &[7; 20]);
        let packet = build_unreachable(&original, Unreachable::Port).unwrap();
        let ip = Ipv4Packet::new_checked(&packet[..]).unwrap();
        let icmp = Icmpv4Packet::new_checked(ip.payload()).unwrap();
        assert!(ip.verify_checksum() && icmp.verify_checksum());
        assert_eq!(icmp.data(), &original[..28]);
    }
}
