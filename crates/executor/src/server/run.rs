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
    CpuPriority, HOST_IMAGE, HomeWrites, MemoryAccount, MountReport, NetworkReport, OutputChunk,
    RunEnding, RunOutcome, RunSpec, Substrate,
};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    aftermath::RunAftermath,
    cell::{self, Cell, CellError},
    cell_network::CellNetwork,
    cell_watch::{self, CellInput, FinishedRun},
    commit::{self, HomeDiff, OutputSink, PlacedFile, WrittenHome},
    control_socket::ControlSocket,
    executor::{Executor, ExecutorInner},
    home_mount::{HomeMount, MountedHome},
    home_place::HomePlace,
    job_builder,
    metrics::increment_counter,
    pool::{PoolKey, PoolLookup, PoolRun},
    run_error::RunError,
    spawner_client::{CellSource, SpawnError},
    storage_mounts::StorageMounts,
    tool_socket::{CellCall, ToolSocket},
    warm,
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
    /// Answers what the program asks through the socket of the web tools. Without it, the cell has
    /// no such socket.
    pub tool_calls: Option<mpsc::Sender<CellCall>>,
    /// Fires when the answer is out. The cell is taken apart after that, within a bound; without
    /// it at once.
    pub answered: Option<CancellationToken>,
}

impl Executor {
    /// Runs one program in a fresh cell, to its end, and keeps the files that it wrote.
    pub async fn run(&self, spec: RunSpec, io: RunIo) -> Result<RunOutcome, RunError> {
        self.ensure_substrate(&spec.sandbox).await?;
        self.run_to_end(Run::new(&self.inner, spec), io).await
    }

    /// Runs one program in a cell of this kind.
    pub(super) async fn run_trial(&self, spec: RunSpec) -> Result<RunOutcome, RunError> {
        let run = Run { kind: SpawnKind::Trial, ..Run::new(&self.inner, spec) };
        self.run_to_end(run, RunIo::default()).await
    }

    async fn run_to_end(&self, mut run: Run<'_>, mut io: RunIo) -> Result<RunOutcome, RunError> {
        run.check_storage().await?;
        let network = run.open_network().await?;
        let (job, home) = run.prepare_job(network.as_ref()).await?;
        let mut cell = run.acquire_cell(io.priority.take()).await?;
        let mounted = run.mount_home(home.as_ref(), &mut cell).await?;
        let network = run.attach_network(network, &cell).await?;
        let tool_socket = run.mount_tool_socket(io.tool_calls.take(), &mut cell).await?;
        let mut storage = run.mount_storage(&mut cell).await?;
        let (answered, exit) = (io.answered.take(), cell.exit.clone());
        let FinishedRun { mut outcome, ended, cell_home, mut control, remains } =
            run.watch_run(cell, job, io, storage.as_mut()).await?;
        // Nothing that the program has left running may call a tool after its end.
        drop(tool_socket);
        outcome.network = run.finish_network(network).await;
        if let Some(storage) = storage {
            outcome.mounts = run.finish_storage(storage, outcome.ending, &mut control).await;
        }
        let (written, diff) = run.commit_home(mounted, cell_home, &mut control).await?;
        outcome.written = written;
        // The home is packed by now.
        let pool_run = mem::take(&mut run.pool_run);
        let aftermath = RunAftermath { control, remains, pool_run, diff };
        self.inner.settle_run(aftermath, answered, exit);
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
    pool_run: PoolRun,
    /// How long the run waited for its cell.
    cell_wait: Duration,
    /// Where the run has its home.
    place: HomePlace,
    /// What the spawner starts if there is no parked cell.
    kind: SpawnKind,
}

impl<'a> Run<'a> {
    fn new(executor: &'a ExecutorInner, spec: RunSpec) -> Self {
        let place = HomePlace::choose(executor.contained.as_deref(), executor.hides_packages);
        let (pool_run, cell_wait) = (PoolRun::default(), Duration::ZERO);
        Self { executor, spec, pool_run, cell_wait, place, kind: SpawnKind::Cell }
    }

    /// Step 1: encodes the job, and unpacks the layers of the thread's home. The layers stay
    /// unpacked while the returned home exists. A run without a thread has none.
    async fn prepare_job(
        &self,
        network: Option<&CellNetwork>,
    ) -> Result<(Vec<u8>, Option<HomeMount>), RunError> {
        let language = self.spec.language;
        let image = self.spec.sandbox.root.as_deref();
        let is_contained = matches!(self.place, HomePlace::Contained { .. });
        // A program never runs on another root than the one of its sandbox.
        let is_lost = image.is_none() && self.spec.sandbox.image != HOST_IMAGE;
        if is_lost || (image.is_some() && is_contained) {
            return Err(RunError::OtherRoot(self.spec.sandbox.image.clone()));
        }
        let interpreter = self.executor.interpreters.find(language, image)?;
        let trust = network.and_then(|network| network.trust(&self.spec));
        let job = job_builder::build_job(&self.spec, &interpreter, &self.place, trust.as_ref())?;
        let home = HomeMount::prepare(self.executor.layers.as_ref(), &self.spec).await?;
        Ok((job, home))
    }

