//! The system calls that take nothing but numbers, paths or a few words: nothing here is unsafe.
//! Core only.

use core::{ffi::CStr, marker::PhantomData, ptr};

use crate::{
    errno::{Errno, Result},
    sys::{
        AT_FDCWD, AT_RECURSIVE, RawFd, call_with_numbers, call_with_path, call_with_paths,
        call_with_words, wait_with_options,
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

/// Makes a directory.
pub fn mkdir(path: &CStr, mode: u32) -> Result<()> {
    call_with_path(PathCall::Mkdirat, 1, path, [AT_FDCWD, 0, mode as usize, 0, 0, 0]).map(drop)
}

/// Sets a path's mode, whatever the umask says.
pub fn chmod(path: &CStr, mode: u32) -> Result<()> {
    call_with_path(PathCall::Fchmodat, 1, path, [AT_FDCWD, 0, mode as usize, 0, 0, 0]).map(drop)
}

/// Gives a path to a user and group, without following a link.
pub fn chown(path: &CStr, uid: u32, gid: u32) -> Result<()> {
    const AT_SYMLINK_NOFOLLOW: usize = 0x100;
    let args = [AT_FDCWD, 0, uid as usize, gid as usize, AT_SYMLINK_NOFOLLOW, 0];
    call_with_path(PathCall::Fchownat, 1, path, args).map(drop)
}

/// A detached copy of the mount at `path` and of all below it, not yet anywhere.
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

/// Puts a detached mount at `path`.
pub fn attach_mount(mount: RawFd, path: &CStr) -> Result<()> {
    const FROM_EMPTY_PATH: usize = 4;
    let args = [mount as usize, 0, AT_FDCWD, 0, FROM_EMPTY_PATH, 0];
    call_with_paths(PathPairCall::MoveMount, [1, 3], [c"", path], args).map(drop)
}

/// Makes the current directory the root and lets go of the old one.
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

/// Changes the working directory.
pub fn chdir(path: &CStr) -> Result<()> {
    call_with_path(PathCall::Chdir, 0, path, [0; 6]).map(drop)
}

/// Becomes this user and group for good, with no other groups.
pub fn become_user(uid: u32, gid: u32, clear_groups: bool) -> Result<()> {
    let (uid, gid) = (uid as usize, gid as usize);
    if clear_groups {
        call_with_numbers(PlainCall::Setgroups, [0; 6])?;
    }
    call_with_numbers(PlainCall::Setresgid, [gid, gid, gid, 0, 0, 0])?;
    call_with_numbers(PlainCall::Setresuid, [uid, uid, uid, 0, 0, 0]).map(drop)
}

/// The prctl(2) options used here, all of which take plain numbers.
#[derive(Clone, Copy)]
pub enum PrctlOption {
    /// The signal this process gets when its parent dies.
    ParentDeathSignal = 1,
    /// Whether others of the same user may look into this process.
    Dumpable = 4,
    /// Lets a capability go from the bounding set.
    DropBounding = 24,
    /// Orphans below come to this process.
    ChildSubreaper = 36,
    /// No exec can give privileges any more.
    NoNewPrivs = 38,
    /// The ambient set; 4 clears it.
    Ambient = 47,
}

/// prctl(2) with one number.
pub fn prctl(option: PrctlOption, value: usize) -> Result<()> {
    call_with_numbers(PlainCall::Prctl, [option as usize, value, 0, 0, 0, 0]).map(drop)
}

/// Gives this thread a name, which is cut to 15 bytes.
#[cfg(cloche_template)]
pub fn set_name(name: &CStr) -> Result<()> {
    const PR_SET_NAME: usize = 15;
    call_with_path(PathCall::Prctl, 1, name, [PR_SET_NAME, 0, 0, 0, 0, 0]).map(drop)
}

/// Sets a resource limit of this process, soft and hard.
pub fn setrlimit(which: u32, soft: u64, hard: u64) -> Result<()> {
    call_with_words(WordsCall::Prlimit64, &[soft, hard], [0, which as usize, 0, 0, 0, 0]).map(drop)
}

/// Whether a signal is ignored, or does what it does by itself; for that of children: whether they
/// are reaped by the kernel at once, unseen.
pub fn ignore_signal(signal: usize, ignore: bool) -> Result<()> {
    // Handler (SIG_IGN is 1, SIG_DFL is 0), flags, restorer, mask: no handler of ours is run.
    let action = [u64::from(ignore), 0, 0, 0];
    call_with_words(WordsCall::RtSigaction, &action, [signal, 0, 0, 8, 0, 0]).map(drop)
}

/// Lets no signal reach this thread any more but those that cannot be held back.
pub fn block_signals() -> Result<()> {
    const SETMASK: usize = 2;
    call_with_words(WordsCall::RtSigprocmask, &[u64::MAX], [SETMASK, 0, 0, 8, 0, 0]).map(drop)
}

/// A descriptor that is readable when a signal was held back.
pub fn open_signalfd(signal: usize) -> Result<RawFd> {
    const NEW: usize = usize::MAX;
    const CLOEXEC: usize = 0o2_000_000;
    call_with_words(WordsCall::Signalfd4, &[1 << (signal - 1)], [NEW, 0, 8, CLOEXEC, 0, 0])
        .map(|fd| fd as RawFd)
}

/// Has this thread go before all ordinary ones when it has something to do; what it starts is
/// ordinary again.
pub fn set_realtime_priority() -> Result<()> {
    const RR_RESET_ON_FORK: usize = 2 | 0x4000_0000;
    const PRIORITY: u64 = 1;
    call_with_words(WordsCall::SchedSetscheduler, &[PRIORITY], [0, RR_RESET_ON_FORK, 0, 0, 0, 0])
        .map(drop)
}

/// The Landlock version of this kernel, or an error where there is none.
pub fn landlock_version() -> Result<u32> {
    call_with_numbers(PlainCall::LandlockCreateRuleset, [0, 0, 1, 0, 0, 0])
        .map(|version| version as u32)
}

/// Puts this process, and all that come from it, under the ruleset.
pub fn landlock_restrict(ruleset: RawFd) -> Result<()> {
    call_with_numbers(PlainCall::LandlockRestrictSelf, [ruleset as usize, 0, 0, 0, 0, 0]).map(drop)
}

/// Copies this process; the child's pid, or nothing in the child. Unlike [`clone`], allowed under
/// the guest's filter, which cannot look into the arguments of `clone3`.
pub fn fork() -> Result<Option<i32>> {
    const SIGCHLD: usize = 17;
    // Without CLONE_VM and with no new stack the child runs on its own copy of this one.
    let pid = call_with_numbers(PlainCall::Clone, [SIGCHLD, 0, 0, 0, 0, 0])?;
    Ok((pid != 0).then_some(pid as i32))
}

/// Sends a signal by pid; -1 is everybody who can be reached.
pub fn kill(pid: i32, signal: i32) -> Result<()> {
    call_with_numbers(PlainCall::Kill, [pid as usize, signal as usize, 0, 0, 0, 0]).map(drop)
}

/// Sends a signal to the process behind a pidfd.
pub fn pidfd_kill(pidfd: RawFd, signal: i32) -> Result<()> {
    call_with_numbers(PlainCall::PidfdSendSignal, [pidfd as usize, signal as usize, 0, 0, 0, 0])
        .map(drop)
}

/// Ends this process without running anything else.
pub fn exit(code: i32) -> ! {
    loop {
        let _ = call_with_numbers(PlainCall::ExitGroup, [code as usize, 0, 0, 0, 0, 0]);
    }
}

/// Starts a session of its own.
pub fn setsid() -> Result<()> {
    call_with_numbers(PlainCall::Setsid, [0; 6]).map(drop)
}

/// Leaves for new namespaces.
pub fn unshare(namespaces: u64) -> Result<()> {
    call_with_numbers(PlainCall::Unshare, [namespaces as usize, 0, 0, 0, 0, 0]).map(drop)
}

/// Enters the namespace behind a descriptor.
pub fn setns(fd: RawFd, kind: u64) -> Result<()> {
    call_with_numbers(PlainCall::Setns, [fd as usize, kind as usize, 0, 0, 0, 0]).map(drop)
}

/// This process's pid, as its own namespace counts.
#[must_use]
pub fn getpid() -> i32 {
    call_with_numbers(PlainCall::Getpid, [0; 6]).map_or(0, |pid| pid as i32)
}

/// Waits for any child to end.
pub fn wait_any() -> Result<ChildChange> {
    wait_with_options(0)
}

/// Waits for any child to end or to be stopped.
pub fn wait_for_change() -> Result<ChildChange> {
    const WSTOPPED: usize = 2;
    wait_with_options(WSTOPPED)
}

/// What has happened to a child until now; one without a number if nothing has.
pub(crate) fn poll_child_change() -> Result<ChildChange> {
    const NOHANG_STOPPED: usize = 1 | 2;
    wait_with_options(NOHANG_STOPPED)
}

/// Reaps a child that has ended, if there is one.
pub fn reap_child() -> Result<bool> {
    const WNOHANG: usize = 1;
    wait_with_options(WNOHANG).map(|changed| changed.pid() != 0)
}

/// The signal that a child has ended.
pub const SIGCHLD: usize = 17;

/// What a Landlock ruleset governs.
#[repr(C)]
pub struct LandlockRuleset {
    /// File accesses that are denied unless a rule allows them.
    pub files: u64,
    /// Network accesses likewise.
    pub network: u64,
    /// Scopes: abstract sockets, signals.
    pub scoped: u64,
}

/// What `clone` is to make.
#[derive(Clone, Copy, Default)]
pub struct CloneRequest {
    /// `CLONE_NEW*` flags.
    pub namespaces: u64,
    /// A cgroup v2 directory to be born in.
    pub cgroup: Option<RawFd>,
}

/// Which side of `clone` this is.
pub enum CloneSide {
    /// The new process.
    Child,
    /// The old one: the child's pid, and a pidfd to it that is now the caller's.
    Parent(i32, RawFd),
}

/// What has happened to a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildChange {
    /// It ended with this code, and is reaped.
    Exited {
        /// Which one.
        pid: i32,
        /// Its code.
        code: i32,
    },
    /// A signal ended it; it is reaped.
    Killed {
        /// Which one.
        pid: i32,
        /// That signal.
        signal: i32,
    },
    /// It was stopped.
    Stopped {
        /// Which one.
        pid: i32,
    },
}

impl ChildChange {
    /// Which child.
    #[must_use]
    pub const fn pid(self) -> i32 {
        match self {
            Self::Exited { pid, .. } | Self::Killed { pid, .. } | Self::Stopped { pid } => pid,
        }
    }
}

/// The most descriptors that travel with one message.
pub const MAX_FDS: usize = 16;

/// struct msghdr, struct iovec and a control buffer for descriptors, laid out for the kernel.
#[repr(C)]
pub(crate) struct FdMessage {
    pub(crate) header: [usize; 7],
    part: [usize; 2],
    pub(crate) control: [u64; 2 + MAX_FDS / 2],
}

impl FdMessage {
    pub(crate) fn new(data: usize, len: usize) -> Self {
        Self { header: [0; 7], part: [data, len], control: [0; 2 + MAX_FDS / 2] }
    }

    /// Fills in the pointers between the parts; must be called where the struct will stay.
    pub(crate) fn link_parts(&mut self, control_len: usize) -> usize {
        self.header[2] = (&raw const self.part) as usize;
        self.header[3] = 1;
        self.header[4] = (&raw const self.control) as usize;
        self.header[5] = control_len;
        (&raw const self.header) as usize
    }
}

/// Pointers to strings, as `execve` takes them, ended by a null pointer.
pub struct StringList<'a, const N: usize> {
    pub(crate) pointers: [*const u8; N],
    used: usize,
    _strings: PhantomData<&'a CStr>,
}

impl<'a, const N: usize> StringList<'a, N> {
    /// An empty list with room for `N - 1` strings.
    #[must_use]
    pub const fn new() -> Self {
        Self { pointers: [ptr::null(); N], used: 0, _strings: PhantomData }
    }

    /// Adds a string; `INVAL` when there is no room.
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
