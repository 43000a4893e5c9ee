//! Runs in: every process.
//!
//! The namespace flags of clone(2), the only place in the workspace that spells them, and the calls
//! that make, enter and set up namespaces. Core only.

use super::{
    RawFd,
    errno::Result,
    raw::{call_with_numbers, syscall},
    safe_calls::close,
    syscall_table::{Call, PlainCall},
};

/// A new mount namespace.
pub const CLONE_NEWNS: u64 = 0x0002_0000;
/// A new cgroup namespace.
pub const CLONE_NEWCGROUP: u64 = 0x0200_0000;
/// A new UTS namespace: host name and domain name.
pub const CLONE_NEWUTS: u64 = 0x0400_0000;
/// A new IPC namespace.
pub const CLONE_NEWIPC: u64 = 0x0800_0000;
/// A new user namespace.
pub const CLONE_NEWUSER: u64 = 0x1000_0000;
/// A new pid namespace.
pub const CLONE_NEWPID: u64 = 0x2000_0000;
/// A new network namespace.
pub const CLONE_NEWNET: u64 = 0x4000_0000;

/// Moves this process into new namespaces.
pub fn unshare(namespaces: u64) -> Result<()> {
    call_with_numbers(PlainCall::Unshare, [namespaces as usize, 0, 0, 0, 0, 0]).map(drop)
}

/// Enters the namespace behind a descriptor.
pub fn setns(fd: RawFd, kind: u64) -> Result<()> {
    call_with_numbers(PlainCall::Setns, [fd as usize, kind as usize, 0, 0, 0, 0]).map(drop)
}

/// Sets the host name of this UTS namespace.
pub fn sethostname(name: &[u8]) -> Result<()> {
    // SAFETY: the kernel reads `len` bytes of `name`, which is borrowed for the call.
    unsafe { syscall(Call::Sethostname, [name.as_ptr() as usize, name.len(), 0, 0, 0, 0]) }
        .map(drop)
}

/// Brings up `lo` in the network namespace of this process.
pub fn loopback_up() -> Result<()> {
    const AF_INET: usize = 2;
    const SOCK_DGRAM_CLOEXEC: usize = 2 | 0o2_000_000;
    const SIOCSIFFLAGS: usize = 0x8914;
    const UP_RUNNING: u8 = 0x41;
    let socket = call_with_numbers(PlainCall::Socket, [AF_INET, SOCK_DGRAM_CLOEXEC, 0, 0, 0, 0])?;
    let mut request = [0_u8; 40];
    request[..2].copy_from_slice(b"lo");
    request[16] = UP_RUNNING;
    // SAFETY: struct ifreq is 40 bytes: a name of 16, then the flags; the kernel only reads it.
    let result =
        unsafe { syscall(Call::Ioctl, [socket, SIOCSIFFLAGS, request.as_ptr() as usize, 0, 0, 0]) };
    close(socket as i32);
    result.map(drop)
}
