//! Runs in: guest of a forked cell.
//!
//! The last word of the main process: it puts its exit code into its name and stops. Core only.

use core::ffi::CStr;

use crate::{
    protocol::{constants::SIGSTOP, last_word::LAST_WORD},
    shared::{fmt_buf::FmtBuf, proc_file::read_file},
    sys::{self, Errno},
};

/// Whether pid 1 can read the name of this process: there is a `/proc`, and it is that of this pid
/// namespace. If pid 1 could not, a process that stops would stay stopped for good. A program cannot
/// change that.
pub(crate) fn is_name_readable() -> bool {
    let (mut path, mut own, mut buffer) = (FmtBuf::default(), FmtBuf::default(), [0; 64]);
    let stat = read_file(path.push_bytes(b"/proc/self/stat\0"), &mut buffer);
    own.push_pid(sys::getpid()).push_bytes(b" (");
    stat.is_some_and(|stat| stat.starts_with(own.as_bytes()))
}

/// Announces the exit code in the name of this process, which is its main thread, and stops.
/// Returns if that had no effect.
pub(crate) fn stop_instead_of_ending(main: i32, code: u8) {
    let mut name = FmtBuf::default();
    name.push_bytes(LAST_WORD).push_number(u32::from(code)).push_bytes(b"\0");
    let named = CStr::from_bytes_with_nul(name.as_bytes()).map_err(|_| Errno::INVAL);
    if named.and_then(sys::set_name).is_ok() {
        let _ = sys::kill(main, SIGSTOP);
    }
}
