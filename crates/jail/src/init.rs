//! The way into a cell, and the process that becomes the guest. Core only; runs in the new process.
//!
//! Takes the steps, reports, and has the guest's process read its job under all walls. It does not
//! know what language or whose code that is.

use core::ffi::CStr;

use crate::{
    apply::{self, StepScope},
    job_reader, pid_one,
    socket_watch::{SOCKETS_FD, SocketWatch},
    sys::{self, Errno, PrctlOption, RawFd, Result},
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
pub enum CellReport {
    /// Every wall is up; the job can be sent. Carries the home, as a directory to be read from.
    Ready,
    /// A wall could not be built.
    Failed(WallName, Errno),
    /// The main process ended with this code.
    Exited(i32),
    /// The main process was ended by this signal.
    Signalled(i32),
    /// Asked for after an end: no process of the cell is left but pid 1.
    Alone,
}

/// The name of a wall, cut to what fits into a report.
pub type WallName = [u8; 56];

/// The length of an encoded report.
pub const REPORT_LEN: usize = 64;

impl CellReport {
    /// As bytes for the control socket.
    #[must_use]
    pub fn to_bytes(self) -> [u8; REPORT_LEN] {
        let (kind, value, name) = match self {
            Self::Ready => (1_u32, 0, [0; 56]),
            Self::Failed(name, errno) => (2, errno.0, name),
            Self::Exited(code) => (3, code, [0; 56]),
            Self::Signalled(signal) => (4, signal, [0; 56]),
            Self::Alone => (5, 0, [0; 56]),
        };
        let mut out = [0; REPORT_LEN];
        out[..4].copy_from_slice(&kind.to_le_bytes());
        out[4..8].copy_from_slice(&value.to_le_bytes());
        out[8..].copy_from_slice(&name);
        out
    }

    /// From bytes; nothing where they are not a report.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; REPORT_LEN]) -> Option<Self> {
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
            5 => Some(Self::Alone),
            _ => None,
        }
    }
}

pub(crate) fn failure_report(wall: &CStr, errno: Errno) -> CellReport {
    let mut name = [0; 56];
    name.iter_mut().zip(wall.to_bytes()).for_each(|(to, from)| *to = *from);
    CellReport::Failed(name, errno)
}

/// The descriptors a new cell is given; none is where another of them is to go.
#[derive(Clone, Copy)]
pub struct CellFds {
    /// One byte comes here once its ids are mapped; closed means: give up.
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
pub fn run_pid_one(program: &[u8], fds: CellFds) -> ! {
    enter_cell(program, StepScope::All, fds, || {});
    let limit = apply::find_socket_limit(program);
    let started = match sys::fork() {
        Ok(None) => {
            if limit.is_some() {
                // Or it could answer for itself. A template has its own socket there.
                sys::close(SOCKETS_FD);
            }
            run_guest()
        }
        Ok(Some(pid)) => watch_sockets(limit).map(|watch| (pid, watch)),
        Err(errno) => Err(errno),
    };
    match started {
        Ok((pid, watch)) => {
            report_ready();
            pid_one::supervise_guest(pid, watch)
        }
        Err(errno) => {
            send_report(CONTROL_FD, failure_report(c"start of the guest", errno));
            sys::exit(1)
        }
    }
}

/// Once there is a guest, which has its signals as they were.
fn watch_sockets(limit: Option<u32>) -> Result<Option<SocketWatch>> {
    let Some(most) = limit else { return Ok(None) };
    sys::block_signals()?;
    SocketWatch::begin(None, SOCKETS_FD, most).map(Some)
}

/// Gets into its cgroups, does something else until the box is there, and takes its own steps; ends
/// with a report where one fails.
fn enter_cell(program: &[u8], part: StepScope, fds: CellFds, meanwhile: impl FnOnce()) {
    if let Err(errno) = join_cgroups(fds.cgroups).and_then(|()| arrange_fds(fds)) {
        send_report(fds.control, failure_report(c"cgroups and descriptors", errno));
        sys::exit(1);
    }
    meanwhile();
    if sys::read(fds.go, &mut [0]) != Ok(1) {
        sys::exit(1);
    }
    if let Err(failure) = apply::apply_plan(program, part) {
        send_report(CONTROL_FD, failure_report(failure.wall, failure.errno));
        sys::exit(1);
    }
    // It is a copy of the spawner's memory or a template's: nobody else may look into it.
    let _ = sys::prctl(PrctlOption::Dumpable, 0);
}

/// Enters the v1 cgroups. Through `tasks`, since `cgroup.procs` waits for an RCU grace period when
/// the host is idle: 5 ms against 0.05.
fn join_cgroups(cgroups: [Option<RawFd>; MAX_CGROUPS]) -> Result<()> {
    cgroups.into_iter().flatten().try_for_each(|tasks| sys::write(tasks, b"0").map(drop))
}

/// Puts the cell's descriptors where everyone expects them.
fn arrange_fds(fds: CellFds) -> Result<()> {
    for (at, fd) in [0, 1, 2].into_iter().zip(fds.stdio) {
        sys::dup_onto(fd, at)?;
    }
    sys::dup_onto(fds.job, JOB_FD)?;
    sys::dup_onto(fds.control, CONTROL_FD)?;
    fds.fork.map_or(Ok(()), |fork| sys::dup_onto(fork, FORK_FD))
}

pub(crate) fn send_report(control: RawFd, report: CellReport) {
    // If nobody listens any more, nobody needs to know; pid 1 goes on to its end either way.
    let _ = sys::sendmsg(control, &report.to_bytes(), &[]);
}

/// Says that the job can be sent, and hands out the home: what a run has left there is read
/// through it when nothing else of the box is left.
fn report_ready() {
    const DIRECTORY_CLOEXEC: i32 = 0o200_000 | 0o2_000_000;
    match sys::open(c".", DIRECTORY_CLOEXEC, 0) {
        Ok(home) => {
            let _ = sys::sendmsg(CONTROL_FD, &CellReport::Ready.to_bytes(), &[home]);
            sys::close(home);
        }
        Err(_) => send_report(CONTROL_FD, CellReport::Ready),
    }
}

/// The process that becomes the guest: waits for its job, then does it.
fn run_guest() -> ! {
    sys::close(CONTROL_FD);
    // Not inspectable until exec: it is still a copy of the spawner's memory.
    let _ = sys::prctl(PrctlOption::Dumpable, 0);
    let _ = sys::setsid();
    let errno = job_reader::take_job().err().unwrap_or(Errno::INVAL);
    // A shell's codes: 127 when the program is not there, 126 when it cannot be run.
    sys::exit(if errno == Errno::NOENT { 127 } else { 126 })
}

/// The guest of a cell that was copied from an interpreter: takes its own steps when pid 1 has
/// built the box, and returns when all walls are up and the job can be sent. It may be looked into
/// by itself from then on, and leads its own session.
pub(crate) fn become_guest(program: &[u8], fds: CellFds, meanwhile: impl FnOnce()) {
    enter_cell(program, StepScope::Process, fds, meanwhile);
    report_ready();
    sys::close(CONTROL_FD);
    let _ = sys::prctl(PrctlOption::Dumpable, 1);
    let _ = sys::setsid();
}
