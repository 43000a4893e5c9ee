//! Cells made before they are needed.
//!
//! A shelf per configuration and language holds parked cells. `take` never waits: it gives a
//! parked cell, or says which template can fork one, or nothing. Two tasks refill, each one cell at a
//! time and shelf by shelf, after replies have gone out: one forks templates, one starts
//! interpreters, which takes far longer and must not hold up the first. A cell is handed out by value and driven
//! by value: what has run guest code has no way back.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use cloche_model::{ByteSize, Language};
use tokio::{sync::Notify, task::JoinHandle, time::timeout};

use super::{
    cell::Cell,
    executor::RunError,
    metrics::{BucketReading, ExecutorMetrics, increment_counter},
    pool_bucket::PoolBucket,
    spawner_client::SpawnerClient,
    warm::{self, Template},
};
use crate::protocol::{CellConfig, CellId};

/// How many cells are kept, and for how long.
#[derive(Clone, Debug)]
pub struct PoolSettings {
    /// Cells parked for a configuration that is in use, at least.
    pub floor: usize,
    /// Cells parked for one configuration, at most.
    pub ceiling: usize,
    /// Memory of all parked cells together, at most.
    pub memory: ByteSize,
    /// Forks after which a template is replaced.
    pub template_forks: u32,
    /// Age at which a template is replaced.
    pub template_age: Duration,
    /// How long a configuration is kept warm after its last use.
    pub idle: Duration,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            floor: 2,
            ceiling: 128,
            memory: ByteSize::gib(2),
            template_forks: 20_000,
            template_age: Duration::from_secs(3600),
            idle: Duration::from_secs(600),
        }
    }
}

/// What makes cells interchangeable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PoolKey {
    pub(crate) config: CellConfig,
    pub(crate) language: Language,
    pub(crate) preload: Vec<String>,
    pub(crate) template: bool,
    /// Whose runs share its template.
    pub(crate) group: Option<String>,
}

/// What the pool has for a run.
pub(crate) enum PoolLookup {
    /// A cell that waits for its job.
    Parked(Box<Cell>),
    /// None, but a template that can fork one.
    Template(Arc<Template>),
    /// Nothing: start from nothing.
    Nothing,
}

/// The pool and its refilling task.
pub(crate) struct Pool {
    inner: Arc<PoolInner>,
    refill: [JoinHandle<()>; 2],
}

/// What a refilling task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefillLane {
    /// Forks cells from templates: a millisecond each.
    Forks,
    /// Starts interpreters and templates: tens of milliseconds each, more on a busy host.
    Starts,
}

struct PoolInner {
    spawner: Arc<SpawnerClient>,
    metrics: Arc<ExecutorMetrics>,
    settings: PoolSettings,
    buckets: Mutex<HashMap<PoolKey, PoolBucket>>,
    /// For each refilling task.
    wake: [Notify; 2],
    running: AtomicUsize,
}

/// How often the shelves are looked over when nothing happens.
const ROUND: Duration = Duration::from_secs(1);
/// Templates may take one part in so many of the memory for parked cells.
const TEMPLATE_SHARE: u64 = 2;
/// What a template takes, as long as none has been started.
const USUAL_TEMPLATE: u64 = 32 << 20;
/// The most cells that may be alive before refilling waits for teardown to catch up.
const BACKLOG: usize = 64;

impl Pool {
    pub(crate) fn new(
        spawner: Arc<SpawnerClient>,
        metrics: Arc<ExecutorMetrics>,
        settings: PoolSettings,
    ) -> Self {
        let inner = Arc::new(PoolInner {
            spawner,
            metrics,
            settings,
            buckets: Mutex::default(),
            wake: Default::default(),
            running: AtomicUsize::new(0),
        });
        let lanes = [RefillLane::Forks, RefillLane::Starts];
        let refill = lanes.map(|lane| tokio::spawn(Arc::clone(&inner).run_refill_lane(lane)));
        Self { inner, refill }
    }

    /// A cell for a run, without waiting. Counts the run as under way until [`Pool::done`].
    pub(crate) fn take(&self, key: &PoolKey) -> PoolLookup {
        self.inner.running.fetch_add(1, Ordering::Relaxed);
        let mut shelves = self.inner.lock_buckets();
        let shelf = shelves.entry(key.clone()).or_insert_with(PoolBucket::new);
        let found = shelf.take(&self.inner.settings);
        self.inner.metrics.died_parked.fetch_add(shelf.take_dead_count(), Ordering::Relaxed);
        match found {
            Some(cell) => {
                increment_counter(&self.inner.metrics.hits);
                PoolLookup::Parked(Box::new(cell))
            }
            None => shelf.living_template().map_or(PoolLookup::Nothing, PoolLookup::Template),
        }
    }

    /// A run has been answered: now there is time to refill.
    pub(crate) fn finish_run(&self) {
        self.inner.running.fetch_sub(1, Ordering::Relaxed);
        self.inner.wake_refill();
    }

    /// Has a configuration warmed up before its first run.
    pub(crate) fn prewarm_bucket(&self, key: PoolKey) {
        self.inner
            .lock_buckets()
            .entry(key)
            .or_insert_with(PoolBucket::new)
            .raise_target(self.inner.settings.floor);
        self.inner.wake_refill();
    }

    pub(crate) fn bucket_readings(&self) -> Vec<BucketReading> {
        let shelves = self.inner.lock_buckets();
        shelves.iter().map(|(key, shelf)| shelf.to_reading(key.language)).collect()
    }

