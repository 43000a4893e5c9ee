//! Runs in: guest of a forked cell.
//!
//! The last word of the main process: it puts its exit code into its name and stops. Core only.

use core::ffi::CStr;

use crate::{
    protocol::{
        constants::SIGSTOP,
        last_word::{LAST_WORD, read_last_word},
    },
    shared::fmt_buf::FmtBuf,
    sys::{self, Errno},
};

/// Announces the exit code in the process name and stops. Returns if that had no effect.
pub(crate) fn stop_instead_of_ending(code: u8) {
    let mut name = FmtBuf::default();
    name.push_bytes(LAST_WORD).push_number(u32::from(code)).push_bytes(b"\0");
    let (main, mut buffer) = (sys::getpid(), [0; 512]);
    let named = CStr::from_bytes_with_nul(name.as_bytes()).map_err(|_| Errno::INVAL);
    // Only if pid 1 can read the name as well; otherwise this process would stay stopped for good.
    if named.and_then(sys::set_name).is_ok() && read_last_word(main, &mut buffer).is_some() {
        let _ = sys::kill(main, SIGSTOP);
    }
}
