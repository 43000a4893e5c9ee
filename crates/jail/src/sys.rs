//! Every system call that the jail makes, and the only `unsafe` code of the project.
//!
//! Core only: no libc, no allocation, no panics, no thread-locals. So this file can run between
//! `clone` and `exec` in a child of a threaded process, and inside the template interpreter
//! (any CPython, any libc). It knows system calls; it must not know what a sandbox is.
#![allow(unsafe_code, reason = "this file is the one address of unsafe code; each block is argued")]

use core::{arch::asm, ffi::CStr, mem::size_of};

use crate::syscall_table::{Call, PathCall, PathPairCall, PlainCall, WordsCall};
pub use crate::{
    errno::{Errno, Result},
    safe_calls::*,
};

/// A file descriptor by number; ownership is kept by the caller.
pub type RawFd = i32;

/// Makes a system call.
///
/// # Safety
/// Every argument that the kernel takes as a pointer must point to memory that is valid for what
/// the call reads and writes there, for as long as the call lasts.
#[inline]
unsafe fn syscall(call: Call, args: [usize; 6]) -> Result<usize> {
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

/// A call whose arguments are all plain numbers.
#[inline]
pub(crate) fn call_with_numbers(call: PlainCall, args: [usize; 6]) -> Result<usize> {
    // SAFETY: these calls take no pointers, or only null pointers as they are used by us, so there
    // is no memory for the kernel to touch.
    unsafe { syscall(call.into(), args) }
}

/// A call with one path and otherwise plain numbers; the path is argument `at`.
#[inline]
pub(crate) fn call_with_path(
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

/// A call with two paths and otherwise plain numbers; the paths are the arguments `at`.
#[inline]
pub(crate) fn call_with_paths(
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

/// A call that reads words of ours and otherwise takes plain numbers.
#[inline]
pub(crate) fn call_with_words<const N: usize>(
    call: WordsCall,
    words: &[u64; N],
    mut args: [usize; 6],
) -> Result<usize> {
    let (at, most) = call.words_argument();
    if N < most {
        return Err(Errno::INVAL);
    }
    args[at] = words.as_ptr() as usize;
    // SAFETY: the kernel reads at most `most` words there, which are borrowed for the call; these
    // calls are given no other pointer but null.
    unsafe { syscall(call.into(), args) }
}

pub(crate) const AT_FDCWD: usize = -100_isize as usize;

/// Reads once.
pub fn read(fd: RawFd, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes at most `len` bytes into `buffer`, which is borrowed for the call.
    unsafe {
        syscall(Call::Read, [fd as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0])
    }
}

/// Which of them have something to read; waits for one that has, at most so many nanoseconds.
pub fn poll_readable<const N: usize>(fds: [RawFd; N], within: Option<u64>) -> Result<[bool; N]> {
    let mut ask = fds.map(|fd| [fd, 1]);
    let time = within.map(|within| [within / 1_000_000_000, within % 1_000_000_000]);
    let time = time.as_ref().map_or(0, |time| time.as_ptr() as usize);
    // SAFETY: struct pollfd is two words, the second for question and answer; struct timespec is
    // two 64-bit words, or null: without end; there is no mask (null).
    unsafe { syscall(Call::Ppoll, [ask.as_mut_ptr() as usize, N, time, 0, 0, 0])? };
    Ok(ask.map(|[_, asked_and_answered]| asked_and_answered >> 16 != 0))
}

/// Writes once.
pub fn write(fd: RawFd, bytes: &[u8]) -> Result<usize> {
    // SAFETY: the kernel reads at most `len` bytes of `bytes`, which is borrowed for the call.
    unsafe { syscall(Call::Write, [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) }
}

/// A pipe, both ends close-on-exec: (read, write).
pub fn pipe() -> Result<(RawFd, RawFd)> {
    const O_CLOEXEC: usize = 0o2_000_000;
    let mut ends = [0_i32; 2];
    // SAFETY: the kernel writes two ints into `ends`, which is that long.
    unsafe { syscall(Call::Pipe2, [ends.as_mut_ptr() as usize, O_CLOEXEC, 0, 0, 0, 0])? };
    Ok((ends[0], ends[1]))
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
pub(crate) const AT_RECURSIVE: usize = 0x8000;

/// Shows a detached mount's files with their owners mapped by a user namespace.
pub fn idmap_mount(mount: RawFd, user_namespace: RawFd) -> Result<()> {
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

/// Opens a file of a mount by its handle: its length, its kind, and room for the longest.
pub fn open_by_handle(mount: RawFd, handle: &[u32; 34], flags: i32) -> Result<RawFd> {
    let args = [mount as usize, handle.as_ptr() as usize, flags as usize, 0, 0, 0];
    // SAFETY: the kernel takes no handle of more than 128 bytes, and so reads within `handle`.
    unsafe { syscall(Call::OpenByHandleAt, args) }.map(|fd| fd as RawFd)
}

/// Sets the host name of this UTS namespace.
pub fn sethostname(name: &[u8]) -> Result<()> {
    // SAFETY: the kernel reads `len` bytes of `name`, which is borrowed for the call.
    unsafe { syscall(Call::Sethostname, [name.as_ptr() as usize, name.len(), 0, 0, 0, 0]) }
        .map(drop)
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

/// Installs a compiled filter: whole `sock_filter` instructions of eight bytes each.
pub fn install_seccomp(program: &[u8]) -> Result<()> {
    install_filter(program, 0).map(drop)
}

/// The same with `SECCOMP_FILTER_FLAG_LOG`: every refusal is written to the kernel's audit log.
pub fn install_logged_seccomp(program: &[u8]) -> Result<()> {
    install_filter(program, 2).map(drop)
}

/// The same, for a filter that tells of calls; gives the descriptor that it tells them by. Once a call
/// was heard of, no signal but the last interrupts it; kernels before 5.19 do not have that.
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

/// Takes one call that a filter tells of. By its number and first argument it is either gone on with
/// by the kernel, or refused.
pub(crate) fn answer_notification(
    listener: RawFd,
    decide: impl FnOnce(usize, u32) -> Result<()>,
) -> Result<()> {
    const RECEIVE: usize = 0xc050_2100;
    const ANSWER: usize = 0xc018_2101;
    const CONTINUE: u64 = 1 << 32;
    let mut told = [0_u64; 10];
    // SAFETY: struct seccomp_notif is 80 bytes, all zero before; the kernel fills it in.
    unsafe {
        syscall(Call::Ioctl, [listener as usize, RECEIVE, told.as_mut_ptr() as usize, 0, 0, 0])?
    };
    // After which call and by whom come its number and architecture, where it was made, arguments.
    let answer = match decide(told[2] as u32 as usize, told[4] as u32) {
        Ok(()) => [told[0], 0, CONTINUE],
        Err(Errno(errno)) => [told[0], 0, u64::from(-errno as u32)],
    };
    // SAFETY: struct seccomp_notif_resp is 24 bytes: which call, a value, an error and flags.
    unsafe { syscall(Call::Ioctl, [listener as usize, ANSWER, answer.as_ptr() as usize, 0, 0, 0]) }
        .map(drop)
}

/// Copies this process, like fork, into new namespaces.
///
/// The child of a threaded process must not allocate or take locks before it execs.
pub fn clone(request: CloneRequest) -> Result<CloneSide> {
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
    Ok(if pid == 0 { CloneSide::Child } else { CloneSide::Parent(pid as i32, pidfd) })
}

/// Where this thread's libc keeps its thread id; `NOSYS` where the kernel does not tell.
pub fn thread_id_address() -> Result<ThreadIdAddress> {
    const PR_GET_TID_ADDRESS: usize = 40;
    let mut place = 0_usize;
    // SAFETY: the kernel writes one pointer-sized word into `place`.
    unsafe { syscall(Call::Prctl, [PR_GET_TID_ADDRESS, (&raw mut place) as usize, 0, 0, 0, 0])? };
    if place == 0 { Err(Errno::NOSYS) } else { Ok(ThreadIdAddress(place)) }
}

/// The address of a libc's thread id word. Only [`thread_id_place`] makes one.
#[derive(Clone, Copy)]
pub struct ThreadIdAddress(usize);

/// Like [`fork`], for a copy of a process that runs a libc: the child's thread id is put where the
/// libc keeps it, as its own fork would do.
pub fn fork_under_libc(ThreadIdAddress(place): ThreadIdAddress) -> Result<Option<i32>> {
    const SETTID_CLEARTID_SIGCHLD: usize = 0x0100_0000 | 0x0020_0000 | 17;
    // SAFETY: `place` is what the main thread's libc has registered, valid for the life of the
    // process; a copy of the process has it at the same address. Which of the last two arguments it
    // is depends on the architecture; the other one is not used without CLONE_SETTLS.
    let pid = unsafe { syscall(Call::Clone, [SETTID_CLEARTID_SIGCHLD, 0, 0, place, place, 0])? };
    Ok((pid != 0).then_some(pid as i32))
}

/// Memory for many rooms, and for what their keeper notes of them: in one piece, so that a copy of
/// this process can let go of it all, and with it of the sight of who is in them.
#[derive(Clone, Copy)]
pub struct SharedStackBlock(usize);

impl SharedStackBlock {
    /// How many rooms there are.
    pub const STACKS: usize = 2048;
    const NOTES: usize = 128 << 10;
    const LEN: usize = Self::NOTES + Self::STACKS * SharedStack::SIZE;

    /// Makes one, with the first notes in it.
    pub fn new<T: Copy>(notes: T) -> Result<(Self, &'static mut T)> {
        const { assert!(size_of::<T>() <= Self::NOTES) };
        const READ_WRITE: usize = 3;
        const PRIVATE_ANONYMOUS_NORESERVE: usize = 0x2 | 0x20 | 0x4000;
        let how = [0, Self::LEN, READ_WRITE, PRIVATE_ANONYMOUS_NORESERVE, usize::MAX, 0];
        // Without an address the kernel gives memory that nothing else is in.
        let at = call_with_numbers(PlainCall::Mmap, how)?;
        // SAFETY: the mapping is new, aligned to a page and longer than the notes; no other reference
        // to its first part is ever made, and the process that has this one never unmaps it.
        let notes = unsafe {
            (at as *mut T).write(notes);
            &mut *(at as *mut T)
        };
        Ok((Self(at), notes))
    }

    /// A room by its number.
    #[must_use]
    pub fn stack_at(self, number: usize) -> Option<SharedStack> {
        let at = self.0 + Self::NOTES + number * SharedStack::SIZE;
        (number < Self::STACKS).then_some(SharedStack(at as *mut u32))
    }

    /// Lets go of all of it, in a copy of the process that is on its own stack again.
    pub fn unmap(self) -> Result<()> {
        // SAFETY: the copy uses neither notes nor rooms: it has left the room that it began in, and
        // goes back to nothing that knows of them.
        unsafe { syscall(Call::Munmap, [self.0, Self::LEN, 0, 0, 0, 0]) }.map(drop)
    }
}

/// Room in this process's memory for one process that shares it: what that is told, some bytes
/// for it to read, and its stack. The first word is zero when nobody is in it.
#[derive(Clone, Copy)]
pub struct SharedStack(*mut u32);

/// How a process that shares our memory begins.
#[derive(Clone, Copy)]
struct ChildStart<T> {
    what: T,
    bytes: usize,
    run: fn(T, &'static [u8]) -> !,
}

impl SharedStack {
    /// The most bytes for the newcomer to read.
    pub const BYTES: usize = 64 << 10;
    const TOLD: usize = 64;
    const GIVEN: usize = 1024;
    const SIZE: usize = 128 << 10;

    /// Forgets all that was in it.
    pub fn wipe(self) -> Result<()> {
        const DONTNEED: usize = 4;
        // SAFETY: the room is ours, and nobody is in it; what is read there next is zero.
        unsafe { syscall(Call::Madvise, [self.0 as usize, Self::SIZE, DONTNEED, 0, 0, 0]) }
            .map(drop)
    }

    /// Whether nobody is in it.
    #[must_use]
    pub fn is_free(self) -> bool {
        // SAFETY: the room is ours for good; the kernel writes this word, hence volatile.
        unsafe { self.0.read_volatile() == 0 }
    }

    /// Leaves word, from inside, that whoever is next finds all as it was.
    pub(crate) fn mark_clean(self) {
        // SAFETY: the second word is for this alone, and the room is the caller's until it is gone.
        unsafe { self.0.add(1).write_volatile(1) };
    }

    /// Whether that was the last word of whoever was in it. Wiping it forgets that.
    pub(crate) fn is_marked_clean(self) -> bool {
        // SAFETY: the room is ours for good; whoever was in it has written this word, if anyone.
        unsafe { self.0.add(1).read_volatile() == 1 }
    }

    /// Starts a process in new namespaces that shares this one's memory, on a stack of its own: its
    /// pid, and a pidfd that is now the caller's. The room is its own until it is gone.
    pub fn start_process<T: Copy>(
        self,
        namespaces: u64,
        what: T,
        bytes: &[u8],
        run: fn(T, &'static [u8]) -> !,
    ) -> Result<(i32, RawFd)> {
        const VM_PIDFD_CLEARTID: u64 = 0x100 | 0x1000 | 0x20_0000;
        const SIGCHLD: u64 = 17;
        const { assert!(Self::TOLD + size_of::<ChildStart<T>>() <= Self::GIVEN) };
        if bytes.len() > Self::BYTES || !self.is_free() {
            return Err(Errno::INVAL);
        }
        let (mut pidfd, room): (i32, *mut u8) = (-1, self.0.cast());
        // SAFETY: nobody is in the room, so all of it is ours to write; both parts lie within it
        // and do not overlap, and the first is aligned to 64.
        unsafe {
            let beginning = ChildStart { what, bytes: bytes.len(), run };
            room.add(Self::TOLD).cast::<ChildStart<T>>().write(beginning);
            room.add(Self::GIVEN).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            self.0.write_volatile(1);
        }
        let flags = namespaces | VM_PIDFD_CLEARTID;
        let args: [u64; 8] = [
            flags,
            (&raw mut pidfd) as u64,
            room as u64,
            0,
            SIGCHLD,
            room as u64,
            Self::SIZE as u64,
            0,
        ];
        // SAFETY: `args` is the first published version of struct clone_args; `pidfd` outlives the
        // call. The newcomer's stack is the upper part of the room, which is its own until the
        // kernel clears the first word when it is gone.
        let pid = unsafe { clone_onto_stack(&args, room as usize, begin_on_stack::<T>) };
        // SAFETY: as above; nobody got in.
        pid.inspect_err(|_| unsafe { self.0.write_volatile(0) }).map(|pid| (pid as i32, pidfd))
    }
}

/// The first of our code that a process runs in its room.
extern "C" fn begin_on_stack<T: Copy>(room: *mut u8) -> ! {
    // SAFETY: `Room::start` has written both parts for this process alone, for as long as it lives.
    let (ChildStart { what, run, .. }, bytes) = unsafe {
        let told = room.add(SharedStack::TOLD).cast::<ChildStart<T>>().read();
        (told, core::slice::from_raw_parts(room.add(SharedStack::GIVEN), told.bytes))
    };
    run(what, bytes)
}

/// clone3 with a stack for the child, which calls `run` with `with` and never returns.
///
/// # Safety
/// `args` must be a struct clone_args whose pointers are valid and whose stack nobody else uses.
unsafe fn clone_onto_stack(
    args: &[u64; 8],
    with: usize,
    run: extern "C" fn(*mut u8) -> !,
) -> Result<usize> {
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: in the parent this is a system call like any other. The child has another stack, so
    // nothing of this frame is its to touch; it calls `run`, which does not return.
    unsafe {
        asm!("syscall", "test rax, rax", "jnz 2f", "xor ebp, ebp", "mov rdi, r12", "call r13", "ud2", "2:",
            inlateout("rax") Call::Clone3.number() => result, in("rdi") args.as_ptr(), in("rsi") 64,
            in("r12") with, in("r13") run, lateout("rcx") _, lateout("r11") _);
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        asm!("svc 0", "cbnz x0, 2f", "mov x29, xzr", "mov x0, x20", "blr x21", "brk #1", "2:",
            in("x8") Call::Clone3.number(), inlateout("x0") args.as_ptr() => result, in("x1") 64,
            in("x20") with, in("x21") run);
    }
    if result < 0 { Err(Errno(-result as i32)) } else { Ok(result as usize) }
}

/// A place on this process's own stack to go on at, for a copy of it that runs on another.
#[derive(Clone, Copy)]
pub struct SavedContext(*const usize);

// SAFETY: both are below, written for these arguments.
unsafe extern "C" {
    fn cloche_call(stack: *mut usize, run: extern "C" fn(*mut u8), with: *mut u8);
    fn cloche_return(stack: usize) -> !;
}

impl SavedContext {
    /// Calls `run`; goes on after it when that returns, and in every copy of this process that
    /// goes back to the place.
    pub fn save_and_call<T>(what: &mut T, run: fn(&mut T, Self)) {
        struct ContextCall<'a, T>(&'a mut T, fn(&mut T, SavedContext), *const usize);
        extern "C" fn run_context_call<T>(call: *mut u8) {
            // SAFETY: it is the `Call` below, which outlives this function.
            let ContextCall(what, run, stack) = unsafe { &mut *call.cast::<ContextCall<'_, T>>() };
            run(what, SavedContext(*stack));
        }
        let mut stack = 0;
        let stack_at = &raw mut stack;
        let mut call = ContextCall(what, run, stack_at);
        // SAFETY: `cloche_call` is an ordinary function that keeps what a call must keep. `stack`
        // and all above it on this stack stay as they are until it returns.
        unsafe { cloche_call(stack_at, run_context_call::<T>, (&raw mut call).cast()) };
    }

    /// Goes on there. Only in a copy of the process whose place it is.
    pub fn resume(self) -> ! {
        // SAFETY: the copy has its own copy of the stack, on which `cloche_call` has put what it
        // needs, and nobody has returned from there: that process is in `run` until its end.
        unsafe { cloche_return(*self.0) }
    }
}

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".globl cloche_call, cloche_return",
    ".hidden cloche_call, cloche_return",
    "cloche_call: push rbp; push rbx; push r12; push r13; push r14; push r15",
    "mov [rdi], rsp; mov rdi, rdx; sub rsp, 8; call rsi; add rsp, 8",
    "2: pop r15; pop r14; pop r13; pop r12; pop rbx; pop rbp; ret",
    "cloche_return: mov rsp, rdi; jmp 2b",
);
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".globl cloche_call, cloche_return",
    ".hidden cloche_call, cloche_return",
    "cloche_call: stp x29, x30, [sp, #-160]!; stp x19, x20, [sp, #16]; stp x21, x22, [sp, #32]",
    "stp x23, x24, [sp, #48]; stp x25, x26, [sp, #64]; stp x27, x28, [sp, #80]",
    "stp d8, d9, [sp, #96]; stp d10, d11, [sp, #112]; stp d12, d13, [sp, #128]",
    "stp d14, d15, [sp, #144]; mov x9, sp; str x9, [x0]; mov x0, x2; blr x1",
    "2: ldp x19, x20, [sp, #16]; ldp x21, x22, [sp, #32]; ldp x23, x24, [sp, #48]",
    "ldp x25, x26, [sp, #64]; ldp x27, x28, [sp, #80]; ldp d8, d9, [sp, #96]",
    "ldp d10, d11, [sp, #112]; ldp d12, d13, [sp, #128]; ldp d14, d15, [sp, #144]",
    "ldp x29, x30, [sp], #160; ret",
    "cloche_return: mov sp, x0; b 2b",
);

/// Waits for a child to change as the options say; one without a number if none has.
pub(crate) fn wait_with_options(options: usize) -> Result<ChildChange> {
    const WEXITED: usize = 4;
    const ALL_KINDS: usize = 0x4000_0000;
    let mut info = [0_i32; 32];
    let info_at = info.as_mut_ptr() as usize;
    // SAFETY: struct siginfo is 128 bytes, which `info` is; no rusage is asked for (null).
    unsafe { syscall(Call::Waitid, [0, 0, info_at, WEXITED | ALL_KINDS | options, 0, 0])? };
    // signo, errno, code, padding, pid, uid, status; the codes are those of CLD_EXITED and so on.
    let (pid, status) = (info[4], info[6]);
    Ok(match info[2] {
        1 => ChildChange::Exited { pid, code: status },
        5 => ChildChange::Stopped { pid },
        _ => ChildChange::Killed { pid, signal: status },
    })
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
    let socket = call_with_numbers(PlainCall::Socket, [AF_INET, SOCK_DGRAM_CLOEXEC, 0, 0, 0, 0])?;
    let mut request = [0_u8; 40];
    request[..2].copy_from_slice(b"lo");
    request[16] = UP_RUNNING;
    // SAFETY: struct ifreq is 40 bytes: a name of 16, then the flags; the kernel only reads it.
    let result =
        unsafe { syscall(Call::Ioctl, [socket, SIOCSIFFLAGS, request.as_ptr() as usize, 0, 0, 0]) };
    close(socket as i32);
    result.map(drop)
}

/// SOL_SOCKET in the low half, SCM_RIGHTS in the high half of one little-endian word.
const RIGHTS: u64 = 1 | 1 << 32;

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

/// Receives one message: how many bytes, and the descriptors, which are now the caller's.
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

/// Ranges of pages that every copy of this process will write to, and then those that it will only
/// read. Only the template's own call makes them.
#[derive(Clone, Copy)]
pub struct HotPages {
    ranges: *const [usize; 2],
    written: usize,
    count: usize,
}

impl HotPages {
    /// Has all of them mapped now, as this process's own copies where they will be written to.
    pub fn map(self) {
        const POPULATE_READ: usize = 22;
        const POPULATE_WRITE: usize = 23;
        self.advise_range(0, self.written, POPULATE_WRITE);
        self.advise_range(self.written, self.count, POPULATE_READ);
    }

    fn advise_range(self, from: usize, to: usize, advice: usize) {
        const MYSELF: usize = -10_000_isize as usize;
        const AT_ONCE: usize = 1024;
        for first in (from..to).step_by(AT_ONCE) {
            let some = first..to.min(first + AT_ONCE);
            // SAFETY: the caller of the template's library gives an array of `count` ranges of memory
            // of its own, each an address and a length, as in struct iovec. What the kernel does
            // there changes no byte. A page that is not mapped ahead is mapped when it is used.
            unsafe {
                let all = [MYSELF, self.ranges.add(first) as usize, some.len(), advice, 0, 0];
                // Kernels before 6.14 are told one by one.
                if syscall(Call::ProcessMadvise, all).is_err() {
                    for at in some {
                        let [address, len] = *self.ranges.add(at);
                        let _ = syscall(Call::Madvise, [address, len, advice, 0, 0, 0]);
                    }
                }
            }
        }
    }
}

/// Has the kernel keep the number of the processor where a libc expects it, at an offset from where
/// this thread's own data is: a process that came by way of another one's room has lost that.
#[cfg(cloche_template)]
fn register_rseq(offset: usize, len: usize) {
    let data: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the first word there is its own address, in every libc.
    let signature = unsafe {
        asm!("mov {}, fs:0", out(reg) data, options(nostack, readonly));
        0x5305_3053
    };
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads a register.
    let signature = unsafe {
        asm!("mrs {}, tpidr_el0", out(reg) data, options(nostack, nomem));
        0xd428_bc00
    };
    if len != 0 {
        // SAFETY: the libc says that this much is there for the kernel to write to. Where the kernel
        // does not want to, a libc asks it for that number in the usual way.
        let _ =
            unsafe { syscall(Call::Rseq, [data.wrapping_add(offset), len, 0, signature, 0, 0]) };
    }
}

/// Takes ownership of a descriptor that one of the calls above has just given us.
#[cfg(not(cloche_template))]
#[must_use]
pub fn into_owned_fd(fd: RawFd) -> std::os::fd::OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: used on descriptors fresh from a call above, which nobody else owns or closes.
    unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) }
}

/// What the template interpreter calls, by these names, through its foreign function interface.
#[cfg(cloche_template)]
mod exported {
    use core::{
        ffi::CStr,
        slice,
        sync::atomic::{AtomicI32, Ordering},
    };

    use super::{Errno, HotPages};
    use crate::{fork_server, job_reader, pid_one};

    /// What the interpreter prepares, once, for all that are copied from it.
    #[repr(C)]
    struct TemplateSetup {
        /// Ranges of pages that every program needs, address and length: first those that it writes
        /// to, and how many there are of them.
        ranges: *const [usize; 2],
        written: usize,
        count: usize,
        /// The variables it has, as a job would give them.
        variables: *const u8,
        variables_len: usize,
        /// Where others can be put.
        buffer: *mut u8,
        buffer_len: usize,
        /// A directory whose presence changes how it goes on.
        packages: *const core::ffi::c_char,
        /// Where its libc has the kernel keep the number of the processor; no length: nowhere.
        rseq_offset: usize,
        rseq_len: usize,
    }

    // SAFETY: the name is ours alone (prefixed), so it replaces no other symbol.
    #[unsafe(no_mangle)]
    extern "C" fn cloche_serve(socket: i32, given: *const TemplateSetup) {
        // SAFETY: the interpreter gives a struct of this shape, which outlives the call.
        let given = unsafe { &*given };
        let TemplateSetup { ranges, written, count, .. } = *given;
        fork_server::serve_forks(socket, HotPages { ranges, written, count });
        MAIN.store(super::getpid(), Ordering::Relaxed);
        super::register_rseq(given.rseq_offset, given.rseq_len);
    }

    /// The first process of the cell; other processes of the program's have other numbers.
    static MAIN: AtomicI32 = AtomicI32::new(0);

    /// Ends this process, with all that the program could see of its end behind it.
    // SAFETY: the name is ours alone (prefixed), so it replaces no other symbol.
    #[unsafe(no_mangle)]
    extern "C" fn cloche_leave(code: i32) {
        if super::getpid() == MAIN.load(Ordering::Relaxed) {
            pid_one::stop_instead_of_ending(code.to_le_bytes()[0]);
        }
        super::exit(code);
    }

    /// Takes a job. Zero where the interpreter can go on as it is; one more than the length of the
    /// variables in the buffer where they are others, or where it has to look for packages. The
    /// highest bit tells that a file may be an archive.
    // SAFETY: the name is ours alone (prefixed), so it replaces no other symbol.
    #[unsafe(no_mangle)]
    extern "C" fn cloche_wait(given: *const TemplateSetup) -> usize {
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
        let (taken, archive) = match job_reader::wait_for_variables(buffer) {
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
