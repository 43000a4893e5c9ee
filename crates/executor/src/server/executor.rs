//! The executor itself: starts the spawner, runs programs, stops.

use std::{io, path::PathBuf, sync::Arc, time::Instant};

use cloche_jail::job_writer::InvalidJob;
use cloche_layers::Layers;
use cloche_model::{
    Language, MemoryAccount, OutputChunk, RunLimits, RunOutcome, RunSpec, SandboxProfile,
    SandboxShape,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    cell::{self, Cell, CellError},
    cell_exit::CellExit,
    cell_watch::{CellRun, FinishedRun, watch_run},
    commit::{self, CommitError, HomeDiff, OutputSink, PlacedFile},
    home_mount::{HomeError, HomeMount},
    job_builder,
    metrics::{ExecutorMetrics, ExecutorReading, increment_counter},
    pool::{Pool, PoolKey, PoolLookup, PoolSettings},
    priority::CpuPriority,
    spawner_client::{CellSource, OverlayDirs, SpawnError, SpawnerClient},
    spawner_process::SpawnerProcess,
};
use crate::protocol::{CellConfig, SpawnKind};

/// How an executor is set up.
#[derive(Clone)]
pub struct ExecutorConfig {
    /// The `cloche` binary, which is started again as the spawner.
    pub program: PathBuf,
    /// The arguments that make it one.
    pub spawner_args: Vec<String>,
    /// Walls that may be missing, by name.
    pub allow_missing: Vec<String>,
    /// How many cells to keep parked; none: every run starts from nothing.
    pub pool: Option<PoolSettings>,
    /// Where homes and what runs write are kept; none: nothing is kept, and threads are refused.
    /// The spawner must have been told the same directory of unpacked layers.
    pub layers: Option<Layers>,
    /// The directory of unpacked layers, which the spawner mounts homes from; it must exist when the
    /// spawner is started.
    pub unpacked_layers: Option<PathBuf>,
    /// Without layers: whether outcomes name the files that runs wrote all the same.
    pub names_files: bool,
}

impl ExecutorConfig {
    /// The defaults, with this binary as the spawner.
    pub fn with_program(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            spawner_args: vec!["__spawner".to_owned()],
            allow_missing: Vec::new(),
            pool: None,
            layers: None,
            unpacked_layers: None,
            names_files: false,
        }
    }
}

/// What goes in and out while a program runs.
#[derive(Debug, Default)]
pub struct RunIo {
    /// Output as it arrives. A receiver that is gone stops nothing.
    pub output: Option<mpsc::Sender<OutputChunk>>,
    /// Standard input beyond the spec's, until the sender is gone.
    pub stdin: Option<mpsc::Receiver<Vec<u8>>>,
    /// Stops the run.
    pub cancel: CancellationToken,
    /// What the output that is kept is paid from; none: only its own limit holds.
    pub memory: Option<Arc<MemoryAccount>>,
    /// How its cell competes for processors; on equal terms if absent.
    pub priority: Option<Arc<CpuPriority>>,
}

