//! The door for agents: the Model Context Protocol, over HTTP at `/mcp` and over standard input and
//! output.
//!
//! A thin translation: arguments become an `ExecuteRequest`, what happened becomes a tool result.
//! The protocol itself is the library's.

mod addresses;
mod arguments;
mod elicit;
mod files;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod gate;
mod http;
mod inert;
mod media;
mod message;
mod pipe;
mod progress;
mod prompts;
mod result;
mod run;
mod server;
mod sessions;
mod stdio;
mod tools;
mod write;

pub(crate) use http::door;
pub(crate) use sessions::Sessions;
pub use stdio::{McpError, serve_mcp};
