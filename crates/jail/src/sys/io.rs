//! Runs in: every process.
//!
//! Reading, writing and waiting for file descriptors. Core only, but for [`into_owned_fd`].

use super::{RawFd, errno::Result, raw::syscall, syscall_table::Call};

/// Reads once.
pub fn read(fd: RawFd, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes at most `len` bytes into `buffer`, which is borrowed for the call.
    unsafe {
        syscall(Call::Read, [fd as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0])
    }
}

/// Waits until one of the descriptors is readable or closed, for at most `within` nanoseconds.
/// Returns which of them are.
pub fn poll_readable<const N: usize>(fds: [RawFd; N], within: Option<u64>) -> Result<[bool; N]> {
    let mut ask = fds.map(|fd| [fd, 1]);
    let time = within.map(|within| [within / 1_000_000_000, within % 1_000_000_000]);
    let time = time.as_ref().map_or(0, |time| time.as_ptr() as usize);
    // SAFETY: struct pollfd is two words, the second for the requested and the returned events;
    // struct timespec is two 64-bit words, or null for no timeout; the signal mask is null.
    unsafe { syscall(Call::Ppoll, [ask.as_mut_ptr() as usize, N, time, 0, 0, 0])? };
    Ok(ask.map(|[_, events]| events >> 16 != 0))
}

/// Writes once.
pub fn write(fd: RawFd, bytes: &[u8]) -> Result<usize> {
    // SAFETY: the kernel reads at most `len` bytes of `bytes`, which is borrowed for the call.
    unsafe { syscall(Call::Write, [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) }
}

/// Makes a pipe, both ends close-on-exec: (read, write).
pub fn pipe() -> Result<(RawFd, RawFd)> {
    const O_CLOEXEC: usize = 0o2_000_000;
    let mut ends = [0_i32; 2];
    // SAFETY: the kernel writes two ints into `ends`, which is that long.
    unsafe { syscall(Call::Pipe2, [ends.as_mut_ptr() as usize, O_CLOEXEC, 0, 0, 0, 0])? };
    Ok((ends[0], ends[1]))
}

/// Takes ownership of a descriptor that a call of this folder has just returned.
#[cfg(not(cloche_template))]
#[must_use]
pub fn into_owned_fd(fd: RawFd) -> std::os::fd::OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: callers pass descriptors fresh from a system call, so no other value owns or closes
    // them.
    unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) }
}
