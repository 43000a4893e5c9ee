//! The gates in front of agent tools, with the real store. Nothing is run here: what opens a gate is
//! decided before there is anything to run.
#![allow(clippy::unwrap_used, reason = "a set-up that fails is a test that fails")]

mod approvals;
mod policies;
mod test_engine;
mod waiting;