    /// Step 2: takes a parked cell. Without one a template forks a cell; without a template a cold
    /// cell starts.
    async fn acquire_cell(&mut self, priority: Option<Arc<CpuPriority>>) -> Result<Cell, RunError> {
        let asked = Instant::now();
        let key = PoolKey {
            starts_anew: job_builder::needs_new_shell(&self.spec),
            ..PoolKey::new(self.spec.language, &self.spec.limits, &self.spec.sandbox)
                .for_program(&self.spec.code)
        };
        // The pool keeps only cells that the spawner builds itself.
        let is_native = self.spec.sandbox.substrate == Substrate::Native;
        let pool = self.executor.pool.as_ref().filter(|_| is_native);
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

    /// Opens the network of the run, if its sandbox has one. The job names what the program has to
    /// trust for it, so this comes first.
    async fn open_network(&self) -> Result<Option<CellNetwork>, RunError> {
        let opened = CellNetwork::open(self.executor.broker.as_ref(), &self.spec).await;
        opened.map_err(RunError::Network)
    }

    /// Attaches the network to the cell, which has run nothing yet.
    async fn attach_network(
        &self,
        network: Option<CellNetwork>,
        cell: &Cell,
    ) -> Result<Option<CellNetwork>, RunError> {
        let Some(mut network) = network else { return Ok(None) };
        let attached = network.attach_to(cell, &self.executor.spawner).await;
        attached.map_err(RunError::Network)?;
        Ok(Some(network))
    }

    /// Ends the network while the cell still exists, so that no count is lost.
    async fn finish_network(&self, network: Option<CellNetwork>) -> Option<NetworkReport> {
        match network {
            Some(network) => Some(network.finish().await),
            None => None,
        }
    }

    /// Also step 3: mounts the socket of the web tools, if the program may call one. It is served
    /// until the returned value is dropped. Contained cells have no mounts, so they have no socket.
    async fn mount_tool_socket(
        &self,
        calls: Option<mpsc::Sender<CellCall>>,
        cell: &mut Cell,
    ) -> Result<Option<JoinSet<()>>, RunError> {
        let Some(calls) = calls.filter(|_| matches!(self.place, HomePlace::Usual)) else {
            return Ok(None);
        };
        warm::wait_for_walls(cell).await?;
        let spawner = &self.executor.spawner;
        let socket = match spawner.mount_tool_socket(cell.id).await {
            Ok(listener) => ToolSocket::new(listener, calls).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match socket {
            Ok(socket) => {
                let mut serving = JoinSet::new();
                serving.spawn(socket.serve());
                Ok(Some(serving))
            }
            Err(reason) => {
                spawner.kill_cell(cell.id).await;
                Err(RunError::ToolSocket(reason))
            }
        }
    }

    /// Refuses storage that cannot be mounted, before the run takes a cell.
    async fn check_storage(&self) -> Result<(), RunError> {
        match self.spec.mounts.first() {
            Some(mount) if matches!(self.place, HomePlace::Contained { .. }) => {
                let reason = "contained cells cannot have storage mounts".to_owned();
                Err(RunError::Storage { slug: mount.slug.to_string(), reason })
            }
            _ => self.executor.reached_stores.check_mounts(&self.spec.mounts).await,
        }
    }

    /// Step 4: mounts the storage of the run in the cell.
    async fn mount_storage(&mut self, cell: &mut Cell) -> Result<Option<StorageMounts>, RunError> {
        let ExecutorInner { storage, spawner, .. } = self.executor;
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
            RunEnding::TimedOut | RunEnding::Cancelled => storage.take_stopped(),
            _ => storage.finish(control, &self.executor.reached_stores).await,
        }
    }

    /// Step 5: gives the cell its job, and watches it until the program has ended, timed out or was
    /// cancelled.
    async fn watch_run(
        &mut self,
        cell: Cell,
        job: Vec<u8>,
        io: RunIo,
        storage: Option<&mut StorageMounts>,
    ) -> Result<FinishedRun, RunError> {
        let stdin = mem::take(&mut self.spec.stdin);
        let input = CellInput { job, stdin, limits: self.spec.limits, io, storage };
        cell_watch::watch_cell(cell, &self.executor.spawner, input).await
    }

    /// Step 6: packs what the program wrote and stores it. The layer is durable when this returns.
    async fn commit_home(
        &mut self,
        mounted: Option<MountedHome>,
        cell_home: Option<OwnedFd>,
        control: &mut ControlSocket,
    ) -> Result<(HomeWrites, Option<HomeDiff>), RunError> {
        let sink = match &self.executor.layers {
            Some(layers) if self.spec.stores_files => OutputSink::Store(layers),
            _ if self.executor.names_files => OutputSink::NamesOnly,
            _ => return Ok((HomeWrites::default(), None)),
        };
        let home = match (mounted, cell_home) {
            (Some(mounted), _) => WrittenHome::Thread(mounted),
            (None, Some(upper)) => WrittenHome::Cell(upper),
            (None, None) => return Ok((HomeWrites::default(), None)),
        };
        let diff = HomeDiff { home, placed: PlacedFile::take_from(&mut self.spec) };
        match commit::commit_home(&self.executor.spawner, sink, &diff, control).await {
            Ok(written) => Ok((written, Some(diff))),
            Err(error) => {
                // Closing the last file descriptor of a home unmounts it, which can take a while.
                tokio::task::spawn_blocking(move || drop(diff));
                Err(error)
            }
        }
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
        let start = || cell::spawn_cell(spawner, &key.making, CellSource::Nothing(self.kind));
        match start().await {
            // The program has not started, and the supervisor starts a new spawner at once.
            Err(CellError::Spawn(SpawnError::SpawnerLost)) => Ok(start().await?),
            started => Ok(started?),
        }
    }
}
