//! Runs in: server (no capabilities). How the cell of a run competes for processors with the cells
//! of other runs.
//!
//! A cell that yields has `cpu.idle` set in its cgroup. The kernel runs it only when nothing else
//! wants to run, and takes the processor from it at once when something does. The spawner opens the
//! file and passes it with the gauges, so the server needs no right of its own.

use std::{fs::File, os::unix::fs::FileExt};

use cloche_model::CpuPriority;

/// Gives the run its cell, by `cpu.idle` of the cell's cgroup. Without a file, the host has no such
/// switch.
pub(crate) fn attach_cgroup(priority: &CpuPriority, file: Option<File>) {
    priority.attach_cell(match file {
        Some(file) => Some(Box::new(move |idle| set_cpu_idle(&file, idle))),
        None => None,
    });
}

/// Sets `cpu.idle`. An error is ignored: then the cgroup is gone.
pub(crate) fn set_cpu_idle(file: &File, idle: bool) {
    let _ = file.write_all_at(if idle { b"1" } else { b"0" }, 0);
}
