//! Runs in: stack worker (no capabilities).
//!
//! What a packet of the guest is. Everything that the stack does not serve is dropped here, before
//! any other code reads the packet.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::Range,
};

use crate::addresses::{CELL_V4, CELL_V6};

/// One packet of the guest.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GuestPacket {
    /// A TCP segment.
    Tcp { flow: FlowKey, opens: bool },
    /// A UDP datagram; the range is its payload.
    Udp { flow: FlowKey, payload: Range<usize> },
    /// Something to a unicast address that is not served: ICMP, fragments, other protocols.
    NotServed { remote: SocketAddr, is_icmp: bool },
    /// Something that has no place on this link.
    Invalid,
}

/// A connection or a flow, as the cell sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FlowKey {
    /// The port in the cell. Its address is fixed.
    pub(super) cell_port: u16,
    /// The other end.
    pub(super) remote: SocketAddr,
}

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP_V6: u8 = 58;

/// Reads the headers of a packet.
pub(super) fn classify_packet(packet: &[u8], ipv6: bool) -> GuestPacket {
    let parsed = match packet.first().map(|byte| byte >> 4) {
        Some(4) => parse_v4(packet),
        Some(6) if ipv6 => parse_v6(packet),
        _ => None,
    };
    parsed.unwrap_or(GuestPacket::Invalid)
}

fn parse_v4(packet: &[u8]) -> Option<GuestPacket> {
    let header: &[u8; 20] = packet.first_chunk()?;
    let options = header[0] != 0x45;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let source = Ipv4Addr::from([header[12], header[13], header[14], header[15]]);
    let remote = Ipv4Addr::from([header[16], header[17], header[18], header[19]]);
    let unicast = !remote.is_loopback()
        && !remote.is_multicast()
        && !remote.is_unspecified()
        && !remote.is_broadcast()
        && remote != CELL_V4;
    if options || total != packet.len() || source != CELL_V4 || !unicast {
        return None;
    }
    let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    let protocol = header[9];
    if fragment {
        return Some(not_served(remote.into(), protocol == ICMP));
    }
    parse_transport(packet, 20, protocol, remote.into())
}

fn parse_v6(packet: &[u8]) -> Option<GuestPacket> {
    let header: &[u8; 40] = packet.first_chunk()?;
    let payload = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let source = Ipv6Addr::from(*header[8..].first_chunk::<16>()?);
    let remote = Ipv6Addr::from(*header[24..].first_chunk::<16>()?);
    let unicast = !remote.is_loopback()
        && !remote.is_multicast()
        && !remote.is_unspecified()
        && !remote.is_unicast_link_local()
        // The IPv6 spellings of an IPv4 address would be another key of the same destination.
        && remote.to_ipv4_mapped().is_none()
        && remote != CELL_V6;
    if payload + 40 != packet.len() || source != CELL_V6 || !unicast {
        return None;
    }
    parse_transport(packet, 40, header[6], remote.into())
}

fn not_served(remote: IpAddr, is_icmp: bool) -> GuestPacket {
    GuestPacket::NotServed { remote: SocketAddr::new(remote, 0), is_icmp }
}

fn parse_transport(packet: &[u8], at: usize, protocol: u8, remote: IpAddr) -> Option<GuestPacket> {
    if protocol != TCP && protocol != UDP {
        return Some(not_served(remote, protocol == ICMP || protocol == ICMP_V6));
    }
    let transport = packet.get(at..)?;
    let ports: &[u8; 4] = transport.first_chunk()?;
    let cell_port = u16::from_be_bytes([ports[0], ports[1]]);
    let remote = SocketAddr::new(remote, u16::from_be_bytes([ports[2], ports[3]]));
    if cell_port == 0 || remote.port() == 0 {
        return None;
    }
    let flow = FlowKey { cell_port, remote };
    if protocol == UDP {
        let len = usize::from(u16::from_be_bytes([*transport.get(4)?, *transport.get(5)?]));
        let valid = len >= 8 && len <= transport.len();
        return valid.then(|| GuestPacket::Udp { flow, payload: at + 8..at + len });
    }
    parse_tcp(transport, flow)
}

