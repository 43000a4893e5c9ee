//! Runs in: server (no capabilities).
//!
//! The wire protocol of registries, as far as a pull needs it. Everything that a registry sends is
//! bounded, redirects are followed only to addresses that are allowed, and passwords go only to
//! hosts that belong to the registry.

mod auth;
mod download;
mod requests;

use std::{
    collections::HashMap,
    error::Error,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use cloche_model::{ImageName, Secret};
use parking_lot::Mutex;
use reqwest::{Client, header::HeaderValue};
use url::{Host, Url};

use crate::ImageError;
use auth::AuthChallenge;
pub(crate) use download::PartialDir;

/// How long a name may take to resolve.
const RESOLVE: Duration = Duration::from_secs(5);
/// The registry whose API has another host than its name.
const DOCKER: &str = "docker.io";
const DOCKER_API: &str = "registry-1.docker.io";

/// Makes the HTTP clients of pulls, and knows which addresses are public.
pub trait ClientSource: Send + Sync {
    /// A client that connects to these addresses and no other, follows no redirect and uses no
    /// proxy.
    ///
    /// # Errors
    /// If the authorities cannot be read.
    fn make_client(&self, target: &ClientTarget) -> Result<Client, Box<dyn Error + Send + Sync>>;
    /// Whether an address belongs to the public internet.
    fn is_public(&self, address: IpAddr) -> bool;
}

/// Where a client connects to.
#[derive(Clone, Debug)]
pub struct ClientTarget {
    /// The host name.
    pub host: String,
    /// Its addresses.
    pub addresses: Vec<SocketAddr>,
    /// Further authorities for its certificate, as PEM.
    pub authorities: Option<String>,
}

/// How to reach a registry.
#[derive(Clone, Debug)]
pub struct RegistryAccess {
    /// The account. Without one the pull is anonymous.
    pub credentials: Option<RegistryCredentials>,
    /// Further authorities for the registry's certificate, as PEM.
    pub authorities: Option<String>,
    /// Whether to use plain HTTP. Only for a registry on this host.
    pub plain_http: bool,
    /// Further hosts that may see the password, because the registry's tokens come from there.
    pub auth_hosts: Vec<String>,
    /// The pause before the first retry. It doubles with each.
    pub retry_pause: Duration,
    /// How long a connection may be silent.
    pub stall: Duration,
}

impl Default for RegistryAccess {
    fn default() -> Self {
        Self {
            credentials: None,
            authorities: None,
            plain_http: false,
            auth_hosts: Vec::new(),
            retry_pause: Duration::from_millis(500),
            stall: Duration::from_secs(30),
        }
    }
}

/// An account of a registry.
#[derive(Clone, Debug)]
pub enum RegistryCredentials {
    /// A name and a password.
    Password {
        /// The name.
        username: String,
        /// The password.
        password: Secret,
    },
    /// A token that is exchanged for others.
    IdentityToken(Secret),
}

/// One repository of a registry.
pub(crate) struct RegistryClient {
    source: Arc<dyn ClientSource>,
    access: RegistryAccess,
    repository: String,
    base: Url,
    /// Whether the registry has an address that is not public. Its redirects may then lead to such
    /// addresses too.
    internal: bool,
    clients: Mutex<HashMap<String, Client>>,
    authorization: Mutex<Option<HeaderValue>>,
    challenge: Mutex<Option<AuthChallenge>>,
}

impl RegistryClient {
    /// Resolves the registry's name and checks that it may be used like this.
    pub(crate) async fn connect(
        source: Arc<dyn ClientSource>,
        access: RegistryAccess,
        name: &ImageName,
    ) -> Result<Self, ImageError> {
        let host = if name.registry() == DOCKER { DOCKER_API } else { name.registry() };
        let scheme = if access.plain_http { "http" } else { "https" };
        let base = Url::parse(&format!("{scheme}://{host}/v2/"));
        let base = base.map_err(|_| ImageError::invalid("the registry is not a host name"))?;
        let addresses = resolve_host(&base).await?;
        if access.plain_http && !addresses.iter().all(|address| address.ip().is_loopback()) {
            return Err(ImageError::invalid(format!(
                "plain HTTP is only for a registry on this host, and {host} is not"
            )));
        }
        let internal = addresses.iter().any(|address| !source.is_public(address.ip()));
        let client = Self {
            source,
            access,
            repository: name.repository().to_owned(),
            base: base.clone(),
            internal,
            clients: Mutex::default(),
            authorization: Mutex::default(),
            challenge: Mutex::default(),
        };
        client.add_client(&base, addresses)?;
        Ok(client)
    }

    fn add_client(&self, url: &Url, addresses: Vec<SocketAddr>) -> Result<Client, ImageError> {
        let host = url.host_str().unwrap_or_default().to_owned();
        let authorities = self.access.authorities.clone();
        let target = ClientTarget { host, addresses, authorities };
        let client = self.source.make_client(&target).map_err(|error| {
            ImageError::invalid(format!("the registry's authorities cannot be used: {error}"))
        })?;
        self.clients.lock().insert(host_key(url), client.clone());
        Ok(client)
    }

    /// A client for a URL that the registry named. It must use TLS, unless the registry itself does
    /// not, and must not lead from the public internet to an internal address.
    async fn client_for(&self, url: &Url) -> Result<Client, ImageError> {
        if let Some(client) = self.clients.lock().get(&host_key(url)) {
            return Ok(client.clone());
        }
        let host = url.host_str().unwrap_or_default();
        let addresses = resolve_host(url).await?;
        let inside = addresses.iter().find(|address| !self.source.is_public(address.ip()));
        if let Some(address) = inside.filter(|_| !self.internal) {
            return Err(ImageError::Registry(format!(
                "the registry leads to the internal address {}, which is not followed",
                address.ip()
            )));
        }
        let local = addresses.iter().all(|address| address.ip().is_loopback());
        let plain = url.scheme() == "http" && self.access.plain_http && local;
        if url.scheme() != "https" && !plain {
            return Err(ImageError::Registry(format!(
                "the registry leads to {host} without TLS, which is not followed"
            )));
        }
        self.add_client(url, addresses)
    }

    /// The name of the registry, for messages.
    fn host(&self) -> &str {
        self.base.host_str().unwrap_or_default()
    }
}

/// Scheme, host and port: what a client is made for.
fn host_key(url: &Url) -> String {
    url.origin().ascii_serialization()
}

async fn resolve_host(url: &Url) -> Result<Vec<SocketAddr>, ImageError> {
    let port = url.port_or_known_default().unwrap_or(443);
    let addresses: Vec<SocketAddr> = match url.host() {
        Some(Host::Ipv4(ip)) => vec![(ip, port).into()],
        Some(Host::Ipv6(ip)) => vec![(ip, port).into()],
        Some(Host::Domain(name)) => {
            let lookup = tokio::time::timeout(RESOLVE, tokio::net::lookup_host((name, port)));
            let unresolved =
                |why: String| ImageError::Registry(format!("cannot resolve {name}: {why}"));
            let found = lookup.await.map_err(|_| unresolved("it took too long".to_owned()))?;
            found.map_err(|error| unresolved(error.to_string()))?.collect()
        }
        None => Vec::new(),
    };
    if addresses.is_empty() {
        return Err(ImageError::Registry("the registry has no address".to_owned()));
    }
    Ok(addresses)
}
