//! Runs in: guest.
//!
//! The start of `cloche-tool`, a program without a libc, and the calls that it makes. It is not a
//! part of the jail: only `tool_client.rs` uses this file.
#![allow(unsafe_code, reason = "this folder is the address of unsafe code; each block is argued")]

use core::{
    arch::global_asm,
    ffi::{CStr, c_char},
};

use super::{
    errno::{Errno, Result},
    raw::syscall,
    run_command,
    syscall_table::Call,
};

// The kernel starts a program with its arguments on the stack and with no return address.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call cloche_tool_main",
    "ud2",
);
#[cfg(target_arch = "aarch64")]
global_asm!(
    ".globl _start",
    "_start:",
    "mov x29, #0",
    "mov x30, #0",
    "mov x0, sp",
    "bl cloche_tool_main",
    "brk #0",
);

/// The arguments of the program.
pub(crate) struct Arguments {
    count: usize,
    first: *const *const c_char,
}

impl Arguments {
    /// One argument; the first is the name of the program.
    pub(crate) fn get(&self, at: usize) -> Option<&[u8]> {
        if at >= self.count {
            return None;
        }
        // SAFETY: the kernel puts `count` pointers to NUL-terminated strings there, which stay as
        // long as the process.
        let text = unsafe { CStr::from_ptr(*self.first.add(at)) };
        Some(text.to_bytes())
    }
}

// SAFETY: the name is ours alone (prefixed), so it replaces no other symbol.
#[unsafe(no_mangle)]
extern "C" fn cloche_tool_main(stack: *const usize) -> ! {
    // SAFETY: `_start` passes the stack pointer that the kernel gave the process: the number of
    // arguments is there, and the pointers to them follow it.
    let arguments = unsafe { Arguments { count: *stack, first: stack.add(1).cast() } };
    exit_process(run_command(&arguments))
}

/// Ends the process.
pub(crate) fn exit_process(code: i32) -> ! {
    loop {
        // SAFETY: the call takes no pointer, and does not return.
        let _ = unsafe { syscall(Call::ExitGroup, [code as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Reads once.
pub(crate) fn read_some(fd: i32, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes at most `len` bytes into `buffer`, which is borrowed for the call.
    unsafe {
        syscall(Call::Read, [fd as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0])
    }
}

/// Writes once.
pub(crate) fn write_some(fd: i32, bytes: &[u8]) -> Result<usize> {
    // SAFETY: the kernel reads at most `len` bytes of `bytes`, which is borrowed for the call.
    unsafe { syscall(Call::Write, [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) }
}

/// Connects to a stream socket in the file system.
pub(crate) fn connect_unix(path: &CStr) -> Result<i32> {
    const AF_UNIX: u16 = 1;
    const SOCK_STREAM_CLOEXEC: usize = 1 | 0o2_000_000;
    // struct sockaddr_un: the family, and the path with its NUL.
    let mut address = [0_u8; 110];
    let path = path.to_bytes_with_nul();
    let length = 2 + path.len();
    if length > address.len() {
        return Err(Errno::INVAL);
    }
    address[..2].copy_from_slice(&AF_UNIX.to_ne_bytes());
    address[2..length].copy_from_slice(path);
    // SAFETY: the call takes no pointer.
    let socket = unsafe {
        syscall(Call::Socket, [usize::from(AF_UNIX), SOCK_STREAM_CLOEXEC, 0, 0, 0, 0])?
    };
    // SAFETY: the kernel reads `length` bytes of `address`, which has more.
    unsafe {
        syscall(Call::Connect, [socket, address.as_ptr() as usize, length, 0, 0, 0])?;
    }
    Ok(socket as i32)
}

/// The functions of a libc that the compiler calls for copies and comparisons.
mod memory {
    // SAFETY: the program has no libc, so these are the only functions of their names.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
        for at in 0..length {
            // SAFETY: the caller promises that both ranges have `length` bytes. A volatile write
            // keeps the compiler from making a call of this function of the loop.
            unsafe { to.add(at).write_volatile(*from.add(at)) };
        }
        to
    }

    // SAFETY: as above.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
        if (to as usize) <= (from as usize) {
            // SAFETY: copying from the front reads each byte before it is overwritten.
            return unsafe { memcpy(to, from, length) };
        }
        for at in (0..length).rev() {
            // SAFETY: as for `memcpy`; from the back each byte is read before it is overwritten.
            unsafe { to.add(at).write_volatile(*from.add(at)) };
        }
        to
    }

    // SAFETY: as above.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memset(to: *mut u8, value: i32, length: usize) -> *mut u8 {
        for at in 0..length {
            // SAFETY: the caller promises that the range has `length` bytes.
            unsafe { to.add(at).write_volatile(value as u8) };
        }
        to
    }

    // SAFETY: as above.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, length: usize) -> i32 {
        for at in 0..length {
            // SAFETY: the caller promises that both ranges have `length` bytes.
            let [a, b] = unsafe { [one.add(at).read_volatile(), other.add(at).read_volatile()] };
            if a != b {
                return i32::from(a) - i32::from(b);
            }
        }
        0
    }

    // SAFETY: as above.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, length: usize) -> i32 {
        // SAFETY: the promise is the same.
        unsafe { memcmp(one, other, length) }
    }

    // SAFETY: as above.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn strlen(text: *const u8) -> usize {
        let mut length = 0;
        // SAFETY: the caller promises a NUL at the end.
        while unsafe { text.add(length).read_volatile() } != 0 {
            length += 1;
        }
        length
    }
}
