//! Runs in: stack worker (no capabilities).
//!
//! The stack for IPv4 and the stack for IPv6. They differ in the size of segments, which the library
//! knows for a whole stack only.

use std::io;

use smoltcp::{
    iface::{Config, Interface},
    time::Instant,
    wire::{HardwareAddress, IpCidr},
};

use super::{device::TunDevice, ingress::FlowKey};
use crate::addresses::{GATEWAY_V4, GATEWAY_V6, MTU, PREFIX_V4, PREFIX_V6};

/// What the IPv4 stack takes for the MTU. It sends segments of up to 64 KiB all the same: the kernel
/// on the other side cuts them. A guest sends small ones in large packets, too, and a receive buffer
/// has room for many.
const CUT_BY_KERNEL: usize = 1500;
/// What the IPv6 stack takes for the MTU. The library drops IPv6 segments that the kernel would have
/// to cut, so they go over the device as they are, as large as they can be. The guest's kernel sends
/// at most half a receive buffer in one.
const UNCUT: usize = MTU as usize;

/// Both stacks. They take packets to every address.
pub(super) struct IpStacks {
    v4: Interface,
    v6: Interface,
}

impl IpStacks {
    pub(super) fn new(device: &mut TunDevice) -> io::Result<Self> {
        Ok(Self {
            v4: make_stack(device, CUT_BY_KERNEL, IpCidr::new(GATEWAY_V4.into(), PREFIX_V4))?,
            v6: make_stack(device, UNCUT, IpCidr::new(GATEWAY_V6.into(), PREFIX_V6))?,
        })
    }

    /// The stack of a connection.
    pub(super) fn of(&mut self, flow: &FlowKey) -> &mut Interface {
        if flow.remote.is_ipv6() { &mut self.v6 } else { &mut self.v4 }
    }

    /// The stack that a packet is for.
    pub(super) fn of_packet(&mut self, packet: &[u8]) -> &mut Interface {
        let is_v6 = packet.first().is_some_and(|byte| byte >> 4 == 6);
        if is_v6 { &mut self.v6 } else { &mut self.v4 }
    }
}

fn make_stack(device: &mut TunDevice, mtu: usize, address: IpCidr) -> io::Result<Interface> {
    let mut config = Config::new(HardwareAddress::Ip);
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).map_err(|_| io::Error::other("no random bytes"))?;
    config.random_seed = u64::from_ne_bytes(seed);
    device.set_stack_mtu(mtu);
    let mut stack = Interface::new(config, device, Instant::from_micros(1_000_000));
    stack.update_ip_addrs(|addresses| {
        // There is room for it; without it the stack would not answer at all.
        let _ = addresses.push(address);
    });
    stack.set_any_ip(true);
    Ok(stack)
}
