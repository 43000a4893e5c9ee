//! `cloche serve`, the real binary, as clients and operators use it: over its port, through its
//! files, by signals, and with `cloche key|team|sandbox`.
//!
//! `host.rs` starts a server for one test.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a set-up that fails is a test that fails"
)]

mod admin_commands;
mod admission;
mod agent;
mod agent_client;
mod agent_limits;
mod agent_metrics;
mod approvals;
mod approved_homes;
mod backup;
mod brokered;
#[path = "../support/browser.rs"]
mod browser;
mod bucket;
mod cancel;
mod concurrent_changes;
mod connections;
mod console;
mod console_sessions;
mod contract_examples;
mod crashes;
mod credentials;
mod execute;
mod first_start;
mod help;
mod host;
mod http2_floods;
mod identity;
mod image_faults;
mod image_runs;
mod images;
mod lying_provider;
mod mcp;
mod memory;
mod network;
mod operations;
mod python_client;
mod registry;
mod request_log;
mod schemathesis;
mod secrets;
mod sign_on;
mod stop;
mod storage;
mod storage_connections;
mod storage_crashes;
mod storage_kinds;
mod storage_scoping;
mod streaming;
mod substrates;
#[path = "../support/cloche.rs"]
mod support;
mod threads;
mod tls;
mod tls_port;
mod usage;
mod volumes;
mod web_tools;
mod webhooks;

use cloche_test_support::{emulators, models, moto, processes};
