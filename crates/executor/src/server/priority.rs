//! Runs in: server (no capabilities). How the cell of a run competes for processors with the cells
//! of other runs.
//!
//! A cell that yields has `cpu.idle` set in its cgroup. The kernel runs it only when nothing else
//! wants to run, and takes the processor from it at once when something does. The spawner opens the
//! file and passes it with the gauges, so the server needs no right of its own.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The priority of one run. It can be set before the run has a cell, and changed until it is over.
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
    /// Sets whether the run gets only the processor time that others leave.
    pub fn yield_to_others(&self, yields: bool) {
        let mut state = self.lock_state();
        if state.yields == yields {
            return;
        }
        state.yields = yields;
        state.apply();
    }

    /// Gives the run its cell. Without a file, the host has no `cpu.idle`.
    pub(crate) fn attach_cgroup(&self, file: Option<File>) {
        let mut state = self.lock_state();
        state.file = file;
        if state.yields {
            state.apply();
        }
    }

    /// The run is over, and another cell may get its cgroup. The cell is torn down on equal terms,
    /// or dying cells would pile up on a busy host.
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

/// Sets `cpu.idle`. An error is ignored: then the cgroup is gone.
pub(crate) fn set_cpu_idle(file: &File, idle: bool) {
    let _ = file.write_all_at(if idle { b"1" } else { b"0" }, 0);
}