    /// How many cells and templates wait for runs to come.
    pub(crate) fn count_held(&self) -> usize {
        self.bucket_readings().iter().map(|shelf| shelf.parked + shelf.templates).sum()
    }

    /// Whether every shelf holds what it should.
    pub(crate) fn is_full(&self) -> bool {
        self.inner.lock_buckets().values().all(PoolBucket::is_full)
    }

    /// Ends the refilling task. The parked cells go when the spawner does.
    pub(crate) async fn stop(self) {
        for refill in self.refill {
            refill.abort();
            let _ = refill.await;
        }
    }
}

/// What the refilling task does next.
enum RefillWork {
    Template(PoolKey),
    Cell(PoolKey, Option<Arc<Template>>),
}

impl PoolInner {
    fn lock_buckets(&self) -> MutexGuard<'_, HashMap<PoolKey, PoolBucket>> {
        // A panic elsewhere leaves the shelves as good as they were.
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_refill(&self) {
        self.wake.iter().for_each(Notify::notify_one);
    }

    async fn run_refill_lane(self: Arc<Self>, lane: RefillLane) {
        let mut turn = 0_usize;
        loop {
            // Also without a sign: cells die, configurations fall out of use.
            let _ = timeout(ROUND, self.wake[lane as usize].notified()).await;
            if lane == RefillLane::Forks {
                self.prune_buckets().await;
            }
            while let Some(work) = self.next_work(turn, lane) {
                turn = turn.wrapping_add(1);
                self.refill_one(work).await;
            }
        }
    }

    /// Buries dead cells, and lets go of what is not used any more.
    async fn prune_buckets(&self) {
        let ended: Vec<CellId> = {
            let mut shelves = self.lock_buckets();
            let mut ended = Vec::new();
            for shelf in shelves.values_mut() {
                ended.extend(shelf.prune_surplus(&self.settings));
                self.metrics.died_parked.fetch_add(shelf.take_dead_count(), Ordering::Relaxed);
            }
            shelves.retain(|_, shelf| !shelf.is_unused(&self.settings));
            ended
        };
        for cell in ended {
            self.spawner.kill_cell(cell).await;
        }
    }

    /// The next thing to do, shelf by shelf in turn, so that a busy one does not starve another.
    fn next_work(&self, turn: usize, lane: RefillLane) -> Option<RefillWork> {
        let shelves = self.lock_buckets();
        let parked: usize = shelves.values().map(PoolBucket::parked_count).sum();
        let running = self.running.load(Ordering::Relaxed);
        // Cells that are neither parked nor running are being torn down: let that catch up.
        let dying = self.spawner.count_alive().saturating_sub(parked + running);
        let memory: u64 = shelves.values().map(PoolBucket::parked_memory).sum();
        if dying > BACKLOG || memory > self.settings.memory.bytes() {
            return None;
        }
        let room_for_template = self.has_room_for_template(&shelves);
        let mut keys: Vec<&PoolKey> = shelves.keys().collect();
        let order = |key: &&PoolKey| (key.language, key.config.memory, key.config.disk);
        keys.sort_by(|one, other| {
            order(one).cmp(&order(other)).then_with(|| one.group.cmp(&other.group))
        });
        let len = keys.len();
        let in_turn = (0..len).map(|at| keys[(at + turn) % len]);
        let mut work = in_turn.filter_map(|key| {
            let shelf = &shelves[key];
            let template = shelf.living_template();
            let starts = lane == RefillLane::Starts;
            let templated = key.language == Language::Python && key.template;
            let may_have_one = room_for_template || shelf.has_template();
            if starts && templated && may_have_one && shelf.needs_template(&self.settings) {
                return Some(RefillWork::Template(key.clone()));
            }
            if starts == template.is_some() {
                return None;
            }
            // With work under way, only an empty shelf is worth its time.
            let worth =
                shelf.wants_more() && (running < 2 || shelf.parked_count() < self.settings.floor);
            worth.then(|| RefillWork::Cell(key.clone(), template))
        });
        work.next()
    }

    /// Whether one more group may have a template of its own. Without, each of its runs has an
    /// interpreter of its own: slower, and nothing is shared with other groups.
    fn has_room_for_template(&self, shelves: &HashMap<PoolKey, PoolBucket>) -> bool {
        let all = || shelves.values().map(PoolBucket::template_memory);
        let next = all().filter(|bytes| *bytes > 0).max().unwrap_or(USUAL_TEMPLATE);
        all().sum::<u64>() + next <= self.settings.memory.bytes() / TEMPLATE_SHARE
    }

    async fn refill_one(&self, work: RefillWork) {
        match work {
            RefillWork::Template(key) => {
                let started = Template::start(&self.spawner, &key.config, &key.preload).await;
                if let Some(shelf) = self.lock_buckets().get_mut(&key) {
                    shelf.put_template(started);
                }
                // The first cells of it are for the other task.
                self.wake_refill();
            }
            RefillWork::Cell(key, template) => {
                let parked = self.park_cell(&key, template.as_deref()).await;
                if let Some(shelf) = self.lock_buckets().get_mut(&key) {
                    shelf.put_cell(parked, &self.settings);
                }
            }
        }
    }

    async fn park_cell(
        &self,
        key: &PoolKey,
        template: Option<&Template>,
    ) -> Result<Cell, RunError> {
        match template {
            Some(template) => template.fork_parked(&self.spawner, &key.config).await,
            None => warm::start_parked_cell(&self.spawner, &key.config, key.language).await,
        }
    }
}

/// When a shelf may try again after a failure.
pub(crate) fn retry_time(failures: u32) -> Instant {
    Instant::now() + Duration::from_millis(250 << failures.min(8))
}
