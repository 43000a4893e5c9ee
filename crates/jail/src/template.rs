//! The root of the small library that a template interpreter loads: the box's core, and nothing
//! of libc or std, so that it loads into any CPython. Built by the executor's build script.
#![no_std]

mod apply;
mod calls;
mod errno;
mod init;
mod networks;
mod pid_one;
mod plain;
mod serve;
mod small_filter;
mod socket_budget;
mod speculation;
mod step;
mod sys;
mod take;
mod text;
mod watch;

/// There is nobody to tell: a template or pid 1 that meets a bug ends, and is noticed.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::exit(101)
}
