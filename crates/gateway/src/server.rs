//! Connections: accepted, told apart as HTTP/1.1 or HTTP/2, served, and ended without cutting off
//! an answer. Knows no route.

use std::{io, pin::pin, time::Duration};

use axum::{Router, extract::Request};
use cloche_engine::Engine;
use hyper::{body::Incoming, server::conn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use std::sync::Arc;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;

use crate::{GatewayConfig, router::router_until};

/// What a client of HTTP/2 says first.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How often an HTTP/2 connection is asked whether it is still there.
const PING: Duration = Duration::from_secs(20);
/// How long to wait after the system refused a connection, e.g. for want of descriptors.
const PAUSE: Duration = Duration::from_millis(50);

enum Protocol {
    Http1,
    Http2,
}

/// Serves until `shutdown` fires; then takes nothing new, lets executions end within the engine's
/// grace period, and closes.
///
/// # Errors
/// When the listener has no address.
pub async fn serve(
    listener: TcpListener,
    engine: Engine,
    config: GatewayConfig,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let streams = CancellationToken::new();
    let app = router_until(engine.clone(), config.clone(), streams.clone());
    let ending = async move {
        engine.shutdown().await;
        streams.cancel();
    };
    accept(listener, app, config, shutdown, ending).await
}

/// The same for any table of routes; `ending` is what is done between the last connection that is taken
/// and the closing of those there are.
pub(crate) async fn accept(
    listener: TcpListener,
    app: Router,
    config: GatewayConfig,
    shutdown: CancellationToken,
    ending: impl Future<Output = ()>,
) -> io::Result<()> {
    let address = listener.local_addr()?;
    tracing::info!(%address, "serving");
    let connections = TaskTracker::new();
    let places = Arc::new(Semaphore::new(config.connections));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => break,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let (app, shutdown, config) = (app.clone(), shutdown.clone(), config.clone());
        connections.spawn(async move {
            connection(stream, app, &config, shutdown).await;
            drop(place);
        });
    }
    drop(listener);
    ending.await;
    connections.close();
    if tokio::time::timeout(config.linger, connections.wait()).await.is_err() {
        tracing::info!(left = connections.len(), "connections are cut");
    }
    Ok(())
}

async fn connection(
    stream: TcpStream,
    app: Router,
    config: &GatewayConfig,
    shutdown: CancellationToken,
) {
    // Answers are small and awaited; without this they wait for the client's acknowledgement.
    let _ = stream.set_nodelay(true);
    let detected = tokio::select! {
        detected = tokio::time::timeout(config.header_timeout, detect(&stream)) => detected,
        () = shutdown.cancelled() => return,
    };
    let Ok(Ok(protocol)) = detected else { return };
    let service = TowerToHyperService::new(
        app.map_request(|request: Request<Incoming>| request.map(axum::body::Body::new)),
    );
    let stream = TokioIo::new(stream);
    let ended = match protocol {
        Protocol::Http1 => {
            let mut builder = conn::http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(config.header_timeout);
            let mut connection = pin!(builder.serve_connection(stream, service));
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = shutdown.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        }
        Protocol::Http2 => {
            let mut builder = conn::http2::Builder::new(TokioExecutor::new());
            builder.timer(TokioTimer::new()).keep_alive_interval(PING).keep_alive_timeout(PING);
            let mut connection = pin!(builder.serve_connection(stream, service));
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = shutdown.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Looks at the first bytes without taking them.
async fn detect(stream: &TcpStream) -> io::Result<Protocol> {
    let mut seen = [0; PREFACE.len()];
    loop {
        let length = stream.peek(&mut seen).await?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if seen[..length] != PREFACE[..length] {
            return Ok(Protocol::Http1);
        }
        if length == PREFACE.len() {
            return Ok(Protocol::Http2);
        }
        // Part of the preface is there, so the socket stays readable: look again a little later.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
