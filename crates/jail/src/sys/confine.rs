//! Runs in: every process.
//!
//! The calls by which a process gives up rights for good: capabilities, Landlock, seccomp; and the
//! answers to seccomp notifications. Core only.

use core::mem::size_of;

use super::{
    RawFd,
    errno::{Errno, Result},
    raw::{call_with_numbers, syscall},
    syscall_table::{Call, PlainCall},
};

/// Gives up every capability: effective, permitted, inheritable.
pub fn capset_none() -> Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    let data = [0_u32; 6];
    // SAFETY: version 3 takes a header of two words and two data blocks of three words each;
    // both arrays are exactly that and outlive the call.
    unsafe { syscall(Call::Capset, [header.as_ptr() as usize, data.as_ptr() as usize, 0, 0, 0, 0]) }
        .map(drop)
}

/// The accesses that a Landlock ruleset handles.
#[repr(C)]
pub struct LandlockRuleset {
    /// File accesses that are denied unless a rule allows them.
    pub files: u64,
    /// Network accesses that are denied unless a rule allows them.
    pub network: u64,
    /// Scopes: abstract sockets, signals.
    pub scoped: u64,
}

/// The Landlock version of this kernel, or an error where there is none.
pub fn landlock_version() -> Result<u32> {
    call_with_numbers(PlainCall::LandlockCreateRuleset, [0, 0, 1, 0, 0, 0])
        .map(|version| version as u32)
}

/// Makes a ruleset; `size` is how much of the struct the Landlock version of this kernel has.
pub fn landlock_create(ruleset: &LandlockRuleset, size: usize) -> Result<RawFd> {
    let size = size.min(size_of::<LandlockRuleset>());
    // SAFETY: the kernel reads `size` bytes of the struct, at most its own length.
    unsafe {
        let ruleset: *const LandlockRuleset = ruleset;
        syscall(Call::LandlockCreateRuleset, [ruleset as usize, size, 0, 0, 0, 0])
    }
    .map(|fd| fd as i32)
}

/// Allows `access` beneath the directory or on the file that `path` is open on.
pub fn landlock_allow(ruleset: RawFd, path: RawFd, access: u64) -> Result<()> {
    #[repr(C, packed)]
    struct PathBeneath(u64, i32);
    let rule = PathBeneath(access, path);
    // SAFETY: rule type 1 takes a packed struct of a 64-bit mask and a 32-bit descriptor.
    unsafe {
        let rule: *const PathBeneath = &raw const rule;
        syscall(Call::LandlockAddRule, [ruleset as usize, 1, rule as usize, 0, 0, 0])
    }
    .map(drop)
}

/// Puts this process and its later children under the ruleset.
pub fn landlock_restrict(ruleset: RawFd) -> Result<()> {
    call_with_numbers(PlainCall::LandlockRestrictSelf, [ruleset as usize, 0, 0, 0, 0, 0]).map(drop)
}

/// Installs a compiled filter: whole `sock_filter` instructions of eight bytes each.
pub fn install_seccomp(program: &[u8]) -> Result<()> {
    install_filter(program, 0).map(drop)
}

/// Installs a filter with `SECCOMP_FILTER_FLAG_LOG`: the kernel writes every refusal to its audit
/// log.
pub fn install_logged_seccomp(program: &[u8]) -> Result<()> {
    install_filter(program, 2).map(drop)
}

/// Installs a filter that notifies of calls. Returns the notification fd.
///
/// Once a notification was received, only a fatal signal interrupts the call. Kernels before 5.19
/// do not have that flag, and the install fails there.
pub(crate) fn install_seccomp_listener(program: &[u8]) -> Result<RawFd> {
    const NEW_LISTENER: usize = 8;
    const WAIT_KILLABLE: usize = 0x20;
    install_filter(program, NEW_LISTENER | WAIT_KILLABLE).map(|listener| listener as RawFd)
}

fn install_filter(program: &[u8], flags: usize) -> Result<usize> {
    #[repr(C)]
    struct SockFprog(u16, *const u8);
    let (true, Ok(count)) = (program.len().is_multiple_of(8), u16::try_from(program.len() / 8))
    else {
        return Err(Errno::INVAL);
    };
    let fprog = SockFprog(count, program.as_ptr());
    // SAFETY: struct sock_fprog is a count and a pointer to that many instructions; the kernel
    // copies them without asking for alignment, and `program` is borrowed for the call.
    unsafe {
        let fprog: *const SockFprog = &raw const fprog;
        syscall(Call::Seccomp, [1, flags, fprog as usize, 0, 0, 0])
    }
}

/// Receives one seccomp notification and answers it. `decide` gets the number of the call and its
/// first argument. On `Ok` the kernel continues the call, on `Err` it returns that error.
pub(crate) fn answer_notification(
    listener: RawFd,
    decide: impl FnOnce(usize, u32) -> Result<()>,
) -> Result<()> {
    const RECEIVE: usize = 0xc050_2100;
    const ANSWER: usize = 0xc018_2101;
    const CONTINUE: u64 = 1 << 32;
    let mut notification = [0_u64; 10];
    let notification_at = notification.as_mut_ptr() as usize;
    // SAFETY: struct seccomp_notif is 80 bytes, all zero before; the kernel fills it in.
    unsafe { syscall(Call::Ioctl, [listener as usize, RECEIVE, notification_at, 0, 0, 0])? };
    // Words: id, pid and flags, number and architecture, instruction pointer, six arguments.
    let id = notification[0];
    let answer = match decide(notification[2] as u32 as usize, notification[4] as u32) {
        Ok(()) => [id, 0, CONTINUE],
        Err(Errno(errno)) => [id, 0, u64::from(-errno as u32)],
    };
    // SAFETY: struct seccomp_notif_resp is 24 bytes: id, value, error and flags.
    unsafe { syscall(Call::Ioctl, [listener as usize, ANSWER, answer.as_ptr() as usize, 0, 0, 0]) }
        .map(drop)
}
