//! Connections: accepted within limits, and ended without cutting off an answer. Knows no route.

use std::{io, sync::Arc, time::Duration};

use axum::Router;
use cloche_agent::Agent;
use cloche_engine::Engine;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    GatewayConfig, connection::serve_connection, peers::PeerConnections, router::build_router_until,
};

/// How long to wait after the system refused a connection, e.g. for want of descriptors.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(50);

/// What an address with too many connections is answered.
const REFUSED: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\n\
    connection: close\r\nretry-after: 1\r\ncontent-length: 111\r\n\r\n\
    {\"error\":\"rate_limited\",\"message\":\"too many connections from this address; close some, \
    or use one for several\"}";

/// Serves until `shutdown` fires; then takes nothing new, lets executions end within the engine's
/// grace period, and closes.
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

/// The same for any table of routes; `ending` is what is done between the last connection that is taken
/// and the closing of those there are.
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
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => break,
        };
        let Ok((stream, address)) = accepted else {
            tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
            continue;
        };
        let Some(peer) = peers.try_admit(address.ip()) else {
            refuse_connection(&stream);
            continue;
        };
        let (app, shutdown, config) = (app.clone(), shutdown.clone(), config.clone());
        connections.spawn(async move {
            serve_connection(stream, app, &config, shutdown).await;
            drop((place, peer));
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

/// Says why, if the socket takes it at once; it is closed either way.
fn refuse_connection(stream: &TcpStream) {
    let _ = stream.try_write(REFUSED);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_too_many_connections_has_the_length_it_says() {
        let text = str::from_utf8(REFUSED).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
    }
}
