//! Runs in: server (no capabilities).
//!
//! One connection, HTTP/1.1 or HTTP/2, with a timeout for every wait for its client: for its next
//! request, and for reading a response. Knows no route.

mod own_wakes;
mod stall;
mod watch;

use std::{convert::Infallible, pin::pin, sync::Arc};

use axum::{Router, body::Body, extract::Request};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::{GatewayConfig, client_address::PeerAddress, server_timing::RequestArrival};
pub(crate) use own_wakes::absorb_own_wakes;
use stall::StallGuard;
use watch::{ConnectionTimeout, ConnectionWatch, WatchedBody};

/// The interval of HTTP/2 pings, and the timeout for their replies.
const PING_INTERVAL: std::time::Duration = std::time::Duration::from_secs(20);
/// The limit on concurrent requests of one HTTP/2 connection.
const MAX_STREAMS: u32 = 100;
/// The limit on bytes of all headers of a request.
const MAX_HEADER_BYTES: u32 = 64 << 10;
/// How many bytes a client may send ahead, on a stream and on a connection.
const RECEIVE_WINDOWS: (u32, u32) = (256 << 10, 1 << 20);
/// How many bytes of a response are buffered for a stream's client.
const SEND_BUFFER: usize = 64 << 10;
/// How many streams a client may open and reset before they are accepted.
const MAX_PENDING_RESETS: usize = 20;

/// Serves a connection until it ends, a timeout of its client is reached, or `shutdown` is
/// cancelled.
pub(crate) async fn serve_connection(
    (stream, peer): (impl AsyncRead + AsyncWrite + Unpin + Send + 'static, PeerAddress),
    app: Router,
    config: &GatewayConfig,
    shutdown: CancellationToken,
) {
    let watch = Arc::new(ConnectionWatch::new());
    let watching = Arc::clone(&watch);
    let service = service_fn(move |mut request: Request<Incoming>| {
        RequestArrival::note(request.extensions_mut());
        request.extensions_mut().insert(peer);
        let (app, request_guard) = (app.clone(), watching.begin_request());
        async move {
            let Ok(response) = app.oneshot(request.map(Body::new)).await;
            Ok::<_, Infallible>(response.map(|body| WatchedBody::new(body, request_guard)))
        }
    });
    let builder = connection_builder(config);
    let io = TokioIo::new(StallGuard::new(stream, config.write_timeout));
    let mut connection = pin!(builder.serve_connection(io, service));
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => Some(ended),
                _ = watch.wait_for_timeout(config) => None,
            }
        }
        silence = watch.wait_for_timeout(config) => {
            // A client that does not read would not receive a GOAWAY either.
            if silence == ConnectionTimeout::Idle {
                connection.as_mut().graceful_shutdown();
                let _ = timeout(config.linger, connection.as_mut()).await;
            }
            tracing::debug!(?silence, "closing a connection after a timeout");
            None
        }
    };
    if let Some(Err(error)) = ended {
        tracing::debug!(%error, "a connection ended with an error");
    }
}

/// Configures both protocols. These settings bound floods of CONTINUATION frames and of resets:
/// headers are counted while they arrive, and a connection with too many resets is closed.
fn connection_builder(config: &GatewayConfig) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(config.header_timeout)
        .max_buf_size(MAX_HEADER_BYTES as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES)
        .initial_stream_window_size(RECEIVE_WINDOWS.0)
        .initial_connection_window_size(RECEIVE_WINDOWS.1)
        .max_send_buf_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS);
    builder
}
