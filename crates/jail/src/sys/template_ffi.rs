//! Runs in: template, guest of a forked cell.
//!
//! The functions that the template library exports. The guest runtime in the Python interpreter
//! (`crates/executor/guest/python`) loads the library with `ctypes` and calls them by
//! these names:
//!
//! | function | called | by |
//! |---|---|---|
//! | `cloche_serve` | once, in the template; returns in each forked guest | `template.py` |
//! | `cloche_wait` | once in each guest, to read its job | `template.py` |
//! | `cloche_leave` | at the end of a guest's main process | `exit.py` |
//! | `cloche_wrap_exit` | once, in the template | `exit.py` |
//!
//! A change of a name, a signature or [`TemplateSetup`] needs the same change there and in
//! `protocol::constants`. This is the
//! only file of `sys` that knows what the processes do.

use core::{
    arch::asm,
    ffi::{CStr, c_char},
    mem::{self, offset_of},
    slice,
    sync::atomic::{AtomicI32, AtomicUsize, Ordering},
};

use super::{
    errno::Errno,
    hot_pages::HotPages,
    raw::syscall,
    safe_calls::{close, exit, getpid, gettid, open},
    syscall_table::Call,
};
use crate::{
    guest::{exit_notice, job_reader},
    protocol::constants,
    template::fork_server,
};

/// What the interpreter prepares once, for all guests that are copied from it.
#[repr(C)]
struct TemplateSetup {
    /// Ranges of pages, each an address and a length. Every program uses the first `count`, and
    /// writes to the first `written` of them.
    ranges: *const [usize; 2],
    written: usize,
    count: usize,
    /// The interpreter's environment variables, encoded as in a job.
    variables: *const u8,
    variables_len: usize,
    /// Space for the variables of a job.
    buffer: *mut u8,
    buffer_len: usize,
    /// A directory; if it exists, the interpreter has to look for packages.
    packages: *const c_char,
    /// Where the libc of the interpreter registers its rseq area, as an offset from the thread
    /// pointer, and its length; zero if the libc does not use rseq.
    rseq_offset: usize,
    rseq_len: usize,
    /// Usual programs use so many ranges behind the first `count`, and write to the first
    /// `usual_written` of these.
    usual_written: usize,
    usual_count: usize,
}

/// Requires that each field is where the interpreter puts it.
macro_rules! assert_field_indices {
    ($($field:ident: $index:ident),*) => {
        $(assert!(offset_of!(TemplateSetup, $field) == constants::$index * size_of::<usize>());)*
    };
}

const _: () = {
    assert_field_indices!(ranges: SETUP_RANGES, written: SETUP_WRITTEN, count: SETUP_COUNT);
    assert_field_indices!(variables: SETUP_VARIABLES, variables_len: SETUP_VARIABLES_LEN);
    assert_field_indices!(buffer: SETUP_BUFFER, buffer_len: SETUP_BUFFER_LEN);
    assert_field_indices!(packages: SETUP_PACKAGES);
    assert_field_indices!(rseq_offset: SETUP_RSEQ_OFFSET, rseq_len: SETUP_RSEQ_LEN);
    assert_field_indices!(usual_written: SETUP_USUAL_WRITTEN, usual_count: SETUP_USUAL_COUNT);
    assert!(size_of::<TemplateSetup>() == constants::SETUP_WORDS * size_of::<usize>());
};

/// Serves forks; returns in each forked guest, under all walls.
// SAFETY: the name is ours alone (prefixed), so it replaces no other symbol.
#[unsafe(no_mangle)]
extern "C" fn cloche_serve(socket: i32, setup: *const TemplateSetup) {
    // SAFETY: the interpreter passes a struct of this shape, which outlives the call. Its ranges
    // are an array of at least `count` ranges of the interpreter's memory, which it never frees.
    let (setup, hot) = unsafe {
        let setup = &*setup;
        (setup, HotPages::new(setup.ranges, setup.written, setup.count))
    };
    fork_server::serve_forks(socket, hot);
    if exit_notice::is_name_readable() {
        MAIN.store(getpid(), Ordering::Relaxed);
    }
    register_rseq(setup.rseq_offset, setup.rseq_len);
}

/// The pid of the guest's main process; processes that the program forks have other pids. Zero if
/// pid 1 could not read the name of the process.
static MAIN: AtomicI32 = AtomicI32::new(0);

/// Ends this process. The program can observe nothing of its own end after this call.
// SAFETY: the name is ours alone (prefixed), so it replaces no other symbol.
#[unsafe(no_mangle)]
extern "C" fn cloche_leave(code: i32) {
    let main = MAIN.load(Ordering::Relaxed);
    // The id of the main thread is the pid.
    if gettid() == main {
        exit_notice::stop_instead_of_ending(main, code.to_le_bytes()[0]);
    }
    exit(code);
}

/// The functions of CPython that [`normalizing_exit`] calls: `sys.exit` itself, then `PyErr_Fetch`,
/// `PyErr_NormalizeException`, `PyErr_Restore` and `PyType_IsSubtype`. Last, the type `tuple`.
static EXIT_CALLS: [AtomicUsize; 6] = [const { AtomicUsize::new(0) }; 6];

