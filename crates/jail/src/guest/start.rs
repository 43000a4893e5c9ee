//! Runs in: guest.
//!
//! The first code of the guest's process, up to its job. It does not know the language or the
//! tenant. Core only.

use super::job_reader;
use crate::{
    protocol::{
        constants::{EXIT_BAD_JOB, EXIT_NOT_FOUND},
        fd_numbers::CONTROL_FD,
    },
    setup::{
        apply::StepScope,
        enter::{CellFds, apply_or_report, enter_cell, report_ready},
    },
    sys::{self, Errno, PrctlOption},
};

/// The guest's process of a cold or parked cell, under all walls: waits for its job, then execs.
pub(crate) fn run_guest() -> ! {
    sys::close(CONTROL_FD);
    // Not inspectable until exec: the memory is still a copy of the spawner's.
    let _ = sys::prctl(PrctlOption::Dumpable, 0);
    let _ = sys::setsid();
    let errno = job_reader::take_job().err().unwrap_or(Errno::INVAL);
    // The exit codes of a shell: 127 if the program does not exist, 126 if it cannot be executed.
    sys::exit(if errno == Errno::NOENT { EXIT_NOT_FOUND } else { EXIT_BAD_JOB })
}

/// The guest's process of a contained cell: applies its own steps, reports, then waits for its job
/// and execs.
pub(crate) fn run_contained_guest(program: &[u8]) -> ! {
    let _ = sys::unblock_signals();
    apply_or_report(program, StepScope::Process);
    report_ready();
    run_guest()
}

/// The guest's process of a forked cell, a copy of the template: applies its own steps once pid 1
/// has built the cell. Returns when all walls are up and the server can send the job. From then on
/// it can inspect itself, and it leads its own session.
pub(crate) fn become_guest(program: &[u8], fds: CellFds, meanwhile: impl FnOnce()) {
    enter_cell(program, StepScope::Process, fds, meanwhile);
    report_ready();
    sys::close(CONTROL_FD);
    let _ = sys::prctl(PrctlOption::Dumpable, 1);
    let _ = sys::setsid();
}
