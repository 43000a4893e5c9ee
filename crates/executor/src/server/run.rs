//! Runs in: server (no capabilities). One run, from its spec to its outcome, in six steps.
//!
//! Four orders matter, and [`Executor::run`] is where they are visible. The layer is durable before
//! the outcome names it. The home is packed before the cell is released. The cell is released
//! before the pool is refilled, because one single-threaded spawner both packs and refills. A cell
//! that has run is never used again: [`Run::watch_run`] takes it by value.

use std::{
    mem,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use cloche_model::{
    CpuPriority, HOST_IMAGE, HomeWrites, MemoryAccount, MountReport, OutputChunk, RunEnding,
    RunOutcome, RunSpec,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    cell::{self, Cell, CellError},
    cell_watch::{self, CellInput, FinishedRun},
    commit::{self, HomeDiff, OutputSink, PlacedFile, WrittenHome},
    control_socket::ControlSocket,
    executor::{Executor, ExecutorInner},
    home_mount::{HomeMount, MountedHome},
    home_place::HomePlace,
    interpreter, job_builder,
    metrics::increment_counter,
    pool::{PoolKey, PoolLookup, PoolRun},
    run_error::RunError,
    spawner_client::{CellSource, SpawnError},
    storage_mounts::StorageMounts,
};
use crate::protocol::SpawnKind;

/// What goes in and out while a program runs.
#[derive(Debug, Default)]
pub struct RunIo {
    /// Receives output as it arrives. If the receiver is dropped, the run goes on.
    pub output: Option<mpsc::Sender<OutputChunk>>,
    /// Standard input after that of the spec, until the sender is dropped.
    pub stdin: Option<mpsc::Receiver<Vec<u8>>>,
    /// Cancels the run.
    pub cancel: CancellationToken,
    /// The account that pays for the output that is kept. Without it, only the limit of the run
    /// applies.
    pub memory: Option<Arc<MemoryAccount>>,
    /// How the cell competes for processors. Without it, the cell competes on equal terms.
    pub priority: Option<Arc<CpuPriority>>,
}

impl Executor {
    /// Runs one program in a fresh cell, to its end, and keeps the files that it wrote.
    pub async fn run(&self, spec: RunSpec, mut io: RunIo) -> Result<RunOutcome, RunError> {
        let mut run = Run::new(&self.inner, spec);
        let (job, home) = run.prepare_job().await?;
        let mut cell = run.acquire_cell(io.priority.take()).await?;
        let mounted = run.mount_home(home.as_ref(), &mut cell).await?;
        let storage = run.mount_storage(&mut cell).await?;
        let FinishedRun { mut outcome, cell_home, mut control } =
            run.watch_run(cell, job, io).await?;
        let ended = Instant::now();
        if let Some(storage) = storage {
            outcome.mounts = run.finish_storage(storage, outcome.ending, &mut control).await;
        }
        outcome.written = run.commit_home(mounted, cell_home, &mut control).await?;
        // Pid 1 takes the cell apart when its control socket ends. The home is packed by now.
        control.release();
        // Only now may the pool be refilled: the spawner is free.
        run.pool_run.finish();
        outcome.timings.cell = run.cell_wait;
        outcome.timings.seal = ended.elapsed();
        self.inner.metrics.add_timings(&outcome.timings);
        Ok(outcome)
    }
}

/// One run. [`Executor::run`] declares it first, so it is dropped last: on an error the cell is
/// closed before the pool learns that the run is over.
struct Run<'a> {
    executor: &'a ExecutorInner,
    spec: RunSpec,
    /// The pool counts this run as under way until this is finished.
    pool_run: PoolRun<'a>,
    /// How long the run waited for its cell.
    cell_wait: Duration,
    /// Where the run has its home.
    place: HomePlace,
}

impl<'a> Run<'a> {
    fn new(executor: &'a ExecutorInner, spec: RunSpec) -> Self {
        let place = HomePlace::choose(executor.contained.as_deref(), executor.hides_packages);
        let (pool_run, cell_wait) = (PoolRun::default(), Duration::ZERO);
        Self { executor, spec, pool_run, cell_wait, place }
    }

    /// Step 1: encodes the job, and unpacks the layers of the thread's home. The layers stay
    /// unpacked while the returned home exists. A run without a thread has none.
    async fn prepare_job(&self) -> Result<(Vec<u8>, Option<HomeMount>), RunError> {
        let language = self.spec.language;
        let image = self.spec.sandbox.root.as_deref();
        let is_contained = matches!(self.place, HomePlace::Contained { .. });
        // A program never runs on another root than the one of its sandbox.
        let is_lost = image.is_none() && self.spec.sandbox.image != HOST_IMAGE;
        if is_lost || (image.is_some() && is_contained) {
            return Err(RunError::OtherRoot(self.spec.sandbox.image.clone()));
        }
        let interpreter = interpreter::find_interpreter(language, image)?;
        let job = job_builder::build_job(&self.spec, &interpreter, &self.place)?;
        let home = HomeMount::prepare(self.executor.layers.as_ref(), &self.spec).await?;
        Ok((job, home))
    }

