//! The API from a client's view: over a real port, with real programs behind it.
//!
//! `host.rs` starts a server. Only it and `child.rs` know how programs are run.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a set-up that fails is a test that fails"
)]

mod admin;
mod bad_input;
mod child;
mod console;
mod console_live;
mod delivery_modes;
mod error_responses;
mod exchange;
mod executions;
mod files;
mod gates;
mod home;
mod host;
mod input_files;
mod mcp_client;
mod mcp_files;
mod mcp_gate;
mod mcp_tool;
mod mcp_transport;
mod operations;
mod plan_limits;
mod request_parameters;
mod restart;
mod streaming;
mod tenants;
mod threads;
mod usage;
mod webhooks;
