//! A whole server from an engine, an address and settings.

use std::{io, net::SocketAddr, path::PathBuf};

use cloche_agent::{Agent, AgentConfig};
use cloche_engine::{BootstrapFile, Engine, Refusal};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{GatewayConfig, serve_api};

/// The settings of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The data directory of the engine, where the first key is written.
    pub data_dir: PathBuf,
    /// The address to listen on, e.g. `127.0.0.1:8080`; port 0 selects a free port.
    pub listen: String,
    /// Settings of the doors.
    pub gateway: GatewayConfig,
}

/// The error of starting a server.
#[derive(Debug, thiserror::Error)]
pub enum ServerOpenError {
    /// The server cannot listen on the address.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The agent did not start.
    #[error(transparent)]
    Agent(#[from] cloche_agent::AgentStartError),
    /// Responses that a restart interrupted could not be marked as failed.
    #[error("cannot update the responses that a restart interrupted")]
    Recover(#[source] Refusal),
    /// The first team, key and token could not be created or stored.
    #[error("cannot write the first key and the admin token")]
    Bootstrap(#[source] Refusal),
}

/// A server that listens but does not serve yet.
pub struct Server {
    listener: TcpListener,
    engine: Engine,
    agent: Agent,
    gateway: GatewayConfig,
    address: SocketAddr,
    bootstrap: Option<BootstrapFile>,
}

impl Server {
    /// Listens, makes the first key, and ends the responses that a restart cut short.
    ///
    /// # Errors
    /// When any of it cannot be done.
    pub async fn open(options: ServerOptions, engine: Engine) -> Result<Self, ServerOpenError> {
        let cannot = |source| ServerOpenError::Listen { address: options.listen.clone(), source };
        let listener = TcpListener::bind(&options.listen).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let scheme = url_scheme(&options.gateway);
        let url = format!("{scheme}://{}", loopback_if_unspecified(address));
        let bootstrap = engine
            .tenancy()
            .ensure_bootstrap(&options.data_dir, &url)
            .await
            .map_err(ServerOpenError::Bootstrap)?;
        let agent = Agent::new(engine.clone(), AgentConfig::default())?;
        agent.recover_responses().await.map_err(ServerOpenError::Recover)?;
        Ok(Self { listener, engine, agent, gateway: options.gateway, address, bootstrap })
    }

    /// Sets the model providers; without them the Agent API has no models.
    ///
    /// # Errors
    /// When a provider's client cannot be created.
    pub fn with_agent(mut self, config: AgentConfig) -> Result<Self, ServerOpenError> {
        self.agent = Agent::new(self.engine.clone(), config)?;
        Ok(self)
    }

    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `https` if the port has a certificate, else `http`.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        url_scheme(&self.gateway)
    }

    /// The address, the key and the token, unless the bootstrap file was removed.
    #[must_use]
    pub fn bootstrap(&self) -> Option<&BootstrapFile> {
        self.bootstrap.as_ref()
    }

    /// The engine, for entry points that are opened elsewhere.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Serves until `shutdown` is cancelled and everything has ended.
    ///
    /// # Errors
    /// When the listener has no address.
    pub async fn run(self, shutdown: CancellationToken) -> io::Result<()> {
        serve_api(self.listener, (self.engine, self.agent), self.gateway, shutdown).await
    }
}

fn url_scheme(config: &GatewayConfig) -> &'static str {
    if config.tls.is_some() { "https" } else { "http" }
}

/// The address that a client on this machine can use.
fn loopback_if_unspecified(address: SocketAddr) -> SocketAddr {
    let mut reachable = address;
    if address.ip().is_unspecified() {
        reachable.set_ip(match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    reachable
}
