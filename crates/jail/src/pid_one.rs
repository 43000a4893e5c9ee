//! Pid 1 of a cell: reaps everything, reports how the main process ended, and ends. Core only.
//!
//! The kernel then kills whatever is left in the pid namespace.

use core::ffi::CStr;

use crate::{
    apply::{self, StepScope},
    fmt_buf::FmtBuf,
    init::{
        CONTROL_FD, CellFds, CellReport, FIRST_FOREIGN_FD, JOB_FD, failure_report, send_report,
    },
    small_filter::{FilterVerdict, SmallFilter},
    socket_watch::{self, SocketWatch},
    sys::{self, ChildChange, Errno, PrctlOption, RawFd, Result, SharedStack},
    syscall_table::Call,
};

/// What a pid 1 that shares a template's memory has of its own.
#[derive(Clone, Copy)]
pub(crate) struct PidOneSetup {
    /// Where it lives.
    pub(crate) stack: SharedStack,
    /// The user it becomes.
    pub(crate) user: u32,
    /// Where it hears of sockets, and how many there may be.
    pub(crate) sockets: Option<(RawFd, u32)>,
}

/// Pid 1 that shares a template's memory, beside its guest: builds the box, gives up every right,
/// lets the guest go on, and does nothing but wait.
pub(crate) fn run_beside_guest(
    program: &[u8],
    fds: CellFds,
    own: PidOneSetup,
    (guest, go): (Result<Option<i32>>, RawFd),
) -> ! {
    if sys::read(fds.go, &mut [0]) != Ok(1) {
        sys::exit(1);
    }
    // The handlers are the interpreter's, and would run in the template's memory.
    if sys::block_signals().is_err() {
        sys::exit(1);
    }
    if let Err(failure) = apply::apply_plan(program, StepScope::Box) {
        send_report(fds.control, failure_report(failure.wall, failure.errno));
        sys::exit(1);
    }
    if fds.control != CONTROL_FD && sys::dup_onto(fds.control, CONTROL_FD).is_err() {
        sys::exit(1);
    }
    // The other end of `go` may be where the watch's descriptors belong.
    let ready = sys::dup_above(go, socket_watch::FIRST_OTHER_FD as RawFd).and_then(|go| {
        let begin = |(sockets, most)| SocketWatch::begin(Some(own.stack), sockets, most);
        let watch = own.sockets.map(begin).transpose()?;
        drop_privileges(own.user)?;
        sys::write(go, b"!")?;
        let first = watch.as_ref().map_or(FIRST_FOREIGN_FD, |_| socket_watch::FIRST_OTHER_FD);
        sys::close_range(first, u32::MAX).map(|()| watch)
    });
    match ready.and_then(|watch| guest.map(|guest| (guest, watch))) {
        Ok((Some(pid), watch)) => supervise_guest(pid, watch),
        Ok((None, _)) => sys::exit(1),
        Err(errno) => {
            send_report(CONTROL_FD, failure_report(c"start of the guest", errno));
            sys::exit(1)
        }
    }
}

fn drop_privileges(user: u32) -> Result<()> {
    // Up to the last that the kernel knows.
    let mut capabilities = 0..64;
    while capabilities
        .next()
        .is_some_and(|last| sys::prctl(PrctlOption::DropBounding, last).is_ok())
    {}
    sys::become_user(user, user, false)?;
    sys::capset_none()?;
    sys::prctl(PrctlOption::NoNewPrivs, 1)?;
    sys::install_seccomp(
        SmallFilter::of_calls(&CALLS, FilterVerdict::Allow, FilterVerdict::Kill).as_bytes(),
    )
}

