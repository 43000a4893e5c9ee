//! Runs in: sidecar (no capabilities).
//!
//! The executor sidecar behind its entry point: takes a job when there is a place, follows it, and
//! forgets it.
//!
//! It has no ledger, no teams and no queue. Dropping a [`Job`] stops it.

mod metrics;
mod protocol;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cloche_layers::Layers;
use cloche_model::{ByteSize, LayerStoreId, OutputChunk, RunLimits, RunOutcome, Secret, TraceId};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use crate::{
    AdmittedRun, ClassLimits, DispatchError, Dispatcher, HostShare, JobRefusal, JobRequest,
    MemoryConfig, MemoryPool, RunNeeds,
    admit::{FairQueue, HostPlace, PlaceRequest, QueueTicket},
    admit_job,
};

use metrics::{FinishedJob, SidecarMetrics};
pub use protocol::{
    JobEvent, JobHome, JobLimits, JobResult, JobTimings, JobUsage, SidecarHealthReport, exit_code,
};

/// Chunks of output that may wait for the client.
const CHUNKS: usize = 16;
/// How long past its time limit a job may hold its place, e.g. because its client does not read.
const STALL: Duration = Duration::from_secs(30);
/// How long the layer store may take to tell its name. A server waits a little longer.
const STORE_PATIENCE: Duration = Duration::from_millis(1500);
/// How long jobs may take to die once they are stopped.
const LAST_MOMENTS: Duration = Duration::from_secs(5);

/// Settings of a sidecar.
#[derive(Clone, Debug)]
pub struct SidecarConfig {
    /// The key that its callers send; without one, every request is taken.
    pub key: Option<Secret>,
    /// The time limit of a job that named none.
    pub default_timeout: Duration,
    /// The most that a job may use, time included.
    pub most: RunLimits,
    /// The layers that jobs may use, which a server shares with it. Without them, nothing is kept.
    pub layers: Option<Layers>,
    /// Jobs at once.
    pub jobs: usize,
    /// What the cells of all jobs may be promised together.
    pub capacity: HostShare,
    /// Memory for what jobs print, until their answers are read.
    pub outputs: ByteSize,
    /// How long jobs may go on after the sidecar was asked to stop.
    pub grace: Duration,
    /// How long a stream may be silent before it gets a keepalive.
    pub keepalive: Duration,
}

impl Default for SidecarConfig {
    fn default() -> Self {
        Self {
            key: None,
            default_timeout: Duration::from_secs(30),
            most: RunLimits { timeout: Duration::from_secs(60), ..RunLimits::default() },
            layers: None,
            jobs: 4,
            capacity: HostShare::UNLIMITED,
            outputs: MemoryConfig::default().outputs,
            grace: Duration::from_secs(30),
            keepalive: Duration::from_secs(5),
        }
    }
}

/// A sidecar. Cheap to clone.
#[derive(Clone)]
pub struct Sidecar {
    inner: Arc<SidecarInner>,
}

struct SidecarInner {
    config: SidecarConfig,
    dispatcher: Arc<dyn Dispatcher>,
    places: Arc<Semaphore>,
    /// Pays for the output of jobs.
    outputs: MemoryPool,
    /// What is promised to cells. Jobs do not wait, because a client can try another executor.
    promised: FairQueue,
    /// How to stop each job that runs.
    running: Mutex<HashMap<TraceId, CancellationToken>>,
    metrics: SidecarMetrics,
    jobs: TaskTracker,
    draining: AtomicBool,
    /// Stops every job.
    stopping: CancellationToken,
}

