//! This host's executor as the engine's dispatcher.

use cloche_engine::{Admitted, DispatchError, Dispatcher, PoolLevel, Snapshot};
use cloche_executor::{Executor, RunError, RunIo};
use cloche_model::{Outcome, OutputChunk};
use futures::future::BoxFuture;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Runs what the engine admitted on this host.
pub(super) struct LocalDispatcher {
    executor: Executor,
}

impl LocalDispatcher {
    pub(super) fn new(executor: Executor) -> Self {
        Self { executor }
    }
}

impl Dispatcher for LocalDispatcher {
    fn dispatch(
        &self,
        run: Admitted,
        output: mpsc::Sender<OutputChunk>,
        cancel: CancellationToken,
    ) -> BoxFuture<'static, Result<Outcome, DispatchError>> {
        let executor = self.executor.clone();
        Box::pin(async move {
            let io = RunIo { output: Some(output), stdin: None, cancel };
            executor.run(run.into_spec(), io).await.map_err(why)
        })
    }

    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    fn snapshot(&self) -> Snapshot {
        let now = self.executor.snapshot();
        let parked: usize = now.shelves.iter().map(|shelf| shelf.parked + shelf.templates).sum();
        let pools = now.shelves.iter().map(|shelf| PoolLevel {
            name: shelf.language.name().to_owned(),
            parked: shelf.parked as u64,
            target: shelf.target as u64,
        });
        Snapshot { cells_running: now.cells.saturating_sub(parked) as u64, pools: pools.collect() }
    }
}

/// What the engine needs to know of a failure: whether asking again may help.
fn why(error: RunError) -> DispatchError {
    match error {
        RunError::NoInterpreter(_) | RunError::Job(_) => DispatchError::Failed(error.to_string()),
        RunError::Spawn(_) | RunError::Io(_) => DispatchError::Unavailable(error.to_string()),
        RunError::Wall { .. } | RunError::CellLost => DispatchError::Failed(error.to_string()),
    }
}
