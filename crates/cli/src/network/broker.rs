//! Runs in: broker (no capabilities, a user of its own if the server was started as root).
//!
//! The process that decides what cells reach and dials for them: `cloche_egress::broker`, confined.

use std::{io, os::fd::AsFd, process::ExitCode};

use crate::{identity, print_error, serve::descriptors};

/// Serves the server behind standard input, which is a socket, until that is closed.
pub(crate) fn main() -> ExitCode {
    let control = io::stdin().as_fd().try_clone_to_owned();
    let served = control.and_then(|control| {
        rustix::net::sockopt::socket_type(&control)?;
        descriptors::raise_limit();
        identity::confine_broker()?;
        cloche_egress::broker::run(control)
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error);
            ExitCode::FAILURE
        }
    }
}