impl Sidecar {
    /// Runs jobs through this dispatcher.
    #[must_use]
    pub fn new(dispatcher: Arc<dyn Dispatcher>, config: SidecarConfig) -> Self {
        let inner = SidecarInner {
            places: Arc::new(Semaphore::new(config.jobs)),
            // One key opens a sidecar, so one holder may have all of it.
            outputs: MemoryPool::new(config.outputs, config.outputs),
            promised: FairQueue::new(without_queue(config.capacity), u64::MAX),
            config,
            dispatcher,
            running: Mutex::default(),
            metrics: SidecarMetrics::new(),
            jobs: TaskTracker::new(),
            draining: AtomicBool::new(false),
            stopping: CancellationToken::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Whether this is the key, compared in constant time.
    #[must_use]
    pub fn is_opened_by(&self, key: Option<&str>) -> bool {
        let Some(known) = &self.inner.config.key else { return true };
        let digest = |text: &str| Sha256::digest(text.as_bytes());
        let given = key.map(digest).unwrap_or_default();
        digest(known.reveal()).ct_eq(&given).into()
    }

    /// Takes a job, if it may run and there is a place for it now.
    ///
    /// # Errors
    /// When it is refused.
    pub fn start_job(&self, request: JobRequest) -> Result<SidecarJob, JobRefusal> {
        let started = self.begin_job(request);
        if let Err(refusal) = &started {
            self.inner.metrics.count_refusal(refusal);
        }
        started
    }

    fn begin_job(&self, request: JobRequest) -> Result<SidecarJob, JobRefusal> {
        let inner = &self.inner;
        if self.is_draining() {
            return Err(JobRefusal::Draining);
        }
        self.check_sandbox()?;
        let run = admit_job(request, &inner.config)?;
        let place = Arc::clone(&inner.places).try_acquire_owned();
        let place = place.map_err(|_| JobRefusal::Busy(inner.config.jobs))?;
        let demand = HostShare::of_cell(&run.limits());
        let request = PlaceRequest { team: run.team(), weight: 1, demand };
        let Ok(QueueTicket::Granted(promised)) = inner.promised.enter(request) else {
            return Err(JobRefusal::Full);
        };
        Ok(self.launch_job(run, (place, promised)))
    }

    fn launch_job(&self, run: AdmittedRun, place: (OwnedSemaphorePermit, HostPlace)) -> SidecarJob {
        let (id, spec_limits, language) = (run.trace_id().clone(), run.limits(), run.language());
        let run = run.with_output_account(self.inner.outputs.account_for("jobs"));
        let cancel = self.inner.stopping.child_token();
        self.inner.running.lock().insert(id.clone(), cancel.clone());
        let (output, chunks) = mpsc::channel(CHUNKS);
        let (done, over) = oneshot::channel();
        let dispatched = self.inner.dispatcher.dispatch(run, output, cancel.clone());
        let (inner, job) = (Arc::clone(&self.inner), id.clone());
        self.inner.jobs.spawn(async move {
            let dispatched = tokio::time::timeout(spec_limits.timeout + STALL, dispatched);
            let result = dispatched.await.unwrap_or_else(|_| {
                Err(DispatchError::Failed("the client did not read the output in time".to_owned()))
            });
            inner.running.lock().remove(&job);
            inner.release_layer(&result);
            inner.metrics.count_finished(FinishedJob { language, result: &result });
            if let Err(error) = &result {
                tracing::error!(%error, trace_id = %job, "a job had no outcome");
            }
            // The place is free before the end is announced.
            drop(place);
            let _ = done.send(result);
        });
        let keepalive = self.inner.config.keepalive;
        SidecarJob {
            id,
            output: spec_limits.output,
            keepalive,
            chunks,
            over,
            guard: cancel.drop_guard(),
        }
    }

    /// Stops a job; its stream ends with the result. Returns whether there was one.
    #[must_use]
    pub fn cancel_job(&self, id: &TraceId) -> bool {
        let found = self.inner.running.lock().get(id).cloned();
        found.inspect(CancellationToken::cancel).is_some()
    }

    /// Whether cells can be started at all.
    ///
    /// # Errors
    /// When they cannot.
    pub fn check_sandbox(&self) -> Result<(), JobRefusal> {
        let needs = RunNeeds {
            timeout: Duration::ZERO,
            home: false,
            image: false,
            network: false,
            mounts: false,
        };
        self.inner.dispatcher.check_run(&needs).map_err(|error| {
            tracing::error!(%error, "no sandbox can be started");
            JobRefusal::NoSandbox
        })
    }

    /// How it is. What it offers beyond the contract is for holders of the key.
    pub async fn report_health(&self, has_key: bool) -> SidecarHealthReport {
        let (running, capacity) = self.load();
        let most = u64::try_from(self.inner.config.most.timeout.as_millis()).unwrap_or(u64::MAX);
        SidecarHealthReport {
            status: "ok".to_owned(),
            running: running as u64,
            capacity: capacity as u64,
            max_timeout_ms: has_key.then_some(most),
            layer_store: if has_key { self.layer_store().await } else { None },
        }
    }

    /// The layer store that jobs can use. It is read before the first job that names one.
    pub async fn layer_store(&self) -> Option<LayerStoreId> {
        let layers = self.inner.config.layers.as_ref()?;
        let read = tokio::time::timeout(STORE_PATIENCE, layers.store_id()).await;
        read.ok()?.inspect_err(|error| tracing::error!(%error, "no layer store")).ok()
    }

    /// Jobs that run now, and how many could.
    #[must_use]
    pub fn load(&self) -> (usize, usize) {
        (self.inner.running.lock().len(), self.inner.config.jobs)
    }

    /// Whether it takes no more jobs, as it is being stopped.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.inner.draining.load(Ordering::SeqCst)
    }

    /// Everything that is counted, in the text format of Prometheus.
    #[must_use]
    pub fn metrics_text(&self) -> String {
        self.inner.metrics.encode_text(self.load(), self.inner.dispatcher.current_load())
    }

    /// Counts a request that was refused before it was a job: by its key or its body.
    pub fn note_refused(&self, reason: &'static str) {
        self.inner.metrics.refused_for(reason);
    }

    /// From now on nothing new is taken; jobs may end within the grace period, then they are ended.
    pub async fn shutdown(&self) {
        let inner = &self.inner;
        inner.draining.store(true, Ordering::SeqCst);
        inner.jobs.close();
        if tokio::time::timeout(inner.config.grace, inner.jobs.wait()).await.is_ok() {
            return;
        }
        tracing::warn!(left = inner.jobs.len(), "jobs are ended, the grace period is over");
        inner.stopping.cancel();
        if tokio::time::timeout(LAST_MOMENTS, inner.jobs.wait()).await.is_err() {
            tracing::error!("some jobs did not end");
        }
    }
}

impl SidecarInner {
    /// Stops protecting the layer of a result: the server that gets the result adopts it.
    fn release_layer(&self, result: &Result<RunOutcome, DispatchError>) {
        if let (Some(layers), Ok(outcome)) = (&self.config.layers, result)
            && let Some(layer) = &outcome.written.layer
        {
            layers.release_pin(&layer.digest);
        }
    }
}

/// A job has what it needs now, or is refused.
fn without_queue(capacity: HostShare) -> ClassLimits {
    ClassLimits {
        capacity,
        team_share_milli: 1000,
        queued_per_team: 0,
        queued: 0,
        longest_wait: Duration::ZERO,
    }
}

/// A job under way. Dropping it stops it.
pub struct SidecarJob {
    /// Its id, by which it can be stopped.
    pub id: TraceId,
    /// Bytes of each output stream that its outcome keeps.
    pub output: ByteSize,
    keepalive: Duration,
    chunks: mpsc::Receiver<OutputChunk>,
    over: oneshot::Receiver<Result<RunOutcome, DispatchError>>,
    #[expect(dead_code, reason = "it acts when it is dropped")]
    guard: DropGuard,
}

/// What happens to a job.
pub enum JobUpdate {
    /// It printed something.
    Output(OutputChunk),
    /// Nothing, for a while.
    Silence,
    /// It is over; nothing follows.
    Over(Box<Result<RunOutcome, DispatchError>>),
}

impl SidecarJob {
    /// The next event. Do not call it again after the end.
    pub async fn next(&mut self) -> JobUpdate {
        tokio::select! {
            chunk = self.chunks.recv() => match chunk {
                Some(chunk) => JobUpdate::Output(chunk),
                None => JobUpdate::Over(Box::new((&mut self.over).await.unwrap_or_else(|_| {
                    Err(DispatchError::Failed("the job was lost".to_owned()))
                }))),
            },
            () = tokio::time::sleep(self.keepalive) => JobUpdate::Silence,
        }
    }

    /// Waits for the end; the outcome has the output.
    ///
    /// # Errors
    /// When there is no outcome.
    pub async fn wait_outcome(mut self) -> Result<RunOutcome, DispatchError> {
        loop {
            if let JobUpdate::Over(result) = self.next().await {
                return *result;
            }
        }
    }
}
