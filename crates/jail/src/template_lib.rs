//! Runs in: template, pid 1 of a forked cell, guest of a forked cell.
//!
//! The crate root of the template library, a second crate from the files of this one. The build
//! script of `cloche-executor` compiles it with `--cfg cloche_template` to a cdylib, which a
//! template interpreter loads. It uses neither libc nor std, so it loads into any CPython. The
//! functions that the interpreter calls are in `sys/template_ffi.rs`.
#![no_std]

mod guest;
mod pid_one;
mod protocol;
mod setup;
mod shared;
mod sys;
mod template;

/// A template or a pid 1 that panics exits; the spawner sees the end by its pidfd.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::exit(101)
}
