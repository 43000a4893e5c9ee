//! Runs in: server (no capabilities), sidecar (no capabilities).
//!
//! The dispatcher over the executor of this host. The engine knows the trait, the executor knows
//! neither; this file joins the two.

use std::{
    collections::BTreeMap,
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use cloche_engine::{
    AdmittedRun, CellTools, DispatchError, Dispatcher, DispatcherLoad, PoolLevel, RunNeeds,
    TrialObserver,
};
use cloche_executor::{
    CellCall, Executor, HomeError, InterpreterFacts, ProbedInterpreter, ProgramStart, RunError,
    RunIo, SpawnError,
};
use cloche_model::{
    ImageRoot, InterpreterProbe, InterpreterStart, OutputChunk, RunOutcome, Substrate, error_chain,
};
use futures::future::BoxFuture;
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// The message for an operator whose spawner is gone.
const NO_SPAWNER: &str = "the spawner of this host is gone; restart the server";

/// The refusal of a run on an image where cells have no root of their own.
const NO_IMAGES: &str = "image: the sandboxes of this host have no root of their own, so they cannot run images; set \
     the sandbox's image to \"host\"";

/// The refusal of a run with a network where there is no broker, or cells have no netns.
const NO_NETWORK: &str = "network: programs can have no network here; set the sandbox's network to \"blocked\", or ask your \
     administrator to restart the server";

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
        let tool_calls = run.cell_tools().map(serve_tool_calls);
        let (output, answered) = (Some(output), run.answer_signal());
        let io = RunIo { output, stdin: None, cancel, memory, priority, tool_calls, answered };
        Box::pin(async move { executor.run(run.into_spec(), io).await.map_err(dispatch_error) })
    }

    fn check_run(&self, needs: &RunNeeds) -> Result<(), DispatchError> {
        if needs.image && !self.executor.runs_images() {
            return Err(DispatchError::Refused(NO_IMAGES.to_owned()));
        }
        if needs.network {
            self.check_network().map_err(DispatchError::Refused)?;
        }
        if self.executor.has_spawner() {
            return Ok(());
        }
        Err(DispatchError::Unavailable(NO_SPAWNER.to_owned()))
    }

    fn runs_images(&self) -> bool {
        self.executor.runs_images()
    }

    fn check_network(&self) -> Result<(), String> {
        if self.executor.gives_networks() {
            return Ok(());
        }
        Err(NO_NETWORK.to_owned())
    }

    fn probe_image(
        &self,
        image: Arc<ImageRoot>,
        on_try: TrialObserver,
    ) -> BoxFuture<'static, Result<Option<Vec<InterpreterProbe>>, DispatchError>> {
        let executor = self.executor.clone();
        Box::pin(async move {
            if !executor.runs_images() {
                return Ok(None);
            }
            let probed = executor.probe_image(&image, on_try).await.map_err(dispatch_error)?;
            Ok(Some(probed.into_iter().map(to_probe).collect()))
        })
    }

    fn forget_image(&self, image: Arc<ImageRoot>) -> BoxFuture<'static, ()> {
        let executor = self.executor.clone();
        Box::pin(async move { executor.forget_image(&image).await })
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

    fn try_substrate(&self, substrate: Substrate) -> BoxFuture<'static, Result<(), String>> {
        let executor = self.executor.clone();
        Box::pin(async move {
            let tried = executor.try_substrate(substrate).await;
            tried.map_err(|error| error_chain(&error))
        })
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
            nodes: Vec::new(),
        }
    }
}

/// Takes the calls of a program to its web tools, until the program has ended. Each call has a task
/// of its own, which ends with the program.
fn serve_tool_calls(tools: Arc<CellTools>) -> mpsc::Sender<CellCall> {
    let (calls, mut asked) = mpsc::channel::<CellCall>(1);
    tokio::spawn(async move {
        let mut running = JoinSet::new();
        loop {
            tokio::select! {
                call = asked.recv() => {
                    let Some(CellCall { request, answer }) = call else { return };
                    let tools = Arc::clone(&tools);
                    running.spawn(async move {
                        let _ = answer.send(tools.answer_request(&request).await);
                    });
                }
                _ = running.join_next(), if !running.is_empty() => {}
            }
        }
    });
    calls
}

/// What the executor found out, as it is kept.
fn to_probe(probed: ProbedInterpreter) -> InterpreterProbe {
    let language = probed.language.name().to_owned();
    let facts = match probed.facts {
        Ok(facts) => facts,
        Err(reason) => {
            return InterpreterProbe {
                language,
                version: None,
                implementation: None,
                libc: None,
                start: InterpreterStart::Failed,
                reason: Some(reason),
            };
        }
    };
    let (start, reason) = match probed.start {
        ProgramStart::Forked => (InterpreterStart::Forked, None),
        ProgramStart::Waiting { reason } => (InterpreterStart::Waiting, reason),
        ProgramStart::Cold { reason } => (InterpreterStart::Cold, reason),
    };
    let InterpreterFacts { version, implementation, libc, .. } = facts;
    InterpreterProbe { language, version: Some(version), implementation, libc, start, reason }
}

/// What a run that failed on this host is to the engine.
fn dispatch_error(error: RunError) -> DispatchError {
    match error {
        RunError::NoInterpreter(_)
        | RunError::NotInImage { .. }
        | RunError::OtherRoot(_)
        | RunError::Storage { .. }
        | RunError::Substrate { .. } => DispatchError::Impossible(error.to_string()),
        RunError::Home(HomeError::Mount(SpawnError::Blocked(_))) => {
            DispatchError::Impossible(error.source().map_or_else(String::new, ToString::to_string))
        }
        RunError::Spawn(_) => DispatchError::Unavailable(error_chain(&error)),
        _ => DispatchError::Failed(error_chain(&error)),
    }
}
