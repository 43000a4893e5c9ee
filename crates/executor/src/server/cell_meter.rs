//! Runs in: server (no capabilities). Reads what a cell uses.
//!
//! The spawner reuses a cgroup only after its cell is gone and the server has released its gauges.
//! So the gauges are read through a [`CellMeter`]. Dropping it releases them, and the next request
//! to the spawner says so.

use std::sync::{Arc, Mutex, PoisonError};

use cloche_jail::cgroup::{CgroupGauges, CgroupReading};
use cloche_model::CpuPriority;

use super::priority::{attach_cgroup, set_cpu_idle};
use crate::protocol::CellId;

/// The gauges of a cell. While this exists, no other cell gets the cgroup.
pub(crate) struct CellMeter {
    cell: CellId,
    gauges: CgroupGauges,
    released: Arc<ReleasedGauges>,
    /// The priority of the run that uses the cell, once there is one.
    priority: Option<Arc<CpuPriority>>,
}

impl CellMeter {
    pub(super) fn new(cell: CellId, gauges: CgroupGauges, released: Arc<ReleasedGauges>) -> Self {
        Self { cell, gauges, released, priority: None }
    }

    /// Gives the cell the priority of this run from now on.
    pub(crate) fn follow_priority(&mut self, priority: Arc<CpuPriority>) {
        attach_cgroup(&priority, self.gauges.idle.take());
        self.priority = Some(priority);
    }

    /// Sets whether a cell without a run gets only the processor time that others leave.
    pub(crate) fn yield_to_others(&self, yields: bool) {
        if let Some(idle) = &self.gauges.idle {
            set_cpu_idle(idle, yields);
        }
    }

    /// What the cell has used; `None` once its cgroup is removed.
    pub(crate) fn read(&self) -> Option<CgroupReading> {
        self.gauges.read_all()
    }
}

impl Drop for CellMeter {
    fn drop(&mut self) {
        // Detach first: after the release another cell may get the cgroup.
        if let Some(priority) = &self.priority {
            priority.detach_cell();
        }
        self.released.0.lock().unwrap_or_else(PoisonError::into_inner).push(self.cell);
    }
}

/// Cells whose gauges are released, until the next packet says so.
#[derive(Default)]
pub(super) struct ReleasedGauges(Mutex<Vec<CellId>>);

/// The most cells in one packet, whose size is limited.
const MAX_BATCH: usize = 256;

impl ReleasedGauges {
    /// Takes the cells for the next packet.
    pub(super) fn take_batch(&self) -> Vec<CellId> {
        let mut cells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = cells.len().saturating_sub(MAX_BATCH);
        cells.split_off(kept)
    }
}
