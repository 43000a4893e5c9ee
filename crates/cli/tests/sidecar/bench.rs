//! A dispatcher of either kind on the real binary, and one run through it.

use std::{sync::Arc, time::Duration};

use cloche_engine::{
    DispatchError, Dispatcher, JobRequest, RemoteConfig, RemoteDispatcher, admit_job,
    sidecar::{JobLimits, SidecarConfig},
};
use cloche_executor::{Executor, ExecutorConfig};
use cloche_model::{OutputChunk, RunOutcome, Secret, StreamName};
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    executor::{KEY, Sidecar},
    host::PATIENCE,
    local_dispatcher::LocalDispatcher,
    support::{binary, can_sandbox, eventually},
};

/// A dispatcher, and everything that must stay alive for it.
pub(crate) struct Bench {
    dispatcher: Arc<dyn Dispatcher>,
    sidecars: Vec<Sidecar>,
}

/// A run in progress.
pub(crate) struct Run {
    pub(crate) chunks: mpsc::Receiver<OutputChunk>,
    pub(crate) cancel: CancellationToken,
    result: JoinHandle<Result<RunOutcome, DispatchError>>,
}

impl Bench {
    /// The executor of this host, as in `cloche serve`.
    pub(crate) async fn local() -> Option<Self> {
        if !can_sandbox() {
            return None;
        }
        let executor = Executor::start(ExecutorConfig::with_program(binary())).await.unwrap();
        Some(Self { dispatcher: Arc::new(LocalDispatcher::new(executor)), sidecars: Vec::new() })
    }

    /// One sidecar.
    pub(crate) async fn remote() -> Option<Self> {
        Some(Self::with(vec![Sidecar::start().await?]))
    }

    pub(crate) fn with(sidecars: Vec<Sidecar>) -> Self {
        let urls = sidecars.iter().map(|sidecar| sidecar.url.clone()).collect();
        Self { sidecars, ..Self::at(RemoteConfig { urls, ..settings() }) }
    }

    /// A dispatcher for these addresses.
    pub(crate) fn at(config: RemoteConfig) -> Self {
        let dispatcher = Arc::new(RemoteDispatcher::new(config, None).unwrap());
        Self { dispatcher, sidecars: Vec::new() }
    }

    pub(crate) fn sidecars(&self) -> &[Sidecar] {
        &self.sidecars
    }

    /// Removes a sidecar from this fixture, but not from the dispatcher.
    pub(crate) fn remove(&mut self, index: usize) -> Sidecar {
        self.sidecars.remove(index)
    }

    pub(crate) fn add(&mut self, sidecar: Sidecar) {
        self.sidecars.push(sidecar);
    }

    pub(crate) fn ready(&self) -> Result<(), String> {
        self.dispatcher.check_ready()
    }

    /// Waits until the dispatcher is ready.
    pub(crate) async fn until_ready(&self) {
        eventually("the dispatcher is ready", async || self.ready()).await;
    }

    pub(crate) fn start(&self, job: JobRequest) -> Run {
        let run = admit_job(job, &SidecarConfig::default()).unwrap();
        let (output, chunks) = mpsc::channel(4);
        let cancel = CancellationToken::new();
        let result = tokio::spawn(self.dispatcher.dispatch(run, output, cancel.clone()));
        Run { chunks, cancel, result }
    }

    /// Runs to the end.
    pub(crate) async fn run(&self, job: JobRequest) -> (RunOutcome, Vec<OutputChunk>) {
        let (result, chunks) = self.start(job).until_over().await;
        (result.unwrap(), chunks)
    }

    /// Runs, and asserts that the run fails without an outcome.
    pub(crate) async fn fails(&self, job: JobRequest) -> DispatchError {
        self.start(job).until_over().await.0.unwrap_err()
    }
}

impl Run {
    /// The next chunk of output.
    pub(crate) async fn chunk(&mut self) -> OutputChunk {
        timeout(PATIENCE, self.chunks.recv()).await.expect("no output in time").expect("no output")
    }

    /// The rest of the output, and the outcome, with a timeout.
    pub(crate) async fn until_over(
        mut self,
    ) -> (Result<RunOutcome, DispatchError>, Vec<OutputChunk>) {
        let all = async {
            let mut chunks = Vec::new();
            while let Some(chunk) = self.chunks.recv().await {
                chunks.push(chunk);
            }
            (self.result.await.unwrap(), chunks)
        };
        timeout(PATIENCE, all).await.expect("it hangs")
    }

    /// The outcome, even if the output is not read.
    pub(crate) async fn outcome(self) -> Result<RunOutcome, DispatchError> {
        timeout(PATIENCE, self.result).await.expect("it hangs").unwrap()
    }
}

/// The settings of remote dispatchers in these tests.
pub(crate) fn settings() -> RemoteConfig {
    RemoteConfig {
        key: Some(Secret::new(KEY)),
        check_every: Duration::from_millis(50),
        ..RemoteConfig::default()
    }
}

pub(crate) fn job(language: &str, code: &str) -> JobRequest {
    JobRequest {
        code: code.to_owned(),
        language: Some(language.to_owned()),
        ..JobRequest::default()
    }
}

pub(crate) fn limited(job: JobRequest, limits: JobLimits) -> JobRequest {
    JobRequest { limits, ..job }
}

/// Joins the chunks of one stream.
pub(crate) fn joined(chunks: &[OutputChunk], stream: StreamName) -> Vec<u8> {
    let of_it = chunks.iter().filter(|chunk| chunk.stream == stream);
    of_it.flat_map(|chunk| chunk.bytes.iter().copied()).collect()
}