/// Why an executor could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorStartError {
    /// The spawner could not be started.
    #[error("cannot start the spawner")]
    Spawner(#[from] io::Error),
    /// The spawner died while starting.
    #[error("the spawner died while starting")]
    Lost(#[from] SpawnError),
    /// Walls are missing that were not allowed to be.
    #[error("this host cannot build: {}", describe_walls(.0))]
    Missing(Vec<(String, String)>),
}

fn describe_walls(missing: &[(String, String)]) -> String {
    let each = missing.iter().map(|(wall, why)| format!("{wall} ({why})"));
    each.collect::<Vec<_>>().join(", ")
}

/// Why a run has no outcome: we failed, not the program.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The host has no interpreter for the language.
    #[error("{0} is not installed on this host: there is no {program} in /usr/bin", program = .0.interpreter())]
    NoInterpreter(Language),
    /// No cell could be started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// A wall could not be built, so nothing was run.
    #[error("the wall {wall} could not be built")]
    Wall {
        /// Its name.
        wall: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The cell died, and not by anything it or we did.
    #[error("the cell was lost")]
    CellLost,
    /// There is nowhere to keep a thread's home.
    #[error("threads are not set up here")]
    NoThreads,
    /// The home of a thread could not be mounted.
    #[error("the thread's home could not be brought in")]
    Home(#[source] HomeError),
    /// The program has run, and what it wrote to its home could not be kept.
    #[error("what the program wrote could not be kept")]
    Commit(#[source] CommitError),
    /// The job cannot be given to a cell.
    #[error(transparent)]
    Job(#[from] InvalidJob),
    /// Pipes or sockets could not be made.
    #[error("cannot set up a run")]
    Io(#[from] io::Error),
}

impl From<CellError> for RunError {
    fn from(error: CellError) -> Self {
        match error {
            CellError::Spawn(error) => Self::Spawn(error),
            CellError::Io(error) => Self::Io(error),
        }
    }
}

/// Runs programs on this host. Cheap to clone; the last one to be dropped ends the spawner.
#[derive(Clone)]
pub struct Executor {
    shared: Arc<ExecutorInner>,
}

struct ExecutorInner {
    spawner: Arc<SpawnerClient>,
    metrics: Arc<ExecutorMetrics>,
    pool: Option<Pool>,
    layers: Option<Layers>,
    names_files: bool,
    missing: Vec<(String, String)>,
}

impl Executor {
    /// Starts a spawner, and refuses where a wall is missing that may not be.
    pub async fn start(config: ExecutorConfig) -> Result<Self, ExecutorStartError> {
        let process = SpawnerProcess::start(&config)?;
        Self::with_spawner(process, config).await
    }

    /// The same with a spawner that was started before, e.g. before privileges were dropped.
    pub async fn with_spawner(
        process: SpawnerProcess,
        config: ExecutorConfig,
    ) -> Result<Self, ExecutorStartError> {
        let spawner = SpawnerClient::from_process(process)?;
        let missing = spawner.missing_walls().await?;
        let mut refused = missing.clone();
        refused.retain(|(wall, _)| !config.allow_missing.contains(wall));
        if !refused.is_empty() {
            spawner.stop().await;
            return Err(ExecutorStartError::Missing(refused));
        }
        let (spawner, metrics) = (Arc::new(spawner), Arc::new(ExecutorMetrics::default()));
        let pool = config
            .pool
            .map(|settings| Pool::new(Arc::clone(&spawner), Arc::clone(&metrics), settings));
        let ExecutorConfig { layers, names_files, .. } = config;
        let shared = ExecutorInner { spawner, metrics, pool, layers, names_files, missing };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The walls this host cannot build and was allowed not to: name and reason.
    #[must_use]
    pub fn missing_walls(&self) -> &[(String, String)] {
        &self.shared.missing
    }

    /// Has cells parked for runs like this one before the first comes.
    pub fn prewarm_pool(&self, language: Language, limits: &RunLimits, sandbox: &SandboxShape) {
        if let Some(pool) = &self.shared.pool {
            pool.prewarm_bucket(pool_key(language, limits, sandbox));
        }
    }

    /// Runs one program in a fresh sandbox, to its end, and keeps what it wrote.
    pub async fn run(&self, spec: RunSpec, mut io: RunIo) -> Result<RunOutcome, RunError> {
        let ExecutorInner { spawner, metrics, pool, layers, .. } = &*self.shared;
        let interpreter = job_builder::find_interpreter(spec.language);
        let interpreter = interpreter.ok_or(RunError::NoInterpreter(spec.language))?;
        let job = job_builder::build_job(&spec, &interpreter)?;
        let house = HomeMount::prepare(layers.as_ref(), &spec).await?;
        let asked = Instant::now();
        let key = pool_key(spec.language, &spec.limits, &spec.sandbox);
        let pool = pool.as_ref().filter(|_| !job_builder::needs_cold_start(&spec));
        let found = pool.map_or(PoolLookup::Nothing, |pool| pool.take(&key));
        let done = pool.map(PoolRunGuard);
        let mut cell = self.acquire_cell(&key, found).await?;
        let waited = asked.elapsed();
        metrics.cell.add(waited);
        if let Some(priority) = io.priority.take() {
            cell.meter.follow_priority(priority);
        }
        let moved = match &house {
            Some(house) => Some(house.mount_into(&mut cell, spawner).await?),
            None => None,
        };
        let gone = cell.gone.clone();
        let keep = match layers {
            Some(layers) => Some(OutputSink::In(layers)),
            None => self.shared.names_files.then_some(OutputSink::NamesOnly),
        };
        let placed = keep.is_some().then(|| PlacedFile::from_spec(&spec));
        let work = CellRun { job, stdin: spec.stdin, limits: spec.limits, io };
        let driven = watch_run(cell, spawner, work).await;
        self.watch_teardown(gone);
        let FinishedRun { mut outcome, home, mut control } = driven?;
        outcome.timings.cell = waited;
        let ended = Instant::now();
        let (diff, before) = moved.unzip();
        let diff = diff.or(home.map(|upper| OverlayDirs { upper, merged: None }));
        if let (Some(keep), Some(placed), Some(diff)) = (keep, placed, diff) {
            let left = HomeDiff { diff, placed, before };
            let written = commit::commit_home(spawner, keep, &left, &mut control).await;
            // The last to let go of a home unmounts it, which may take its time.
            tokio::task::spawn_blocking(move || drop(left));
            outcome.written = written?;
        }
        drop(control);
        // Only now: the spawner that refills the pool is the one that packs.
        drop(done);
        outcome.timings.seal = ended.elapsed();
        metrics.attach.add(outcome.timings.attach);
        metrics.run.add(outcome.timings.run);
        metrics.seal.add(outcome.timings.seal);
        Ok(outcome)
    }

    /// The cell for a run: parked, else forked, else from nothing; never an error for want of one.
    async fn acquire_cell(&self, key: &PoolKey, found: PoolLookup) -> Result<Cell, RunError> {
        let ExecutorInner { spawner, metrics, .. } = &*self.shared;
        match found {
            PoolLookup::Parked(cell) => return Ok(*cell),
            PoolLookup::Template(template) => {
                if let Ok(cell) = template.fork_cell(spawner, &key.config).await {
                    increment_counter(&metrics.forks);
                    return Ok(cell);
                }
            }
            PoolLookup::Nothing => {}
        }
        increment_counter(&metrics.cold);
        let start = || cell::spawn_cell(spawner, &key.config, CellSource::Nothing(SpawnKind::Cell));
        match start().await {
            // Nothing of the program has run yet, and a new spawner is there at once.
            Err(CellError::Spawn(SpawnError::SpawnerLost)) => Ok(start().await?),
            started => Ok(started?),
        }
    }

    /// Times what happens after the reply.
    fn watch_teardown(&self, gone: CellExit) {
        let (metrics, ended) = (Arc::clone(&self.shared.metrics), Instant::now());
        if self.shared.pool.is_some() {
            tokio::spawn(async move {
                gone.wait().await;
                metrics.teardown.add(ended.elapsed());
            });
        }
    }

    /// Counters, timings and levels at this moment.
    #[must_use]
    pub fn read_metrics(&self) -> ExecutorReading {
        let levels = self.shared.pool.as_ref().map(Pool::bucket_readings).unwrap_or_default();
        self.shared.metrics.read(self.shared.spawner.count_alive(), levels)
    }

    /// Whether the pool holds what it should.
    #[must_use]
    pub fn is_warm(&self) -> bool {
        self.shared.pool.as_ref().is_none_or(Pool::is_full)
    }

    /// Waits until nothing of past runs is left on the host. Parked cells are not past runs.
    pub async fn wait_for_teardown(&self) {
        let held = || self.shared.pool.as_ref().map_or(0, Pool::count_held);
        self.shared.spawner.wait_for_teardown(held).await;
    }

    /// Ends the spawner and everything that still runs. With other clones around, they keep it.
    pub async fn stop(self) {
        let Some(ExecutorInner { spawner, pool, .. }) = Arc::into_inner(self.shared) else {
            return;
        };
        if let Some(pool) = pool {
            pool.stop().await;
        }
        if let Some(spawner) = Arc::into_inner(spawner) {
            spawner.stop().await;
        }
    }
}

/// Tells the pool that a run is over, however it ended.
struct PoolRunGuard<'a>(&'a Pool);

impl Drop for PoolRunGuard<'_> {
    fn drop(&mut self) {
        self.0.finish_run();
    }
}

fn pool_key(language: Language, limits: &RunLimits, sandbox: &SandboxShape) -> PoolKey {
    let config = CellConfig {
        image: sandbox.image.clone(),
        memory: limits.memory.bytes(),
        cpu_milli: limits.cpus.millicores(),
        pids: limits.pids,
        disk: limits.disk.bytes(),
        strict: sandbox.profile == SandboxProfile::Strict,
    };
    let python = language == Language::Python;
    let preload = if python { sandbox.preload.clone() } else { Vec::new() };
    let template = python && sandbox.uses_template();
    // Cells with an interpreter of their own have nothing in common.
    let group = sandbox.pool_group.clone().filter(|_| template);
    PoolKey { config, language, preload, template, group }
}
