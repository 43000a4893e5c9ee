//! Runs in: broker supervisor (no capabilities, the broker's user if the server was started as
//! root).
//!
//! The process that starts the broker for a server, and the next one when it has ended.

use std::{
    io,
    os::fd::AsFd,
    process::{Command, ExitCode, Stdio},
};

use super::BROKER;
use crate::{identity, print_error};

/// Supervises brokers for the server behind standard input, which is a socket.
pub(crate) fn main() -> ExitCode {
    let server = io::stdin().as_fd().try_clone_to_owned();
    let served = server.and_then(|server| {
        rustix::net::sockopt::socket_type(&server)?;
        identity::confine_supervisor()?;
        cloche_egress::supervisor::run(server, |control| {
            // This program, also if its file was replaced or is hidden from this user.
            let mut command = Command::new("/proc/self/exe");
            command.arg(BROKER).stdin(Stdio::from(control)).stdout(Stdio::null()).spawn()
        })
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error);
            ExitCode::FAILURE
        }
    }
}
