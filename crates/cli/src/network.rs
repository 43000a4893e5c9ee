//! Runs in: server (root until it is confined), `cloche run`.
//!
//! Starts the broker of networks, see [`broker`]. It needs the host's network and none of the
//! server's files, so it is started before the server confines itself, as the certificate reader is.
//! A server starts it through a [`supervisor`].

use std::{
    fs, io,
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::Path,
    process::{Command, Stdio},
};

use cloche_egress::{BrokerClient, EgressSettings, settings::resolvers_of};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

pub(crate) mod broker;
pub(crate) mod supervisor;

/// The hidden command that becomes the broker.
pub(crate) const BROKER: &str = "__network-broker";

/// The hidden command that becomes its supervisor.
pub(crate) const SUPERVISOR: &str = "__network-supervisor";

/// A broker that was started and has no client yet.
pub(crate) struct BrokerProcess {
    control: OwnedFd,
    settings: EgressSettings,
    is_supervised: bool,
}

impl BrokerProcess {
    /// Starts a broker. It ends when the other end of its socket is closed.
    pub(crate) fn start(program: &Path, settings: EgressSettings) -> io::Result<Self> {
        Self::start_command(program, BROKER, settings)
    }

    /// Starts a broker that is started again whenever it ends.
    pub(crate) fn start_supervised(program: &Path, settings: EgressSettings) -> io::Result<Self> {
        Self::start_command(program, SUPERVISOR, settings)
    }

    fn start_command(
        program: &Path,
        command: &str,
        mut settings: EgressSettings,
    ) -> io::Result<Self> {
        settings.read_authorities()?;
        let flags = SocketFlags::CLOEXEC;
        let (control, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Command::new(program)
            .arg(command)
            .env_clear()
            .current_dir("/")
            // A signal from the terminal is for the server.
            .process_group(0)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()?;
        if settings.resolvers.is_empty() {
            settings.resolvers = host_resolvers();
        }
        Ok(Self { control, settings, is_supervised: command == SUPERVISOR })
    }

    /// Connects to it. Needs a tokio runtime.
    pub(crate) async fn connect(self) -> io::Result<BrokerClient> {
        match self.is_supervised {
            true => BrokerClient::connect_supervised(self.control, self.settings).await,
            false => BrokerClient::connect(self.control, &self.settings).await,
        }
    }
}

/// The DNS servers of this host; that of libc without a configuration if it names none.
fn host_resolvers() -> Vec<std::net::SocketAddr> {
    let text = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let found = resolvers_of(&text);
    match found.is_empty() {
        true => vec![([127, 0, 0, 1], 53).into()],
        false => found,
    }
}
