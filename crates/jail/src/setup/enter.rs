//! Runs in: pid 1 of a cell or of a template, guest of a forked cell.
//!
//! A new process enters its cell: cgroups, file descriptors, then the steps of the plan. Core only.

use super::apply::{self, StepScope};
use crate::{
    protocol::{
        fd_numbers::{CONTROL_FD, FORK_FD, JOB_FD},
        report::{CellReport, failure_report, send_report},
    },
    sys::{self, PrctlOption, RawFd, Result},
};

/// The descriptors of a new cell. None has a number that another one is going to get.
#[derive(Clone, Copy)]
pub struct CellFds {
    /// A pipe: one byte arrives when the ids are mapped; if it closes, the process exits.
    pub go: RawFd,
    /// The guest's standard input, output and error.
    pub stdio: [RawFd; 3],
    /// The job socket.
    pub job: RawFd,
    /// The control socket, on which pid 1 reports.
    pub control: RawFd,
    /// A template's socket for fork requests.
    pub fork: Option<RawFd>,
    /// The `tasks` files of the v1 cgroups to enter. None with v2: `clone` starts the process in
    /// its cgroup.
    pub cgroups: [Option<RawFd>; MAX_CGROUPS],
}

/// The most v1 hierarchies that a cell is in.
pub const MAX_CGROUPS: usize = 4;

/// Enters the cgroups, calls `meanwhile` and waits for `go`, then applies the steps of `scope`. If
/// a step fails, reports it and exits.
pub(crate) fn enter_cell(program: &[u8], scope: StepScope, fds: CellFds, meanwhile: impl FnOnce()) {
    if let Err(errno) = join_cgroups(fds.cgroups).and_then(|()| arrange_fds(fds)) {
        send_report(fds.control, failure_report(c"cgroups and descriptors", errno));
        sys::exit(1);
    }
    meanwhile();
    if sys::read(fds.go, &mut [0]) != Ok(1) {
        sys::exit(1);
    }
    apply_or_report(program, scope);
}

/// Moves the descriptors and waits for `go`. If that fails, reports it and exits.
pub(crate) fn enter_contained_cell(fds: CellFds) {
    if let Err(errno) = arrange_fds(fds) {
        send_report(fds.control, failure_report(c"descriptors", errno));
        sys::exit(1);
    }
    if sys::read(fds.go, &mut [0]) != Ok(1) {
        sys::exit(1);
    }
}

/// Applies the steps of `scope`. If one fails, reports it and exits.
pub(crate) fn apply_or_report(program: &[u8], scope: StepScope) {
    if let Err(failure) = apply::apply_plan(program, scope) {
        send_report(CONTROL_FD, failure_report(failure.wall, failure.errno));
        sys::exit(1);
    }
    // The memory is a copy of the spawner's or a template's: no other process may inspect it.
    let _ = sys::prctl(PrctlOption::Dumpable, 0);
}

/// Enters the v1 cgroups through `tasks`: a write to `cgroup.procs` waits for an RCU grace period
/// when the host is idle, 5 ms against 0.05.
fn join_cgroups(cgroups: [Option<RawFd>; MAX_CGROUPS]) -> Result<()> {
    cgroups.into_iter().flatten().try_for_each(|tasks| sys::write(tasks, b"0").map(drop))
}

/// Moves the descriptors to their fixed numbers.
fn arrange_fds(fds: CellFds) -> Result<()> {
    for (at, fd) in [0, 1, 2].into_iter().zip(fds.stdio) {
        sys::dup_onto(fd, at)?;
    }
    sys::dup_onto(fds.job, JOB_FD)?;
    sys::dup_onto(fds.control, CONTROL_FD)?;
    fds.fork.map_or(Ok(()), |fork| sys::dup_onto(fork, FORK_FD))
}

/// Reports that the server can send the job, and attaches the home directory. The server reads
/// through it what a run has left there, also when the rest of the cell is gone.
pub(crate) fn report_ready() {
    const DIRECTORY_CLOEXEC: i32 = 0o200_000 | 0o2_000_000;
    match sys::open(c".", DIRECTORY_CLOEXEC, 0) {
        Ok(home) => {
            let _ = sys::sendmsg(CONTROL_FD, &CellReport::Ready.to_bytes(), &[home]);
            sys::close(home);
        }
        Err(_) => send_report(CONTROL_FD, CellReport::Ready),
    }
}
