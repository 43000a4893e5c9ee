//! Runs in: spawner (root), server (no capabilities), packer, stack worker.
//!
//! Shared between processes: the seccomp filters that `build.rs` compiles from `policy/`.
//! `seccomp.json` is the filter of a guest, `strict.json` is what the strict profile removes from
//! it, `contained.json` what a cell without namespaces removes from that, `server.json` is the
//! server's, `mount_server.json` what a mount server has besides that until it has its mounts,
//! `packer.json` a packer's, `stack.json` a stack worker's.
//!
//! This file only embeds the results. It must not know how a filter is installed, nor decide what
//! is in it: the policy does, with a reason for every rule. The modules below it run in the build
//! and in tests.

#[cfg(test)]
mod bpf;
#[cfg(test)]
mod oci;
#[cfg(test)]
mod policy;
#[cfg(test)]
mod strict;
#[cfg(test)]
mod table;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod wider;

pub use crate::server::privileges::{confine_mount_server, confine_server};

/// A refused system call, for documentation and `cloche doctor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The name of the call. This architecture may not have it.
    pub call: &'static str,
    /// The arguments for which it is refused; `None` if always.
    pub when: Option<&'static str>,
    /// The name of the error that the guest gets.
    pub errno: &'static str,
    /// The reason, from the policy.
    pub why: &'static str,
}

/// Bytes aligned as an array of `struct sock_filter`.
#[repr(C, align(8))]
struct AlignedProgram<T: ?Sized>(T);

static PROGRAM: &AlignedProgram<[u8]> =
    &AlignedProgram(*include_bytes!(concat!(env!("OUT_DIR"), "/seccomp.bpf")));

static STRICT_PROGRAM: &AlignedProgram<[u8]> =
    &AlignedProgram(*include_bytes!(concat!(env!("OUT_DIR"), "/seccomp_strict.bpf")));
static CONTAINED_PROGRAM: &AlignedProgram<[u8]> =
    &AlignedProgram(*include_bytes!(concat!(env!("OUT_DIR"), "/seccomp_contained.bpf")));
static SERVER: &AlignedProgram<[u8]> =
    &AlignedProgram(*include_bytes!(concat!(env!("OUT_DIR"), "/server.bpf")));

static MOUNT_SERVER: &AlignedProgram<[u8]> =
    &AlignedProgram(*include_bytes!(concat!(env!("OUT_DIR"), "/mount_server.bpf")));

static PACKER: &AlignedProgram<[u8]> =
    &AlignedProgram(*include_bytes!(concat!(env!("OUT_DIR"), "/packer.bpf")));

static STACK: &AlignedProgram<[u8]> =
    &AlignedProgram(*include_bytes!(concat!(env!("OUT_DIR"), "/stack.bpf")));

static DENIALS: &[Denial] = &include!(concat!(env!("OUT_DIR"), "/seccomp_denials.rs"));

/// The system call policy of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SyscallPolicy {
    /// The calls that programs commonly need.
    #[default]
    Standard,
    /// The calls that Python, Node.js and Bash need, and no network socket.
    Strict,
    /// The calls of the strict policy, without those that reach other processes of the same user
    /// where there are no namespaces.
    Contained,
}

/// The filter of a guest: eight bytes for each `struct sock_filter`, in native byte order, aligned
/// to eight. Installing it needs no allocation.
#[must_use]
pub fn guest_filter(policy: SyscallPolicy) -> &'static [u8] {
    match policy {
        SyscallPolicy::Standard => &PROGRAM.0,
        SyscallPolicy::Strict => &STRICT_PROGRAM.0,
        SyscallPolicy::Contained => &CONTAINED_PROGRAM.0,
    }
}

/// The same policy in the format of an OCI bundle: its member `linux.seccomp`, as JSON. `None` for
/// contained cells, which no runtime builds.
#[must_use]
pub const fn guest_bundle_filter(policy: SyscallPolicy) -> Option<&'static str> {
    match policy {
        SyscallPolicy::Standard => {
            Some(include_str!(concat!(env!("OUT_DIR"), "/seccomp.oci.json")))
        }
        SyscallPolicy::Strict => {
            Some(include_str!(concat!(env!("OUT_DIR"), "/seccomp_strict.oci.json")))
        }
        SyscallPolicy::Contained => None,
    }
}

/// The same for gVisor, which applies the first entry that fits.
#[must_use]
pub const fn guest_gvisor_filter(policy: SyscallPolicy) -> Option<&'static str> {
    match policy {
        SyscallPolicy::Standard => {
            Some(include_str!(concat!(env!("OUT_DIR"), "/seccomp.gvisor.json")))
        }
        SyscallPolicy::Strict => {
            Some(include_str!(concat!(env!("OUT_DIR"), "/seccomp_strict.gvisor.json")))
        }
        SyscallPolicy::Contained => None,
    }
}

/// The filter of the server, from `policy/server.json`.
#[must_use]
pub fn server_filter() -> &'static [u8] {
    &SERVER.0
}

/// The first filter of a mount server, from `policy/server.json` and `policy/mount_server.json`.
#[must_use]
pub fn mount_server_filter() -> &'static [u8] {
    &MOUNT_SERVER.0
}

/// The filter of a packer, from `policy/packer.json`.
#[must_use]
pub fn packer_filter() -> &'static [u8] {
    &PACKER.0
}

/// The filter of a stack worker, from `policy/stack.json`.
#[must_use]
pub fn stack_filter() -> &'static [u8] {
    &STACK.0
}

/// Every refusal that the policy names, with its reason. Calls that it does not name get `ENOSYS`.
#[must_use]
pub fn guest_denials() -> &'static [Denial] {
    DENIALS
}
