//! The entry points: REST, MCP, the admin API, health, metrics, and their OpenAPI description.
//!
//! The gateway translates. It knows HTTP and the names on the wire. It decides nothing about
//! executions, stores nothing, and has no access to tables or mounts.

mod accept_loop;
mod api_types;
mod audit;
mod auth;
mod body;
mod client_address;
mod config;
mod connection;
mod console;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod http;
mod http_range;
mod mcp;
mod negotiation;
mod origin;
mod pace;
mod peers;
mod reply;
mod router;
mod server;
mod server_timing;
mod sidecar;
mod streamed_body;
mod tls;
mod transfer_counter;

pub use accept_loop::serve_api;
pub use config::{GatewayConfig, McpConfig, MetricsAccess};
pub use mcp::{McpError, serve_mcp};
pub use router::{build_router, describe_api};
pub use server::{Server, ServerOpenError, ServerOptions};
pub use sidecar::{SidecarOptions, SidecarServer};
pub use tls::{TlsIdentity, TlsIdentityError};
