//! Runs in: guest.
//!
//! The process that becomes the guest: our code before `exec`, and the part of the template library
//! that runs in a forked guest. Core only.

#[cfg(cloche_template)]
pub(crate) mod exit_notice;
pub mod job_reader;
pub(crate) mod start;
