//! Runs in: spawner (root), template, pid 1 of a cell, guest.
//!
//! The numbers of the file descriptors of a cell.

use crate::sys::RawFd;

/// The job socket, in every process of the cell that is ours.
pub const JOB_FD: RawFd = 3;
/// The control socket, on which pid 1 reports.
pub const CONTROL_FD: RawFd = 4;
/// The socket on which a template receives fork requests; closed in every process that it forks.
pub const FORK_FD: RawFd = 5;
/// The first descriptor number that the cell's own descriptors do not use.
pub const FIRST_FOREIGN_FD: u32 = 5;
