//! The entry point for agents: the Model Context Protocol, over HTTP at `/mcp` and over standard
//! input and output.
//!
//! A thin translation: arguments become an `ExecuteRequest`, an outcome becomes a tool result. The
//! `rmcp` library implements the protocol.

mod arguments;
mod elicit;
mod execute_code;
mod files;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod gate;
mod http;
mod line_transport;
mod media;
mod message;
mod progress;
mod prompts;
mod resource_uri;
mod result;
mod server;
mod sessions;
mod shown_output;
mod stdio;
mod tools;
mod write_file;

pub(crate) use http::handle_mcp_request;
pub(crate) use sessions::McpSessions;
pub use stdio::{McpError, serve_mcp};
