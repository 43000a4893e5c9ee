//! Runs in: every process.
//!
//! Making processes, waiting for them and replacing them by a program. Core only.

use core::{ffi::CStr, marker::PhantomData, ptr};

use super::{
    RawFd,
    errno::{Errno, Result},
    raw::syscall,
    safe_calls::getpid,
    syscall_table::Call,
};

/// What `clone` makes.
#[derive(Clone, Copy, Default)]
pub struct CloneRequest {
    /// `CLONE_NEW*` flags.
    pub namespaces: u64,
    /// The directory of a cgroup v2 in which the child starts.
    pub cgroup: Option<RawFd>,
}

/// Which side of `clone` this is.
pub enum CloneSide {
    /// The new process.
    Child,
    /// The old process: the child's pid, and a pidfd that the caller now owns.
    Parent(i32, RawFd),
}

const CLONE_PIDFD: u64 = 0x1000;
const CHILD_SIGNAL: u64 = 17;

/// Copies this process, like fork, into new namespaces.
///
/// The child of a threaded process must not allocate or take locks before it execs.
pub fn clone(request: CloneRequest) -> Result<CloneSide> {
    match clone_with_struct(request) {
        // The filters of container engines hide the newer call, whose flags they cannot read.
        Err(Errno::NOSYS) if request.cgroup.is_none() => clone_with_flags(request.namespaces),
        cloned => cloned,
    }
}

/// clone(2) with a pidfd and no new stack.
fn clone_with_flags(namespaces: u64) -> Result<CloneSide> {
    let mut pidfd: i32 = -1;
    let flags = (namespaces | CLONE_PIDFD | CHILD_SIGNAL) as usize;
    let pidfd_at = (&raw mut pidfd) as usize;
    // SAFETY: with CLONE_PIDFD the third argument points at an int on every architecture, and
    // `pidfd` outlives the call; without CLONE_VM the child runs on its own copy of this stack.
    let pid = unsafe { syscall(Call::Clone, [flags, 0, pidfd_at, 0, 0, 0])? };
    Ok(if pid == 0 { CloneSide::Child } else { CloneSide::Parent(pid as i32, pidfd) })
}

fn clone_with_struct(request: CloneRequest) -> Result<CloneSide> {
    const INTO_CGROUP: u64 = 0x2_0000_0000;
    let mut pidfd: i32 = -1;
    let mut args = [0_u64; 11];
    args[0] = request.namespaces | CLONE_PIDFD;
    args[1] = (&raw mut pidfd) as u64;
    args[4] = CHILD_SIGNAL;
    if let Some(cgroup) = request.cgroup {
        args[0] |= INTO_CGROUP;
        args[10] = cgroup as u64;
    }
    let size = if request.cgroup.is_some() { 88 } else { 64 };
    // SAFETY: `args` is struct clone_args, and the kernel reads its first `size` bytes (64 and 88
    // are its published sizes); `pidfd` outlives the call; without CLONE_VM the child runs on its
    // own copy of this stack, so returning twice is as sound as fork.
    let pid = unsafe { syscall(Call::Clone3, [args.as_ptr() as usize, size, 0, 0, 0, 0])? };
    Ok(if pid == 0 { CloneSide::Child } else { CloneSide::Parent(pid as i32, pidfd) })
}

/// The address of the word that the kernel clears when the main thread of a libc ends. Only
/// [`thread_id_address`] makes one.
#[derive(Clone, Copy)]
pub struct ThreadIdAddress {
    address: usize,
    /// Whether the libc keeps its thread id there, as glibc does. With musl it is a lock, and the
    /// guest runtime writes the thread id elsewhere.
    holds_id: bool,
}

/// The address that this process's libc has registered for its main thread, which must be the
/// caller; `NOSYS` if the kernel has no such query.
pub fn thread_id_address() -> Result<ThreadIdAddress> {
    const PR_GET_TID_ADDRESS: usize = 40;
    let mut address = 0_usize;
    let address_at = (&raw mut address) as usize;
    // SAFETY: the kernel writes one pointer-sized word into `address`.
    unsafe { syscall(Call::Prctl, [PR_GET_TID_ADDRESS, address_at, 0, 0, 0, 0])? };
    if address == 0 {
        return Err(Errno::NOSYS);
    }
    // SAFETY: the libc has registered an aligned `int` of its own, which lives as long as the
    // process; no other thread exists that could write it now.
    let word = unsafe { (address as *const i32).read_volatile() };
    Ok(ThreadIdAddress { address, holds_id: word == getpid() })
}

