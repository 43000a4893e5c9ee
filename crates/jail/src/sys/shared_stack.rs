//! Runs in: template, pid 1 of a forked cell.
//!
//! Stacks in a template's memory for processes that share this memory (`CLONE_VM`): pid 1 of each
//! forked cell runs on one. Core only.

use core::{arch::asm, mem::size_of};

use super::{
    RawFd,
    errno::{Errno, Result},
    raw::{call_with_numbers, syscall},
    syscall_table::{Call, PlainCall},
};

/// One mapping with many shared stacks and the template's table of them. It is one mapping, so that
/// a copy of the template can unmap it and then sees nothing about the cells that use the stacks.
#[derive(Clone, Copy)]
pub struct SharedStackBlock(usize);

impl SharedStackBlock {
    /// How many stacks a block has.
    pub const STACKS: usize = 2048;
    const TABLE: usize = 128 << 10;
    const LEN: usize = Self::TABLE + Self::STACKS * SharedStack::SIZE;

    /// Maps a block and puts the table at its start.
    pub fn new<T: Copy>(table: T) -> Result<(Self, &'static mut T)> {
        const { assert!(size_of::<T>() <= Self::TABLE) };
        const READ_WRITE: usize = 3;
        const PRIVATE_ANONYMOUS_NORESERVE: usize = 0x2 | 0x20 | 0x4000;
        let how = [0, Self::LEN, READ_WRITE, PRIVATE_ANONYMOUS_NORESERVE, usize::MAX, 0];
        // Without an address hint the kernel returns memory that nothing else uses.
        let at = call_with_numbers(PlainCall::Mmap, how)?;
        // SAFETY: the mapping is new, aligned to a page and longer than the table; no other
        // reference to its first part is ever made, and the process that has this one never unmaps
        // it.
        let table = unsafe {
            (at as *mut T).write(table);
            &mut *(at as *mut T)
        };
        Ok((Self(at), table))
    }

    /// The stack with this number.
    #[must_use]
    pub fn stack_at(self, number: usize) -> Option<SharedStack> {
        let at = self.0 + Self::TABLE + number * SharedStack::SIZE;
        (number < Self::STACKS).then_some(SharedStack(at as *mut u32))
    }

    /// Unmaps the block, in a copy of the process that runs on its own stack again.
    pub fn unmap(self) -> Result<()> {
        // SAFETY: the copy uses neither the table nor a stack of the block: it has left the stack
        // on which it started, and returns to no code that refers to the block.
        unsafe { syscall(Call::Munmap, [self.0, Self::LEN, 0, 0, 0, 0]) }.map(drop)
    }
}

/// Memory of this process for one process that shares it: a `ChildStart`, some bytes for the
/// child to read, and its stack. The first word is zero while no process uses it.
#[derive(Clone, Copy)]
pub struct SharedStack(*mut u32);

/// What a process on a shared stack runs first.
#[derive(Clone, Copy)]
struct ChildStart<T> {
    argument: T,
    bytes: usize,
    run: fn(T, &'static [u8]) -> !,
}

impl SharedStack {
    /// The most bytes that the child can be given to read.
    pub const BYTES: usize = 64 << 10;
    const START_AT: usize = 64;
    const BYTES_AT: usize = 1024;
    const SIZE: usize = 128 << 10;

    /// Zeroes the memory.
    pub fn wipe(self) -> Result<()> {
        const DONTNEED: usize = 4;
        // SAFETY: the mapping is ours, and no process uses this part; the next read there is zero.
        unsafe { syscall(Call::Madvise, [self.0 as usize, Self::SIZE, DONTNEED, 0, 0, 0]) }
            .map(drop)
    }

    /// Whether no process uses it.
    #[must_use]
    pub fn is_free(self) -> bool {
        // SAFETY: the mapping is ours for good; the kernel writes this word, hence volatile.
        unsafe { self.0.read_volatile() == 0 }
    }

