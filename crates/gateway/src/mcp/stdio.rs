//! The same server at the end of a pipe: one client, one caller.

use cloche_engine::{Caller, Engine};
use rmcp::ServiceExt;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    line_transport::LineTransport,
    server::{CallerSource, McpHandler},
};
use crate::McpConfig;

/// Why a conversation over a pipe broke off.
#[derive(Debug, thiserror::Error)]
pub enum McpError {
    /// The client did not speak the protocol.
    #[error("the client did not begin as the protocol says")]
    Begin(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Serving it failed.
    #[error("the conversation broke off")]
    Broken(#[source] tokio::task::JoinError),
}

/// Serves one client until it closes its end and has its answers. Everything is run as `caller`.
///
/// # Errors
/// When the client does not speak the protocol.
pub async fn serve_mcp(
    engine: Engine,
    caller: Caller,
    config: McpConfig,
    pipe: (impl AsyncRead + Send + Unpin + 'static, impl AsyncWrite + Send + Unpin + 'static),
) -> Result<(), McpError> {
    let door = McpHandler { engine, config, caller_source: CallerSource::Fixed(caller) };
    let service = match door.serve(LineTransport::new(pipe.0, pipe.1)).await {
        Ok(service) => service,
        // A client that leaves before it begins has done nothing wrong.
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(McpError::Begin(Box::new(error))),
    };
    service.waiting().await.map(|_| ()).map_err(McpError::Broken)
}
