//! Runs in: broker (no capabilities).
//!
//! TLS of a cell to a host with a credential: which connections it is, and how they are served. The
//! crate `interception` does the rest.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Instant,
};

use cloche_interception::Interceptor;
use cloche_model::{BrokeredCredential, HostName};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use tokio::net::{TcpStream, UnixStream};

use super::session::Session;
use crate::SessionCredential;

/// What upstream certificates are verified with: the authorities of this host, read once, and those
/// of the operator.
fn upstream_roots(operator: &str) -> Arc<RootCertStore> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let load = || {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let own = CertificateDer::pem_slice_iter(operator.as_bytes()).filter_map(Result::ok);
        roots.add_parsable_certificates(own);
        Arc::new(roots)
    };
    Arc::clone(ROOTS.get_or_init(load))
}

/// The interception of a session; `None` if it has no credentials.
///
/// # Errors
/// If it cannot be made. The session must not be opened then.
pub(super) fn make_interceptor(
    credentials: Vec<SessionCredential>,
    operator_authorities: &str,
) -> io::Result<Option<Arc<Interceptor>>> {
    if credentials.is_empty() {
        return Ok(None);
    }
    let credentials: Vec<_> = credentials.into_iter().map(BrokeredCredential::from).collect();
    let made = Interceptor::new(&credentials, upstream_roots(operator_authorities));
    made.map(|made| Some(Arc::new(made))).map_err(io::Error::other)
}

impl Session {
    /// Whether connections with this name to this port are intercepted.
    pub(super) fn is_bound(&self, name: &HostName, port: u16) -> bool {
        let is_bound = |made: &Arc<Interceptor>| made.is_bound(name.as_str(), port);
        self.interceptor.as_ref().is_some_and(is_bound)
    }

    /// The names with a credential that this address was resolved for. A connection to it has to
    /// show its name first, whatever else the policy allows.
    pub(super) fn bound_names(&self, remote: SocketAddr) -> Vec<HostName> {
        if self.interceptor.is_none() {
            return Vec::new();
        }
        let mut names = self.lock().pins.names_of(remote.ip(), Instant::now());
        names.retain(|name| self.is_bound(name, remote.port()));
        names
    }

    /// Serves a connection to a host with a credential until it ends. `guest` has all bytes of the
    /// guest from the first on: the name is read again there, because the worker is not trusted.
    pub(super) async fn intercept(
        &self,
        (guest, upstream): (UnixStream, TcpStream),
        name: &HostName,
        port: u16,
    ) {
        let Some(interceptor) = &self.interceptor else { return };
        let served = interceptor.serve(guest, upstream, name.as_str(), port).await;
        if let Some(failure) = served.failure {
            tracing::info!(%name, port, failure, "a connection with a credential was not served");
        }
    }
}
