//! Runs in: server (no capabilities).
//!
//! One HTTPS request to a checked address: no redirects, bounded time, bounded answer.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use cloche_model::Secret;
use hmac::{Hmac, Mac};
use http_body_util::{BodyExt, Limited};
use hyper::{Request, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use sha2::Sha256;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use url::{Host, Url};

use super::address_guard::AddressGuard;
use crate::{JsonPieces, WebhookConfig, json_pieces::MeasuredJson};

/// The most of an answer that is read; only its status matters.
const ANSWER: usize = 64 << 10;

/// Why webhooks cannot be sent at all.
#[derive(Debug, thiserror::Error)]
pub enum WebhookSetupError {
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
}

/// What is sent.
pub(super) struct WebhookDelivery {
    pub(super) url: Url,
    pub(super) body: JsonPieces,
    pub(super) secret: Option<Secret>,
}

/// Sends deliveries.
pub(super) struct WebhookClient {
    tls: TlsConnector,
    timeout: Duration,
}

impl WebhookClient {
    pub(super) fn new(config: &WebhookConfig) -> Result<Self, WebhookSetupError> {
        let mut roots = RootCertStore::empty();
        let native = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(native.certs);
        if let Some(path) = &config.extra_ca {
            let unreadable = |source| WebhookSetupError::Authorities {
                path: path.display().to_string(),
                source,
            };
            let certificates = CertificateDer::pem_file_iter(path).map_err(unreadable)?;
            let certificates: Result<Vec<_>, _> = certificates.collect();
            roots.add_parsable_certificates(certificates.map_err(unreadable)?);
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(WebhookSetupError::Tls)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { tls: TlsConnector::from(Arc::new(tls)), timeout: config.timeout })
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sends it; the error is a sentence.
    pub(super) async fn send(
        &self,
        guard: &AddressGuard,
        delivery: WebhookDelivery,
    ) -> Result<(), String> {
        match tokio::time::timeout(self.timeout, self.post_delivery(guard, delivery)).await {
            Ok(result) => result,
            Err(_) => Err(format!("no answer within {} s", self.timeout.as_secs())),
        }
    }

    async fn post_delivery(
        &self,
        guard: &AddressGuard,
        delivery: WebhookDelivery,
    ) -> Result<(), String> {
        let addresses =
            guard.resolve_allowed(&delivery.url).await.map_err(|error| error.to_string())?;
        let stream =
            self.connect_tls(&delivery.url, &addresses).await.map_err(|e| e.to_string())?;
        let (mut requests, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        // The body is gone through once before it is sent: that takes a while if it is large.
        let prepared = tokio::task::spawn_blocking(move || build_request(delivery)).await;
        let request = prepared.map_err(|error| error.to_string())??;
        let answer = async {
            let answer = requests.send_request(request).await.map_err(|error| error.to_string())?;
            let status = answer.status();
            // Read, so that a receiver that writes before it closes is not cut off; never kept.
            let _ = Limited::new(answer.into_body(), ANSWER).collect().await;
            if status.is_success() {
                Ok(())
            } else {
                Err(format!("the receiver answered {status}"))
            }
        };
        tokio::pin!(answer);
        tokio::select! {
            result = &mut answer => result,
            closed = connection => match closed {
                // The answer may have come in whole just before the connection ended.
                Ok(()) => answer.await,
                Err(error) => Err(error.to_string()),
            },
        }
    }

    /// Connects to one of these addresses and no other; the certificate must be for the host.
    async fn connect_tls(
        &self,
        url: &Url,
        addresses: &[SocketAddr],
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = match url.host() {
            Some(Host::Domain(name)) => {
                ServerName::try_from(name.to_owned()).map_err(io::Error::other)?
            }
            Some(Host::Ipv4(ip)) => ServerName::IpAddress(std::net::IpAddr::V4(ip).into()),
            Some(Host::Ipv6(ip)) => ServerName::IpAddress(std::net::IpAddr::V6(ip).into()),
            None => return Err(io::Error::other("the URL has no host")),
        };
        let mut last = io::Error::other("the host has no address");
        for address in addresses {
            match TcpStream::connect(address).await {
                Ok(stream) => return self.tls.connect(name, stream).await,
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

fn build_request(delivery: WebhookDelivery) -> Result<Request<MeasuredJson>, String> {
    let WebhookDelivery { url, body, secret } = delivery;
    let host = url.host_str().unwrap_or_default();
    let host = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    let target = url
        .query()
        .map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
    let mut request = Request::post(target)
        .header(header::HOST, host)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::USER_AGENT, concat!("cloche/", env!("CARGO_PKG_VERSION")));
    let (length, signature) = measure_and_sign(secret.as_ref(), body.clone())?;
    if let Some(signature) = signature {
        request = request.header("x-baponi-signature", signature);
    }
    request.body(MeasuredJson { pieces: body, left: length }).map_err(|error| error.to_string())
}

/// The length of a body, and its signature if there is a secret: `sha256=` and the HMAC-SHA256 of the
/// raw body, in hex.
fn measure_and_sign(
    secret: Option<&Secret>,
    mut body: JsonPieces,
) -> Result<(u64, Option<String>), String> {
    let mac = secret.map(|secret| Hmac::<Sha256>::new_from_slice(secret.reveal().as_bytes()));
    let mut mac = mac.transpose().map_err(|error| error.to_string())?;
    let mut length = 0;
    while let Some(chunk) = body.next_chunk() {
        length += chunk.len() as u64;
        if let Some(mac) = &mut mac {
            mac.update(&chunk);
        }
    }
    let signed = |mac: Hmac<Sha256>| format!("sha256={}", hex::encode(mac.finalize().into_bytes()));
    Ok((length, mac.map(signed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_hmac_sha256_of_the_body() {
        // The digest of the same by `openssl dgst -sha256 -hmac Jefe`.
        let body = JsonPieces::from_value(&"what do ya want for nothing?", &[]);
        let (length, signature) = measure_and_sign(Some(&Secret::new("Jefe")), body).unwrap();
        assert_eq!(length, 30);
        assert_eq!(
            signature.unwrap(),
            "sha256=6e5c2a18febccaca669ac5f4415342714850e76ba86824a3371270e6dd69956f"
        );
    }
}
