//! Runs in: template.
//!
//! The template: an initialised interpreter from which cells are forked. Core only.

pub mod fork_server;
mod netns_pool;
