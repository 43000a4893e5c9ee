//! Runs in: spawner (root), template, pid 1 of a cell, guest.
//!
//! The numbers of the file descriptors of a cell.

pub use super::constants::{CONTROL_FD, FORK_FD, JOB_FD};

/// The first descriptor number that the cell's own descriptors do not use.
pub const FIRST_FOREIGN_FD: u32 = 5;
