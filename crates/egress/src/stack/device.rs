//! Runs in: stack worker (no capabilities).
//!
//! The tun device of the cell: one packet in, packets out, each behind a virtio header. Checksums of
//! TCP and the cutting of large segments are left to the kernel on the other side.

use std::{
    io,
    num::NonZeroUsize,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use smoltcp::{
    phy::{Checksum, Device, DeviceCapabilities, Medium, PacketMeta, RxToken, TxToken},
    time::Instant,
};

/// The bytes of `struct virtio_net_hdr` in front of each packet.
pub(crate) const VNET_HEADER: usize = 10;
/// The longest packet: the kernel sends and takes TCP segments of up to 64 KiB.
const MAX_PACKET: usize = 65_535;

pub(super) struct TunDevice {
    fd: OwnedFd,
    incoming: Vec<u8>,
    /// The length of the packet in `incoming` that the stack has not taken yet.
    waiting: Option<usize>,
    outgoing: Vec<u8>,
    /// What the next stack that is made takes for the MTU.
    stack_mtu: usize,
    /// Segments sent without payload and without SYN, FIN or RST.
    empty_segments: u32,
}

impl TunDevice {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            incoming: vec![0; VNET_HEADER + MAX_PACKET + 1],
            waiting: None,
            // A datagram of IPv6 has its header besides.
            outgoing: vec![0; VNET_HEADER + 40 + MAX_PACKET],
            stack_mtu: MAX_PACKET,
            empty_segments: 0,
        }
    }

    /// Sets what the next stack that is made takes for the MTU.
    pub(super) fn set_stack_mtu(&mut self, mtu: usize) {
        self.stack_mtu = mtu;
    }

    /// Reads the next packet of the guest; `None` if there is none.
    pub(super) fn read_packet(&mut self) -> io::Result<Option<usize>> {
        match rustix::io::read(&self.fd, &mut self.incoming) {
            Ok(len) => Ok(Some(len.saturating_sub(VNET_HEADER))),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The packet that was read last.
    pub(super) fn packet(&self, len: usize) -> &[u8] {
        self.incoming.get(VNET_HEADER..VNET_HEADER + len).unwrap_or_default()
    }

    /// Hands the packet that was read last to the stack.
    pub(super) fn offer_packet(&mut self, len: usize) {
        self.waiting = Some(len.min(MAX_PACKET));
    }

    /// Hands a packet that was kept to the stack.
    pub(super) fn offer_copy(&mut self, packet: &[u8]) {
        let len = packet.len().min(MAX_PACKET);
        self.incoming[VNET_HEADER..VNET_HEADER + len].copy_from_slice(&packet[..len]);
        self.waiting = Some(len);
    }

    /// Sends a complete packet with its checksums. A packet that the kernel does not take is lost,
    /// as on any link.
    pub(super) fn send_packet(&mut self, packet: &[u8]) {
        let end = VNET_HEADER + packet.len();
        if let Some(buffer) = self.outgoing.get_mut(..end) {
            buffer[..VNET_HEADER].fill(0);
            buffer[VNET_HEADER..].copy_from_slice(packet);
            let _ = rustix::io::write(&self.fd, buffer);
        }
    }

    /// How many empty segments were sent since the last call.
    pub(super) fn take_empty_segments(&mut self) -> u32 {
        std::mem::take(&mut self.empty_segments)
    }
}

impl AsFd for TunDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Device for TunDevice {
    type RxToken<'a> = PacketIn<'a>;
    type TxToken<'a> = PacketOut<'a>;

    fn receive(&mut self, _: Instant) -> Option<(PacketIn<'_>, PacketOut<'_>)> {
        let len = self.waiting.take()?;
        let packet = PacketIn(&self.incoming[VNET_HEADER..VNET_HEADER + len]);
        let answer = PacketOut {
            fd: self.fd.as_fd(),
            buffer: &mut self.outgoing,
            empty_segments: &mut self.empty_segments,
            segment: 0,
        };
        Some((packet, answer))
    }

    fn transmit(&mut self, _: Instant) -> Option<PacketOut<'_>> {
        Some(PacketOut {
            fd: self.fd.as_fd(),
            buffer: &mut self.outgoing,
            empty_segments: &mut self.empty_segments,
            segment: 0,
        })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.stack_mtu;
        capabilities.checksum.tcp = Checksum::None;
        capabilities.checksum.ipv4 = Checksum::Tx;
        // Not those of IPv6: smoltcp drops them on their way out.
        capabilities.segmentation.tcpv4 = NonZeroUsize::new(MAX_PACKET);
        capabilities
    }
}

