//! The root of the small library that a template interpreter loads: the box's core, and nothing
//! of libc or std, so that it loads into any CPython. Built by the executor's build script.
#![no_std]

mod apply;
mod syscall_table;
mod errno;
mod init;
mod netns_pool;
mod pid_one;
mod safe_calls;
mod fork_server;
mod small_filter;
mod socket_budget;
mod speculation;
mod step;
mod sys;
mod job_reader;
mod fmt_buf;
mod socket_watch;

/// There is nobody to tell: a template or pid 1 that meets a bug ends, and is noticed.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::exit(101)
}
