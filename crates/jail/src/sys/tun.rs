//! Runs in: spawner (root), and tests of networks.
//!
//! The tun device of a cell: makes it in the network namespace of this process, and gives it its
//! addresses and routes. Core only.

use super::{
    RawFd,
    errno::{Errno, Result},
    io::{read, write},
    raw::{call_with_numbers, syscall},
    safe_calls::close,
    syscall_table::{Call, PlainCall},
};

/// The name of the device in every cell.
pub const TUN_NAME: &[u8] = b"net0";

/// The bytes of `struct virtio_net_hdr` in front of each packet of a device made here.
pub const VNET_HEADER_LEN: usize = 10;

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const AF_NETLINK: u16 = 16;

/// `struct ifreq`: a name of 16 bytes, then a union of 24.
type InterfaceRequest = [u8; 40];

/// The addresses and the MTU of a tun device.
#[derive(Clone, Copy, Debug)]
pub struct TunAddresses {
    /// The IPv4 address of the cell.
    pub v4: [u8; 4],
    /// The length of its prefix.
    pub v4_prefix: u8,
    /// The IPv6 address and the length of its prefix; no IPv6 if absent.
    pub v6: Option<([u8; 16], u8)>,
    /// The MTU.
    pub mtu: u32,
}

/// Turns an open `/dev/net/tun` into the device [`TUN_NAME`], down and without an address, with a
/// virtio header and offloads for checksums and TCP segments. The device is in the network
/// namespace that this process had when it opened the descriptor.
pub fn make_tun(fd: RawFd) -> Result<()> {
    const TUNSETIFF: usize = 0x4004_54ca;
    const TUNSETOFFLOAD: usize = 0x4004_54d0;
    const TUNSETVNETHDRSZ: usize = 0x4004_54d8;
    const IFF_TUN_NO_PI_VNET_HDR: u16 = 0x0001 | 0x1000 | 0x4000;
    const CSUM_TSO4_TSO6: usize = 1 | 2 | 4;
    let mut request = new_request();
    request[16..18].copy_from_slice(&IFF_TUN_NO_PI_VNET_HDR.to_ne_bytes());
    interface_ioctl(fd, TUNSETIFF, &mut request)?;
    let header_len = VNET_HEADER_LEN as i32;
    let address = (&raw const header_len) as usize;
    // SAFETY: the kernel reads one int behind the pointer, which outlives the call.
    unsafe { syscall(Call::Ioctl, [fd as usize, TUNSETVNETHDRSZ, address, 0, 0, 0]) }?;
    // SAFETY: the argument of this request is a number, not a pointer.
    unsafe { syscall(Call::Ioctl, [fd as usize, TUNSETOFFLOAD, CSUM_TSO4_TSO6, 0, 0, 0]) }.map(drop)
}

/// Gives the device its addresses, brings it up and sends everything through it, in the network
/// namespace of this process.
pub fn configure_tun(addresses: &TunAddresses) -> Result<()> {
    let socket = open_socket(AF_INET)?;
    let result = configure_v4(socket, addresses);
    close(socket);
    result?;
    let Some((address, prefix)) = addresses.v6 else {
        return Ok(());
    };
    let socket = open_socket(AF_INET6)?;
    let result = configure_v6(socket, &address, prefix);
    close(socket);
    result
}

fn configure_v4(socket: RawFd, addresses: &TunAddresses) -> Result<()> {
    const SIOCSIFADDR: usize = 0x8916;
    const SIOCSIFNETMASK: usize = 0x891c;
    const SIOCSIFMTU: usize = 0x8922;
    const SIOCSIFFLAGS: usize = 0x8914;
    const UP_RUNNING: u16 = 0x41;
    if addresses.v4_prefix > 32 {
        return Err(Errno::INVAL);
    }
    let mask = u32::MAX.checked_shl(32 - u32::from(addresses.v4_prefix)).unwrap_or(0);
    let mut request = new_request();
    request[16..20].copy_from_slice(&addresses.mtu.to_ne_bytes());
    interface_ioctl(socket, SIOCSIFMTU, &mut request)?;
    for (what, address) in [(SIOCSIFADDR, addresses.v4), (SIOCSIFNETMASK, mask.to_be_bytes())] {
        let mut request = new_request();
        request[16..18].copy_from_slice(&AF_INET.to_ne_bytes());
        request[20..24].copy_from_slice(&address);
        interface_ioctl(socket, what, &mut request)?;
    }
    let mut request = new_request();
    request[16..18].copy_from_slice(&UP_RUNNING.to_ne_bytes());
    interface_ioctl(socket, SIOCSIFFLAGS, &mut request)?;
    add_default_route_v4(socket)
}

