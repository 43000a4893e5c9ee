//! Runs in: spawner (root). The supervisor: the parent of the event loop. It holds the socket and
//! starts the event loop again if it dies.
//!
//! So the server needs no privileges to get a new spawner, and no packet that was not read yet is
//! lost.

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

use super::{
    event_loop,
    host_setup::{self, SpawnerGround},
};
use crate::protocol::{PacketBuffer, SpawnerSetup};

/// The command was started by hand: its standard input is not the socket of a server.
#[derive(Debug, thiserror::Error)]
#[error("this command is started by cloche itself, with a socket as its standard input")]
pub struct NotASpawner;

/// The name of this process, and so of pid 1 of a cell.
const NAME: &CStr = c"cloche";
/// An event loop that dies this soon after its start is started again after a pause.
const SHORT_LIFE: Duration = Duration::from_secs(1);
const RESTART_PAUSE: Duration = Duration::from_millis(200);

/// Runs the spawner on the socket that is standard input, until the server closes it.
pub fn run_spawner() -> Result<ExitCode, NotASpawner> {
    run_spawner_with(&|plan| plan)
}

/// The same with every plan changed before it is used. The escape suite leaves out a wall this way.
pub fn run_spawner_with(change: &dyn Fn(CellPlan) -> CellPlan) -> Result<ExitCode, NotASpawner> {
    let socket: OwnedFd = io::stdin().as_fd().try_clone_to_owned().map_err(|_| NotASpawner)?;
    rustix::net::sockopt::socket_type(&socket).map_err(|_| NotASpawner)?;
    host_setup::reexec_in_user_namespace();
    reset_signals();
    hide_origin();
    let Ok((setup, fds)) = PacketBuffer::new().receive::<SpawnerSetup>(&socket) else {
        return Ok(ExitCode::FAILURE);
    };
    let ground = SpawnerGround::from_setup(&setup, fds);
    // If the event loop dies, this process becomes the parent of its cells and reaps them.
    let _ = sys::prctl(PrctlOption::ChildSubreaper, 1);
    loop {
        let born = Instant::now();
        let pid = match sys::clone(CloneRequest::default()) {
            Ok(CloneSide::Child) => {
                let _ = sys::prctl(PrctlOption::ParentDeathSignal, 9);
                sys::exit(event_loop::run_event_loop(&socket, &ground, change));
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
            thread::sleep(RESTART_PAUSE);
        }
    }
}

/// Resets ignored signals, such as Ctrl-C and hang-up: guests must not inherit them.
fn reset_signals() {
    const SIGPIPE: usize = 13;
    // The kernel refuses some signals, which stay as they are.
    for signal in (1..=64).filter(|signal| ![SIGPIPE, sys::SIGCHLD].contains(signal)) {
        let _ = sys::ignore_signal(signal, false);
    }
}

/// Pid 1 of a cell is a copy of this process. So its name and its umask must not tell who started
/// the server, and how.
fn hide_origin() {
    const USUAL: Mode = Mode::WGRP.union(Mode::WOTH);
    // It is no reason not to start if the name cannot be set.
    let _ = rustix::thread::set_name(NAME);
    rustix::process::umask(USUAL);
}

/// Reaps children until this one has ended. Returns its exit code, or `None` if it was killed.
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
