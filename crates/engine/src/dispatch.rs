//! Runs in: server (no capabilities).
//!
//! The trait of what runs code: the executor of this host, or sidecars over the network.

use cloche_model::{OutputChunk, RunOutcome};
use futures::future::BoxFuture;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::AdmittedRun;

/// Runs what was admitted.
pub trait Dispatcher: Send + Sync {
    /// Runs it once. Output is sent as it comes, in order and without loss. The receiver may be
    /// dropped; the run goes on. When `cancel` fires, everything of the run is killed and the outcome
    /// says so.
    fn dispatch(
        &self,
        run: AdmittedRun,
        output: mpsc::Sender<OutputChunk>,
        cancel: CancellationToken,
    ) -> BoxFuture<'static, Result<RunOutcome, DispatchError>>;

    /// Whether a run could start now; if not, why.
    ///
    /// # Errors
    /// The reason, for an operator.
    fn check_ready(&self) -> Result<(), String>;

    /// Whether there is anything at all that could run code, now or later. Where there is not,
    /// agents are not offered the tool.
    fn is_wired(&self) -> bool {
        true
    }

    /// Whether homes outlive their runs here, so that threads can be used and files be read later.
    fn keeps_homes(&self) -> bool {
        true
    }

    /// What is held ready and what is in use, for metrics.
    fn current_load(&self) -> DispatcherLoad;
}

/// Why a run has no outcome.
#[derive(Debug, thiserror::Error)]
pub enum DispatchError {
    /// Nothing could take it; asking again may help.
    #[error("nothing can run this at present: {0}")]
    Unavailable(String),
    /// It can never be run here, and the sentence says why; it is shown to the caller.
    #[error("{0}")]
    Impossible(String),
    /// It was taken, and we failed.
    #[error("the sandbox failed: {0}")]
    Failed(String),
}

/// The state of what runs code.
#[derive(Clone, Debug, Default)]
pub struct DispatcherLoad {
    /// Cells that run guest code now.
    pub cells_running: u64,
    /// Each pool of parked cells.
    pub pools: Vec<PoolLevel>,
}

/// One pool of parked cells.
#[derive(Clone, Debug)]
pub struct PoolLevel {
    /// What its cells are for.
    pub name: String,
    /// Cells that are parked now.
    pub parked: u64,
    /// Cells that it tries to keep parked.
    pub target: u64,
}
