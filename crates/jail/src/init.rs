//! Pid 1 of a cell, and the process that becomes the guest. Core only; runs in the new process.
//!
//! Pid 1 takes the steps, forks the guest's process, reaps everything, reports how the main
//! process ended, and ends: the kernel then kills whatever is left in the pid namespace. The
//! guest's process reads its job under all walls. Neither knows what language or whose code it is.

use core::ffi::CStr;

use crate::{
    apply,
    sys::{self, Changed, Errno, Prctl, RawFd, Result},
    take,
    text::Text,
};

/// Where the job arrives, in every process of the cell that is ours.
pub const JOB_FD: RawFd = 3;
/// Where pid 1 reports.
pub const CONTROL_FD: RawFd = 4;
/// Where a template is asked for forks; closed in everything that comes from it.
pub const FORK_FD: RawFd = 5;
/// The first descriptor that is not one of ours.
pub const FIRST_FOREIGN_FD: u32 = 5;

/// What pid 1 reports, as one message of [`REPORT_LEN`] bytes: kind, value, name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// Every wall is up; the job can be sent. Carries the home, as a directory to be read from.
    Ready,
    /// A wall could not be built.
    Failed(WallName, Errno),
    /// The main process ended with this code.
    Exited(i32),
    /// The main process was ended by this signal.
    Signalled(i32),
}

/// The name of a wall, cut to what fits into a report.
pub type WallName = [u8; 56];

/// The length of an encoded report.
pub const REPORT_LEN: usize = 64;

impl Report {
    /// As bytes for the control socket.
    #[must_use]
    pub fn encode(self) -> [u8; REPORT_LEN] {
        let (kind, value, name) = match self {
            Self::Ready => (1_u32, 0, [0; 56]),
            Self::Failed(name, errno) => (2, errno.0, name),
            Self::Exited(code) => (3, code, [0; 56]),
            Self::Signalled(signal) => (4, signal, [0; 56]),
        };
        let mut out = [0; REPORT_LEN];
        out[..4].copy_from_slice(&kind.to_le_bytes());
        out[4..8].copy_from_slice(&value.to_le_bytes());
        out[8..].copy_from_slice(&name);
        out
    }

    /// From bytes; nothing where they are not a report.
    #[must_use]
    pub fn decode(bytes: &[u8; REPORT_LEN]) -> Option<Self> {
        let value = i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        match bytes[0] {
            1 => Some(Self::Ready),
            2 => {
                let mut name = [0; 56];
                name.copy_from_slice(&bytes[8..]);
                Some(Self::Failed(name, Errno(value)))
            }
            3 => Some(Self::Exited(value)),
            4 => Some(Self::Signalled(value)),
            _ => None,
        }
    }
}

fn failed(wall: &CStr, errno: Errno) -> Report {
    let mut name = [0; 56];
    name.iter_mut().zip(wall.to_bytes()).for_each(|(to, from)| *to = *from);
    Report::Failed(name, errno)
}

/// The descriptors a new cell is given; none is where another of them is to go.
#[derive(Clone, Copy)]
pub struct CellFds {
    /// Pid 1 reads one byte here once its ids are mapped; closed means: give up.
    pub go: RawFd,
    /// The guest's standard input, output and error.
    pub stdio: [RawFd; 3],
    /// Where the job arrives.
    pub job: RawFd,
    /// Where pid 1 reports.
    pub control: RawFd,
    /// A template's socket for forks.
    pub fork: Option<RawFd>,
    /// The `tasks` files of the v1 cgroups to enter; none with v2, where it is born inside.
    pub cgroups: [Option<RawFd>; MAX_CGROUPS],
}

/// The most v1 hierarchies a cell is in.
pub const MAX_CGROUPS: usize = 4;

/// The life of pid 1, from just after `clone` to its end.
pub fn run(program: &[u8], fds: CellFds) -> ! {
    enter(program, fds);
    match sys::fork() {
        Ok(None) => guest(),
        Ok(Some(pid)) => {
            report_ready();
            supervise(pid)
        }
        Err(errno) => {
            report(CONTROL_FD, failed(c"start of the guest", errno));
            sys::exit(1)
        }
    }
}

/// Takes every step into the box; ends with a report where one fails.
fn enter(program: &[u8], fds: CellFds) {
    if sys::read(fds.go, &mut [0]) != Ok(1) {
        sys::exit(1);
    }
    if let Err(errno) = join(fds.cgroups).and_then(|()| arrange(fds)) {
        report(fds.control, failed(c"cgroups and descriptors", errno));
        sys::exit(1);
    }
    if let Err(failure) = apply::apply(program) {
        report(CONTROL_FD, failed(failure.wall, failure.errno));
        sys::exit(1);
    }
    // Pid 1 is a copy of the spawner's memory or a template's: the guest may not look into it.
    let _ = sys::prctl(Prctl::Dumpable, 0);
}

/// Enters the v1 cgroups. Through `tasks`, since `cgroup.procs` waits for an RCU grace period when
/// the host is idle: 5 ms against 0.05.
fn join(cgroups: [Option<RawFd>; MAX_CGROUPS]) -> Result<()> {
    cgroups.into_iter().flatten().try_for_each(|tasks| sys::write(tasks, b"0").map(drop))
}

