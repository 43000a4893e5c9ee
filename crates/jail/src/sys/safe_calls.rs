//! Runs in: every process.
//!
//! The system calls whose arguments are numbers, paths or a few words, so that no code here is
//! unsafe. Core only.

use core::ffi::CStr;

use super::{
    RawFd,
    errno::{Errno, Result},
    process::{ChildChange, wait_with_options},
    raw::{
        AT_FDCWD, AT_RECURSIVE, call_with_numbers, call_with_path, call_with_paths, call_with_words,
    },
    syscall_table::{PathCall, PathPairCall, PlainCall, WordsCall},
};

/// Opens a path; always close-on-exec.
pub fn open(path: &CStr, flags: i32, mode: u32) -> Result<RawFd> {
    const O_CLOEXEC: i32 = 0o2_000_000;
    let flags = (flags | O_CLOEXEC) as usize;
    call_with_path(PathCall::Openat, 1, path, [AT_FDCWD, 0, flags, mode as usize, 0, 0])
        .map(|fd| fd as i32)
}

/// Closes a descriptor by number.
pub fn close(fd: RawFd) {
    // An error here cannot be acted on: the descriptor is gone either way.
    let _ = call_with_numbers(PlainCall::Close, [fd as usize, 0, 0, 0, 0, 0]);
}

/// Closes every descriptor from `first` to `last`.
pub fn close_range(first: u32, last: u32) -> Result<()> {
    call_with_numbers(PlainCall::CloseRange, [first as usize, last as usize, 0, 0, 0, 0]).map(drop)
}

/// Makes `to` a copy of `from` that survives `exec`.
pub fn dup_onto(from: RawFd, to: RawFd) -> Result<()> {
    if from == to {
        return Err(Errno::INVAL);
    }
    call_with_numbers(PlainCall::Dup3, [from as usize, to as usize, 0, 0, 0, 0]).map(drop)
}

/// A copy of `fd`, close-on-exec, at the first free number from `least` on.
pub fn dup_above(fd: RawFd, least: RawFd) -> Result<RawFd> {
    const F_DUPFD_CLOEXEC: usize = 1030;
    call_with_numbers(PlainCall::Fcntl, [fd as usize, F_DUPFD_CLOEXEC, least as usize, 0, 0, 0])
        .map(|fd| fd as i32)
}

/// Has a descriptor closed at the next `exec`.
pub fn close_on_exec(fd: RawFd) -> Result<()> {
    const F_SETFD: usize = 2;
    const FD_CLOEXEC: usize = 1;
    call_with_numbers(PlainCall::Fcntl, [fd as usize, F_SETFD, FD_CLOEXEC, 0, 0, 0]).map(drop)
}

/// Makes a directory.
pub fn mkdir(path: &CStr, mode: u32) -> Result<()> {
    call_with_path(PathCall::Mkdirat, 1, path, [AT_FDCWD, 0, mode as usize, 0, 0, 0]).map(drop)
}

/// Sets the mode of a path. The umask has no effect.
pub fn chmod(path: &CStr, mode: u32) -> Result<()> {
    call_with_path(PathCall::Fchmodat, 1, path, [AT_FDCWD, 0, mode as usize, 0, 0, 0]).map(drop)
}

/// Changes the owner and group of a path, without following a symbolic link.
pub fn chown(path: &CStr, uid: u32, gid: u32) -> Result<()> {
    const AT_SYMLINK_NOFOLLOW: usize = 0x100;
    let args = [AT_FDCWD, 0, uid as usize, gid as usize, AT_SYMLINK_NOFOLLOW, 0];
    call_with_path(PathCall::Fchownat, 1, path, args).map(drop)
}

/// A detached copy of the mount at `path` and of all mounts below it.
pub fn open_tree(path: &CStr) -> Result<RawFd> {
    const CLONE_CLOEXEC: usize = 1 | 0o2_000_000;
    call_with_path(
        PathCall::OpenTree,
        1,
        path,
        [AT_FDCWD, 0, CLONE_CLOEXEC | AT_RECURSIVE, 0, 0, 0],
    )
    .map(|fd| fd as i32)
}

/// Attaches a detached mount at `path`.
pub fn attach_mount(mount: RawFd, path: &CStr) -> Result<()> {
    const FROM_EMPTY_PATH: usize = 4;
    let args = [mount as usize, 0, AT_FDCWD, 0, FROM_EMPTY_PATH, 0];
    call_with_paths(PathPairCall::MoveMount, [1, 3], [c"", path], args).map(drop)
}

