//! Runs on this host: the executor behind the seam. The only file of the engine that names it.

use std::{
    collections::BTreeMap,
    error::Error,
    sync::atomic::{AtomicBool, Ordering},
};

use cloche_executor::{Executor, HomeError, RunError, RunIo, SpawnError};
use cloche_model::{OutputChunk, RunOutcome};
use futures::future::BoxFuture;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{AdmittedRun, DispatchError, Dispatcher, DispatcherLoad, PoolLevel};

pub(crate) use cloche_executor::CpuPriority;

/// The executor of this host.
pub struct LocalDispatcher {
    executor: Executor,
    /// The pool was full once. Later it may run low under load, and the host is ready all the same.
    was_warm: AtomicBool,
}

impl LocalDispatcher {
    /// Dispatches to this executor.
    #[must_use]
    pub fn new(executor: Executor) -> Self {
        Self { executor, was_warm: AtomicBool::new(false) }
    }
}

impl Dispatcher for LocalDispatcher {
    fn dispatch(
        &self,
        run: AdmittedRun,
        output: mpsc::Sender<OutputChunk>,
        cancel: CancellationToken,
    ) -> BoxFuture<'static, Result<RunOutcome, DispatchError>> {
        let executor = self.executor.clone();
        let (memory, priority) = (run.output_account(), run.cpu_priority());
        let io = RunIo { output: Some(output), stdin: None, cancel, memory, priority };
        Box::pin(
            async move { executor.run(run.into_spec(), io).await.map_err(DispatchError::from) },
        )
    }

    fn check_ready(&self) -> Result<(), String> {
        if self.was_warm.load(Ordering::Relaxed) || self.executor.is_warm() {
            self.was_warm.store(true, Ordering::Relaxed);
            return Ok(());
        }
        Err("the pool is still filling".to_owned())
    }

    fn current_load(&self) -> DispatcherLoad {
        let now = self.executor.read_metrics();
        let parked: u64 = now.buckets.iter().map(|shelf| shelf.parked as u64).sum();
        let templates: u64 = now.buckets.iter().map(|shelf| shelf.templates as u64).sum();
        // Several configurations of a language have a shelf each; they are shown as one.
        let mut pools = BTreeMap::<&str, PoolLevel>::new();
        for shelf in &now.buckets {
            let name = shelf.language.name();
            let level = pools.entry(name).or_insert_with(|| PoolLevel {
                name: name.to_owned(),
                parked: 0,
                target: 0,
            });
            level.parked += shelf.parked as u64;
            level.target += shelf.target as u64;
        }
        DispatcherLoad {
            cells_running: (now.cells as u64).saturating_sub(parked + templates),
            pools: pools.into_values().collect(),
        }
    }
}

impl From<RunError> for DispatchError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::NoInterpreter(_) => Self::Impossible(error.to_string()),
            RunError::Home(HomeError::Mount(SpawnError::Blocked(_))) => {
                Self::Impossible(error.source().map_or_else(String::new, ToString::to_string))
            }
            RunError::Spawn(_) => Self::Unavailable(error_chain(&error)),
            _ => Self::Failed(error_chain(&error)),
        }
    }
}

/// The error with its causes.
fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
