//! Runs in: network broker (no capabilities).
//!
//! The connection to the server: TLS with a certificate that is valid for the name, then HTTP in
//! the version that the server chooses from the cell's offer. It belongs to one connection of one
//! cell and is never shared.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use hyper::{
    Request, Response,
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Mutex,
    task::JoinHandle,
};
use tokio_rustls::TlsConnector;

use crate::{InterceptionError, authority::ChosenProtocol, connection::SEND_BUFFER};

/// The most bytes of the heads of a reply.
const HEAD_BYTES: usize = 64 << 10;
/// How much a server may send ahead on one stream, and on one connection.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 512 << 10;

/// The settings for verified connections. There are no others.
pub(crate) fn client_config(
    roots: Arc<RootCertStore>,
) -> Result<Arc<ClientConfig>, InterceptionError> {
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// What the cell offered by ALPN, as far as it can be intercepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProtocolOffer {
    http1: bool,
    http2: bool,
    /// Whether there was an offer at all. Without one the protocol is HTTP/1.1.
    is_alpn: bool,
}

impl ProtocolOffer {
    pub(crate) fn read<'a>(names: Option<impl Iterator<Item = &'a [u8]>>) -> Self {
        let Some(names) = names else { return Self { http1: true, http2: false, is_alpn: false } };
        let mut offer = Self { http1: false, http2: false, is_alpn: true };
        for name in names {
            offer.http1 |= name == ChosenProtocol::Http1.alpn();
            offer.http2 |= name == ChosenProtocol::Http2.alpn();
        }
        offer
    }

    /// Whether we can speak anything of it.
    pub(crate) const fn is_usable(self) -> bool {
        self.http1 || self.http2
    }

    /// What a refusal is spoken in, when no server has chosen.
    pub(crate) const fn fallback(self) -> ChosenProtocol {
        if self.http1 { ChosenProtocol::Http1 } else { ChosenProtocol::Http2 }
    }

    fn names(self) -> Vec<Vec<u8>> {
        let http2 = self.http2.then(|| ChosenProtocol::Http2.alpn().to_vec());
        let http1 = self.http1.then(|| ChosenProtocol::Http1.alpn().to_vec());
        if self.is_alpn { http2.into_iter().chain(http1).collect() } else { Vec::new() }
    }
}

/// Sends requests to the server.
pub(crate) enum UpstreamSender {
    Http1(Mutex<http1::SendRequest<Incoming>>),
    Http2(http2::SendRequest<Incoming>),
}

impl UpstreamSender {
    pub(crate) async fn send(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Incoming>, hyper::Error> {
        match self {
            Self::Http1(sender) => {
                let mut sender = sender.lock().await;
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::Http2(sender) => {
                let mut sender = sender.clone();
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }
}

/// A verified connection.
pub(crate) struct Upstream {
    pub(crate) protocol: ChosenProtocol,
    pub(crate) sender: UpstreamSender,
    /// Ends when the server closes the connection.
    pub(crate) driver: JoinHandle<()>,
}

/// Connects. The certificate is verified when this returns, and nothing but the handshake was sent.
pub(crate) async fn connect<S>(
    config: &ClientConfig,
    server: S,
    host: &str,
    offer: ProtocolOffer,
) -> io::Result<Upstream>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut config = config.clone();
    config.alpn_protocols = offer.names();
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let tls = TlsConnector::from(Arc::new(config)).connect(name, server).await?;
    let protocol = match tls.get_ref().1.alpn_protocol() {
        Some(name) if name == ChosenProtocol::Http2.alpn() => ChosenProtocol::Http2,
        // A server without ALPN speaks HTTP/1.1, which the cell must have offered then.
        _ if offer.http1 => ChosenProtocol::Http1,
        _ => return Err(io::Error::other("the server does not speak what the client offered")),
    };
    let io = TokioIo::new(RaggedEnd(tls));
    let (sender, driver) = match protocol {
        ChosenProtocol::Http1 => {
            let (sender, connection) = http1::Builder::new()
                .max_buf_size(HEAD_BYTES)
                .handshake(io)
                .await
                .map_err(io::Error::other)?;
            (UpstreamSender::Http1(Mutex::new(sender)), tokio::spawn(drive(connection)))
        }
        ChosenProtocol::Http2 => {
            let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_send_buf_size(SEND_BUFFER)
                .max_header_list_size(HEAD_BYTES as u32)
                .handshake(io)
                .await
                .map_err(io::Error::other)?;
            (UpstreamSender::Http2(sender), tokio::spawn(drive(connection)))
        }
    };
    Ok(Upstream { protocol, sender, driver })
}

/// A connection whose end is an end, whether the server says so in TLS or just closes. Old servers
/// just close, and clients take it. HTTP knows by itself when a reply with a length, or one in
/// chunks, was cut off.
struct RaggedEnd<T>(T);

impl<T: AsyncRead + Unpin> AsyncRead for RaggedEnd<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.0).poll_read(cx, buffer) {
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Poll::Ready(Ok(()))
            }
            polled => polled,
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for RaggedEnd<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

async fn drive(connection: impl Future<Output = Result<(), hyper::Error>>) {
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection to the host of a credential failed");
    }
}
