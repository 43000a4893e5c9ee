//! Runs in: guest (it writes), pid 1 of a cell (it reads).
//!
//! The last word of a guest's main process: its exit code, in its process name. Core only.
//!
//! The kernel frees the memory of a process before it reports the exit to the parent. So an
//! interpreter that knows its exit code puts it into its name and stops. Its memory is freed after
//! the outcome was reported.

use super::constants;
use crate::{
    shared::{
        fmt_buf::FmtBuf,
        proc_file::{open_file, read_and_close},
    },
    sys::RawFd,
};

/// The process name before the exit code.
pub(crate) const LAST_WORD: &[u8] = constants::LAST_WORD.as_bytes();

/// Opens `/proc/<pid>/stat`. The kernel writes it when it is read.
pub(crate) fn open_stat(pid: i32) -> Option<RawFd> {
    let mut path = FmtBuf::default();
    open_file(path.push_bytes(b"/proc/").push_pid(pid).push_bytes(b"/stat\0"))
}

/// An open `/proc/<pid>/stat` from the exit code on; `None` if its name is not a last word.
pub(crate) fn read_last_word(stat: RawFd, pid: i32, buffer: &mut [u8; 512]) -> Option<&[u8]> {
    let mut prefix = FmtBuf::default();
    let stat = read_and_close(stat, buffer)?;
    stat.strip_prefix(prefix.push_pid(pid).push_bytes(b" (").push_bytes(LAST_WORD).as_bytes())
}