/// Makes the current directory the root and unmounts the old root.
pub fn pivot_to_current_dir() -> Result<()> {
    const MNT_DETACH: usize = 2;
    // Old and new root may be the same path: the old root is then stacked on top of the new one and
    // unmounted next.
    call_with_paths(PathPairCall::PivotRoot, [0, 1], [c".", c"."], [0; 6])?;
    call_with_path(PathCall::Umount2, 0, c".", [0, MNT_DETACH, 0, 0, 0, 0])?;
    chdir(c"/")
}

/// Makes a symbolic link at `path`.
pub fn symlink(target: &CStr, path: &CStr) -> Result<()> {
    call_with_paths(PathPairCall::Symlinkat, [0, 2], [target, path], [0, AT_FDCWD, 0, 0, 0, 0])
        .map(drop)
}

/// Makes a device node.
pub fn mknod(path: &CStr, mode: u32, major: u32, minor: u32) -> Result<()> {
    let device = (major << 8 | minor) as usize;
    call_with_path(PathCall::Mknodat, 1, path, [AT_FDCWD, 0, mode as usize, device, 0, 0]).map(drop)
}

/// Makes a FIFO.
pub fn mkfifo(path: &CStr, mode: u32) -> Result<()> {
    const FIFO: u32 = 0o010_000;
    mknod(path, FIFO | mode, 0, 0)
}

/// Removes a name that is not a directory.
pub fn unlink(path: &CStr) -> Result<()> {
    call_with_path(PathCall::Unlinkat, 1, path, [AT_FDCWD, 0, 0, 0, 0, 0]).map(drop)
}

/// Changes the working directory.
pub fn chdir(path: &CStr) -> Result<()> {
    call_with_path(PathCall::Chdir, 0, path, [0; 6]).map(drop)
}

/// Changes all user and group ids of this process for good; drops the supplementary groups if
/// `clear_groups` is set.
pub fn become_user(uid: u32, gid: u32, clear_groups: bool) -> Result<()> {
    let (uid, gid) = (uid as usize, gid as usize);
    if clear_groups {
        call_with_numbers(PlainCall::Setgroups, [0; 6])?;
    }
    call_with_numbers(PlainCall::Setresgid, [gid, gid, gid, 0, 0, 0])?;
    call_with_numbers(PlainCall::Setresuid, [uid, uid, uid, 0, 0, 0]).map(drop)
}

/// The prctl(2) options of [`prctl`]. All take plain numbers.
#[derive(Clone, Copy)]
pub enum PrctlOption {
    /// The signal that this process gets when its parent dies.
    ParentDeathSignal = 1,
    /// Whether other processes of the same user may inspect this process.
    Dumpable = 4,
    /// Drops a capability from the bounding set.
    DropBounding = 24,
    /// Orphaned descendants become children of this process.
    ChildSubreaper = 36,
    /// No later exec grants privileges.
    NoNewPrivs = 38,
    /// The ambient set; 4 clears it.
    Ambient = 47,
}

/// prctl(2) with one number.
pub fn prctl(option: PrctlOption, value: usize) -> Result<()> {
    call_with_numbers(PlainCall::Prctl, [option as usize, value, 0, 0, 0, 0]).map(drop)
}

/// Sets the name of this thread, truncated to 15 bytes.
#[cfg(cloche_template)]
pub fn set_name(name: &CStr) -> Result<()> {
    const PR_SET_NAME: usize = 15;
    call_with_path(PathCall::Prctl, 1, name, [PR_SET_NAME, 0, 0, 0, 0, 0]).map(drop)
}

/// Sets a resource limit of this process, soft and hard.
pub fn setrlimit(which: u32, soft: u64, hard: u64) -> Result<()> {
    call_with_words(WordsCall::Prlimit64, &[soft, hard], [0, which as usize, 0, 0, 0, 0]).map(drop)
}

/// Ignores a signal, or restores its default action. While SIGCHLD is ignored the kernel reaps
/// children at once.
pub fn ignore_signal(signal: usize, ignore: bool) -> Result<()> {
    // Handler (SIG_IGN is 1, SIG_DFL is 0), flags, restorer, mask. There is no handler function.
    let action = [u64::from(ignore), 0, 0, 0];
    call_with_words(WordsCall::RtSigaction, &action, [signal, 0, 0, 8, 0, 0]).map(drop)
}

/// Blocks every signal of this thread that can be blocked.
pub fn block_signals() -> Result<()> {
    const SETMASK: usize = 2;
    call_with_words(WordsCall::RtSigprocmask, &[u64::MAX], [SETMASK, 0, 0, 8, 0, 0]).map(drop)
}

/// Unblocks every signal of this thread.
pub fn unblock_signals() -> Result<()> {
    const SETMASK: usize = 2;
    call_with_words(WordsCall::RtSigprocmask, &[0], [SETMASK, 0, 0, 8, 0, 0]).map(drop)
}

