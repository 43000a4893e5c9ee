//! Runs in: every process.
//!
//! Messages with file descriptors over a socket (`SCM_RIGHTS`). Core only.

use super::{
    RawFd,
    errno::{Errno, Result},
    raw::syscall,
    syscall_table::Call,
};

/// The most descriptors in one message.
pub const MAX_FDS: usize = 16;

/// SOL_SOCKET in the low half, SCM_RIGHTS in the high half of one little-endian word.
const RIGHTS: u64 = 1 | 1 << 32;

/// struct msghdr, struct iovec and a control buffer for descriptors, laid out for the kernel.
#[repr(C)]
struct FdMessage {
    header: [usize; 7],
    part: [usize; 2],
    control: [u64; 2 + MAX_FDS / 2],
}

impl FdMessage {
    fn new(data: usize, len: usize) -> Self {
        Self { header: [0; 7], part: [data, len], control: [0; 2 + MAX_FDS / 2] }
    }

    /// Fills in the pointers between the parts, and returns the address of the header. The value
    /// must not move after this.
    fn link_parts(&mut self, control_len: usize) -> usize {
        self.header[2] = (&raw const self.part) as usize;
        self.header[3] = 1;
        self.header[4] = (&raw const self.control) as usize;
        self.header[5] = control_len;
        (&raw const self.header) as usize
    }
}

/// Sends one message with descriptors.
pub fn sendmsg(socket: RawFd, bytes: &[u8], fds: &[RawFd]) -> Result<()> {
    const MSG_NOSIGNAL: usize = 0x4000;
    if fds.len() > MAX_FDS {
        return Err(Errno::INVAL);
    }
    let mut message = FdMessage::new(bytes.as_ptr() as usize, bytes.len());
    message.control[0] = 16 + 4 * fds.len() as u64;
    message.control[1] = RIGHTS;
    for (at, fd) in fds.iter().enumerate() {
        message.control[2 + at / 2] |= u64::from(*fd as u32) << (32 * (at % 2));
    }
    let control_len = if fds.is_empty() { 0 } else { 16 + 4 * fds.len() };
    let header = message.link_parts(control_len);
    // SAFETY: the header points at a one-part vector over `bytes` and at a control buffer with one
    // SCM_RIGHTS record of `control_len` bytes; all of it outlives the call and is only read.
    unsafe { syscall(Call::Sendmsg, [socket as usize, header, MSG_NOSIGNAL, 0, 0, 0]) }.map(drop)
}

/// Receives one message: its length, and its descriptors, which the caller now owns.
pub fn recvmsg(socket: RawFd, buffer: &mut [u8]) -> Result<(usize, [Option<RawFd>; MAX_FDS])> {
    const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
    let mut message = FdMessage::new(buffer.as_mut_ptr() as usize, buffer.len());
    let header = message.link_parts(16 + 4 * MAX_FDS);
    // SAFETY: the header points at a one-part vector over `buffer` and at a control buffer of the
    // length given; the kernel writes no further, and both outlive the call.
    let len =
        unsafe { syscall(Call::Recvmsg, [socket as usize, header, MSG_CMSG_CLOEXEC, 0, 0, 0])? };
    let mut fds = [None; MAX_FDS];
    let has_rights = message.header[5] >= 16 && message.control[1] == RIGHTS;
    let count = if has_rights { (message.control[0] as usize).saturating_sub(16) / 4 } else { 0 };
    for (at, slot) in fds.iter_mut().enumerate().take(count) {
        *slot = Some((message.control[2 + at / 2] >> (32 * (at % 2))) as u32 as i32);
    }
    Ok((len, fds))
}
