//! The doors: REST, the admin API, health, metrics, and the description of it all.
//!
//! The gateway translates. It knows HTTP and the names on the wire; it decides nothing about
//! executions, keeps nothing, and can name neither a table nor a mount.

mod auth;
mod body;
mod compose;
mod config;
mod error;
mod http;
mod router;
mod server;
mod sidecar;
mod wire;

pub use compose::{OpenError, Server, ServerOptions};
pub use config::GatewayConfig;
pub use router::{description, router};
pub use server::serve;
pub use sidecar::{SidecarOptions, SidecarServer};
