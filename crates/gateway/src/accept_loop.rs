//! Accepts connections within limits, and shuts down without truncating responses. Knows no route.

use std::{io, pin::pin, sync::Arc, time::Duration};

use axum::Router;
use cloche_agent::Agent;
use cloche_engine::Engine;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    GatewayConfig,
    client_address::PeerAddress,
    connection::{absorb_own_wakes, serve_connection},
    peers::PeerConnections,
    router::build_router_until,
};

/// The pause after `accept` failed, for example because of the limit on file descriptors.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(50);

/// The response for an address with too many connections.
const REFUSED: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\n\
    connection: close\r\nretry-after: 1\r\ncontent-length: 111\r\n\r\n\
    {\"error\":\"rate_limited\",\"message\":\"too many connections from this address; close some, \
    or use one for several\"}";

/// Serves until `shutdown` is cancelled. Then it refuses new work with a response, lets executions
/// end within the engine's grace period, and closes.
///
/// # Errors
/// When the listener has no address.
pub async fn serve_api(
    listener: TcpListener,
    (engine, agent): (Engine, Agent),
    config: GatewayConfig,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let streams = CancellationToken::new();
    let app = build_router_until((engine.clone(), agent.clone()), config.clone(), streams.clone());
    let ending = async move {
        engine.drain();
        agent.shutdown().await;
        engine.shutdown().await;
        streams.cancel();
    };
    accept_connections(listener, app, config, shutdown, ending).await
}

/// Like [`serve_api`] for any router. `ending` runs from the shutdown on. Connections are accepted
/// until it is over, so that clients and health checks read why they are refused.
pub(crate) async fn accept_connections(
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
    let peers = PeerConnections::new(config.per_address, config.per_loopback);
    let mut ending = pin!(ending);
    // Ends connections that are accepted after the shutdown.
    let closing = CancellationToken::new();
    loop {
        let next = async { (Arc::clone(&places).acquire_owned().await, listener.accept().await) };
        let is_ending = shutdown.is_cancelled();
        let (place, accepted) = tokio::select! {
            biased;
            () = &mut ending, if is_ending => break,
            () = shutdown.cancelled(), if !is_ending => continue,
            next = next => next,
        };
        let Ok((stream, address)) = accepted else {
            tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
            continue;
        };
        let Some(peer) = peers.try_admit(address.ip()) else {
            // A TLS client could not read the reason.
            if config.tls.is_none() {
                refuse_connection(&stream);
            }
            continue;
        };
        let open_until = if is_ending { closing.clone() } else { shutdown.clone() };
        let (app, config) = (app.clone(), config.clone());
        connections.spawn(absorb_own_wakes(async move {
            serve_socket((stream, PeerAddress(address.ip())), app, &config, open_until).await;
            drop((place, peer));
        }));
    }
    drop(listener);
    closing.cancel();
    connections.close();
    if tokio::time::timeout(config.linger, connections.wait()).await.is_err() {
        tracing::info!(left = connections.len(), "closing connections that are still open");
    }
    Ok(())
}

/// Serves a socket, after a TLS handshake if the port has a certificate.
async fn serve_socket(
    (stream, peer): (TcpStream, PeerAddress),
    app: Router,
    config: &GatewayConfig,
    shutdown: CancellationToken,
) {
    // Responses are small; with Nagle's algorithm they would wait for the client's acknowledgement.
    let _ = stream.set_nodelay(true);
    let Some(tls) = &config.tls else {
        return serve_connection((stream, peer), app, config, shutdown).await;
    };
    let accepted = tokio::select! {
        accepted = tls.accept(stream, config.header_timeout) => accepted,
        () = shutdown.cancelled() => None,
    };
    if let Some(stream) = accepted {
        serve_connection((stream, peer), app, config, shutdown).await;
    }
}

/// Sends the reason if the socket can take it immediately. The socket is closed in either case.
fn refuse_connection(stream: &TcpStream) {
    let _ = stream.try_write(REFUSED);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_has_a_correct_content_length() {
        let text = str::from_utf8(REFUSED).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
    }
}
