//! Every system call that the jail makes, and the only `unsafe` code of the project.
//!
//! Core only: no libc, no allocation, no panics, no thread-locals. So this file can run between
//! `clone` and `exec` in a child of a threaded process, and inside the template interpreter
//! (any CPython, any libc). It knows system calls; it must not know what a sandbox is.
#![allow(unsafe_code, reason = "this file is the one address of unsafe code; each block is argued")]

use core::{arch::asm, ffi::CStr, mem::size_of, ptr};

pub use crate::errno::{Errno, Result};

/// A file descriptor by number; ownership is kept by the caller.
pub type RawFd = i32;

#[cfg(target_arch = "x86_64")]
mod nr {
    pub(super) const CALLS: [usize; 49] = [
        0, 1, 3, 257, 258, 266, 260, 165, 166, 155, 80, 170, 117, 119, 116, 157, 126, 302, 444,
        445, 446, 317, 435, 247, 62, 231, 436, 292, 46, 47, 41, 16, 308, 272, 59, 424, 39, 112,
        293, 268, 72, 428, 429, 442, 259, 56, 13, 144, 28,
    ];
}
#[cfg(target_arch = "aarch64")]
mod nr {
    pub(super) const CALLS: [usize; 49] = [
        63, 64, 57, 56, 34, 36, 54, 40, 39, 41, 49, 161, 147, 149, 159, 167, 91, 261, 444, 445,
        446, 277, 435, 95, 129, 94, 436, 24, 211, 212, 198, 29, 268, 97, 221, 424, 172, 157, 59,
        53, 25, 428, 429, 442, 33, 220, 134, 119, 233,
    ];
}

/// The calls used here, as places in the architecture's table of numbers.
#[derive(Clone, Copy)]
enum Call {
    Read,
    Write,
    Close,
    Openat,
    Mkdirat,
    Symlinkat,
    Fchownat,
    Mount,
    Umount2,
    PivotRoot,
    Chdir,
    Sethostname,
    Setresuid,
    Setresgid,
    Setgroups,
    Prctl,
    Capset,
    Prlimit64,
    LandlockCreateRuleset,
    LandlockAddRule,
    LandlockRestrictSelf,
    Seccomp,
    Clone3,
    Waitid,
    Kill,
    ExitGroup,
    CloseRange,
    Dup3,
    Sendmsg,
    Recvmsg,
    Socket,
    Ioctl,
    Setns,
    Unshare,
    Execve,
    PidfdSendSignal,
    Getpid,
    Setsid,
    Pipe2,
    Fchmodat,
    Fcntl,
    OpenTree,
    MoveMount,
    MountSetattr,
    Mknodat,
    Clone,
    RtSigaction,
    SchedSetscheduler,
    Madvise,
}

