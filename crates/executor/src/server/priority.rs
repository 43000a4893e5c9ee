//! Runs in: server (no capabilities). How the cell of a run competes for processors with the cells
//! of other runs.
//!
//! A cell that yields has `cpu.idle` set in its cgroup: the kernel runs it when nothing else wants to
//! run, and takes the processor from it at once when something does. The spawner opens the file and
//! hands it over with the gauges, so this side needs no right of its own.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The switch of one run. It can be set before the run has a cell, and changed until the run is over.
#[derive(Debug, Default)]
pub struct CpuPriority {
    state: Mutex<PriorityState>,
}

#[derive(Debug, Default)]
struct PriorityState {
    yields: bool,
    /// `cpu.idle` of the cell's cgroup, while the run has one.
    file: Option<File>,
}

impl CpuPriority {
    /// Whether the run takes only the processor time that others leave.
    pub fn yield_to_others(&self, yields: bool) {
        let mut state = self.lock_state();
        if state.yields == yields {
            return;
        }
        state.yields = yields;
        state.apply();
    }

    /// Gives the run its cell. Without a file, the host has no such switch.
    pub(crate) fn attach_cgroup(&self, file: Option<File>) {
        let mut state = self.lock_state();
        state.file = file;
        if state.yields {
            state.apply();
        }
    }

    /// The run is over: its cgroup may become that of another. What is left of the cell is taken
    /// apart on equal terms, or dying cells would pile up on a busy host.
    pub(crate) fn detach_cgroup(&self) {
        let mut state = self.lock_state();
        if let Some(file) = state.file.take().filter(|_| state.yields) {
            set_cpu_idle(&file, false);
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, PriorityState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PriorityState {
    fn apply(&self) {
        if let Some(file) = &self.file {
            set_cpu_idle(file, self.yields);
        }
    }
}

/// Sets `cpu.idle`. A cgroup that is gone already has no use for it.
pub(crate) fn set_cpu_idle(file: &File, idle: bool) {
    let _ = file.write_all_at(if idle { b"1" } else { b"0" }, 0);
}