/// The signature of `sys.exit` in C: the module, its arguments and their number.
type ExitFunction = extern "C" fn(usize, usize, usize) -> usize;
/// That of the three others: the addresses of an exception's type, value and traceback, or these
/// themselves.
type ErrorFunction = extern "C" fn(usize, usize, usize);
/// That of `PyType_IsSubtype`: two types.
type TypeFunction = extern "C" fn(usize, usize) -> i32;

/// Returns the address of a `sys.exit` in C that does what the given one does, and makes its
/// exception an object at once. Until CPython 3.11 the interpreter does that only if someone looks
/// at the exception, and the exit code of a program that nobody looks at is then known to nobody
/// but the interpreter. An object that is made of a tuple takes its parts for arguments, and would
/// have another code than the tuple: that one is left alone.
// SAFETY: the name is ours alone (prefixed), so it replaces no other symbol.
#[unsafe(no_mangle)]
extern "C" fn cloche_wrap_exit(calls: *const [usize; 6]) -> usize {
    // SAFETY: the interpreter passes an array of six words.
    let calls = unsafe { *calls };
    EXIT_CALLS.iter().zip(calls).for_each(|(known, call)| known.store(call, Ordering::Relaxed));
    normalizing_exit as ExitFunction as usize
}

extern "C" fn normalizing_exit(module: usize, arguments: usize, count: usize) -> usize {
    let [exit, fetch, normalize, restore, is_subtype, tuple] =
        [0, 1, 2, 3, 4, 5].map(|at| EXIT_CALLS[at].load(Ordering::Relaxed));
    let mut error = [0_usize; 3];
    let [kind, value, trace] = [0, 1, 2].map(|at| &raw mut error[at] as usize);
    // SAFETY: `cloche_wrap_exit` has stored the addresses of these functions before anyone could
    // call this one, and they have these signatures in every CPython that has them. The first is
    // called with the arguments that were made for it. The other three write to and read from three
    // words, and take over the references there, as CPython's own code uses them. The value of the
    // exception is an object or null; its type is the second word of every object.
    unsafe {
        let result = mem::transmute::<usize, ExitFunction>(exit)(module, arguments, count);
        mem::transmute::<usize, ErrorFunction>(fetch)(kind, value, trace);
        let object = error[1] as *const [usize; 2];
        let is_tuple = !object.is_null()
            && mem::transmute::<usize, TypeFunction>(is_subtype)((*object)[1], tuple) != 0;
        if !is_tuple {
            mem::transmute::<usize, ErrorFunction>(normalize)(kind, value, trace);
        }
        let [kind, value, trace] = error;
        mem::transmute::<usize, ErrorFunction>(restore)(kind, value, trace);
        result
    }
}

/// Reads a job. Returns zero if the interpreter can continue as it is. Returns the length of the
/// variables in the buffer plus one if they differ from the interpreter's, or if it has to look for
/// packages. The highest bit is set if a file of the job may be a zip archive.
// SAFETY: the name is ours alone (prefixed), so it replaces no other symbol.
#[unsafe(no_mangle)]
extern "C" fn cloche_wait(setup: *const TemplateSetup) -> usize {
    // SAFETY: the interpreter passes a struct of this shape, whose pointers are to memory of its
    // own with the lengths beside them and to a NUL-terminated string; no other code reads or
    // writes any of it during the call. Behind the first `count` ranges there are `usual` more.
    let (known, buffer, packages, usual) = unsafe {
        let setup = &*setup;
        (
            slice::from_raw_parts(setup.variables, setup.variables_len),
            slice::from_raw_parts_mut(setup.buffer, setup.buffer_len),
            CStr::from_ptr(setup.packages),
            HotPages::new(setup.ranges.add(setup.count), setup.usual_written, setup.usual_count),
        )
    };
    let (taken, archive) = match job_reader::wait_for_variables(buffer, usual) {
        Ok(taken) => taken,
        Err(Errno::PIPE) => exit(constants::EXIT_NO_JOB),
        Err(_) => exit(constants::EXIT_BAD_JOB),
    };
    let archive = usize::from(archive) << (usize::BITS - 1);
    if *taken == *known && open(packages, 0, 0).map(close) == Err(Errno::NOENT) {
        return archive;
    }
    (taken.len() + 1) | archive
}

/// Registers the libc's rseq area, at an offset from the thread pointer. The kernel drops the
/// registration of a process that was made by one on a shared stack.
fn register_rseq(offset: usize, len: usize) {
    let thread_pointer: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the first word there is its own address, in every libc.
    let signature = unsafe {
        asm!("mov {}, fs:0", out(reg) thread_pointer, options(nostack, readonly));
        0x5305_3053
    };
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads a register.
    let signature = unsafe {
        asm!("mrs {}, tpidr_el0", out(reg) thread_pointer, options(nostack, nomem));
        0xd428_bc00
    };
    if len != 0 {
        let area = thread_pointer.wrapping_add(offset);
        // SAFETY: the libc says that it keeps an area of this length there for the kernel to write
        // to. If the kernel refuses, the libc asks for the processor number in the usual way.
        let _ = unsafe { syscall(Call::Rseq, [area, len, 0, signature, 0, 0]) };
    }
}
