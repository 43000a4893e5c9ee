//! The keeper: the spawner's own parent, which holds its socket and starts it again if it dies.
//!
//! So that the server needs no privileges to have a new spawner, and loses no packet that was
//! not yet read.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, OwnedFd},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use cloche_jail::{
    plan::CellPlan,
    sys::{self, ChildChange, CloneRequest, CloneSide, PrctlOption},
};
use rustix::fs::Mode;

use super::{event_loop, host_setup};
use crate::protocol::{PacketBuffer, SpawnerSetup};

/// Started by hand: standard input is not the socket of an executor.
#[derive(Debug, thiserror::Error)]
#[error("this command is started by cloche itself, with a socket as its standard input")]
pub struct NotASpawner;

/// What this process, and so pid 1 of a cell, is called.
const NAME: &CStr = c"cloche";
/// A worker that dies this soon after its start is not started again at once.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// Runs the spawner on the socket that is standard input, until the executor closes it.
pub fn run_spawner() -> Result<ExitCode, NotASpawner> {
    run_spawner_with(&|plan| plan)
}

/// The same with every plan changed on its way: how the escape suite leaves out a wall.
pub fn run_spawner_with(change: &dyn Fn(CellPlan) -> CellPlan) -> Result<ExitCode, NotASpawner> {
    let socket: OwnedFd = io::stdin().as_fd().try_clone_to_owned().map_err(|_| NotASpawner)?;
    rustix::net::sockopt::socket_type(&socket).map_err(|_| NotASpawner)?;
    host_setup::reexec_in_user_namespace();
    reset_signals();
    hide_origin();
    let Ok((setup, fds)) = PacketBuffer::new().receive::<SpawnerSetup>(&socket) else {
        return Ok(ExitCode::FAILURE);
    };
    let layers = fds.into_iter().next().filter(|_| setup.has_layers);
    // The worker's cells come to us if it dies, to be reaped.
    let _ = sys::prctl(PrctlOption::ChildSubreaper, 1);
    loop {
        let born = Instant::now();
        let pid = match sys::clone(CloneRequest::default()) {
            Ok(CloneSide::Child) => {
                let _ = sys::prctl(PrctlOption::ParentDeathSignal, 9);
                sys::exit(event_loop::run_event_loop(&socket, layers.as_ref(), change));
            }
            Ok(CloneSide::Parent(pid, pidfd)) => {
                sys::close(pidfd);
                pid
            }
            Err(_) => return Ok(ExitCode::FAILURE),
        };
        if wait_for_child(pid) == Some(0) {
            return Ok(ExitCode::SUCCESS);
        }
        if born.elapsed() < SHORT_LIFE {
            thread::sleep(Duration::from_millis(200));
        }
    }
}

/// What whoever started us ignores is not for guests to inherit: Ctrl-C, hang-up and their like.
fn reset_signals() {
    const SIGPIPE: usize = 13;
    // Those that cannot be changed stay as they are.
    for signal in (1..=64).filter(|signal| ![SIGPIPE, sys::SIGCHLD].contains(signal)) {
        let _ = sys::ignore_signal(signal, false);
    }
}

/// Pid 1 of a cell is a copy of this process: its name and its umask say nothing about who started
/// the server, and how.
fn hide_origin() {
    const USUAL: Mode = Mode::WGRP.union(Mode::WOTH);
    // A name that stays as it was is no reason not to start.
    let _ = rustix::thread::set_name(NAME);
    rustix::process::umask(USUAL);
}

/// Reaps until this child has ended: its exit code, or nothing if it was killed.
fn wait_for_child(pid: i32) -> Option<i32> {
    loop {
        match sys::wait_any() {
            Ok(ChildChange::Exited { pid: ended, code }) if ended == pid => return Some(code),
            Ok(changed) if changed.pid() == pid => return None,
            Ok(_) => {}
            Err(sys::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}
