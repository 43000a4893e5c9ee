//! What a cell uses, as whoever waits for its end reads it.
//!
//! A cgroup is used again when its cell is gone and nobody reads its gauges any more. So reading
//! them means to hold them, and letting go of them is told to the spawner with the next request.

use std::sync::{Arc, Mutex, PoisonError};

use cloche_jail::cgroup::{Gauges, Reading};

use super::protocol::CellId;
use crate::priority::{CpuPriority, set_idle};

/// The gauges of a cell. While this is held, nobody else gets the cell's cgroup.
pub(crate) struct Meter {
    cell: CellId,
    gauges: Gauges,
    let_go: Arc<LetGo>,
    /// The priority of the run that has the cell, once it has one.
    priority: Option<Arc<CpuPriority>>,
}

impl Meter {
    pub(super) fn new(cell: CellId, gauges: Gauges, let_go: Arc<LetGo>) -> Self {
        Self { cell, gauges, let_go, priority: None }
    }

    /// From now on the cell has the priority of this run.
    pub(crate) fn follow_priority(&mut self, priority: Arc<CpuPriority>) {
        priority.attach(self.gauges.idle.take());
        self.priority = Some(priority);
    }

    /// Whether the cell, which has no run yet, takes only the processor time that others leave.
    pub(crate) fn yield_to_others(&self, yields: bool) {
        if let Some(idle) = &self.gauges.idle {
            set_idle(idle, yields);
        }
    }

    /// What the cell has used; nothing once its cgroup is removed.
    pub(crate) fn read(&self) -> Option<Reading> {
        self.gauges.read()
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        // Before the cgroup can be another cell's.
        if let Some(priority) = &self.priority {
            priority.detach();
        }
        self.let_go.0.lock().unwrap_or_else(PoisonError::into_inner).push(self.cell);
    }
}

/// Cells whose gauges nobody reads any more, and whose spawner does not know that yet.
#[derive(Default)]
pub(super) struct LetGo(Mutex<Vec<CellId>>);

/// The most that are told at once: a packet has its limit.
const AT_ONCE: usize = 256;

impl LetGo {
    /// Some of them, to be told now.
    pub(super) fn take(&self) -> Vec<CellId> {
        let mut cells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = cells.len().saturating_sub(AT_ONCE);
        cells.split_off(kept)
    }
}
