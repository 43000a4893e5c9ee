//! The keeper: the spawner's own parent, which holds its socket and starts it again if it dies.
//!
//! So that the server needs no privileges to have a new spawner, and loses no packet that was
//! not yet read.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use cloche_jail::{
    plan::Plan,
    sys::{self, Changed, CloneRequest, Cloned, Prctl},
};

use super::{ground, worker};

/// Started by hand: standard input is not the socket of an executor.
#[derive(Debug, thiserror::Error)]
#[error("this command is started by cloche itself, with a socket as its standard input")]
pub struct NotASpawner;

/// A worker that dies this soon after its start is not started again at once.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// What a spawner is told when it is started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where the layers of homes lie unpacked; without it there are no homes to mount.
    pub layers: Option<PathBuf>,
}

/// Runs the spawner on the socket that is standard input, until the executor closes it.
pub fn run(options: &Options) -> Result<ExitCode, NotASpawner> {
    run_with(options, &|plan| plan)
}

/// The same with every plan changed on its way: how the escape suite leaves out a wall.
pub fn run_with(options: &Options, change: &dyn Fn(Plan) -> Plan) -> Result<ExitCode, NotASpawner> {
    let socket: OwnedFd = io::stdin().as_fd().try_clone_to_owned().map_err(|_| NotASpawner)?;
    rustix::net::sockopt::socket_type(&socket).map_err(|_| NotASpawner)?;
    ground::start_anew_in_user_namespace();
    reset_signals();
    // The worker's cells come to us if it dies, to be reaped.
    let _ = sys::prctl(Prctl::ChildSubreaper, 1);
    loop {
        let born = Instant::now();
        let pid = match sys::clone(CloneRequest::default()) {
            Ok(Cloned::Child) => {
                let _ = sys::prctl(Prctl::ParentDeathSignal, 9);
                sys::exit(worker::run(&socket, options, change));
            }
            Ok(Cloned::Parent(pid, pidfd)) => {
                sys::close(pidfd);
                pid
            }
            Err(_) => return Ok(ExitCode::FAILURE),
        };
        if wait_for(pid) == Some(0) {
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

/// Reaps until this child has ended: its exit code, or nothing if it was killed.
fn wait_for(pid: i32) -> Option<i32> {
    loop {
        match sys::wait_any() {
            Ok(Changed::Exited { pid: ended, code }) if ended == pid => return Some(code),
            Ok(changed) if changed.pid() == pid => return None,
            Ok(_) => {}
            Err(sys::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}
