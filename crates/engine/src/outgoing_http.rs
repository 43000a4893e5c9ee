//! Runs in: server (no capabilities), and the commands that ask a server.
//!
//! The one HTTP client behind every outgoing request: webhooks, sidecars, models, and the command
//! line. It follows no redirect, uses no proxy and trusts the certificates of this host.

use std::{
    path::Path,
    sync::{Arc, OnceLock},
};

use reqwest::{Client, ClientBuilder, redirect::Policy};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};

/// Why outgoing requests cannot be made at all.
#[derive(Debug, thiserror::Error)]
pub enum OutgoingHttpError {
    /// The file with further authorities cannot be read.
    #[error("cannot read the certificates in {path}")]
    Authorities {
        /// Which file.
        path: String,
        /// Why.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// The TLS library does not accept its own settings.
    #[error("cannot prepare TLS")]
    Tls(#[source] rustls::Error),
    /// The client could not be made.
    #[error("cannot prepare an HTTP client")]
    Client(#[from] reqwest::Error),
}

/// A builder of clients with our settings, which trust the certificates of this host.
///
/// # Errors
/// If the TLS library does not accept its settings.
pub fn client_builder() -> Result<ClientBuilder, OutgoingHttpError> {
    Ok(builder_with_tls(tls_settings(None)?))
}

/// The same, which also trust the certificates in a PEM file.
///
/// # Errors
/// If the file cannot be read, or the TLS library does not accept its settings.
pub fn client_builder_trusting(
    extra_ca: Option<&Path>,
) -> Result<ClientBuilder, OutgoingHttpError> {
    Ok(builder_with_tls(tls_settings(extra_ca)?))
}

/// The same, which also trusts the authorities in this PEM text.
///
/// # Errors
/// If the text has no certificate, or the TLS library does not accept its settings.
pub(crate) fn builder_trusting(pem: Option<&[u8]>) -> Result<ClientBuilder, OutgoingHttpError> {
    let mut roots = native_roots().clone();
    if let Some(pem) = pem {
        let unreadable = |source| OutgoingHttpError::Authorities {
            path: "the given authorities".to_owned(),
            source,
        };
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let certificates = certificates.map_err(unreadable)?;
        if certificates.is_empty() {
            return Err(unreadable(rustls::pki_types::pem::Error::NoItemsFound));
        }
        roots.add_parsable_certificates(certificates);
    }
    Ok(builder_with_tls(settings_with_roots(roots)?))
}

/// The same, with TLS settings that were made before.
pub(crate) fn builder_with_tls(tls: ClientConfig) -> ClientBuilder {
    Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(Policy::none())
        .no_proxy()
        .user_agent(concat!("cloche/", env!("CARGO_PKG_VERSION")))
}

/// TLS settings: the certificates that this host trusts, and those in the file `extra_ca`.
pub(crate) fn tls_settings(extra_ca: Option<&Path>) -> Result<ClientConfig, OutgoingHttpError> {
    let mut roots = native_roots().clone();
    if let Some(path) = extra_ca {
        let unreadable =
            |source| OutgoingHttpError::Authorities { path: path.display().to_string(), source };
        let certificates = CertificateDer::pem_file_iter(path).map_err(unreadable)?;
        let certificates: Result<Vec<_>, _> = certificates.collect();
        roots.add_parsable_certificates(certificates.map_err(unreadable)?);
    }
    settings_with_roots(roots)
}

fn settings_with_roots(roots: RootCertStore) -> Result<ClientConfig, OutgoingHttpError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let settings = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(OutgoingHttpError::Tls)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(settings)
}

/// The certificates that this host trusts, read once.
fn native_roots() -> &'static RootCertStore {
    static ROOTS: OnceLock<RootCertStore> = OnceLock::new();
    ROOTS.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots
    })
}
