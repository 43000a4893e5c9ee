//! Runs in: network broker (no capabilities).
//!
//! Adds brokered credentials to the requests of a cell. It terminates the TLS of the cell for hosts
//! with a bound credential, checks every request, adds the credential, sends the request over a
//! verified TLS connection of its own, and removes the credential from the reply.
//!
//! It knows TLS, HTTP and credentials. It does not know packets, names or addresses: the broker
//! decides where a connection goes and dials it.
//!
//! The order of a connection is one screen, in `connection.rs`: read the ClientHello, connect and
//! verify upstream, answer the cell with the protocol that upstream chose, then request by request.

mod authority;
mod connection;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod path;
mod redacted_body;
mod redaction;
mod refusal;
mod request;
mod rules;
mod upstream;

use std::sync::Arc;

use cloche_model::BrokeredCredential;
use rustls::RootCertStore;
use tokio::io::{AsyncRead, AsyncWrite};

use authority::SessionAuthority;
use rules::SessionRules;

pub use connection::InterceptedConnection;

/// Why nothing can be intercepted.
#[derive(Debug, thiserror::Error)]
pub enum InterceptionError {
    /// A certificate could not be made.
    #[error("a certificate for a host with a credential could not be made")]
    Certificate(#[from] rcgen::Error),
    /// TLS settings were refused.
    #[error("the TLS settings for a host with a credential were refused")]
    Tls(#[from] rustls::Error),
    /// The credential cannot be looked for in replies.
    #[error("a credential cannot be looked for in replies")]
    Redaction(#[from] aho_corasick::BuildError),
    /// The same, when its forms were ready to be read.
    #[error("a credential cannot be looked for in replies")]
    Search(#[from] aho_corasick::MatchError),
}

/// The interception of one run: its credentials, and a certificate authority that only its cell
/// trusts. The private key is in this process only and ends with the run.
pub struct Interceptor {
    rules: SessionRules,
    authority: SessionAuthority,
    upstream: Arc<rustls::ClientConfig>,
}

impl Interceptor {
    /// The interception for these credentials. `roots` are what upstream certificates are verified
    /// with; nothing turns that off.
    ///
    /// # Errors
    /// If no certificate authority can be made.
    pub fn new(
        credentials: &[BrokeredCredential],
        roots: Arc<RootCertStore>,
    ) -> Result<Self, InterceptionError> {
        let rules = SessionRules::new(credentials)?;
        let authority = SessionAuthority::generate(rules.host_names())?;
        Ok(Self { rules, authority, upstream: upstream::client_config(roots)? })
    }

    /// Whether connections to this host and port are intercepted. `host` is in lower case.
    #[must_use]
    pub fn is_bound(&self, host: &str, port: u16) -> bool {
        self.rules.find_host(host, port).is_some()
    }

    /// The certificate of the authority, for the cell to trust, in PEM.
    #[must_use]
    pub fn authority_pem(&self) -> &str {
        self.authority.certificate_pem()
    }

    /// Serves a connection of the cell until it ends. `cell` begins with the ClientHello. `server`
    /// is a connection to the address that the cell asked for, which the broker has vetted. `host`
    /// is the name that the ClientHello showed, and `port` where the cell connected to.
    ///
    /// Nothing is sent to `server` unless `host` and `port` are bound, and no credential before its
    /// certificate was verified for `host`.
    pub async fn serve<C, S>(
        self: &Arc<Self>,
        cell: C,
        server: S,
        host: &str,
        port: u16,
    ) -> InterceptedConnection
    where
        C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        connection::serve_connection(Arc::clone(self), (cell, server), host, port).await
    }
}

impl std::fmt::Debug for Interceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interceptor").field("hosts", &self.rules.host_names()).finish()
    }
}
