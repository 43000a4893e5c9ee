//! What a cell uses, as whoever waits for its end reads it.
//!
//! A cgroup is used again when its cell is gone and nobody reads its gauges any more. So reading
//! them means to hold them, and letting go of them is told to the spawner with the next request.

use std::sync::{Arc, Mutex, PoisonError};

use cloche_jail::cgroup::{CgroupGauges, CgroupReading};

use super::priority::{CpuPriority, set_cpu_idle};
use crate::protocol::CellId;

/// The gauges of a cell. While this is held, nobody else gets the cell's cgroup.
pub(crate) struct CellMeter {
    cell: CellId,
    gauges: CgroupGauges,
    let_go: Arc<ReleasedGauges>,
    /// The priority of the run that has the cell, once it has one.
    priority: Option<Arc<CpuPriority>>,
}

impl CellMeter {
    pub(super) fn new(cell: CellId, gauges: CgroupGauges, let_go: Arc<ReleasedGauges>) -> Self {
        Self { cell, gauges, let_go, priority: None }
    }

    /// From now on the cell has the priority of this run.
    pub(crate) fn follow_priority(&mut self, priority: Arc<CpuPriority>) {
        priority.attach_cgroup(self.gauges.idle.take());
        self.priority = Some(priority);
    }

    /// Whether the cell, which has no run yet, takes only the processor time that others leave.
    pub(crate) fn yield_to_others(&self, yields: bool) {
        if let Some(idle) = &self.gauges.idle {
            set_cpu_idle(idle, yields);
        }
    }

    /// What the cell has used; nothing once its cgroup is removed.
    pub(crate) fn read(&self) -> Option<CgroupReading> {
        self.gauges.read_all()
    }
}

impl Drop for CellMeter {
    fn drop(&mut self) {
        // Before the cgroup can be another cell's.
        if let Some(priority) = &self.priority {
            priority.detach_cgroup();
        }
        self.let_go.0.lock().unwrap_or_else(PoisonError::into_inner).push(self.cell);
    }
}

/// Cells whose gauges nobody reads any more, and whose spawner does not know that yet.
#[derive(Default)]
pub(super) struct ReleasedGauges(Mutex<Vec<CellId>>);

/// The most that are told at once: a packet has its limit.
const AT_ONCE: usize = 256;

impl ReleasedGauges {
    /// Some of them, to be told now.
    pub(super) fn take_batch(&self) -> Vec<CellId> {
        let mut cells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = cells.len().saturating_sub(AT_ONCE);
        cells.split_off(kept)
    }
}
