//! Runs in: pid 1 of a cold or parked cell, and of a template.
//!
//! The life of pid 1 whose memory is a copy of the spawner's. Core only.

use super::{
    socket_watch::{SOCKETS_FD, SocketWatch},
    supervise::supervise_guest,
};
use crate::{
    guest::start::run_guest,
    protocol::{
        fd_numbers::CONTROL_FD,
        report::{failure_report, send_report},
    },
    setup::{
        apply::{self, StepScope},
        enter::{CellFds, enter_cell, report_ready},
    },
    sys::{self, Result},
};

/// The life of pid 1, from just after `clone` to its end.
pub(crate) fn run_pid_one(program: &[u8], fds: CellFds) -> ! {
    enter_cell(program, StepScope::All, fds, || {});
    let limit = apply::find_socket_limit(program);
    let started = match sys::fork() {
        Ok(None) => {
            if limit.is_some() {
                // With the notification fd the guest could answer its own notifications. Without a
                // limit a template has its fork socket there.
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
            supervise_guest(pid, watch, false)
        }
        Err(errno) => {
            send_report(CONTROL_FD, failure_report(c"start of the guest", errno));
            sys::exit(1)
        }
    }
}

/// Blocks the signals of pid 1 and starts its watch. After the fork: the guest keeps its signal
/// mask.
pub(super) fn watch_sockets(limit: Option<u32>) -> Result<Option<SocketWatch>> {
    let Some(most) = limit else { return Ok(None) };
    sys::block_signals()?;
    SocketWatch::begin(None, SOCKETS_FD, most).map(Some)
}
