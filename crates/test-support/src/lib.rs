//! Runs in: test. What the tests of several crates share.
//!
//! It knows none of our crates, so that every crate may use it as a development dependency.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test stops at what it did not expect, and prints what it found"
)]

pub mod command;
pub mod emulators;
mod eventually;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "internet")]
pub mod internet;
#[cfg(feature = "models")]
pub mod models;
pub mod moto;
pub mod own_main;
pub mod processes;
mod skip;
#[cfg(feature = "models")]
pub mod web;

pub use eventually::{Observation, PATIENCE, eventually, eventually_blocking};
#[cfg(feature = "http")]
pub use http::install_crypto;
pub use skip::{SKIP_LOG, skip};