/// Makes a system call.
///
/// # Safety
/// Every argument that the kernel takes as a pointer must point to memory that is valid for what
/// the call reads and writes there, for as long as the call lasts.
#[inline]
unsafe fn syscall(call: Call, args: [usize; 6]) -> Result<usize> {
    let number = nr::CALLS[call as usize];
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

/// A call whose arguments are all plain numbers.
#[inline]
fn numbers(call: Call, args: [usize; 6]) -> Result<usize> {
    // SAFETY: used in this file only for calls that take no pointers, or take a null pointer
    // where the kernel allows one, so there is no memory for the kernel to touch.
    unsafe { syscall(call, args) }
}

/// A call with one path and otherwise plain numbers; the path is argument `at`.
#[inline]
fn with_path(call: Call, at: usize, path: &CStr, mut args: [usize; 6]) -> Result<usize> {
    args[at] = path.as_ptr() as usize;
    // SAFETY: `path` is NUL-terminated and outlives the call, which only reads it; used in this
    // file only for calls without another pointer.
    unsafe { syscall(call, args) }
}

const AT_FDCWD: usize = -100_isize as usize;

/// Opens a path; always close-on-exec.
pub fn open(path: &CStr, flags: i32, mode: u32) -> Result<RawFd> {
    const O_CLOEXEC: i32 = 0o2_000_000;
    let flags = (flags | O_CLOEXEC) as usize;
    with_path(Call::Openat, 1, path, [AT_FDCWD, 0, flags, mode as usize, 0, 0]).map(|fd| fd as i32)
}

/// Reads once.
pub fn read(fd: RawFd, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes at most `len` bytes into `buffer`, which is borrowed for the call.
    unsafe {
        syscall(Call::Read, [fd as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0])
    }
}

/// Writes once.
pub fn write(fd: RawFd, bytes: &[u8]) -> Result<usize> {
    // SAFETY: the kernel reads at most `len` bytes of `bytes`, which is borrowed for the call.
    unsafe { syscall(Call::Write, [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) }
}

/// Closes a descriptor by number.
pub fn close(fd: RawFd) {
    // An error here cannot be acted on: the descriptor is gone either way.
    let _ = numbers(Call::Close, [fd as usize, 0, 0, 0, 0, 0]);
}

/// Closes every descriptor from `first` to `last`.
pub fn close_range(first: u32, last: u32) -> Result<()> {
    numbers(Call::CloseRange, [first as usize, last as usize, 0, 0, 0, 0]).map(drop)
}

/// Makes `to` a copy of `from` that survives `exec`.
pub fn dup_onto(from: RawFd, to: RawFd) -> Result<()> {
    if from == to {
        return Err(Errno::INVAL);
    }
    numbers(Call::Dup3, [from as usize, to as usize, 0, 0, 0, 0]).map(drop)
}

/// A copy of `fd`, close-on-exec, at the first free number from `least` on.
pub fn dup_above(fd: RawFd, least: RawFd) -> Result<RawFd> {
    const F_DUPFD_CLOEXEC: usize = 1030;
    numbers(Call::Fcntl, [fd as usize, F_DUPFD_CLOEXEC, least as usize, 0, 0, 0])
        .map(|fd| fd as i32)
}

/// A pipe, both ends close-on-exec: (read, write).
pub fn pipe() -> Result<(RawFd, RawFd)> {
    const O_CLOEXEC: usize = 0o2_000_000;
    let mut ends = [0_i32; 2];
    // SAFETY: the kernel writes two ints into `ends`, which is that long.
    unsafe { syscall(Call::Pipe2, [ends.as_mut_ptr() as usize, O_CLOEXEC, 0, 0, 0, 0])? };
    Ok((ends[0], ends[1]))
}

/// Makes a directory.
pub fn mkdir(path: &CStr, mode: u32) -> Result<()> {
    with_path(Call::Mkdirat, 1, path, [AT_FDCWD, 0, mode as usize, 0, 0, 0]).map(drop)
}

/// Sets a path's mode, whatever the umask says.
pub fn chmod(path: &CStr, mode: u32) -> Result<()> {
    with_path(Call::Fchmodat, 1, path, [AT_FDCWD, 0, mode as usize, 0, 0, 0]).map(drop)
}

/// Makes a symbolic link at `path`.
pub fn symlink(target: &CStr, path: &CStr) -> Result<()> {
    // SAFETY: both strings are NUL-terminated, outlive the call and are only read.
    unsafe {
        let (target, path) = (target.as_ptr() as usize, path.as_ptr() as usize);
        syscall(Call::Symlinkat, [target, AT_FDCWD, path, 0, 0, 0])
    }
    .map(drop)
}

/// Gives a path to a user and group, without following a link.
pub fn chown(path: &CStr, uid: u32, gid: u32) -> Result<()> {
    const AT_SYMLINK_NOFOLLOW: usize = 0x100;
    let args = [AT_FDCWD, 0, uid as usize, gid as usize, AT_SYMLINK_NOFOLLOW, 0];
    with_path(Call::Fchownat, 1, path, args).map(drop)
}

/// mount(2) with all five arguments.
pub fn mount(source: &CStr, target: &CStr, kind: &CStr, flags: u64, data: &CStr) -> Result<()> {
    // SAFETY: all four strings are NUL-terminated, outlive the call and are only read.
    unsafe {
        let [source, target] = [source, target].map(|text| text.as_ptr() as usize);
        let [kind, data] = [kind, data].map(|text| text.as_ptr() as usize);
        syscall(Call::Mount, [source, target, kind, flags as usize, data, 0])
    }
    .map(drop)
}

const AT_EMPTY_PATH: usize = 0x1000;
const AT_RECURSIVE: usize = 0x8000;

/// A detached copy of the mount at `path` and of all below it, not yet anywhere.
pub fn open_tree(path: &CStr) -> Result<RawFd> {
    const CLONE_CLOEXEC: usize = 1 | 0o2_000_000;
    with_path(Call::OpenTree, 1, path, [AT_FDCWD, 0, CLONE_CLOEXEC | AT_RECURSIVE, 0, 0, 0])
        .map(|fd| fd as i32)
}

/// Shows a detached mount's files with their owners mapped by a user namespace.
pub fn idmap(mount: RawFd, user_namespace: RawFd) -> Result<()> {
    const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
    let attr = [MOUNT_ATTR_IDMAP, 0, 0, user_namespace as u64];
    let (empty, attr_at) = (c"".as_ptr() as usize, attr.as_ptr() as usize);
    // SAFETY: struct mount_attr is four 64-bit words, which is the size given; the path is a
    // static empty string; both are only read.
    unsafe {
        let flags = AT_EMPTY_PATH | AT_RECURSIVE;
        syscall(Call::MountSetattr, [mount as usize, empty, flags, attr_at, 32, 0])
    }
    .map(drop)
}

/// Puts a detached mount at `path`.
pub fn attach_mount(mount: RawFd, path: &CStr) -> Result<()> {
    const FROM_EMPTY_PATH: usize = 4;
    let (empty, path) = (c"".as_ptr() as usize, path.as_ptr() as usize);
    // SAFETY: both strings are NUL-terminated, outlive the call and are only read.
    unsafe { syscall(Call::MoveMount, [mount as usize, empty, AT_FDCWD, path, FROM_EMPTY_PATH, 0]) }
        .map(drop)
}

/// Makes a device node.
pub fn mknod(path: &CStr, mode: u32, major: u32, minor: u32) -> Result<()> {
    let device = (major << 8 | minor) as usize;
    with_path(Call::Mknodat, 1, path, [AT_FDCWD, 0, mode as usize, device, 0, 0]).map(drop)
}

/// Makes the current directory the root and lets go of the old one.
pub fn pivot_here() -> Result<()> {
    const MNT_DETACH: usize = 2;
    let here = c".".as_ptr() as usize;
    // SAFETY: "." is a static NUL-terminated string, only read. Old and new root may be the same
    // path: the old root is then stacked on top of the new one and unmounted next.
    unsafe { syscall(Call::PivotRoot, [here, here, 0, 0, 0, 0])? };
    with_path(Call::Umount2, 0, c".", [0, MNT_DETACH, 0, 0, 0, 0])?;
    chdir(c"/")
}

/// Changes the working directory.
pub fn chdir(path: &CStr) -> Result<()> {
    with_path(Call::Chdir, 0, path, [0; 6]).map(drop)
}

/// Sets the host name of this UTS namespace.
pub fn sethostname(name: &[u8]) -> Result<()> {
    // SAFETY: the kernel reads `len` bytes of `name`, which is borrowed for the call.
    unsafe { syscall(Call::Sethostname, [name.as_ptr() as usize, name.len(), 0, 0, 0, 0]) }
        .map(drop)
}

/// Becomes this user and group for good, with no other groups.
pub fn become_user(uid: u32, gid: u32, clear_groups: bool) -> Result<()> {
    let (uid, gid) = (uid as usize, gid as usize);
    if clear_groups {
        numbers(Call::Setgroups, [0; 6])?;
    }
    numbers(Call::Setresgid, [gid, gid, gid, 0, 0, 0])?;
    numbers(Call::Setresuid, [uid, uid, uid, 0, 0, 0]).map(drop)
}

/// The prctl(2) options used here, all of which take plain numbers.
#[derive(Clone, Copy)]
pub enum Prctl {
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
pub fn prctl(option: Prctl, value: usize) -> Result<()> {
    numbers(Call::Prctl, [option as usize, value, 0, 0, 0, 0]).map(drop)
}

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

/// Sets a resource limit of this process, soft and hard.
pub fn setrlimit(which: u32, soft: u64, hard: u64) -> Result<()> {
    let limit = [soft, hard];
    // SAFETY: struct rlimit64 is two 64-bit words; the old value is not asked for (null).
    unsafe { syscall(Call::Prlimit64, [0, which as usize, limit.as_ptr() as usize, 0, 0, 0]) }
        .map(drop)
}

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

/// The Landlock version of this kernel, or an error where there is none.
pub fn landlock_version() -> Result<u32> {
    numbers(Call::LandlockCreateRuleset, [0, 0, 1, 0, 0, 0]).map(|version| version as u32)
}

/// Makes a ruleset; `size` is how much of the struct this kernel's version knows.
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

/// Puts this process, and all that come from it, under the ruleset.
pub fn landlock_restrict(ruleset: RawFd) -> Result<()> {
    numbers(Call::LandlockRestrictSelf, [ruleset as usize, 0, 0, 0, 0, 0]).map(drop)
}

/// Installs a compiled filter: whole `sock_filter` instructions of eight bytes each.
pub fn seccomp(program: &[u8]) -> Result<()> {
    #[repr(C)]
    struct Fprog(u16, *const u8);
    let (true, Ok(count)) = (program.len().is_multiple_of(8), u16::try_from(program.len() / 8))
    else {
        return Err(Errno::INVAL);
    };
    let fprog = Fprog(count, program.as_ptr());
    // SAFETY: struct sock_fprog is a count and a pointer to that many instructions; the kernel
    // copies them without asking for alignment, and `program` is borrowed for the call.
    unsafe {
        let fprog: *const Fprog = &raw const fprog;
        syscall(Call::Seccomp, [1, 0, fprog as usize, 0, 0, 0])
    }
    .map(drop)
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
pub enum Cloned {
    /// The new process.
    Child,
    /// The old one: the child's pid, and a pidfd to it that is now the caller's.
    Parent(i32, RawFd),
}

/// Copies this process, like fork, into new namespaces.
///
/// The child of a threaded process must not allocate or take locks before it execs.
pub fn clone(request: CloneRequest) -> Result<Cloned> {
    const PIDFD: u64 = 0x1000;
    const INTO_CGROUP: u64 = 0x2_0000_0000;
    const SIGCHLD: u64 = 17;
    let mut pidfd: i32 = -1;
    let mut args = [0_u64; 11];
    args[0] = request.namespaces | PIDFD;
    args[1] = (&raw mut pidfd) as u64;
    args[4] = SIGCHLD;
    if let Some(cgroup) = request.cgroup {
        args[0] |= INTO_CGROUP;
        args[10] = cgroup as u64;
    }
    let size = if request.cgroup.is_some() { 88 } else { 64 };
    // SAFETY: `args` is struct clone_args, of which the kernel reads `size` bytes (64 and 88 are
    // its published sizes); `pidfd` outlives the call; without CLONE_VM the child runs on its own
    // copy of this stack, so returning twice is as sound as fork.
    let pid = unsafe { syscall(Call::Clone3, [args.as_ptr() as usize, size, 0, 0, 0, 0])? };
    Ok(if pid == 0 { Cloned::Child } else { Cloned::Parent(pid as i32, pidfd) })
}

/// Copies this process; the child's pid, or nothing in the child. Unlike [`clone`], allowed under
/// the guest's filter, which cannot look into the arguments of `clone3`.
pub fn fork() -> Result<Option<i32>> {
    const SIGCHLD: usize = 17;
    // Without CLONE_VM and with no new stack the child runs on its own copy of this one.
    let pid = numbers(Call::Clone, [SIGCHLD, 0, 0, 0, 0, 0])?;
    Ok((pid != 0).then_some(pid as i32))
}

/// Where this thread's libc keeps its thread id; `NOSYS` where the kernel does not tell.
pub fn thread_id_place() -> Result<ThreadIdPlace> {
    const PR_GET_TID_ADDRESS: usize = 40;
    let mut place = 0_usize;
    // SAFETY: the kernel writes one pointer-sized word into `place`.
    unsafe { syscall(Call::Prctl, [PR_GET_TID_ADDRESS, (&raw mut place) as usize, 0, 0, 0, 0])? };
    if place == 0 { Err(Errno::NOSYS) } else { Ok(ThreadIdPlace(place)) }
}

/// The address of a libc's thread id word. Only [`thread_id_place`] makes one.
#[derive(Clone, Copy)]
pub struct ThreadIdPlace(usize);

/// Like [`fork`], for a copy of a process that runs a libc: the child's thread id is put where the
/// libc keeps it, as its own fork would do.
pub fn fork_under_libc(ThreadIdPlace(place): ThreadIdPlace) -> Result<Option<i32>> {
    const SETTID_CLEARTID_SIGCHLD: usize = 0x0100_0000 | 0x0020_0000 | 17;
    // SAFETY: `place` is what the main thread's libc has registered, valid for the life of the
    // process; a copy of the process has it at the same address. Which of the last two arguments it
    // is depends on the architecture; the other one is not used without CLONE_SETTLS.
    let pid = unsafe { syscall(Call::Clone, [SETTID_CLEARTID_SIGCHLD, 0, 0, place, place, 0])? };
    Ok((pid != 0).then_some(pid as i32))
}

/// How a waited-for child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reaped {
    /// Which one.
    pub pid: i32,
    /// Its exit code, or the signal that ended it.
    pub status: i32,
    /// Whether `status` is a signal.
    pub signalled: bool,
}

/// Waits for any child to end.
pub fn wait_any() -> Result<Reaped> {
    wait(0)
}

/// Reaps a child that has ended, if there is one.
pub fn reap() -> Result<Option<Reaped>> {
    const WNOHANG: usize = 1;
    wait(WNOHANG).map(|reaped| (reaped.pid != 0).then_some(reaped))
}

fn wait(options: usize) -> Result<Reaped> {
    const WEXITED: usize = 4;
    const ALL_KINDS: usize = 0x4000_0000;
    const CLD_EXITED: i32 = 1;
    let mut info = [0_i32; 32];
    let info_at = info.as_mut_ptr() as usize;
    // SAFETY: struct siginfo is 128 bytes, which `info` is; no rusage is asked for (null).
    unsafe { syscall(Call::Waitid, [0, 0, info_at, WEXITED | ALL_KINDS | options, 0, 0])? };
    // signo, errno, code, padding, pid, uid, status.
    Ok(Reaped { pid: info[4], status: info[6], signalled: info[2] != CLD_EXITED })
}

/// Sends a signal by pid; -1 is everybody who can be reached.
pub fn kill(pid: i32, signal: i32) -> Result<()> {
    numbers(Call::Kill, [pid as usize, signal as usize, 0, 0, 0, 0]).map(drop)
}

/// Sends a signal to the process behind a pidfd.
pub fn pidfd_kill(pidfd: RawFd, signal: i32) -> Result<()> {
    numbers(Call::PidfdSendSignal, [pidfd as usize, signal as usize, 0, 0, 0, 0]).map(drop)
}

/// Ends this process without running anything else.
pub fn exit(code: i32) -> ! {
    loop {
        let _ = numbers(Call::ExitGroup, [code as usize, 0, 0, 0, 0, 0]);
    }
}

/// Whether ended children are reaped by the kernel at once, unseen.
pub fn ignore_children(ignore: bool) -> Result<()> {
    const SIGCHLD: usize = 17;
    // Handler (SIG_IGN is 1, SIG_DFL is 0), flags, restorer, mask: no handler of ours is run.
    let action = [usize::from(ignore), 0, 0, 0];
    let action_at = action.as_ptr() as usize;
    // SAFETY: the kernel's struct sigaction is at most four words with a mask of eight bytes; it is
    // only read, and the old action is not asked for (null).
    unsafe { syscall(Call::RtSigaction, [SIGCHLD, action_at, 0, 8, 0, 0]) }.map(drop)
}

/// Has this thread go before all ordinary ones when it has something to do; what it starts is
/// ordinary again.
pub fn go_first() -> Result<()> {
    const RR_RESET_ON_FORK: usize = 2 | 0x4000_0000;
    let priority = 1_i32;
    let priority_at = (&raw const priority) as usize;
    // SAFETY: struct sched_param is one int; it is only read.
    unsafe { syscall(Call::SchedSetscheduler, [0, RR_RESET_ON_FORK, priority_at, 0, 0, 0]) }
        .map(drop)
}

/// Starts a session of its own.
pub fn setsid() -> Result<()> {
    numbers(Call::Setsid, [0; 6]).map(drop)
}

/// Leaves for new namespaces.
pub fn unshare(namespaces: u64) -> Result<()> {
    numbers(Call::Unshare, [namespaces as usize, 0, 0, 0, 0, 0]).map(drop)
}

/// Enters the namespace behind a descriptor.
pub fn setns(fd: RawFd, kind: u64) -> Result<()> {
    numbers(Call::Setns, [fd as usize, kind as usize, 0, 0, 0, 0]).map(drop)
}

/// This process's pid, as its own namespace counts.
#[must_use]
pub fn getpid() -> i32 {
    numbers(Call::Getpid, [0; 6]).map_or(0, |pid| pid as i32)
}

/// Pointers to strings, as `execve` takes them, ended by a null pointer.
pub struct StringList<'a, const N: usize> {
    pointers: [*const u8; N],
    used: usize,
    _strings: core::marker::PhantomData<&'a CStr>,
}

impl<'a, const N: usize> StringList<'a, N> {
    /// An empty list with room for `N - 1` strings.
    #[must_use]
    pub const fn new() -> Self {
        Self { pointers: [ptr::null(); N], used: 0, _strings: core::marker::PhantomData }
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

/// Becomes another program; returns only with the reason why not.
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

/// Brings up `lo` in the network namespace this process is in.
pub fn loopback_up() -> Result<()> {
    const AF_INET: usize = 2;
    const SOCK_DGRAM_CLOEXEC: usize = 2 | 0o2_000_000;
    const SIOCSIFFLAGS: usize = 0x8914;
    const UP_RUNNING: u8 = 0x41;
    let socket = numbers(Call::Socket, [AF_INET, SOCK_DGRAM_CLOEXEC, 0, 0, 0, 0])?;
    let mut request = [0_u8; 40];
    request[..2].copy_from_slice(b"lo");
    request[16] = UP_RUNNING;
    // SAFETY: struct ifreq is 40 bytes: a name of 16, then the flags; the kernel only reads it.
    let result =
        unsafe { syscall(Call::Ioctl, [socket, SIOCSIFFLAGS, request.as_ptr() as usize, 0, 0, 0]) };
    close(socket as i32);
    result.map(drop)
}

/// The most descriptors that travel with one message.
pub const MAX_FDS: usize = 16;

/// struct msghdr, struct iovec and a control buffer for descriptors, laid out for the kernel.
#[repr(C)]
struct Message {
    header: [usize; 7],
    part: [usize; 2],
    control: [u64; 2 + MAX_FDS / 2],
}

impl Message {
    fn new(data: usize, len: usize) -> Self {
        Self { header: [0; 7], part: [data, len], control: [0; 2 + MAX_FDS / 2] }
    }

    /// Fills in the pointers between the parts; must be called where the struct will stay.
    fn link(&mut self, control_len: usize) -> usize {
        self.header[2] = (&raw const self.part) as usize;
        self.header[3] = 1;
        self.header[4] = (&raw const self.control) as usize;
        self.header[5] = control_len;
        (&raw const self.header) as usize
    }
}

/// SOL_SOCKET in the low half, SCM_RIGHTS in the high half of one little-endian word.
const RIGHTS: u64 = 1 | 1 << 32;

/// Sends one message with descriptors.
pub fn send(socket: RawFd, bytes: &[u8], fds: &[RawFd]) -> Result<()> {
    const MSG_NOSIGNAL: usize = 0x4000;
    if fds.len() > MAX_FDS {
        return Err(Errno::INVAL);
    }
    let mut message = Message::new(bytes.as_ptr() as usize, bytes.len());
    message.control[0] = 16 + 4 * fds.len() as u64;
    message.control[1] = RIGHTS;
    for (at, fd) in fds.iter().enumerate() {
        message.control[2 + at / 2] |= u64::from(*fd as u32) << (32 * (at % 2));
    }
    let control_len = if fds.is_empty() { 0 } else { 16 + 4 * fds.len() };
    let header = message.link(control_len);
    // SAFETY: the header points at a one-part vector over `bytes` and at a control buffer with one
    // SCM_RIGHTS record of `control_len` bytes; all of it outlives the call and is only read.
    unsafe { syscall(Call::Sendmsg, [socket as usize, header, MSG_NOSIGNAL, 0, 0, 0]) }.map(drop)
}

/// Receives one message: how many bytes, and the descriptors, which are now the caller's.
pub fn receive(socket: RawFd, buffer: &mut [u8]) -> Result<(usize, [Option<RawFd>; MAX_FDS])> {
    const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
    let mut message = Message::new(buffer.as_mut_ptr() as usize, buffer.len());
    let header = message.link(16 + 4 * MAX_FDS);
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

/// Ranges of pages that every copy of this process will write to or, where their address is odd,
/// read. Only the template's own call makes them.
#[derive(Clone, Copy)]
pub struct HotPages {
    ranges: *const [usize; 2],
    count: usize,
}

impl HotPages {
    /// Has all of them mapped now, as this process's own copies where they will be written to.
    pub fn map(self) {
        const POPULATE_READ: usize = 22;
        const POPULATE_WRITE: usize = 23;
        for at in 0..self.count {
            // SAFETY: the caller of the template's library gives an array of `count` ranges of
            // memory of its own. What the kernel does there changes no byte.
            unsafe {
                let [address, len] = *self.ranges.add(at);
                let advice = if address & 1 == 0 { POPULATE_WRITE } else { POPULATE_READ };
                // A page that is not mapped ahead is mapped when it is used.
                let _ = syscall(Call::Madvise, [address & !1, len, advice, 0, 0, 0]);
            }
        }
    }
}

/// Takes ownership of a descriptor that one of the calls above has just given us.
#[cfg(not(cloche_template))]
#[must_use]
pub fn owned(fd: RawFd) -> std::os::fd::OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: used on descriptors fresh from `clone` or `receive`, which nobody else owns or closes.
    unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) }
}

/// What the template interpreter calls, by these names, through its foreign function interface.
#[cfg(cloche_template)]
mod exported {
    use core::{ffi::CStr, slice};

    use super::{Errno, HotPages};
    use crate::{init, serve};

    /// What the interpreter prepares, once, for all that are copied from it.
    #[repr(C)]
    struct Given {
        /// Ranges of pages that every program needs: address and length.
        ranges: *const [usize; 2],
        count: usize,
        /// The variables it has, as a job would give them.
        variables: *const u8,
        variables_len: usize,
        /// Where others can be put.
        buffer: *mut u8,
        buffer_len: usize,
        /// A directory whose presence changes how it goes on.
        packages: *const core::ffi::c_char,
    }

    // SAFETY: the name is ours alone (prefixed), so it replaces no other symbol.
    #[unsafe(no_mangle)]
    extern "C" fn cloche_serve(socket: i32, given: *const Given) {
        // SAFETY: the interpreter gives a struct of this shape, which outlives the call.
        let given = unsafe { &*given };
        serve::serve(socket, HotPages { ranges: given.ranges, count: given.count });
    }

    /// Takes a job. Zero where the interpreter can go on as it is; one more than the length of the
    /// variables in the buffer where they are others, or where it has to look for packages. The
    /// highest bit tells that a file may be an archive.
    // SAFETY: the name is ours alone (prefixed), so it replaces no other symbol.
    #[unsafe(no_mangle)]
    extern "C" fn cloche_wait(given: *const Given) -> usize {
        // SAFETY: the interpreter gives a struct of this shape, whose pointers are to memory of its
        // own with the lengths beside them and to a string that ends with a NUL; nobody else
        // looks at any of it during the call.
        let (had, buffer, packages) = unsafe {
            let given = &*given;
            (
                slice::from_raw_parts(given.variables, given.variables_len),
                slice::from_raw_parts_mut(given.buffer, given.buffer_len),
                CStr::from_ptr(given.packages),
            )
        };
        let (taken, archive) = match init::wait_for_variables(buffer) {
            Ok(taken) => taken,
            Err(Errno::PIPE) => super::exit(0),
            Err(_) => super::exit(126),
        };
        let archive = usize::from(archive) << (usize::BITS - 1);
        if *taken == *had && super::open(packages, 0, 0).map(super::close) == Err(Errno::NOENT) {
            return archive;
        }
        (taken.len() + 1) | archive
    }
}