/// What such a pid 1 still calls. Everything else is its end.
const CALLS: [Call; 13] = [
    Call::Waitid,
    Call::Ppoll,
    Call::Ioctl,
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

/// How often pid 1 looks what a main process that was stopped calls itself.
const MOST_LOOKS: u32 = 32;

/// Reaps until the main process has ended; then ends, and everything in the cell with it.
pub(crate) fn supervise_guest(main: i32, mut watch: Option<SocketWatch>) -> ! {
    (0..=JOB_FD).for_each(sys::close);
    let mut looks = MOST_LOOKS;
    loop {
        let changed = match &mut watch {
            Some(watch) => watch.wait_for_change(),
            None => sys::wait_for_change(),
        };
        let ended = match changed {
            Ok(ChildChange::Exited { pid, code }) if pid == main => Some(CellReport::Exited(code)),
            Ok(ChildChange::Killed { pid, signal }) if pid == main => {
                Some(CellReport::Signalled(signal))
            }
            // Whoever says it again and again would keep us busy, at nobody's expense.
            Ok(ChildChange::Stopped { pid }) if pid == main && looks > 0 => {
                looks -= 1;
                if let Some(code) = announced_exit_code(main, &mut looks) {
                    send_report(CONTROL_FD, CellReport::Exited(code));
                    leave_cell(watch.as_ref(), |watch| watch.wait_for_leave(main));
                }
                None
            }
            Ok(_) | Err(Errno::INTR) => None,
            Err(_) => sys::exit(1),
        };
        if let Some(ended) = ended {
            kill_all_others();
            send_report(CONTROL_FD, ended);
            leave_cell(watch.as_ref(), |_| true);
        }
    }
}

/// Ends, and everything in the cell with it, once nobody does anything there any more. Where that
/// is not certain, nothing is said of the network.
fn leave_cell(watch: Option<&SocketWatch>, all_is_quiet: impl FnOnce(&SocketWatch) -> bool) -> ! {
    match watch {
        Some(watch) if all_is_quiet(watch) => watch.report_clean_netns(),
        // Before the control socket closes, which says that nothing changes in the home any more.
        Some(_) => kill_all_others(),
        None => {}
    }
    sys::exit(0)
}

/// Kills and reaps whatever the main process has left behind, so that nothing changes in the box
/// after its end is reported. Whoever is killed can no longer fork, so once is enough.
pub(crate) fn kill_all_others() {
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
    let mut name = FmtBuf::default();
    name.push_bytes(LAST_WORD).push_number(u32::from(code)).push_bytes(b"\0");
    let (main, mut buffer) = (sys::getpid(), [0; 512]);
    let named = CStr::from_bytes_with_nul(name.as_bytes()).map_err(|_| Errno::INVAL);
    // Only where pid 1 will find it there as well: it would be stopped for good.
    if named.and_then(sys::set_name).is_ok() && read_last_word(main, &mut buffer).is_some() {
        let _ = sys::kill(main, STOP);
    }
}

/// What a process has said, its code first, and the rest of what the kernel tells about it.
fn read_last_word(pid: i32, buffer: &mut [u8; 512]) -> Option<&[u8]> {
    let (mut place, mut begins) = (FmtBuf::default(), FmtBuf::default());
    let stat = read_file(place.push_bytes(b"/proc/").push_pid(pid).push_bytes(b"/stat\0"), buffer)?;
    stat.strip_prefix(begins.push_pid(pid).push_bytes(b" (").push_bytes(LAST_WORD).as_bytes())
}

/// The code that a stopped main process would end with. If it has not said one it was stopped by
/// someone else, and stays so; if it has, and is not alone, it goes on and ends as usual.
fn announced_exit_code(main: i32, looks: &mut u32) -> Option<i32> {
    const CONTINUE: i32 = 18;
    let mut buffer = [0; 512];
    let rest = read_last_word(main, &mut buffer)?;
    *looks = 0;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let code =
        parse_decimal(&rest[..digits]).and_then(|code| i32::try_from(code).ok()).unwrap_or(0x100);
    // After the name, the state and the parent come 15 numbers, then that of threads.
    let fields = rest[digits..].strip_prefix(b") T 1 ").unwrap_or_default();
    let threads = fields.split(|byte| *byte == b' ').nth(15).and_then(parse_decimal);
    if code <= 0xff && threads.is_some() && threads == count_ever_started() {
        // It does nothing any more, and nobody else is there who could make it go on. One that has
        // set a timer to do so is killed when it goes on, and before its home is read; killed here,
        // it would have its memory taken apart before the report.
        return Some(code);
    }
    let _ = sys::kill(main, CONTINUE);
    None
}

/// How many processes and threads there have ever been here besides us; no number is used twice
/// before all are. As many threads as one process has: then nobody else was ever there.
fn count_ever_started() -> Option<u32> {
    let (mut place, mut buffer) = (FmtBuf::default(), [0; 16]);
    let last = read_file(place.push_bytes(b"/proc/sys/kernel/ns_last_pid\0"), &mut buffer)?;
    parse_decimal(last.strip_suffix(b"\n")?)?.checked_sub(1)
}

/// A decimal number.
pub(crate) fn parse_decimal(digits: &[u8]) -> Option<u32> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}

/// The beginning of a file; the path has its NUL.
pub(crate) fn read_file<'a>(path: &FmtBuf, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let file = sys::open(CStr::from_bytes_with_nul(path.as_bytes()).ok()?, 0, 0).ok()?;
    let read = sys::read(file, buffer);
    sys::close(file);
    buffer.get(..read.ok()?)
}
