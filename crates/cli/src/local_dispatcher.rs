//! Runs in: server (no capabilities), sidecar (no capabilities).
//!
//! The dispatcher over the executor of this host. The engine knows the trait, the executor knows
//! neither; this file joins the two.

use std::{
    collections::BTreeMap,
    error::Error,
    sync::atomic::{AtomicBool, Ordering},
};

use cloche_engine::{AdmittedRun, DispatchError, Dispatcher, DispatcherLoad, PoolLevel, RunNeeds};
use cloche_executor::{Executor, HomeError, RunError, RunIo, SpawnError};
use cloche_model::{OutputChunk, RunOutcome, error_chain};
use futures::future::BoxFuture;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// The message for an operator whose spawner is gone.
const NO_SPAWNER: &str = "the spawner of this host is gone; restart the server";

/// The executor of this host.
pub(crate) struct LocalDispatcher {
    executor: Executor,
    /// The pool was full once. It may run low later under load; the host is still ready.
    was_warm: AtomicBool,
}

impl LocalDispatcher {
    /// Dispatches to this executor.
    pub(crate) fn new(executor: Executor) -> Self {
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
        Box::pin(async move { executor.run(run.into_spec(), io).await.map_err(dispatch_error) })
    }

    fn check_run(&self, _needs: &RunNeeds) -> Result<(), DispatchError> {
        if self.executor.has_spawner() {
            return Ok(());
        }
        Err(DispatchError::Unavailable(NO_SPAWNER.to_owned()))
    }

    fn check_ready(&self) -> Result<(), String> {
        if !self.executor.has_spawner() {
            return Err(NO_SPAWNER.to_owned());
        }
        if self.was_warm.load(Ordering::Relaxed) || self.executor.is_warm() {
            self.was_warm.store(true, Ordering::Relaxed);
            return Ok(());
        }
        Err("the pool is still filling".to_owned())
    }

    fn current_load(&self) -> DispatcherLoad {
        let now = self.executor.read_metrics();
        let parked: u64 = now.buckets.iter().map(|bucket| bucket.parked as u64).sum();
        let templates: u64 = now.buckets.iter().map(|bucket| bucket.templates as u64).sum();
        // Each configuration of a language has a bucket; metrics show one pool for the language.
        let mut pools = BTreeMap::<&str, PoolLevel>::new();
        for bucket in &now.buckets {
            let name = bucket.language.name();
            let level = pools.entry(name).or_insert_with(|| PoolLevel {
                name: name.to_owned(),
                parked: 0,
                target: 0,
            });
            level.parked += bucket.parked as u64;
            level.target += bucket.target as u64;
        }
        DispatcherLoad {
            cells_running: (now.cells as u64).saturating_sub(parked + templates),
            pools: pools.into_values().collect(),
        }
    }
}

/// What a run that failed on this host is to the engine.
fn dispatch_error(error: RunError) -> DispatchError {
    match error {
        RunError::NoInterpreter(_) | RunError::NotInImage { .. } => {
            DispatchError::Impossible(error.to_string())
        }
        RunError::Home(HomeError::Mount(SpawnError::Blocked(_))) => {
            DispatchError::Impossible(error.source().map_or_else(String::new, ToString::to_string))
        }
        RunError::Spawn(_) => DispatchError::Unavailable(error_chain(&error)),
        _ => DispatchError::Failed(error_chain(&error)),
    }
}
