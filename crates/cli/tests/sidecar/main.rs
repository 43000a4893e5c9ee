//! `cloche executor`, the real binary, as its clients use it; and one suite for both dispatchers,
//! the local and the remote one.
//!
//! `executor.rs` starts a sidecar for one test, `bench.rs` a dispatcher of either kind.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a set-up that fails is a test that fails"
)]

mod bench;
#[path = "../support/browser.rs"]
mod browser;
mod container;
mod contract;
mod executor;
mod faults;
mod gate_one;
mod homes;
#[allow(dead_code, reason = "every test target uses its own part of this")]
#[path = "../serve/host.rs"]
mod host;
mod hostile;
#[path = "../../src/local_dispatcher.rs"]
mod local_dispatcher;
mod memory;
mod server;
mod suite;
#[path = "../support/cloche.rs"]
mod support;
mod unavailable;

use cloche_test_support::{models, moto, processes};
