//! `cloche executor`, the real binary, as its clients meet it; and the two dispatchers, this host's and
//! the remote one, held to one suite.
//!
//! `executor.rs` starts a sidecar for one test, `bench.rs` a dispatcher of either kind.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a set-up that fails is a test that fails"
)]

mod bench;
mod contract;
mod executor;
mod faults;
#[allow(dead_code, reason = "every test target uses its own part of this")]
#[path = "../serve/host.rs"]
mod host;
mod hostile;
mod server;
mod suite;
#[path = "../support/cloche.rs"]
mod support;

use cloche_test_support::processes;
