//! Runs in: test. Networks of cells on an internet of their own: the real broker, the real stack
//! worker and a tun device, in network namespaces.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test stops at what it did not expect"
)]

mod allowlist;
#[allow(dead_code, reason = "other test programs use the rest of the harness")]
mod internet;
mod names;
mod transport;
mod walls;
