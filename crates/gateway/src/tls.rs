//! Runs in: server (no capabilities).
//!
//! TLS of incoming connections: the certificate and key that are served now, which can be replaced
//! while connections are open, and the handshake under a deadline. Knows no file and no route.

use std::{fmt, io, sync::Arc, time::Duration};

use parking_lot::{Mutex, RwLock};
use tokio::{net::TcpStream, time::Instant};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
    server::TlsStream,
};

/// The first byte of a TLS handshake.
const HANDSHAKE_RECORD: u8 = 22;
/// The longest that a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Failed handshakes are logged at most this often.
const LOG_EVERY: Duration = Duration::from_mins(1);

/// The response to a client that speaks plain HTTP.
const PLAIN_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n\
    connection: close\r\ncontent-length: 79\r\n\r\n\
    {\"error\":\"validation_error\",\"message\":\"this port speaks TLS; use an https URL\"}";

/// Why a certificate and its key cannot be served. Never contains a part of the key.
#[derive(Debug, thiserror::Error)]
pub enum TlsIdentityError {
    /// The file of the certificate is not PEM, or has no certificate.
    #[error("the certificate file has no certificate in PEM format")]
    Certificate,
    /// The file of the key is not PEM, or has no key.
    #[error("the key file has no unencrypted private key in PEM format")]
    Key,
    /// The library does not accept the pair, for example because they do not belong together.
    #[error("the certificate and the private key cannot be used together")]
    Pair(#[source] rustls::Error),
}

/// A certificate with its key, served to every new connection until it is replaced.
pub struct TlsIdentity {
    current: RwLock<Arc<ServerConfig>>,
    failures: Mutex<HandshakeFailures>,
}

/// Failed handshakes since the last line in the log.
#[derive(Default)]
struct HandshakeFailures {
    count: u64,
    logged_at: Option<Instant>,
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsIdentity").finish_non_exhaustive()
    }
}

impl TlsIdentity {
    /// From a chain of certificates and a private key, both in PEM format.
    ///
    /// # Errors
    /// When they cannot be served.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, TlsIdentityError> {
        let current = RwLock::new(Arc::new(server_config(certificates, key)?));
        Ok(Self { current, failures: Mutex::default() })
    }

    /// Serves another certificate to new connections. After an error the old one stays.
    ///
    /// # Errors
    /// When the new one cannot be served.
    pub fn replace(&self, certificates: &[u8], key: &[u8]) -> Result<(), TlsIdentityError> {
        let config = Arc::new(server_config(certificates, key)?);
        *self.current.write() = config;
        Ok(())
    }

    /// Completes the handshake of a connection within the deadline. `None` if it failed, which is
    /// in the log.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        patience: Duration,
    ) -> Option<TlsStream<TcpStream>> {
        let patience = patience.min(HANDSHAKE_TIMEOUT);
        match tokio::time::timeout(patience, self.complete_handshake(stream)).await {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => self.note_failure(&error),
            Err(_) => self.note_failure(&io::ErrorKind::TimedOut.into()),
        }
        None
    }

    async fn complete_handshake(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE_RECORD {
            refuse_plain_http(&stream);
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the client does not use TLS"));
        }
        let config = Arc::clone(&self.current.read());
        TlsAcceptor::from(config).accept(stream).await
    }

    /// Logs the first failure, and then the number of failures once a minute.
    fn note_failure(&self, error: &io::Error) {
        let mut failures = self.failures.lock();
        failures.count += 1;
        let is_due = failures.logged_at.is_none_or(|at| at.elapsed() >= LOG_EVERY);
        if is_due {
            let count = std::mem::take(&mut failures.count);
            failures.logged_at = Some(Instant::now());
            tracing::warn!(count, %error, "TLS handshakes failed; more are counted for a minute");
        }
    }
}

fn server_config(certificates: &[u8], key: &[u8]) -> Result<ServerConfig, TlsIdentityError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificates).collect();
    let chain = chain.map_err(|_| TlsIdentityError::Certificate)?;
    if chain.is_empty() {
        return Err(TlsIdentityError::Certificate);
    }
    // The library's error would quote a line of the file.
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| TlsIdentityError::Key)?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
    let mut config = config.map_err(TlsIdentityError::Pair)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Sends the reason if the socket can take it immediately.
fn refuse_plain_http(stream: &TcpStream) {
    // Unread bytes would make the kernel reset the connection, and the response would be lost.
    let mut request = [0; 4096];
    let _ = stream.try_read(&mut request);
    let _ = stream.try_write(PLAIN_HTTP);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_of_plain_http_has_a_correct_content_length() {
        let text = str::from_utf8(PLAIN_HTTP).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
    }

    #[test]
    fn a_bad_pair_is_refused_without_quoting_the_key_and_the_old_one_stays() {
        let made = || rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let (one, other) = (made(), made());
        let (pem, key) = (one.cert.pem(), one.signing_key.serialize_pem());
        let identity = TlsIdentity::from_pem(pem.as_bytes(), key.as_bytes()).unwrap();
        let before = Arc::clone(&identity.current.read());
        let foreign = other.signing_key.serialize_pem();
        let pair = identity.replace(pem.as_bytes(), foreign.as_bytes()).unwrap_err();
        assert!(matches!(pair, TlsIdentityError::Pair(_)), "{pair}");
        let no_key = identity.replace(pem.as_bytes(), b"-----BEGIN secret").unwrap_err();
        assert!(!format!("{no_key:?} {no_key}").contains("secret"), "{no_key}");
        let swapped = identity.replace(key.as_bytes(), pem.as_bytes()).unwrap_err();
        assert!(matches!(swapped, TlsIdentityError::Certificate), "{swapped}");
        assert!(Arc::ptr_eq(&before, &identity.current.read()));
        let fresh = (other.cert.pem(), foreign);
        identity.replace(fresh.0.as_bytes(), fresh.1.as_bytes()).unwrap();
        assert!(!Arc::ptr_eq(&before, &identity.current.read()));
    }
}
