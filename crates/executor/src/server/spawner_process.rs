//! Runs in: server (no capabilities), before it drops its privileges. Starts the spawner.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Child, Command, Stdio},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::config::ExecutorConfig;
use crate::protocol::{self, SPAWNER_ARG0, SPAWNER_CONTAINED, SpawnerSetup};

/// A running spawner that no client is connected to yet.
///
/// Starting it needs the privileges that it keeps; speaking to it needs none. So a server starts it
/// first, then drops its own privileges, then starts its threads.
#[derive(Debug)]
pub struct SpawnerProcess {
    pub(super) socket: OwnedFd,
    pub(super) supervisor: Child,
}

impl SpawnerProcess {
    /// Starts the program as a spawner, with one end of a socket as its standard input, and passes
    /// the directory of unpacked layers.
    pub fn start(config: &ExecutorConfig) -> io::Result<Self> {
        let layers = config.unpacked_layers.as_ref().map(File::open).transpose()?;
        let scratch = config.contained.as_ref().map(File::open).transpose()?;
        let flags = SocketFlags::CLOEXEC;
        let (socket, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        let supervisor = Command::new(&config.program)
            .arg0(SPAWNER_ARG0)
            .args(&config.spawner_args)
            .env_clear()
            .envs(scratch.as_ref().map(|_| (SPAWNER_CONTAINED, "1")))
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            // Ctrl-C is for the server alone. The spawner ends when its socket is closed.
            .process_group(0)
            .spawn()?;
        let fds: Vec<_> = layers.iter().chain(&scratch).map(AsFd::as_fd).collect();
        let setup = SpawnerSetup {
            has_layers: layers.is_some(),
            has_scratch: scratch.is_some(),
            hides_packages: config.hides_packages,
        };
        protocol::send_packet(socket.as_fd(), &setup, &fds).map_err(io::Error::other)?;
        Ok(Self { socket, supervisor })
    }
}
