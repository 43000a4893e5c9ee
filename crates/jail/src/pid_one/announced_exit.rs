//! Runs in: pid 1 of a cell.
//!
//! Reading the exit code that a stopped main process has announced. Core only.

use crate::{
    protocol::{
        constants::SIGCONT,
        last_word::{open_stat, read_last_word},
    },
    shared::{
        fmt_buf::FmtBuf,
        proc_file::{open_file, parse_decimal, read_and_close},
    },
    sys::{self, Errno, RawFd},
};

/// The kernel gives out no smaller pid once it has given out all of them (`RESERVED_PIDS`).
const FIRST_REUSED_PID: u32 = 300;

/// The files that say how a stopped main process has ended. The kernel writes them when they are
/// read, and finding them takes longer than reading them.
#[derive(Default)]
pub(super) struct LastWordFiles {
    stat: Option<RawFd>,
    last_pid: Option<RawFd>,
}

impl LastWordFiles {
    /// Opens them while the main process is still busy. Each can be read once.
    pub(super) fn open_ahead(main: i32) -> Self {
        Self { stat: open_stat(main), last_pid: open_last_pid() }
    }
}

/// The exit code that a stopped main process has announced in its name.
///
/// If the name is no last word, something else stopped the process, and it stays stopped. If it is
/// one but another process exists, the process is continued and ends as usual.
pub(super) fn announced_exit_code(
    main: i32,
    files: &mut LastWordFiles,
    looks: &mut u32,
) -> Option<i32> {
    let mut buffer = [0; 512];
    let stat = files.stat.take().or_else(|| open_stat(main))?;
    let rest = read_last_word(stat, main, &mut buffer)?;
    *looks = 0;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let code =
        parse_decimal(&rest[..digits]).and_then(|code| i32::try_from(code).ok()).unwrap_or(0x100);
    // After the name, the state and the parent come 15 numbers, then the number of threads.
    let fields = rest[digits..].strip_prefix(b") T 1 ").unwrap_or_default();
    let threads = fields.split(|byte| *byte == b' ').nth(15).and_then(parse_decimal);
    if code <= 0xff && threads.is_some_and(|threads| nothing_else_lives(threads, files)) {
        // The process does nothing any more, and no other process exists that could continue it. If
        // it has set a timer to continue, pid 1 kills it when it continues, and before its home is
        // read. Killed here, its memory would be freed before the report.
        return Some(code);
    }
    let _ = sys::kill(main, SIGCONT);
    None
}

/// Whether the threads of the main process, which has stopped, are all that is left besides pid 1.
fn nothing_else_lives(threads: u32, files: &mut LastWordFiles) -> bool {
    let Some(started) = count_ever_started(files) else { return false };
    if threads == started {
        return true;
    }
    let last = started.saturating_add(1);
    // Elsewhere, and after a wrap-around, the pids up to the last one are not all there are.
    if sys::getpid() != 1 || last >= FIRST_REUSED_PID {
        return false;
    }
    let lives = |pid: &i32| sys::kill(*pid, 0) != Err(Errno::SRCH);
    let living = (2..=last.cast_signed()).filter(lives).count();
    // What was started by a process before it ended would have raised the number.
    living == threads as usize && count_ever_started(files) == Some(started)
}

/// How many processes and threads, besides pid 1, were ever started in this pid namespace. Pids are
/// not reused before wrap-around. If the number equals the threads of the main process, no other
/// process ever existed.
fn count_ever_started(files: &mut LastWordFiles) -> Option<u32> {
    let mut buffer = [0; 16];
    let file = files.last_pid.take().or_else(open_last_pid)?;
    let last = read_and_close(file, &mut buffer)?;
    parse_decimal(last.strip_suffix(b"\n")?)?.checked_sub(1)
}

fn open_last_pid() -> Option<RawFd> {
    open_file(FmtBuf::default().push_bytes(b"/proc/sys/kernel/ns_last_pid\0"))
}
