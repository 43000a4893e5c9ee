//! Runs in: network broker (no capabilities).
//!
//! One intercepted connection of a cell, from its ClientHello to its end.

use std::{
    convert::Infallible,
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::{
    Request, Response,
    body::Incoming,
    header::{CONNECTION, HeaderValue},
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::server::Acceptor;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};

use crate::{
    Interceptor,
    authority::ChosenProtocol,
    redacted_body::RedactedBody,
    redaction::SecretForms,
    refusal::RequestRefusal,
    request::{prepare_request, prepare_response},
    rules::BoundHost,
    upstream::{self, ProtocolOffer, UpstreamSender},
};

/// How long both handshakes may take together.
const HANDSHAKE: Duration = Duration::from_secs(15);
/// How long the head of a request may take, and so how long a connection may be idle.
const HEAD: Duration = Duration::from_secs(120);
/// How long replies may go on after the server has closed the connection.
const LAST_REPLIES: Duration = Duration::from_secs(30);
/// The most bytes of the head of a request.
const HEAD_BYTES: usize = 64 << 10;
/// The most requests at once on one connection.
const STREAMS: u32 = 64;
/// How much of the bodies of requests a cell may send ahead on one connection.
const CELL_WINDOW: u32 = 256 << 10;
/// How much of one body waits for a receiver that does not read, in either direction. The library's
/// own limits are so high that one connection could take 25 MB, and a cell has 256 connections.
pub(crate) const SEND_BUFFER: usize = 16 << 10;

/// What became of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterceptedConnection {
    /// The requests that were sent on.
    pub requests: u64,
    /// Those of them that had a credential added.
    pub with_credential: u64,
    /// The requests that were refused, and the replies that were dropped.
    pub refused: u64,
    /// Why the connection ended before its first request.
    pub failure: Option<String>,
}

type ReplyBody = Either<RedactedBody, Full<Bytes>>;

/// What the requests of a connection share.
struct ConnectionContext {
    host: BoundHost,
    forms: Arc<SecretForms>,
    /// `None` if the server could not be reached or verified.
    upstream: Option<UpstreamSender>,
    requests: AtomicU64,
    with_credential: AtomicU64,
    refused: AtomicU64,
}

pub(crate) async fn serve_connection<C, S>(
    interceptor: Arc<Interceptor>,
    (cell, server): (C, S),
    host: &str,
    port: u16,
) -> InterceptedConnection
where
    C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    match try_serve(&interceptor, (cell, server), host, port).await {
        Ok(context) => InterceptedConnection {
            requests: context.requests.load(Ordering::Relaxed),
            with_credential: context.with_credential.load(Ordering::Relaxed),
            refused: context.refused.load(Ordering::Relaxed),
            failure: None,
        },
        Err(error) => InterceptedConnection {
            failure: Some(error.to_string()),
            ..InterceptedConnection::default()
        },
    }
}

async fn try_serve<C, S>(
    interceptor: &Interceptor,
    (cell, server): (C, S),
    host: &str,
    port: u16,
) -> io::Result<Arc<ConnectionContext>>
where
    C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let deadline = Instant::now() + HANDSHAKE;
    let bound = interceptor.rules.find_host(host, port);
    let bound = bound.ok_or_else(|| io::Error::other("the host has no credential"))?.clone();
    let accepted = LazyConfigAcceptor::new(Acceptor::default(), cell);
    let start = timeout_at(deadline, accepted).await.map_err(|_| slow("the client"))??;
    let hello = start.client_hello();
    let offer = ProtocolOffer::read(hello.alpn());
    if !hello.server_name().is_some_and(|name| name.eq_ignore_ascii_case(host)) {
        return Err(io::Error::other("the client names another host in its handshake"));
    }
    if !offer.is_usable() {
        return Err(io::Error::other("the client offers neither HTTP/1.1 nor HTTP/2"));
    }
    let connected = upstream::connect(&interceptor.upstream, server, host, offer);
    let connected = timeout_at(deadline, connected).await;
    let connected = connected.map_err(|_| slow("the server")).and_then(|connected| connected);
    let (protocol, sender, driver) = match connected {
        Ok(upstream) => (upstream.protocol, Some(upstream.sender), Some(upstream.driver)),
        Err(error) => {
            tracing::debug!(%error, host, port, "the host of a credential is not verified");
            (offer.fallback(), None, None)
        }
    };
    let driver = AbortOnDrop(driver);
    let config = interceptor.authority.server_config(host, protocol).map_err(io::Error::other)?;
    let stream = timeout_at(deadline, start.into_stream(config)).await;
    let stream = stream.map_err(|_| slow("the client"))?.map_err(rejected)?;
    let context = Arc::new(ConnectionContext {
        host: bound,
        forms: Arc::clone(&interceptor.rules.forms),
        upstream: sender,
        requests: AtomicU64::new(0),
        with_credential: AtomicU64::new(0),
        refused: AtomicU64::new(0),
    });
    match protocol {
        ChosenProtocol::Http1 => serve_http1(stream, Arc::clone(&context), driver).await,
        ChosenProtocol::Http2 => serve_http2(stream, Arc::clone(&context), driver).await,
    }
    Ok(context)
}

