//! What a cell uses, as whoever waits for its end reads it.
//!
//! A cgroup is used again when its cell is gone and nobody reads its gauges any more. So reading
//! them means to hold them, and letting go of them is told to the spawner with the next request.

use std::sync::{Arc, Mutex, PoisonError};

use cloche_jail::cgroup::{Gauges, Reading};

use super::protocol::CellId;

/// The gauges of a cell. While this is held, nobody else gets the cell's cgroup.
pub(crate) struct Meter {
    pub(super) cell: CellId,
    pub(super) gauges: Gauges,
    pub(super) let_go: Arc<LetGo>,
}

impl Meter {
    /// What the cell has used; nothing once its cgroup is removed.
    pub(crate) fn read(&self) -> Option<Reading> {
        self.gauges.read()
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
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
