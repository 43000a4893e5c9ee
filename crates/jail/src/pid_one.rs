//! Runs in: pid 1 of a cell.
//!
//! Pid 1 of a cell: builds it, starts the guest, reaps, bounds sockets, and reports how the main
//! process ended. Core only.

mod announced_exit;
pub(crate) mod cold_cell;
pub(crate) mod contained_cell;
#[cfg(not(cloche_template))]
pub(crate) mod driven_cell;
pub(crate) mod forked_cell;
#[cfg(not(cloche_template))]
pub(crate) mod gated_cell;
pub(crate) mod socket_budget;
pub(crate) mod socket_watch;
mod supervise;