/// Checks the header of a segment. A SYN that a stack of today would not send is refused: smoltcp
/// computes with its values.
fn parse_tcp(segment: &[u8], flow: FlowKey) -> Option<GuestPacket> {
    const FIN_SYN_RST_ACK: u8 = 0b1_0111;
    const SYN: u8 = 0b0_0010;
    const LEAST_SEGMENT: u16 = 88;
    let header_len = usize::from(*segment.get(12)? >> 4) * 4;
    let options = segment.get(20..header_len)?;
    let opens = *segment.get(13)? & FIN_SYN_RST_ACK == SYN;
    if opens {
        let has_payload = segment.len() > header_len;
        if has_payload || segment_size_of(options)? < LEAST_SEGMENT {
            return None;
        }
    }
    Some(GuestPacket::Tcp { flow, opens })
}

/// The maximum segment size in the options of a SYN; 536 if it has none.
fn segment_size_of(mut options: &[u8]) -> Option<u16> {
    loop {
        match *options {
            [] | [0, ..] => return Some(536),
            [1, ref rest @ ..] => options = rest,
            [2, 4, high, low, ..] => return Some(u16::from_be_bytes([high, low])),
            [_, len, ..] if len >= 2 => options = options.get(usize::from(len)..)?,
            _ => return None,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An IPv4 packet of the cell with a transport header.
    pub(crate) fn v4_packet(protocol: u8, remote: [u8; 4], transport: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 20];
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&((20 + transport.len()) as u16).to_be_bytes());
        packet[8] = 64;
        packet[9] = protocol;
        packet[12..16].copy_from_slice(&CELL_V4.octets());
        packet[16..20].copy_from_slice(&remote);
        packet.extend(transport);
        packet
    }

    fn syn(options: &[u8]) -> Vec<u8> {
        let mut segment =
            vec![0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0, 2, 0xff, 0xff, 0, 0, 0, 0];
        segment[12] = (((20 + options.len()) / 4) << 4) as u8;
        segment.extend(options);
        segment
    }

    #[test]
    fn a_syn_and_a_datagram_are_recognised() {
        let packet = v4_packet(TCP, [1, 1, 1, 1], &syn(&[2, 4, 5, 0xb4]));
        let flow = FlowKey { cell_port: 40_000, remote: "1.1.1.1:80".parse().unwrap() };
        assert_eq!(classify_packet(&packet, false), GuestPacket::Tcp { flow, opens: true });
        let packet = v4_packet(UDP, [1, 1, 1, 1], &[0x9c, 0x40, 0, 80, 0, 10, 0, 0, b'h', b'i']);
        assert_eq!(classify_packet(&packet, false), GuestPacket::Udp { flow, payload: 28..30 });
    }

    #[test]
    fn what_has_no_place_on_the_link_is_invalid() {
        let good = v4_packet(TCP, [1, 1, 1, 1], &syn(&[]));
        let mut other_source = good.clone();
        other_source[15] = 9;
        let mut options = good.clone();
        options[0] = 0x46;
        let mut long = good.clone();
        long.push(0);
        for packet in [&other_source, &options, &long, &good[..19], &good[..30], &[]] {
            assert_eq!(classify_packet(packet, true), GuestPacket::Invalid);
        }
        for remote in [[127, 0, 0, 1], [224, 0, 0, 1], [0; 4], [255; 4], CELL_V4.octets()] {
            let packet = v4_packet(TCP, remote, &syn(&[]));
            assert_eq!(classify_packet(&packet, true), GuestPacket::Invalid, "{remote:?}");
        }
        for options in [[2, 4, 0, 1], [2, 3, 5, 5], [3, 0, 0, 0]] {
            let packet = v4_packet(TCP, [1, 1, 1, 1], &syn(&options));
            assert_eq!(classify_packet(&packet, true), GuestPacket::Invalid, "{options:?}");
        }
    }

    #[test]
    fn fragments_and_icmp_are_not_served() {
        let mut fragment = v4_packet(UDP, [1, 1, 1, 1], &[0; 8]);
        fragment[6] = 0x20;
        let ping = v4_packet(ICMP, [1, 1, 1, 1], &[8, 0, 0, 0, 0, 0, 0, 0]);
        let remote = "1.1.1.1:0".parse().unwrap();
        for (packet, is_icmp) in [(fragment, false), (ping, true)] {
            let expected = GuestPacket::NotServed { remote, is_icmp };
            assert_eq!(classify_packet(&packet, false), expected);
        }
    }
}