fn add_default_route_v4(socket: RawFd) -> Result<()> {
    const SIOCADDRT: usize = 0x890b;
    const RTF_UP: u16 = 1;
    // struct rtentry of a 64-bit kernel: three addresses from 8, the flags at 56, a pointer to the
    // name of the device at 88, 120 bytes in all.
    let mut route = [0_u64; 15];
    for word in [1, 3, 5] {
        route[word] = u64::from(AF_INET);
    }
    route[7] = u64::from(RTF_UP);
    let mut name = [0_u8; 16];
    name[..TUN_NAME.len()].copy_from_slice(TUN_NAME);
    route[11] = name.as_ptr() as u64;
    let address = route.as_ptr() as usize;
    // SAFETY: the kernel reads 120 bytes of `route` and a name of 16 bytes with a final zero; both
    // outlive the call.
    unsafe { syscall(Call::Ioctl, [socket as usize, SIOCADDRT, address, 0, 0, 0]) }.map(drop)
}

fn configure_v6(socket: RawFd, address: &[u8; 16], prefix: u8) -> Result<()> {
    const SIOCGIFINDEX: usize = 0x8933;
    const SIOCADDRT: usize = 0x890b;
    const RTF_UP: u32 = 1;
    let mut request = new_request();
    interface_ioctl(socket, SIOCGIFINDEX, &mut request)?;
    let index = [request[16], request[17], request[18], request[19]];

    add_address_v6(index, address, prefix)?;

    // struct in6_rtmsg of a 64-bit kernel: three addresses, all zero for the default route, the
    // metric at 56, the flags at 72, the index of the device at 76.
    let mut add_route = [0_u64; 10];
    add_route[7] = 1;
    let index = u32::from_ne_bytes(index);
    add_route[9] = u64::from(RTF_UP) | u64::from(index) << 32;
    let pointer = add_route.as_ptr() as usize;
    // SAFETY: the kernel reads 80 bytes of `add_route`, which outlives the call.
    unsafe { syscall(Call::Ioctl, [socket as usize, SIOCADDRT, pointer, 0, 0, 0]) }.map(drop)
}

/// Adds the address by netlink, which can leave out duplicate address detection. An address that an
/// ioctl adds is tentative at first: a program that connects early gets a link-local source.
fn add_address_v6(index: [u8; 4], address: &[u8; 16], prefix: u8) -> Result<()> {
    const REQUEST_LEN: u8 = 44;
    const RTM_NEWADDR: u8 = 20;
    const NLM_F_REQUEST_ACK_EXCL_CREATE: u16 = 0x0001 | 0x0004 | 0x0200 | 0x0400;
    const IFA_F_NODAD: u8 = 2;
    const IFA_ADDRESS: u8 = 1;
    // struct nlmsghdr: length, type, flags, sequence, port.
    let mut request = [0_u8; REQUEST_LEN as usize];
    request[..4].copy_from_slice(&u32::from(REQUEST_LEN).to_ne_bytes());
    request[4..6].copy_from_slice(&u16::from(RTM_NEWADDR).to_ne_bytes());
    request[6..8].copy_from_slice(&NLM_F_REQUEST_ACK_EXCL_CREATE.to_ne_bytes());
    // struct ifaddrmsg: family, prefix, flags, scope, index of the device.
    request[16..20].copy_from_slice(&[AF_INET6 as u8, prefix, IFA_F_NODAD, 0]);
    request[20..24].copy_from_slice(&index);
    // struct nlattr: length, type; then the address.
    request[24..26].copy_from_slice(&20_u16.to_ne_bytes());
    request[26..28].copy_from_slice(&u16::from(IFA_ADDRESS).to_ne_bytes());
    request[28..44].copy_from_slice(address);
    let socket = open_socket(AF_NETLINK)?;
    let result = exchange_netlink(socket, &request);
    close(socket);
    result
}

/// Sends one request to the kernel and reads its acknowledgement.
fn exchange_netlink(socket: RawFd, request: &[u8]) -> Result<()> {
    const NLMSG_ERROR: u16 = 2;
    write(socket, request)?;
    let mut answer = [0_u8; 256];
    let len = read(socket, &mut answer)?;
    let kind = u16::from_ne_bytes([answer[4], answer[5]]);
    if len < 20 || kind != NLMSG_ERROR {
        return Err(Errno::INVAL);
    }
    match i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]) {
        0 => Ok(()),
        code => Err(Errno(code.wrapping_neg())),
    }
}

fn open_socket(family: u16) -> Result<RawFd> {
    const SOCK_DGRAM_CLOEXEC: usize = 2 | 0o2_000_000;
    let arguments = [usize::from(family), SOCK_DGRAM_CLOEXEC, 0, 0, 0, 0];
    call_with_numbers(PlainCall::Socket, arguments).map(|fd| fd as RawFd)
}

fn new_request() -> InterfaceRequest {
    let mut request = [0; 40];
    request[..TUN_NAME.len()].copy_from_slice(TUN_NAME);
    request
}

fn interface_ioctl(fd: RawFd, what: usize, request: &mut InterfaceRequest) -> Result<()> {
    let pointer = request.as_mut_ptr() as usize;
    // SAFETY: every request that takes a struct ifreq reads and writes at most its 40 bytes, which
    // outlive the call.
    unsafe { syscall(Call::Ioctl, [fd as usize, what, pointer, 0, 0, 0]) }.map(drop)
}