fn slow(side: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("{side} did not finish its handshake in time"))
}

fn rejected(error: io::Error) -> io::Error {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::AlertReceived(alert)) => {
            io::Error::other(format!("the client rejected our certificate: {alert:?}"))
        }
        _ => error,
    }
}

/// The task of an upstream connection, which ends with the connection of the cell.
struct AbortOnDrop(Option<JoinHandle<()>>);

impl AbortOnDrop {
    /// Completes when the server has closed the connection.
    async fn closed(&mut self) {
        match &mut self.0 {
            Some(driver) => drop(driver.await),
            None => std::future::pending().await,
        }
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        if let Some(driver) = &self.0 {
            driver.abort();
        }
    }
}

async fn serve_http1<C>(
    stream: TlsStream<C>,
    context: Arc<ConnectionContext>,
    mut driver: AbortOnDrop,
) where
    C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = service_fn(move |request| answer(Arc::clone(&context), request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => note_end(ended),
        () = driver.closed() => {
            // The reply under way may go on; the next request needs a new connection.
            connection.as_mut().graceful_shutdown();
            if let Ok(ended) = timeout(LAST_REPLIES, connection).await {
                note_end(ended);
            }
        }
    }
}

async fn serve_http2<C>(
    stream: TlsStream<C>,
    context: Arc<ConnectionContext>,
    mut driver: AbortOnDrop,
) where
    C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = service_fn(move |request| answer(Arc::clone(&context), request));
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(CELL_WINDOW)
        .initial_connection_window_size(CELL_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(HEAD_BYTES as u32)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => note_end(ended),
        () = driver.closed() => {
            connection.as_mut().graceful_shutdown();
            if let Ok(ended) = timeout(LAST_REPLIES, connection).await {
                note_end(ended);
            }
        }
    }
}

fn note_end(ended: Result<(), hyper::Error>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "an intercepted connection failed");
    }
}

async fn answer(
    context: Arc<ConnectionContext>,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Infallible> {
    let is_http1 = request.version() < hyper::Version::HTTP_2;
    let mut response = context.exchange(request).await.unwrap_or_else(|refusal| {
        tracing::debug!(?refusal, "a request to the host of a credential was refused");
        context.refused.fetch_add(1, Ordering::Relaxed);
        refusal.into_response().map(Either::Right)
    });
    if !is_http1 {
        response.headers_mut().remove(CONNECTION);
    }
    Ok(response)
}

impl ConnectionContext {
    async fn exchange(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<ReplyBody>, RequestRefusal> {
        let (mut head, body) = request.into_parts();
        let has_credential = prepare_request(&mut head, &self.host)?;
        let sender = self.upstream.as_ref().ok_or(RequestRefusal::Unverified)?;
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.with_credential.fetch_add(u64::from(has_credential), Ordering::Relaxed);
        let sent = sender.send(Request::from_parts(head, body)).await;
        let (mut head, body) = sent.map_err(|_| RequestRefusal::Lost)?.into_parts();
        let closes = prepare_response(&mut head, &self.forms)?;
        if closes {
            head.headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        head.version = hyper::Version::default();
        let body = RedactedBody::new(body, Arc::clone(&self.forms));
        Ok(Response::from_parts(head, Either::Left(body)))
    }
}
