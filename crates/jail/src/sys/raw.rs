//! Runs in: every process.
//!
//! The system call instruction, and safe functions over it for the calls whose arguments are
//! numbers, paths or a few words. It must not know what a call is for.

use core::{arch::asm, ffi::CStr};

use super::{
    errno::{Errno, Result},
    syscall_table::{Call, PathCall, PathPairCall, PlainCall, WordsCall},
};

/// `AT_FDCWD` as an argument.
pub(super) const AT_FDCWD: usize = -100_isize as usize;
/// `AT_RECURSIVE` of `open_tree` and `mount_setattr`.
pub(super) const AT_RECURSIVE: usize = 0x8000;

/// Makes a system call.
///
/// # Safety
/// Every argument that the kernel takes as a pointer must point to memory that is valid for what
/// the call reads and writes there, for as long as the call lasts.
#[inline]
pub(super) unsafe fn syscall(call: Call, args: [usize; 6]) -> Result<usize> {
    let number = call.number();
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction changes rax, rcx and r11, all declared; what the kernel does with the
    // arguments is the caller's promise.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") args[0], in("rsi") args[1],
            in("rdx") args[2], in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction changes x0 only, declared; the arguments are the caller's promise.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") args[0] => result, in("x1") args[1],
            in("x2") args[2], in("x3") args[3], in("x4") args[4], in("x5") args[5],
            options(nostack));
    }
    if (-4095..0).contains(&result) {
        return Err(Errno(-result as i32));
    }
    Ok(result as usize)
}

/// Makes a call whose arguments are all plain numbers.
#[inline]
pub(super) fn call_with_numbers(call: PlainCall, args: [usize; 6]) -> Result<usize> {
    // SAFETY: these calls take no pointers, or only null pointers in the way this crate uses them,
    // so there is no memory for the kernel to touch.
    unsafe { syscall(call.into(), args) }
}

/// Makes a call with one path and otherwise plain numbers; the path is argument `at`.
#[inline]
pub(super) fn call_with_path(
    call: PathCall,
    at: usize,
    path: &CStr,
    mut args: [usize; 6],
) -> Result<usize> {
    args[at] = path.as_ptr() as usize;
    // SAFETY: `path` is NUL-terminated and outlives the call, which only reads it; these calls
    // take no other pointer.
    unsafe { syscall(call.into(), args) }
}

/// Makes a call with two paths and otherwise plain numbers; the paths are the arguments `at`.
#[inline]
pub(super) fn call_with_paths(
    call: PathPairCall,
    at: [usize; 2],
    paths: [&CStr; 2],
    mut args: [usize; 6],
) -> Result<usize> {
    args[at[0]] = paths[0].as_ptr() as usize;
    args[at[1]] = paths[1].as_ptr() as usize;
    // SAFETY: both are NUL-terminated and outlive the call, which only reads them; these calls take
    // no other pointer.
    unsafe { syscall(call.into(), args) }
}

/// Makes a call that reads `words` and otherwise takes plain numbers.
#[inline]
pub(super) fn call_with_words<const N: usize>(
    call: WordsCall,
    words: &[u64; N],
    mut args: [usize; 6],
) -> Result<usize> {
    let (at, most) = call.words_argument();
    if N < most {
        return Err(Errno::INVAL);
    }
    args[at] = words.as_ptr() as usize;
    // SAFETY: the kernel reads at most `most` words there, which are borrowed for the call; the
    // other pointer arguments of these calls are null.
    unsafe { syscall(call.into(), args) }
}
