//! Pid 1 of a cell: reaps everything, reports how the main process ended, and ends. Core only.
//!
//! The kernel then kills whatever is left in the pid namespace.

use core::ffi::CStr;

use crate::{
    apply::{self, Part},
    calls::Call,
    init::{CONTROL_FD, CellFds, FIRST_FOREIGN_FD, JOB_FD, Report, failed, report},
    sys::{self, Changed, Errno, Prctl, RawFd, Result},
    text::Text,
};

/// Pid 1 that shares a template's memory, beside its guest: builds the box, gives up every right,
/// lets the guest go on, and does nothing but wait.
pub(crate) fn stay_behind(
    program: &[u8],
    fds: CellFds,
    user: u32,
    (guest, go): (Result<Option<i32>>, RawFd),
) -> ! {
    if sys::read(fds.go, &mut [0]) != Ok(1) {
        sys::exit(1);
    }
    // The handlers are the interpreter's, and would run in the template's memory.
    if sys::block_signals().is_err() {
        sys::exit(1);
    }
    if let Err(failure) = apply::apply(program, Part::Box) {
        report(fds.control, failed(failure.wall, failure.errno));
        sys::exit(1);
    }
    let given_up = give_up(user).and_then(|()| sys::write(go, b"!"));
    if fds.control != CONTROL_FD && sys::dup_onto(fds.control, CONTROL_FD).is_err() {
        sys::exit(1);
    }
    let closed = sys::close_range(FIRST_FOREIGN_FD, u32::MAX);
    match given_up.and(closed).and(guest) {
        Ok(Some(pid)) => supervise(pid),
        Ok(None) => sys::exit(1),
        Err(errno) => {
            report(CONTROL_FD, failed(c"start of the guest", errno));
            sys::exit(1)
        }
    }
}

fn give_up(user: u32) -> Result<()> {
    // Up to the last that the kernel knows.
    while_ok((0..64).map(|capability| sys::prctl(Prctl::DropBounding, capability)));
    sys::become_user(user, user, false)?;
    sys::capset_none()?;
    sys::prctl(Prctl::NoNewPrivs, 1)?;
    sys::seccomp(&filter())
}

fn while_ok(mut results: impl Iterator<Item = Result<()>>) {
    let _ = results.try_for_each(core::convert::identity);
}

/// What such a pid 1 still calls. Everything else is its end.
const CALLS: [Call; 11] = [
    Call::Waitid,
    Call::Read,
    Call::Write,
    Call::Close,
    Call::CloseRange,
    Call::Dup3,
    Call::Openat,
    Call::Sendmsg,
    Call::Kill,
    Call::Getpid,
    Call::ExitGroup,
];

/// As a filter: the architecture, then each call, then the verdict.
fn filter() -> [u8; (CALLS.len() + 6) * 8] {
    const LOAD: u16 = 0x20;
    const IS: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const ARCHITECTURE: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
    const KILL_PROCESS: u32 = 0x8000_0000;
    const ALLOW: u32 = 0x7fff_0000;
    let (mut out, last) = ([0; (CALLS.len() + 6) * 8], CALLS.len() as u8);
    let mut at = 0;
    let mut put = |code: u16, then: u8, or: u8, value: u32| {
        let word = u64::from(code) | u64::from(then) << 16 | u64::from(or) << 24;
        let word = word | u64::from(value) << 32;
        out[at..at + 8].copy_from_slice(&word.to_le_bytes());
        at += 8;
    };
    put(LOAD, 0, 0, 4);
    put(IS, 1, 0, ARCHITECTURE);
    put(RETURN, 0, 0, KILL_PROCESS);
    put(LOAD, 0, 0, 0);
    for (left, call) in (1..=last).rev().zip(CALLS) {
        put(IS, left, 0, call.number() as u32);
    }
    put(RETURN, 0, 0, KILL_PROCESS);
    put(RETURN, 0, 0, ALLOW);
    out
}

