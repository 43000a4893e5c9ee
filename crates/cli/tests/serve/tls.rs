//! A listener with a certificate of its own authority, and one request read from a stream.

use std::sync::Arc;

use tokio::{
    io::{AsyncRead, AsyncReadExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer},
    server::TlsStream,
};

pub(crate) struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    /// Its certificate authority.
    pub(crate) pem: String,
}

impl TlsListener {
    pub(crate) async fn bind() -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let tls = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { listener, acceptor: TlsAcceptor::from(Arc::new(tls)), pem: made.cert.pem() }
    }

    pub(crate) fn url(&self) -> String {
        format!("https://localhost:{}", self.listener.local_addr().unwrap().port())
    }

    /// The next connection with a complete handshake.
    pub(crate) async fn accept(&self) -> TlsStream<TcpStream> {
        loop {
            let (stream, _) = self.listener.accept().await.unwrap();
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return stream;
            }
        }
    }
}

/// One request: its head in lower case, and its body. `None` if the stream ends before.
pub(crate) async fn read_request(
    stream: &mut (impl AsyncRead + Unpin),
) -> Option<(String, Vec<u8>)> {
    let mut seen = Vec::new();
    loop {
        let mut buffer = [0; 4096];
        let Ok(length @ 1..) = stream.read(&mut buffer).await else { return None };
        seen.extend_from_slice(&buffer[..length]);
        let Some(end) = seen.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&seen[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |length| length.parse().unwrap());
        if seen.len() >= end + 4 + length {
            return Some((head, seen[end + 4..].to_vec()));
        }
    }
}
