//! Runs in: server (no capabilities).
//!
//! What the server does itself: it gives up its privileges, and writes the job of a cell.

pub mod job_writer;
pub mod privileges;
