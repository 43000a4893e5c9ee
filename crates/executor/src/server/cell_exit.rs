//! Runs in: server (no capabilities). The end of a cell, for the tasks that wait for it.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

use crate::protocol::CellUsage;

/// Completes once, when the cell is gone or lost. Clones belong to the same cell.
#[derive(Clone, Debug, Default)]
pub(crate) struct CellExit {
    over: CancellationToken,
    used: Arc<OnceLock<CellUsage>>,
}

impl CellExit {
    /// The spawner reported that the cell is gone.
    pub(super) fn mark_gone(&self, used: CellUsage) {
        // A cell is gone only once, so a second report is ignored.
        let _ = self.used.set(used);
        self.over.cancel();
    }

    /// The cell was lost with its spawner; its usage is unknown.
    pub(super) fn mark_lost(&self) {
        self.over.cancel();
    }

    /// Whether the cell is gone or lost.
    pub(crate) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    /// Waits for the end. Returns the usage of the cell, or zeros if it was lost.
    pub(crate) async fn wait(&self) -> CellUsage {
        self.over.cancelled().await;
        self.used.get().copied().unwrap_or_default()
    }
}
