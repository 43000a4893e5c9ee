//! The system call filters, compiled by `build.rs` from `policy/`: `seccomp.json` is a cell's,
//! `strict.json` what the strict profile takes away from it, `server.json` the server's,
//! `packer.json` a packer's.
//!
//! This file only holds the results. It must not know how a filter is installed, nor decide what
//! is in it: the policy does, with a reason for every rule.

#[cfg(test)]
mod bpf;
#[cfg(test)]
mod policy;
#[cfg(test)]
mod strict;
#[cfg(test)]
mod table;
#[cfg(test)]
mod tests;

use crate::{
    small_filter::{FilterVerdict, SmallFilter},
    sys,
    syscall_table::Call,
};

/// A refused system call, for documents and for `cloche doctor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The name of the call. It may not exist on this architecture.
    pub call: &'static str,
    /// The arguments for which it is refused; always, if absent.
    pub when: Option<&'static str>,
    /// The name of the error that the guest sees.
    pub errno: &'static str,
    /// The reason, as the policy gives it.
    pub why: &'static str,
}

/// Bytes that may be read as an array of `struct sock_filter`.
#[repr(C, align(8))]
struct AlignedProgram<T: ?Sized>(T);

static PROGRAM: &AlignedProgram<[u8]> =
    &AlignedProgram(*include_bytes!(concat!(env!("OUT_DIR"), "/seccomp.bpf")));

static STRICT_PROGRAM: &AlignedProgram<[u8]> =
    &AlignedProgram(*include_bytes!(concat!(env!("OUT_DIR"), "/seccomp_strict.bpf")));
static SERVER: &AlignedProgram<[u8]> =
    &AlignedProgram(*include_bytes!(concat!(env!("OUT_DIR"), "/server.bpf")));

static PACKER: &AlignedProgram<[u8]> =
    &AlignedProgram(*include_bytes!(concat!(env!("OUT_DIR"), "/packer.bpf")));

static DENIALS: &[Denial] = &include!(concat!(env!("OUT_DIR"), "/seccomp_denials.rs"));

/// Which of the policies a cell has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SyscallPolicy {
    /// What programs commonly need.
    #[default]
    Standard,
    /// What Python, Node.js and Bash need, and no network socket.
    Strict,
}

/// The filter: eight bytes for each `struct sock_filter`, in native byte order, aligned to eight.
/// Installing it needs no allocation.
#[must_use]
pub fn guest_filter(policy: SyscallPolicy) -> &'static [u8] {
    match policy {
        SyscallPolicy::Standard => &PROGRAM.0,
        SyscallPolicy::Strict => &STRICT_PROGRAM.0,
    }
}

/// The filter of the server, from `policy/server.json`.
#[must_use]
pub fn server_filter() -> &'static [u8] {
    &SERVER.0
}

/// Puts this thread, and all that come from it, under the server's filter. Refusals are logged, but
/// for `clone3`: libc asks for it with every thread, and then uses `clone`.
///
/// # Errors
/// If the kernel takes no filters.
pub fn confine_server() -> sys::Result<()> {
    let silent =
        SmallFilter::of_calls(&[Call::Clone3], FilterVerdict::NotImplemented, FilterVerdict::Allow);
    sys::install_seccomp(silent.as_bytes())?;
    sys::install_logged_seccomp(server_filter())
}

/// The filter of a packer, from `policy/packer.json`.
#[must_use]
pub fn packer_filter() -> &'static [u8] {
    &PACKER.0
}

/// Every refusal that the policy names, with its reason. What it does not name gets `ENOSYS`.
#[must_use]
pub fn guest_denials() -> &'static [Denial] {
    DENIALS
}