/// Reaps until the main process has ended; then ends, and everything in the cell with it.
pub(crate) fn supervise(main: i32) -> ! {
    (0..=JOB_FD).for_each(sys::close);
    let mut heeds = true;
    loop {
        let ended = match sys::wait_for_change() {
            Ok(Changed::Exited { pid, code }) if pid == main => Some(Report::Exited(code)),
            Ok(Changed::Killed { pid, signal }) if pid == main => Some(Report::Signalled(signal)),
            // Once: whoever says it again and again would keep us busy, at nobody's expense.
            Ok(Changed::Stopped { pid }) if pid == main && heeds => {
                if let Some(code) = last_word(main, &mut heeds) {
                    end(Report::Exited(code));
                }
                None
            }
            Ok(_) | Err(Errno::INTR) => None,
            Err(_) => sys::exit(1),
        };
        if let Some(ended) = ended {
            end_everyone_else();
            end(ended);
        }
    }
}

fn end(ended: Report) -> ! {
    report(CONTROL_FD, ended);
    sys::exit(0)
}

/// Kills and reaps whatever the main process has left behind, so that nothing changes in the box
/// after its end is reported. Whoever is killed can no longer fork, so once is enough.
fn end_everyone_else() {
    const KILL: i32 = 9;
    // Everyone is everyone on the host, for whoever is not the first of a namespace of its own.
    if sys::getpid() == 1 && sys::kill(-1, KILL).is_ok() {
        while !matches!(sys::wait_any(), Err(errno) if errno != Errno::INTR) {}
    }
}

/// What a main process calls itself when it has nothing left to do but to end, before its code.
/// The kernel takes its memory apart before it says that a process has ended. So an interpreter
/// that knows its exit code only stops, and has its memory taken apart when the answer is out.
const LAST_WORD: &[u8] = b"cloche end ";

/// Says with which code this process would end, and stops; returns if that was of no use.
#[cfg(cloche_template)]
pub(crate) fn stop_instead_of_ending(code: u8) {
    const STOP: i32 = 19;
    let mut name = Text::default();
    name.text(LAST_WORD).number(u32::from(code)).text(b"\0");
    let (main, mut buffer) = (sys::getpid(), [0; 512]);
    // Only where pid 1 will find it there as well: it would be stopped for good.
    if sys::set_name(name.bytes()).is_ok() && word_of(main, &mut buffer).is_some() {
        let _ = sys::kill(main, STOP);
    }
}

/// What a process has said, its code first, and the rest of what the kernel tells about it.
fn word_of(pid: i32, buffer: &mut [u8; 512]) -> Option<&[u8]> {
    let (mut place, mut begins) = (Text::default(), Text::default());
    let stat = read_file(place.text(b"/proc/").pid(pid).text(b"/stat\0"), buffer)?;
    stat.strip_prefix(begins.pid(pid).text(b" (").text(LAST_WORD).bytes())
}

/// The code that a stopped main process would end with. If it has not said one it was stopped by
/// someone else, and stays so; if it has, and is not alone, it goes on and ends as usual.
fn last_word(main: i32, heeds: &mut bool) -> Option<i32> {
    const CONTINUE: i32 = 18;
    let mut buffer = [0; 512];
    let rest = word_of(main, &mut buffer)?;
    *heeds = false;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let code = number(&rest[..digits]).and_then(|code| i32::try_from(code).ok()).unwrap_or(0x100);
    // After the name, the state and the parent come 15 numbers, then that of threads.
    let fields = rest[digits..].strip_prefix(b") T 1 ").unwrap_or_default();
    let threads = fields.split(|byte| *byte == b' ').nth(15).and_then(number);
    if code <= 0xff && threads.is_some() && threads == ever_started() {
        // It does nothing any more, and nobody else is there who could make it go on. One that has
        // set a timer to do so is killed with the next thing we do; killed here, it would have its
        // memory taken apart before the report.
        return Some(code);
    }
    let _ = sys::kill(main, CONTINUE);
    None
}

/// How many processes and threads there have ever been here besides us; no number is used twice
/// before all are. As many threads as one process has: then nobody else was ever there.
fn ever_started() -> Option<u32> {
    let (mut place, mut buffer) = (Text::default(), [0; 16]);
    let last = read_file(place.text(b"/proc/sys/kernel/ns_last_pid\0"), &mut buffer)?;
    number(last.strip_suffix(b"\n")?)?.checked_sub(1)
}

fn number(digits: &[u8]) -> Option<u32> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}

/// The beginning of a file; the path has its NUL.
fn read_file<'a>(path: &Text, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let file = sys::open(CStr::from_bytes_with_nul(path.bytes()).ok()?, 0, 0).ok()?;
    let read = sys::read(file, buffer);
    sys::close(file);
    buffer.get(..read.ok()?)
}