/// Forks a process that runs a libc: the kernel writes the child's thread id to the address where
/// the libc keeps it, as the libc's own fork does, and clears the word when the child ends.
pub fn fork_under_libc(libc: ThreadIdAddress) -> Result<Option<i32>> {
    const CLEARTID_SIGCHLD: usize = 0x0020_0000 | 17;
    const SETTID: usize = 0x0100_0000;
    let ThreadIdAddress { address, holds_id } = libc;
    let flags = if holds_id { CLEARTID_SIGCHLD | SETTID } else { CLEARTID_SIGCHLD };
    // SAFETY: `address` is what the main thread's libc has registered, valid for the life of the
    // process; a copy of the process has it at the same address. Which of the last two arguments it
    // is depends on the architecture; the other one is not used without CLONE_SETTLS.
    let pid = unsafe { syscall(Call::Clone, [flags, 0, 0, address, address, 0])? };
    Ok((pid != 0).then_some(pid as i32))
}

/// A change of state of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildChange {
    /// It exited and is reaped.
    Exited {
        /// Its pid; zero if no child has changed.
        pid: i32,
        /// Its exit code.
        code: i32,
    },
    /// A signal killed it, and it is reaped.
    Killed {
        /// Its pid; zero if no child has changed.
        pid: i32,
        /// The signal.
        signal: i32,
    },
    /// It was stopped.
    Stopped {
        /// Its pid.
        pid: i32,
    },
}

impl ChildChange {
    /// The pid of the child; zero if no child has changed.
    #[must_use]
    pub const fn pid(self) -> i32 {
        match self {
            Self::Exited { pid, .. } | Self::Killed { pid, .. } | Self::Stopped { pid } => pid,
        }
    }
}

/// waitid(2) for any child. With `WNOHANG` the pid of the result is zero if no child has changed.
pub(super) fn wait_with_options(options: usize) -> Result<ChildChange> {
    const WEXITED: usize = 4;
    const ALL_KINDS: usize = 0x4000_0000;
    let mut info = [0_i32; 32];
    let info_at = info.as_mut_ptr() as usize;
    // SAFETY: struct siginfo is 128 bytes, which `info` is; the rusage pointer is null.
    unsafe { syscall(Call::Waitid, [0, 0, info_at, WEXITED | ALL_KINDS | options, 0, 0])? };
    // Words: signo, errno, code, padding, pid, uid, status. The codes are CLD_EXITED and so on.
    let (pid, status) = (info[4], info[6]);
    Ok(match info[2] {
        1 => ChildChange::Exited { pid, code: status },
        5 => ChildChange::Stopped { pid },
        _ => ChildChange::Killed { pid, signal: status },
    })
}

/// Pointers to strings for `execve`, ended by a null pointer.
pub struct StringList<'a, const N: usize> {
    pub(crate) pointers: [*const u8; N],
    used: usize,
    _strings: PhantomData<&'a CStr>,
}

impl<'a, const N: usize> StringList<'a, N> {
    /// An empty list with space for `N - 1` strings.
    #[must_use]
    pub const fn new() -> Self {
        Self { pointers: [ptr::null(); N], used: 0, _strings: PhantomData }
    }

    /// Adds a string; `INVAL` if the list is full.
    pub fn push(&mut self, text: &'a CStr) -> Result<()> {
        if self.used + 1 >= N {
            return Err(Errno::INVAL);
        }
        self.pointers[self.used] = text.as_ptr().cast();
        self.used += 1;
        Ok(())
    }
}

impl<const N: usize> Default for StringList<'_, N> {
    fn default() -> Self {
        Self::new()
    }
}

/// Replaces this process by a program; returns only if that failed.
pub fn exec<const A: usize, const E: usize>(
    program: &CStr,
    args: &StringList<'_, A>,
    env: &StringList<'_, E>,
) -> Errno {
    let (args, env) = (args.pointers.as_ptr() as usize, env.pointers.as_ptr() as usize);
    // SAFETY: both arrays hold pointers to NUL-terminated strings that live as long as the lists
    // do, and end with a null pointer because `push` never fills the last place.
    let result = unsafe { syscall(Call::Execve, [program.as_ptr() as usize, args, env, 0, 0, 0]) };
    result.err().unwrap_or(Errno::INVAL)
}
