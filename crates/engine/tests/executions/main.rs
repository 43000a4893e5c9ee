//! Executions and their threads, with the real store and a dispatcher that each test scripts.
#![allow(clippy::unwrap_used, reason = "a set-up that fails is a test that fails")]

use std::sync::Arc;

use cloche_engine::{
    AdmittedRun, Caller, DispatchError, Dispatcher, DispatcherLoad, Engine, EngineConfig, KeyDraft,
    LockedDataDir, Refusal, SandboxDraft, StartedExecution, TeamDraft,
};
use cloche_layers::{LayerBounds, Layers, LayersConfig, StoreConfig};
use cloche_model::{
    ByteSize, CapturedStream, DeliveryMode, ErrorCode, ExecuteRequest, ExecutionStatus, HomeWrites,
    OutputChunk, RunEnding, RunOutcome, RunTimings, RunUsage, TeamPlan,
};
use cloche_store::SqliteStore;
use futures::future::BoxFuture;
use tempfile::TempDir;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

/// Runs nothing, and ends each run when the test permits it.
struct ScriptedDispatcher {
    permits: Arc<Semaphore>,
    fails: Option<fn() -> DispatchError>,
}

impl Dispatcher for ScriptedDispatcher {
    fn dispatch(
        &self,
        _: AdmittedRun,
        _: mpsc::Sender<OutputChunk>,
        cancel: CancellationToken,
    ) -> BoxFuture<'static, Result<RunOutcome, DispatchError>> {
        let (permits, fails) = (Arc::clone(&self.permits), self.fails);
        Box::pin(async move {
            let ending = tokio::select! {
                permit = permits.acquire() => {
                    permit.unwrap().forget();
                    RunEnding::Exited(0)
                }
                () = cancel.cancelled() => RunEnding::Cancelled,
            };
            match fails {
                Some(error) => Err(error()),
                None => Ok(outcome(ending)),
            }
        })
    }

    fn check_ready(&self) -> Result<(), String> {
        Ok(())
    }

    fn current_load(&self) -> DispatcherLoad {
        DispatcherLoad::default()
    }
}

fn outcome(ending: RunEnding) -> RunOutcome {
    RunOutcome {
        ending,
        stdout: CapturedStream::from_bytes(b"out\n".to_vec()),
        stderr: CapturedStream::from_bytes(Vec::new()),
        usage: RunUsage::default(),
        written: HomeWrites::default(),
        network: None,
        timings: RunTimings::default(),
    }
}

/// An engine with one team and one key.
struct ScriptedServer {
    engine: Engine,
    caller: Caller,
    permits: Arc<Semaphore>,
    _directory: TempDir,
}

impl ScriptedServer {
    async fn start() -> Self {
        Self::with_failure(None).await
    }

    async fn with_failure(fails: Option<fn() -> DispatchError>) -> Self {
        let directory = TempDir::new().unwrap();
        let layers = LayersConfig {
            dir: directory.path().join("layers"),
            store: StoreConfig::Local,
            cache_bytes: ByteSize::mib(64),
            bounds: LayerBounds::default(),
        };
        let mut config = EngineConfig::default();
        config.homes.layers = Some(Layers::open(layers).await.unwrap());
        let data_dir = LockedDataDir::lock(directory.path()).unwrap();
        let store = SqliteStore::open(&directory.path().join("cloche.db")).await.unwrap();
        let permits = Arc::new(Semaphore::new(0));
        let dispatcher = ScriptedDispatcher { permits: Arc::clone(&permits), fails };
        let engine =
            Engine::open(data_dir, Arc::new(store), Arc::new(dispatcher), config).await.unwrap();
        let tenancy = engine.tenancy();
        tenancy.create_team(TeamDraft::new("acme", TeamPlan::Enterprise)).await.unwrap();
        tenancy.create_sandbox(SandboxDraft::new("acme", "s")).await.unwrap();
        let key = tenancy.create_key(KeyDraft::new("acme", "s", "k")).await.unwrap();
        let caller = tenancy.find_caller(key.secret.reveal()).await.unwrap();
        Self { engine, caller, permits, _directory: directory }
    }

    async fn execute(&self, thread: Option<&str>) -> Result<StartedExecution, Refusal> {
        let thread_id = thread.map(ToOwned::to_owned);
        let request =
            ExecuteRequest { code: "1".to_owned(), thread_id, ..ExecuteRequest::default() };
        self.engine.executions().start_execution(&self.caller, request, DeliveryMode::Inline).await
    }
}

#[tokio::test]
async fn an_execution_without_a_thread_is_recorded_with_its_output() {
    let server = ScriptedServer::start().await;
    let started = server.execute(None).await.unwrap();
    let trace_id = started.trace_id.clone();
    server.permits.add_permits(1);
    let over = started.wait_until_over().await.unwrap();
    assert_eq!(over.status, ExecutionStatus::Success);
    let found = server.engine.executions().find_execution(&server.caller, &trace_id).await.unwrap();
    assert_eq!(&found.end.unwrap().stdout[..], b"out\n");
    server.engine.shutdown().await;
}

#[tokio::test]
async fn a_thread_is_held_while_its_execution_runs_and_free_once_the_end_is_announced() {
    let server = ScriptedServer::start().await;
    let first = server.execute(Some("t")).await.unwrap();
    let busy = server.execute(Some("t")).await.err().unwrap();
    assert_eq!(busy.code, ErrorCode::Conflict, "{busy}");
    server.permits.add_permits(2);
    first.wait_until_over().await.unwrap();
    let second = server.execute(Some("t")).await.unwrap();
    second.wait_until_over().await.unwrap();
    let threads = server.engine.threads();
    let history =
        threads.thread_history(&server.caller.team, &"t".parse().unwrap(), None, 10).await.unwrap();
    assert_eq!(history.points.len(), 2);
    server.engine.shutdown().await;
}

#[tokio::test]
async fn a_run_that_no_executor_takes_is_unavailable_to_its_caller_and_failed_in_the_ledger() {
    let unavailable = || DispatchError::Unavailable("all sidecars are down".to_owned());
    let server = ScriptedServer::with_failure(Some(unavailable)).await;
    server.permits.add_permits(1);
    let started = server.execute(Some("t")).await.unwrap();
    let trace_id = started.trace_id.clone();
    let refusal = started.wait_until_over().await.unwrap_err();
    assert_eq!(refusal.code, ErrorCode::Unavailable);
    let found = server.engine.executions().find_execution(&server.caller, &trace_id).await.unwrap();
    assert_eq!(found.status, ExecutionStatus::Failed);
    server.engine.shutdown().await;
}

#[tokio::test]
async fn a_cancelled_execution_gives_its_thread_back() {
    let server = ScriptedServer::start().await;
    let started = server.execute(Some("t")).await.unwrap();
    let executions = server.engine.executions();
    executions.cancel_execution(&server.caller, &started.trace_id).await.unwrap();
    assert_eq!(started.wait_until_over().await.unwrap().status, ExecutionStatus::Cancelled);
    server.permits.add_permits(1);
    server.execute(Some("t")).await.unwrap().wait_until_over().await.unwrap();
    server.engine.shutdown().await;
}
