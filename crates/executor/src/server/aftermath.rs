//! Runs in: server (no capabilities). What is left of a run when its outcome is known: its cell is
//! taken apart, and the pool makes another one.
//!
//! Both take more processor time than a short run. So they wait until the answer is out, but never
//! for long: the one who answers may be gone.

use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{
    cell_watch::CellRemains, commit::HomeDiff, control_socket::ControlSocket, pool::PoolRun,
};

/// The longest wait for the answer.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

/// A run that has its outcome, and whose cell still exists.
pub(super) struct RunAftermath {
    /// Pid 1 takes the cell apart when this socket ends.
    pub(super) control: ControlSocket,
    pub(super) remains: CellRemains,
    pub(super) pool_run: PoolRun,
    /// What the program wrote, which is stored by now.
    pub(super) diff: Option<HomeDiff>,
}

impl RunAftermath {
    /// Releases the cell, and only then has the pool refilled: the spawner is free then.
    pub(super) fn settle(self) {
        let Self { control, remains, mut pool_run, diff } = self;
        control.release();
        // The request for the next cell tells the spawner that the gauges are released.
        drop(remains);
        pool_run.finish();
        if let Some(diff) = diff {
            // Closing the last file descriptor of a home unmounts it, which can take a while.
            tokio::task::spawn_blocking(move || drop(diff));
        }
    }

    /// The same once the answer is out.
    pub(super) async fn settle_after(self, answered: CancellationToken) {
        // Without a word in time the cell is released all the same.
        let _ = timeout(LONGEST_WAIT, answered.cancelled()).await;
        self.settle();
    }
}