    /// Step 2: takes a parked cell. Without one a template forks a cell; without a template a cold
    /// cell starts.
    async fn acquire_cell(&mut self, priority: Option<Arc<CpuPriority>>) -> Result<Cell, RunError> {
        let asked = Instant::now();
        let key = PoolKey::new(self.spec.language, &self.spec.limits, &self.spec.sandbox);
        let pool = self.executor.pool.as_ref();
        let found = match pool.filter(|_| !job_builder::needs_cold_start(&self.spec)) {
            Some(pool) => {
                let (found, pool_run) = pool.begin_run(&key);
                self.pool_run = pool_run;
                found
            }
            None => PoolLookup::Nothing,
        };
        let mut cell = self.take_or_start_cell(&key, found).await?;
        self.cell_wait = asked.elapsed();
        self.executor.metrics.cell.add(self.cell_wait);
        if let Some(priority) = priority {
            cell.meter.follow_priority(priority);
        }
        Ok(cell)
    }

    /// Step 3: mounts the thread's home in the cell, which has run nothing yet. Without a thread
    /// the run uses the home that the cell came with.
    async fn mount_home(
        &self,
        home: Option<&HomeMount>,
        cell: &mut Cell,
    ) -> Result<Option<MountedHome>, RunError> {
        match home {
            Some(home) => Ok(Some(home.mount_into(cell, &self.executor.spawner).await?)),
            None => Ok(None),
        }
    }

    /// Step 4: mounts the storage of the run in the cell.
    async fn mount_storage(&mut self, cell: &mut Cell) -> Result<Option<StorageMounts>, RunError> {
        let ExecutorInner { storage, spawner, .. } = self.executor;
        if matches!(self.place, HomePlace::Contained { .. })
            && let Some(mount) = self.spec.mounts.first()
        {
            spawner.kill_cell(cell.id).await;
            let reason = "contained cells cannot have storage mounts".to_owned();
            return Err(RunError::Storage { slug: mount.slug.to_string(), reason });
        }
        StorageMounts::attach(&mut self.spec, storage, cell, spawner).await
    }

    /// Ends the storage of a run. What a program wrote is stored, unless it was stopped: then its
    /// mount server is gone already.
    async fn finish_storage(
        &self,
        storage: StorageMounts,
        ending: RunEnding,
        control: &mut ControlSocket,
    ) -> Vec<MountReport> {
        match ending {
            RunEnding::TimedOut | RunEnding::Cancelled => storage.abandon(),
            _ => storage.finish(control).await,
        }
    }

    /// Step 5: gives the cell its job, and watches it until the program has ended, timed out or was
    /// cancelled.
    async fn watch_run(
        &mut self,
        cell: Cell,
        job: Vec<u8>,
        io: RunIo,
    ) -> Result<FinishedRun, RunError> {
        let exit = cell.exit.clone();
        let stdin = mem::take(&mut self.spec.stdin);
        let input = CellInput { job, stdin, limits: self.spec.limits, io };
        let finished = cell_watch::watch_cell(cell, &self.executor.spawner, input).await;
        self.executor.time_teardown(exit);
        finished
    }

    /// Step 6: packs what the program wrote and stores it. The layer is durable when this returns.
    async fn commit_home(
        &mut self,
        mounted: Option<MountedHome>,
        cell_home: Option<OwnedFd>,
        control: &mut ControlSocket,
    ) -> Result<HomeWrites, RunError> {
        let sink = match &self.executor.layers {
            Some(layers) if self.spec.stores_files => OutputSink::Store(layers),
            _ if self.executor.names_files => OutputSink::NamesOnly,
            _ => return Ok(HomeWrites::default()),
        };
        let home = match (mounted, cell_home) {
            (Some(mounted), _) => WrittenHome::Thread(mounted),
            (None, Some(upper)) => WrittenHome::Cell(upper),
            (None, None) => return Ok(HomeWrites::default()),
        };
        let diff = HomeDiff { home, placed: PlacedFile::take_from(&mut self.spec) };
        let written = commit::commit_home(&self.executor.spawner, sink, &diff, control).await;
        // Closing the last file descriptor of a home unmounts it, which can take a while.
        tokio::task::spawn_blocking(move || drop(diff));
        written
    }

    /// The cell that the pool found, or a new one.
    async fn take_or_start_cell(&self, key: &PoolKey, found: PoolLookup) -> Result<Cell, RunError> {
        let ExecutorInner { spawner, metrics, .. } = self.executor;
        if let HomePlace::Contained { directory, .. } = &self.place {
            increment_counter(&metrics.cold);
            let source = CellSource::Contained(directory.clone());
            return Ok(cell::spawn_cell(spawner, &key.making, source).await?);
        }
        match found {
            PoolLookup::Parked(cell) => return Ok(*cell),
            PoolLookup::Template(template) => {
                if let Ok(cell) = template.fork_cell(spawner, &key.making).await {
                    increment_counter(&metrics.forks);
                    return Ok(cell);
                }
            }
            PoolLookup::Nothing => {}
        }
        increment_counter(&metrics.cold);
        let start = || cell::spawn_cell(spawner, &key.making, CellSource::Nothing(SpawnKind::Cell));
        match start().await {
            // The program has not started, and the supervisor starts a new spawner at once.
            Err(CellError::Spawn(SpawnError::SpawnerLost)) => Ok(start().await?),
            started => Ok(started?),
        }
    }
}
