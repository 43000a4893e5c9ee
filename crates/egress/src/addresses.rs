//! Runs in: every process.
//!
//! The addresses on the link between a cell and its stack worker. They are the same in every cell:
//! no packet with one of them leaves the link.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The address of the cell. The block 192.0.0.0/29 is reserved for the inside of such a link, so
/// it collides with no network that a program may want to reach.
pub const CELL_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 2);
/// The address of the resolver, as in `/etc/resolv.conf` of the cell.
pub const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 1);
/// The length of the prefix of both.
pub const PREFIX_V4: u8 = 29;
/// The IPv6 address of the cell, if the host can use IPv6.
pub const CELL_V6: Ipv6Addr = Ipv6Addr::new(0xfd63, 0x6c6f, 0x6368, 0, 0, 0, 0, 2);
/// The IPv6 address of the resolver.
pub const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfd63, 0x6c6f, 0x6368, 0, 0, 0, 0, 1);
/// The length of the prefix of both.
pub const PREFIX_V6: u8 = 64;
/// The MTU of the device, the largest that there is: a datagram of any size is one packet, and never
/// fragments. The host's kernel cuts it for the way that it goes.
pub const MTU: u32 = 65_535;

/// `/etc/resolv.conf` of a cell with a network. One server only: some resolvers ask all of them and
/// take the first answer.
pub const RESOLV_CONF: &str = "nameserver 192.0.0.1\noptions ndots:1\n";
/// `/etc/hosts` of a cell with a network.
pub const HOSTS: &str = "127.0.0.1 localhost\n::1 localhost\n";

/// Whether an address is the resolver.
#[must_use]
pub fn is_gateway(address: IpAddr) -> bool {
    address == GATEWAY_V4 || address == GATEWAY_V6
}