    /// Records, from the process on this stack, that its netns is as it was when it was made.
    pub(crate) fn mark_clean(self) {
        // SAFETY: the second word has no other use, and the stack is the caller's until it is gone.
        unsafe { self.0.add(1).write_volatile(1) };
    }

    /// Whether the last process on this stack called [`Self::mark_clean`]. A wipe resets it.
    pub(crate) fn is_marked_clean(self) -> bool {
        // SAFETY: the mapping is ours for good; only the last process on it has written this word.
        unsafe { self.0.add(1).read_volatile() == 1 }
    }

    /// Starts a process in new namespaces that shares this process's memory and runs on this stack.
    /// Returns its pid, and a pidfd that the caller now owns. The stack belongs to the new process
    /// until its end.
    pub fn start_process<T: Copy>(
        self,
        namespaces: u64,
        argument: T,
        bytes: &[u8],
        run: fn(T, &'static [u8]) -> !,
    ) -> Result<(i32, RawFd)> {
        const VM_PIDFD_CLEARTID: u64 = 0x100 | 0x1000 | 0x20_0000;
        const SIGCHLD: u64 = 17;
        const { assert!(Self::START_AT + size_of::<ChildStart<T>>() <= Self::BYTES_AT) };
        if bytes.len() > Self::BYTES || !self.is_free() {
            return Err(Errno::INVAL);
        }
        let (mut pidfd, stack): (i32, *mut u8) = (-1, self.0.cast());
        // SAFETY: no process uses the stack, so all of it is ours to write; both parts lie within
        // it and do not overlap, and the first is aligned to 64.
        unsafe {
            let start = ChildStart { argument, bytes: bytes.len(), run };
            stack.add(Self::START_AT).cast::<ChildStart<T>>().write(start);
            stack.add(Self::BYTES_AT).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            self.0.write_volatile(1);
        }
        let flags = namespaces | VM_PIDFD_CLEARTID;
        let args: [u64; 8] = [
            flags,
            (&raw mut pidfd) as u64,
            stack as u64,
            0,
            SIGCHLD,
            stack as u64,
            Self::SIZE as u64,
            0,
        ];
        // SAFETY: `args` is the first published version of struct clone_args; `pidfd` outlives the
        // call. The child's stack grows down from the end of this memory, which is the child's own
        // until the kernel clears the first word at the child's end.
        let pid = unsafe { clone_onto_stack(&args, stack as usize, begin_on_stack::<T>) };
        // SAFETY: as above; no process was started.
        pid.inspect_err(|_| unsafe { self.0.write_volatile(0) }).map(|pid| (pid as i32, pidfd))
    }
}

/// The first code of ours that a process on a shared stack runs.
extern "C" fn begin_on_stack<T: Copy>(stack: *mut u8) -> ! {
    // SAFETY: `SharedStack::start_process` has written both parts for this process alone, for as
    // long as it lives.
    let (ChildStart { argument, run, .. }, bytes) = unsafe {
        let start = stack.add(SharedStack::START_AT).cast::<ChildStart<T>>().read();
        (start, core::slice::from_raw_parts(stack.add(SharedStack::BYTES_AT), start.bytes))
    };
    run(argument, bytes)
}

/// clone3 with a stack for the child, which calls `run` with `with` and never returns.
///
/// # Safety
/// `args` must be a struct clone_args whose pointers are valid and whose stack no other process
/// uses.
unsafe fn clone_onto_stack(
    args: &[u64; 8],
    with: usize,
    run: extern "C" fn(*mut u8) -> !,
) -> Result<usize> {
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: in the parent this is a system call like any other. The child has another stack, so
    // it touches nothing of this frame; it calls `run`, which does not return.
    unsafe {
        asm!("syscall", "test rax, rax", "jnz 2f", "xor ebp, ebp", "mov rdi, r12", "call r13",
            "ud2", "2:",
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
