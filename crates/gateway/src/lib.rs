//! The doors: REST, MCP, the admin API, health, metrics, and the description of it all.
//!
//! The gateway translates. It knows HTTP and the names on the wire; it decides nothing about
//! executions, keeps nothing, and can name neither a table nor a mount.

mod auth;
mod body;
mod compose;
mod config;
mod connection;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod http;
mod incoming;
mod mcp;
mod origin;
mod pace;
mod peers;
mod range;
mod reply;
mod router;
mod server;
mod sidecar;
mod wire;

pub use compose::{OpenError, Server, ServerOptions};
pub use config::{GatewayConfig, McpConfig};
pub use mcp::{McpError, serve_mcp};
pub use router::{description, router};
pub use server::serve;
pub use sidecar::{SidecarOptions, SidecarServer};
