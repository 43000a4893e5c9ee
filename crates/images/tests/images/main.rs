//! Images end to end, without a server: archives and registries of this test, a real layer store.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a set-up that fails is a test that fails"
)]

mod archives;
mod hostile;
mod interpreters;
mod layers;
mod registries;
mod support;
