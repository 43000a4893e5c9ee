//! Runs in: server (no capabilities).
//!
//! The trait of what runs code: the executor of this host, or sidecars over the network.

use std::{sync::Arc, time::Duration};

use cloche_model::{ImageRoot, InterpreterProbe, OutputChunk, RunOutcome, Substrate};
use futures::future::BoxFuture;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::AdmittedRun;

/// Runs what was admitted.
pub trait Dispatcher: Send + Sync {
    /// Runs it once. Output is sent as it comes, in order and without loss. The receiver may be
    /// dropped; the run goes on. When `cancel` fires, everything of the run is killed and the
    /// outcome says so.
    fn dispatch(
        &self,
        run: AdmittedRun,
        output: mpsc::Sender<OutputChunk>,
        cancel: CancellationToken,
    ) -> BoxFuture<'static, Result<RunOutcome, DispatchError>>;

    /// Whether a run with these needs can be taken, as far as is known without asking an executor.
    /// Nothing of the execution has been written yet.
    ///
    /// # Errors
    /// When nothing can take it at present, or ever.
    fn check_run(&self, _needs: &RunNeeds) -> Result<(), DispatchError> {
        Ok(())
    }

    /// Whether [`Dispatcher::dispatch`] takes every run at once. Where it does not, it reports
    /// through [`AdmittedRun::take_signal`] that an executor has taken the run, and the answer
    /// waits for that.
    fn takes_at_once(&self) -> bool {
        true
    }

    /// Whether a sandbox can have another image than `host`.
    fn runs_images(&self) -> bool {
        true
    }

    /// Whether a sandbox can have a network here.
    ///
    /// # Errors
    /// A sentence for the caller that says why not, and what to do.
    fn check_network(&self) -> Result<(), String> {
        Err("network: this server cannot give programs a network; set the sandbox's network to \
             \"blocked\""
            .to_owned())
    }

    /// Tries the interpreters of an image in cells, and says before each which it is. `None` where
    /// nothing can be tried.
    ///
    /// # Errors
    /// If the image cannot be mounted, or no cell can be started.
    fn probe_image(
        &self,
        _image: Arc<ImageRoot>,
        _on_try: TrialObserver,
    ) -> BoxFuture<'static, Result<Option<Vec<InterpreterProbe>>, DispatchError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

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
    /// The answer can change: sidecars come and go.
    fn keeps_homes(&self) -> bool {
        true
    }

    /// Frees what is held for an image that was removed.
    fn forget_image(&self, _image: Arc<ImageRoot>) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Tries whether runs can have this substrate, by starting one.
    ///
    /// # Errors
    /// Why they cannot, with what its runtime said.
    fn try_substrate(&self, substrate: Substrate) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(std::future::ready(match substrate {
            Substrate::Native => Ok(()),
            Substrate::Oci(_) => Err(format!(
                "this server's executors have no substrate {substrate}; they have native"
            )),
        }))
    }

    /// What is held ready and what is in use, for metrics.
    fn current_load(&self) -> DispatcherLoad;
}

/// Gets the name of each interpreter of an image before it is tried.
pub type TrialObserver = Box<dyn Fn(&str) + Send + Sync>;

/// What a run needs of the executor that takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunNeeds {
    /// The time that it may take.
    pub timeout: Duration,
    /// Whether it has a thread, whose home the executor must be able to mount and store.
    pub home: bool,
    /// Whether its root is an image, not the executor's host.
    pub image: bool,
    /// Whether it has a network.
    pub network: bool,
    /// Whether it has storage mounts.
    pub mounts: bool,
}

/// Reports that an executor has taken a run. Dropped before, it reports that none has.
#[derive(Debug)]
pub struct TakenSignal(watch::Sender<bool>);

impl TakenSignal {
    pub(crate) fn new() -> (Self, watch::Receiver<bool>) {
        let (sender, receiver) = watch::channel(false);
        (Self(sender), receiver)
    }

    /// An executor has taken the run.
    pub fn report_taken(self) {
        self.0.send_replace(true);
    }
}

/// Why a run has no outcome.
#[derive(Debug, thiserror::Error)]
pub enum DispatchError {
    /// Nothing could take it; asking again may help.
    #[error("nothing can run this at present: {0}")]
    Unavailable(String),
    /// No executor takes it as it was asked for, and the sentence says why. It has not begun, and
    /// the request is answered as invalid.
    #[error("{0}")]
    Refused(String),
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
    /// The executors of a fleet; none where this host runs the code.
    pub nodes: Vec<NodeLoad>,
}

/// An executor of a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLoad {
    /// Where it is.
    pub url: String,
    /// Whether it answers its health checks.
    pub health: NodeHealth,
    /// Executions of this server that it runs now.
    pub running: u64,
    /// Whether it keeps the homes of threads.
    pub keeps_homes: bool,
    /// The longest time limit that it takes, if it says so.
    pub max_timeout: Option<Duration>,
}

/// Whether an executor of a fleet gets executions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeHealth {
    /// No health check has answered yet.
    Unknown,
    /// It does.
    Up,
    /// It is left out, for this reason.
    Down(String),
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
