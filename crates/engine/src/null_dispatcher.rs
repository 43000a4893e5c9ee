//! Runs in: server (no capabilities).
//!
//! Runs nothing: for a server without a local executor and without sidecars.

use cloche_model::{OutputChunk, RunOutcome};
use futures::future::BoxFuture;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{AdmittedRun, DispatchError, Dispatcher, DispatcherLoad};

/// The message for callers and operators.
pub(crate) const SENTENCE: &str = "code execution is turned off: this server has no executor, and \
                                   SANDBOX_EXECUTOR_URL names none";

/// No executor at all.
pub struct NullDispatcher;

impl Dispatcher for NullDispatcher {
    fn dispatch(
        &self,
        _run: AdmittedRun,
        _output: mpsc::Sender<OutputChunk>,
        _cancel: CancellationToken,
    ) -> BoxFuture<'static, Result<RunOutcome, DispatchError>> {
        Box::pin(async { Err(DispatchError::Unavailable(SENTENCE.to_owned())) })
    }

    fn check_ready(&self) -> Result<(), String> {
        Err(SENTENCE.to_owned())
    }

    fn is_wired(&self) -> bool {
        false
    }

    fn keeps_homes(&self) -> bool {
        false
    }

    fn current_load(&self) -> DispatcherLoad {
        DispatcherLoad::default()
    }
}
