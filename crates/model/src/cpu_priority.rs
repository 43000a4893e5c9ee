//! Whether one run takes only the processor time that others leave.
//!
//! Admission decides it and the executor applies it to the cell of the run. Neither knows the other:
//! they share this switch.

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Applies the decision to a cell: true means that the cell yields.
type ApplyToCell = Box<dyn Fn(bool) + Send>;

/// The switch of one run. It can be set before the run has a cell, and changed until the run is over.
#[derive(Default)]
pub struct CpuPriority {
    state: Mutex<PriorityState>,
}

#[derive(Default)]
struct PriorityState {
    yields: bool,
    /// Set while the run has a cell on a host that has such a switch.
    apply: Option<ApplyToCell>,
}

impl CpuPriority {
    /// Sets whether the run takes only the processor time that others leave.
    pub fn yield_to_others(&self, yields: bool) {
        let mut state = self.lock_state();
        if state.yields != yields {
            state.yields = yields;
            state.apply_to_cell();
        }
    }

    /// Gives the run its cell. Without `apply`, the host has no such switch.
    pub fn attach_cell(&self, apply: Option<ApplyToCell>) {
        let mut state = self.lock_state();
        state.apply = apply;
        if state.yields {
            state.apply_to_cell();
        }
    }

    /// Takes the cell away: the run is over, and its cgroup may become that of another run. The rest
    /// of the cell is taken apart on equal terms, or dying cells would pile up on a busy host.
    pub fn detach_cell(&self) {
        let mut state = self.lock_state();
        if let Some(apply) = state.apply.take().filter(|_| state.yields) {
            apply(false);
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, PriorityState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PriorityState {
    fn apply_to_cell(&self) {
        if let Some(apply) = &self.apply {
            apply(self.yields);
        }
    }
}

impl fmt::Debug for CpuPriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuPriority").field("yields", &self.lock_state().yields).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn recording_cell() -> (Arc<Mutex<Vec<bool>>>, Option<ApplyToCell>) {
        let seen = Arc::<Mutex<Vec<bool>>>::default();
        let cell = Arc::clone(&seen);
        (seen, Some(Box::new(move |yields| cell.lock().unwrap().push(yields))))
    }

    #[test]
    fn a_cell_gets_the_priority_that_was_set_before_it_existed_and_loses_it_at_the_end() {
        let (seen, cell) = recording_cell();
        let priority = CpuPriority::default();
        priority.yield_to_others(true);
        priority.attach_cell(cell);
        priority.yield_to_others(true);
        priority.detach_cell();
        priority.yield_to_others(false);
        assert_eq!(*seen.lock().unwrap(), [true, false]);
    }

    #[test]
    fn a_cell_that_never_yields_is_not_touched() {
        let (seen, cell) = recording_cell();
        let priority = CpuPriority::default();
        priority.attach_cell(cell);
        priority.detach_cell();
        assert!(seen.lock().unwrap().is_empty());
    }
}
