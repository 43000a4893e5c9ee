//! Runs in: server (no capabilities). The executor itself: starts the spawner, reads metrics,
//! stops. `run.rs` has what it does for one run.

use std::{
    collections::BTreeSet,
    io,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Instant,
};

use cloche_egress::BrokerClient;
use cloche_layers::Layers;
use cloche_model::{ImageRoot, Language, RunLimits, SandboxShape, Substrate};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    aftermath::RunAftermath,
    cell,
    cell_exit::CellExit,
    config::ExecutorConfig,
    home_place::HomePlace,
    interpreter::HostInterpreters,
    metrics::{ExecutorMetrics, ExecutorReading},
    pool::{Pool, PoolKey},
    reached_stores::ReachedStores,
    run_error::RunError,
    spawner_client::{CellSource, SpawnError, SpawnerClient},
    spawner_process::SpawnerProcess,
    storage_mounts::MountStorageConfig,
    warm,
};
use crate::protocol::SpawnKind;

/// Why an executor could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorStartError {
    /// The spawner could not be started.
    #[error("cannot start the spawner")]
    Spawner(#[from] io::Error),
    /// The spawner died while starting.
    #[error("the spawner died while starting")]
    Lost(#[from] SpawnError),
    /// Walls are missing that the operator did not allow to be missing.
    #[error("this host cannot build: {}", describe_walls(.0))]
    Missing(Vec<(String, String)>),
}

fn describe_walls(missing: &[(String, String)]) -> String {
    let each = missing.iter().map(|(wall, why)| format!("{wall} ({why})"));
    each.collect::<Vec<_>>().join(", ")
}

/// Runs programs on this host. Cheap to clone. When the last clone is dropped, the spawner ends.
#[derive(Clone)]
pub struct Executor {
    pub(super) inner: Arc<ExecutorInner>,
}

pub(super) struct ExecutorInner {
    pub(super) spawner: Arc<SpawnerClient>,
    pub(super) metrics: Arc<ExecutorMetrics>,
    pub(super) pool: Option<Pool>,
    pub(super) layers: Option<Layers>,
    pub(super) names_files: bool,
    /// The directory in which contained cells have theirs.
    pub(super) contained: Option<PathBuf>,
    pub(super) hides_packages: bool,
    /// The broker of networks. Without it no run has a network.
    pub(super) broker: Option<BrokerClient>,
    pub(super) storage: MountStorageConfig,
    /// The object stores that have answered a short while ago.
    pub(super) reached_stores: ReachedStores,
    pub(super) interpreters: HostInterpreters,
    missing: Vec<(String, String)>,
    /// The substrates that were tried and can be used.
    pub(super) tried: Mutex<BTreeSet<Substrate>>,
    /// Runs that have their outcome, and whose cells wait for the answer.
    aftermaths: TaskTracker,
}

impl Executor {
    /// Starts a spawner. Refuses if a wall is missing that may not be missing.
    pub async fn start(config: ExecutorConfig) -> Result<Self, ExecutorStartError> {
        let process = SpawnerProcess::start(&config)?;
        Self::with_spawner(process, config).await
    }

    /// The same with a spawner that is already running, e.g. since before privileges were dropped.
    pub async fn with_spawner(
        process: SpawnerProcess,
        config: ExecutorConfig,
    ) -> Result<Self, ExecutorStartError> {
        let spawner = SpawnerClient::from_process(process, config.layers.clone())?;
        let missing = spawner.missing_walls().await?;
        let mut refused = missing.clone();
        refused.retain(|(wall, _)| !config.allow_missing.contains(wall));
        if !refused.is_empty() {
            spawner.stop().await;
            return Err(ExecutorStartError::Missing(refused));
        }
        let (spawner, metrics) = (Arc::new(spawner), Arc::new(ExecutorMetrics::default()));
        // Contained cells do not wait for a job: nothing is started ahead.
        let pool = config
            .pool
            .filter(|_| config.contained.is_none())
            .map(|settings| Pool::new(Arc::clone(&spawner), Arc::clone(&metrics), settings));
        let ExecutorConfig {
            layers, names_files, contained, hides_packages, broker, storage, ..
        } = config;
        let inner = ExecutorInner {
            spawner,
            metrics,
            pool,
            layers,
            names_files,
            hides_packages,
            // A contained cell has no network namespace that could get a device.
            broker: broker.filter(|_| contained.is_none()),
            contained,
            storage,
            reached_stores: ReachedStores::default(),
            interpreters: HostInterpreters::default(),
            missing,
            tried: Mutex::default(),
            aftermaths: TaskTracker::new(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The walls that this host cannot build and that may be missing: name and reason.
    #[must_use]
    pub fn missing_walls(&self) -> &[(String, String)] {
        &self.inner.missing
    }

    /// Starts one cell, waits until its walls are up, and ends it: shows that cells can be built.
    pub async fn try_cell(&self) -> Result<(), RunError> {
        let key = PoolKey::new(Language::Python, &RunLimits::default(), &SandboxShape::default());
        let source = match &self.inner.contained {
            Some(_) => CellSource::Contained(HomePlace::choose_directory()),
            None => CellSource::Nothing(SpawnKind::Cell),
        };
        let mut cell = cell::spawn_cell(&self.inner.spawner, &key.making, source).await?;
        let built = warm::wait_for_walls(&mut cell).await;
        self.inner.spawner.kill_cell(cell.id).await;
        built
    }

    /// Parks cells for runs like this one before the first run.
    pub fn prewarm_pool(&self, language: Language, limits: &RunLimits, sandbox: &SandboxShape) {
        let image = sandbox.root.as_deref();
        let is_there = sandbox.substrate == Substrate::Native
            && image.is_none_or(|image| image.interpreter_of(language).is_some());
        if let Some(pool) = self.inner.pool.as_ref().filter(|_| is_there) {
            pool.prewarm_bucket(PoolKey::new(language, limits, sandbox));
        }
    }

    /// Counters, timings and levels at this moment.
    #[must_use]
    pub fn read_metrics(&self) -> ExecutorReading {
        let levels = self.inner.pool.as_ref().map(Pool::bucket_readings).unwrap_or_default();
        self.inner.metrics.read(self.inner.spawner.count_alive(), levels)
    }

    /// Whether every bucket of the pool has its target number of cells.
    #[must_use]
    pub fn is_warm(&self) -> bool {
        self.inner.pool.as_ref().is_none_or(Pool::is_full)
    }

    /// Whether cells can have an image as their root: contained cells have no root of their own, and
    /// images need layers.
    #[must_use]
    pub fn runs_images(&self) -> bool {
        self.inner.contained.is_none() && self.inner.layers.is_some()
    }

    /// Ends what is parked on an image that was removed, and unmounts it after its last cell.
    pub async fn forget_image(&self, image: &ImageRoot) {
        if let Some(pool) = &self.inner.pool {
            pool.discard_image(&image.digest).await;
        }
        self.inner.spawner.forget_image(image);
    }

    /// Whether programs can have a network: there is a broker, and cells have a netns.
    #[must_use]
    pub fn gives_networks(&self) -> bool {
        self.inner.broker.as_ref().is_some_and(|broker| !broker.is_lost())
    }

    /// Whether the spawner is there. Without it no cell can be started until the next start.
    #[must_use]
    pub fn has_spawner(&self) -> bool {
        self.inner.spawner.is_connected()
    }

    /// Waits until every cell of a past run is gone. Parked cells and templates stay.
    pub async fn wait_for_teardown(&self) {
        let waiting = || self.inner.pool.as_ref().map_or(0, Pool::count_waiting);
        self.inner.spawner.wait_for_teardown(waiting).await;
    }

    /// Ends the spawner and every cell. While other clones exist, it does nothing.
    pub async fn stop(self) {
        let Some(ExecutorInner { spawner, pool, aftermaths, .. }) = Arc::into_inner(self.inner)
        else {
            return;
        };
        aftermaths.close();
        aftermaths.wait().await;
        if let Some(pool) = pool {
            pool.stop().await;
        }
        if let Some(spawner) = Arc::into_inner(spawner) {
            spawner.stop().await;
        }
    }
}

impl ExecutorInner {
    /// Takes the cell of a run apart: after the answer, or at once if nothing says when that is.
    pub(super) fn settle_run(
        &self,
        aftermath: RunAftermath,
        answered: Option<CancellationToken>,
        exit: CellExit,
    ) {
        let Some(answered) = answered else {
            self.time_teardown(exit);
            return aftermath.settle();
        };
        let metrics = self.pool.as_ref().map(|_| Arc::clone(&self.metrics));
        self.aftermaths.spawn(async move {
            let ended = Instant::now();
            aftermath.settle_after(answered).await;
            if let Some(metrics) = metrics {
                exit.wait().await;
                metrics.teardown.add(ended.elapsed());
            }
        });
    }

    /// Measures how long it takes until the cell is gone, in a task of its own.
    fn time_teardown(&self, exit: CellExit) {
        let (metrics, ended) = (Arc::clone(&self.metrics), Instant::now());
        if self.pool.is_some() {
            tokio::spawn(async move {
                exit.wait().await;
                metrics.teardown.add(ended.elapsed());
            });
        }
    }
}