pub(super) struct PacketIn<'a>(&'a [u8]);

impl RxToken for PacketIn<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

pub(super) struct PacketOut<'a> {
    fd: BorrowedFd<'a>,
    buffer: &'a mut Vec<u8>,
    empty_segments: &'a mut u32,
    /// The payload of each segment that the kernel cuts; zero if it cuts none.
    segment: u16,
}

impl TxToken for PacketOut<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let end = VNET_HEADER + len;
        if self.buffer.len() < end {
            self.buffer.resize(end, 0);
        }
        let buffer = &mut self.buffer[..end];
        // The stack writes every byte of the payload; headers have gaps.
        let headers = end.min(VNET_HEADER + 120);
        buffer[..headers].fill(0);
        let result = f(&mut buffer[VNET_HEADER..]);
        if let Some(empty) = prepare_segment(buffer, self.segment) {
            *self.empty_segments += u32::from(empty);
            // A packet that the kernel does not take is lost, as on any link.
            let _ = rustix::io::write(self.fd, buffer);
        }
        result
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.segment = meta.segmentation_offload_size.map_or(0, u16::from);
    }
}

/// Fills in the virtio header of a TCP segment and the sum of its pseudo-header, from which the
/// kernel completes the checksum. Returns whether the segment is empty; `None` if it is no TCP.
fn prepare_segment(buffer: &mut [u8], segment: u16) -> Option<bool> {
    const NEEDS_CSUM: u8 = 1;
    const GSO_TCPV4: u8 = 1;
    const TCP: u8 = 6;
    const CHECKSUM_AT: usize = 16;
    let (header, packet) = buffer.split_at_mut_checked(VNET_HEADER)?;
    let (ip_len, protocol, addresses) = match packet.first()? >> 4 {
        4 => (20, *packet.get(9)?, packet.get(12..20)?),
        _ => (40, *packet.get(6)?, packet.get(8..40)?),
    };
    if protocol != TCP {
        return None;
    }
    let tcp_len = packet.len().checked_sub(ip_len)?;
    let mut sum = u32::from(TCP) + u32::try_from(tcp_len).ok()?;
    for pair in addresses.chunks_exact(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let tcp = packet.get_mut(ip_len..)?;
    tcp.get_mut(CHECKSUM_AT..CHECKSUM_AT + 2)?.copy_from_slice(&(sum as u16).to_be_bytes());
    let tcp_header = usize::from(*tcp.get(12)? >> 4) * 4;
    let flags = *tcp.get(13)?;

    header[0] = NEEDS_CSUM;
    if segment != 0 {
        header[1] = GSO_TCPV4;
        header[2..4].copy_from_slice(&((ip_len + tcp_header) as u16).to_ne_bytes());
        header[4..6].copy_from_slice(&segment.to_ne_bytes());
    }
    header[6..8].copy_from_slice(&(ip_len as u16).to_ne_bytes());
    header[8..10].copy_from_slice(&(CHECKSUM_AT as u16).to_ne_bytes());
    const FIN_SYN_RST: u8 = 0b111;
    Some(tcp_len <= tcp_header && flags & FIN_SYN_RST == 0)
}
