//! The end of a cell, as those who wait for it see it.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

use crate::protocol::CellUsage;

/// Told once that a cell is gone, with what it had used, or lost. Clones are the same cell's.
#[derive(Clone, Debug, Default)]
pub(crate) struct CellExit {
    over: CancellationToken,
    used: Arc<OnceLock<CellUsage>>,
}

impl CellExit {
    /// The cell is gone.
    pub(super) fn mark_gone(&self, used: CellUsage) {
        // Only the first can be true.
        let _ = self.used.set(used);
        self.over.cancel();
    }

    /// The cell is lost with its spawner: nobody knows what it had used.
    pub(super) fn mark_lost(&self) {
        self.over.cancel();
    }

    /// Whether it is over.
    pub(crate) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    /// Waits for the end: what the cell had used, as far as that is known.
    pub(crate) async fn wait(&self) -> CellUsage {
        self.over.cancelled().await;
        self.used.get().copied().unwrap_or_default()
    }
}
