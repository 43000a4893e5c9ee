//! Runs in: spawner (root), template, pid 1 of a cell, guest.
//!
//! The numbers of the file descriptors of a cell.

pub use super::constants::{CONTROL_FD, FORK_FD, JOB_FD};

/// The first descriptor number that the cell's own descriptors do not use.
pub const FIRST_FOREIGN_FD: u32 = 5;

/// The first descriptor number of a template's handles of netns. Below it are the descriptors of
/// new cells, however many handles there are: a program can see how large its table is.
pub const FIRST_NETNS_FD: u32 = 64;