/// Opens a signalfd: it is readable while this blocked signal is pending.
pub fn open_signalfd(signal: usize) -> Result<RawFd> {
    const NEW: usize = usize::MAX;
    const CLOEXEC: usize = 0o2_000_000;
    call_with_words(WordsCall::Signalfd4, &[1 << (signal - 1)], [NEW, 0, 8, CLOEXEC, 0, 0])
        .map(|fd| fd as RawFd)
}

/// Gives this thread a real-time priority. Its children are scheduled normally.
pub fn set_realtime_priority() -> Result<()> {
    const RR_RESET_ON_FORK: usize = 2 | 0x4000_0000;
    const PRIORITY: u64 = 1;
    call_with_words(WordsCall::SchedSetscheduler, &[PRIORITY], [0, RR_RESET_ON_FORK, 0, 0, 0, 0])
        .map(drop)
}

/// Forks: returns the child's pid, or `None` in the child. Unlike [`clone`](super::clone) it is
/// allowed under the guest's filter, which cannot check the arguments of `clone3`.
pub fn fork() -> Result<Option<i32>> {
    const SIGCHLD: usize = 17;
    // Without CLONE_VM and with no new stack the child runs on its own copy of this one.
    let pid = call_with_numbers(PlainCall::Clone, [SIGCHLD, 0, 0, 0, 0, 0])?;
    Ok((pid != 0).then_some(pid as i32))
}

/// Sends a signal by pid; -1 is every process that this one may signal.
pub fn kill(pid: i32, signal: i32) -> Result<()> {
    call_with_numbers(PlainCall::Kill, [pid as usize, signal as usize, 0, 0, 0, 0]).map(drop)
}

/// Sends a signal to the process behind a pidfd.
pub fn pidfd_kill(pidfd: RawFd, signal: i32) -> Result<()> {
    call_with_numbers(PlainCall::PidfdSendSignal, [pidfd as usize, signal as usize, 0, 0, 0, 0])
        .map(drop)
}

/// Ends this process at once: no exit function, no destructor.
pub fn exit(code: i32) -> ! {
    loop {
        let _ = call_with_numbers(PlainCall::ExitGroup, [code as usize, 0, 0, 0, 0, 0]);
    }
}

/// Starts a new session.
pub fn setsid() -> Result<()> {
    call_with_numbers(PlainCall::Setsid, [0; 6]).map(drop)
}

/// The pid of this process in its own pid namespace.
#[must_use]
pub fn getpid() -> i32 {
    call_with_numbers(PlainCall::Getpid, [0; 6]).map_or(0, |pid| pid as i32)
}

/// The id of this thread; that of the main thread is the pid.
#[cfg(cloche_template)]
pub(crate) fn gettid() -> i32 {
    call_with_numbers(PlainCall::Gettid, [0; 6]).map_or(0, |thread| thread as i32)
}

/// The pid of the parent of this process.
#[must_use]
pub fn getppid() -> i32 {
    call_with_numbers(PlainCall::Getppid, [0; 6]).map_or(0, |pid| pid as i32)
}

/// Waits until any child has ended.
pub fn wait_any() -> Result<ChildChange> {
    wait_with_options(0)
}

/// Waits until any child has ended or was stopped.
pub fn wait_for_change() -> Result<ChildChange> {
    const WSTOPPED: usize = 2;
    wait_with_options(WSTOPPED)
}

/// Returns a change of a child that has happened already. The pid is zero if there is none.
pub(crate) fn poll_child_change() -> Result<ChildChange> {
    const NOHANG_STOPPED: usize = 1 | 2;
    wait_with_options(NOHANG_STOPPED)
}

/// Reaps a child that has ended, if there is one.
pub fn reap_child() -> Result<bool> {
    const WNOHANG: usize = 1;
    wait_with_options(WNOHANG).map(|changed| changed.pid() != 0)
}

/// The signal that reports a change of a child.
pub const SIGCHLD: usize = 17;

/// `PR_GET_SPECULATION_CTRL` of prctl(2): the status bits of one speculation misfeature.
pub fn speculation_status(kind: u32) -> Result<usize> {
    const PR_GET_SPECULATION_CTRL: usize = 52;
    call_with_numbers(PlainCall::Prctl, [PR_GET_SPECULATION_CTRL, kind as usize, 0, 0, 0, 0])
}

/// `PR_SPEC_FORCE_DISABLE`: disables a speculation misfeature for this process and its children. It
/// cannot be enabled again.
pub fn force_disable_speculation(kind: u32) -> Result<()> {
    const PR_SET_SPECULATION_CTRL: usize = 53;
    const FORCE_DISABLE: usize = 8;
    let arguments = [PR_SET_SPECULATION_CTRL, kind as usize, FORCE_DISABLE, 0, 0, 0];
    call_with_numbers(PlainCall::Prctl, arguments).map(drop)
}
