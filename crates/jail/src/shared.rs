//! Runs in: server (no capabilities), template, pid 1 of a cell, guest.
//!
//! Shared between processes: small tools without allocation. Core only.

pub(crate) mod fmt_buf;
pub(crate) mod proc_file;
pub(crate) mod small_filter;
