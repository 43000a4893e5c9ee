//! The MCP server over a pipe: one client, one caller.

use cloche_engine::{Caller, Engine};
use rmcp::ServiceExt;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    line_transport::LineTransport,
    server::{CallerSource, McpHandler},
};
use crate::McpConfig;

/// The error of serving a client over a pipe.
#[derive(Debug, thiserror::Error)]
pub enum McpError {
    /// The client did not follow the protocol.
    #[error("the client did not start with the protocol's handshake")]
    Begin(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The serving task failed.
    #[error("the MCP session ended unexpectedly")]
    Broken(#[source] tokio::task::JoinError),
}

/// Serves one client until it closes its end and has received its responses. Everything runs as
/// `caller`.
///
/// # Errors
/// When the client does not follow the protocol.
pub async fn serve_mcp(
    engine: Engine,
    caller: Caller,
    config: McpConfig,
    pipe: (impl AsyncRead + Send + Unpin + 'static, impl AsyncWrite + Send + Unpin + 'static),
) -> Result<(), McpError> {
    let handler = McpHandler { engine, config, caller_source: CallerSource::Fixed(caller) };
    let service = match handler.serve(LineTransport::new(pipe.0, pipe.1)).await {
        Ok(service) => service,
        // A client that disconnects before the handshake is no error.
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(McpError::Begin(Box::new(error))),
    };
    service.waiting().await.map(|_| ()).map_err(McpError::Broken)
}