/// Puts the cell's descriptors where everyone expects them.
fn arrange(fds: CellFds) -> Result<()> {
    for (at, fd) in [0, 1, 2].into_iter().zip(fds.stdio) {
        sys::dup_onto(fd, at)?;
    }
    sys::dup_onto(fds.job, JOB_FD)?;
    sys::dup_onto(fds.control, CONTROL_FD)?;
    fds.fork.map_or(Ok(()), |fork| sys::dup_onto(fork, FORK_FD))
}

fn report(control: RawFd, report: Report) {
    // If nobody listens any more, nobody needs to know; pid 1 goes on to its end either way.
    let _ = sys::send(control, &report.encode(), &[]);
}

/// Says that the job can be sent, and hands out the home: what a run has left there is read
/// through it when nothing else of the box is left.
fn report_ready() {
    const DIRECTORY_CLOEXEC: i32 = 0o200_000 | 0o2_000_000;
    match sys::open(c".", DIRECTORY_CLOEXEC, 0) {
        Ok(home) => {
            let _ = sys::send(CONTROL_FD, &Report::Ready.encode(), &[home]);
            sys::close(home);
        }
        Err(_) => report(CONTROL_FD, Report::Ready),
    }
}

/// Reaps until the main process has ended; then ends, and everything in the cell with it.
fn supervise(main: i32) -> ! {
    (0..=JOB_FD).for_each(sys::close);
    loop {
        let ended = match sys::wait_for_change() {
            Ok(Changed::Exited { pid, code }) if pid == main => Some(Report::Exited(code)),
            Ok(Changed::Killed { pid, signal }) if pid == main => Some(Report::Signalled(signal)),
            Ok(Changed::Stopped { pid }) if pid == main => match last_word(main) {
                // It does nothing any more, and nobody is there who could make it go on.
                Some(code) => end(Report::Exited(code)),
                None => None,
            },
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
pub fn stop_instead_of_ending(code: u8) {
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
fn last_word(main: i32) -> Option<i32> {
    const CONTINUE: i32 = 18;
    let mut buffer = [0; 512];
    let rest = word_of(main, &mut buffer)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let code = rest[..digits].iter().fold(0, |code, digit| code * 10 + i32::from(digit - b'0'));
    // After the name, the state and the parent come 15 numbers, then that of threads.
    let fields = rest[digits..].strip_prefix(b") T 1 ").unwrap_or_default();
    let threads = fields.split(|byte| *byte == b' ').nth(15);
    if digits <= 3 && threads == Some(b"1") && is_alone(main) {
        return Some(code & 0xff);
    }
    let _ = sys::kill(main, CONTINUE);
    None
}

/// Whether this process and its child are the only two here.
fn is_alone(main: i32) -> bool {
    let (mut ours, mut only, mut theirs) = ([0; 32], Text::default(), Text::default());
    only.pid(main).text(b" ");
    theirs.text(b"/proc/").pid(main).text(b"/task/").pid(main).text(b"/children\0");
    let mut place = Text::default();
    read_file(place.text(b"/proc/1/task/1/children\0"), &mut ours) == Some(only.bytes())
        && read_file(&theirs, &mut [0; 32]) == Some(b"")
}

/// The beginning of a file; the path has its NUL.
fn read_file<'a>(path: &Text, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let file = sys::open(CStr::from_bytes_with_nul(path.bytes()).ok()?, 0, 0).ok()?;
    let read = sys::read(file, buffer);
    sys::close(file);
    buffer.get(..read.ok()?)
}

/// The process that becomes the guest: waits for its job, then does it.
fn guest() -> ! {
    sys::close(CONTROL_FD);
    // Not inspectable until exec: it is still a copy of the spawner's memory.
    let _ = sys::prctl(Prctl::Dumpable, 0);
    let _ = sys::setsid();
    let errno = take::take_job().err().unwrap_or(Errno::INVAL);
    // A shell's codes: 127 when the program is not there, 126 when it cannot be run.
    sys::exit(if errno == Errno::NOENT { 127 } else { 126 })
}

/// The guest of a cell that was copied from an interpreter: takes every step, and returns when all
/// walls are up and the job can be sent. It may be looked into by itself from then on, and leads its
/// own session.
pub fn become_guest(program: &[u8], fds: CellFds) {
    enter(program, fds);
    report_ready();
    sys::close(CONTROL_FD);
    let _ = sys::prctl(Prctl::Dumpable, 1);
    let _ = sys::setsid();
}

/// Pid 1 of such a cell, beside its guest: gives up its rights, and does nothing but wait.
pub fn become_pid_one(fds: CellFds, user: u32, guest: Result<Option<i32>>) -> ! {
    if sys::read(fds.go, &mut [0]) != Ok(1) {
        sys::exit(1);
    }
    if fds.control != CONTROL_FD && sys::dup_onto(fds.control, CONTROL_FD).is_err() {
        sys::exit(1);
    }
    let given_up = sys::close_range(FIRST_FOREIGN_FD, u32::MAX)
        .and_then(|()| sys::become_user(user, user, false))
        .and_then(|()| sys::capset_none());
    match given_up.and(guest) {
        Ok(Some(pid)) => supervise(pid),
        Ok(None) => sys::exit(1),
        Err(errno) => {
            report(CONTROL_FD, failed(c"start of the guest", errno));
            sys::exit(1)
        }
    }
}
