//! Runs in: server (no capabilities). The pool: cells that are made before they are needed.
//!
//! One bucket for each configuration and language holds parked cells. [`Pool::begin_run`] never
//! waits: it returns a parked cell, or a template that can fork one, or nothing. Two tasks refill
//! the buckets in turn, one cell at a time, after replies have gone out. One forks cells from
//! templates; the other starts interpreters, which takes far longer and must not delay the first. A
//! cell leaves the pool by value, and a run takes it by value, so a cell that has run guest code
//! cannot return.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use cloche_model::{
    ByteSize, ImageDigest, Language, NetworkPolicy, RunLimits, SandboxProfile, SandboxShape,
};
use tokio::{sync::Notify, task::JoinHandle, time::timeout};

use super::{
    cell::{Cell, CellMaking},
    metrics::{BucketReading, ExecutorMetrics, increment_counter},
    pool_bucket::PoolBucket,
    run_error::RunError,
    spawner_client::SpawnerClient,
    warm::{self, Template},
};
use crate::protocol::{CellConfig, CellId};

/// How many cells the pool keeps, and for how long.
#[derive(Clone, Debug)]
pub struct PoolSettings {
    /// The fewest parked cells of a configuration that is in use.
    pub floor: usize,
    /// The most parked cells of one configuration.
    pub ceiling: usize,
    /// The most memory of all parked cells together.
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

/// Cells with equal keys are interchangeable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PoolKey {
    pub(crate) making: CellMaking,
    pub(crate) language: Language,
    pub(crate) preload: Vec<String>,
    pub(crate) template: bool,
    /// The group of sandboxes that share its template.
    pub(crate) group: Option<String>,
}

impl PoolKey {
    /// The key of a run.
    pub(crate) fn new(language: Language, limits: &RunLimits, sandbox: &SandboxShape) -> Self {
        let config = CellConfig {
            image: None,
            memory: limits.memory.bytes(),
            cpu_milli: limits.cpus.millicores(),
            pids: limits.pids,
            disk: limits.disk.bytes(),
            cpu_seconds: cpu_seconds(limits),
            strict: sandbox.profile == SandboxProfile::Strict,
            substrate: sandbox.substrate,
            network: sandbox.network != NetworkPolicy::Blocked,
            trust: sandbox.trusts_broker,
        };
        let python = language == Language::Python;
        let preload = if python { sandbox.preload.clone() } else { Vec::new() };
        let template = python && sandbox.uses_template();
        // Cells with their own interpreter share nothing, so groups need no separate buckets.
        let group = sandbox.pool_group.clone().filter(|_| template);
        let making =
            CellMaking { config, image: sandbox.root.clone(), tool_client: sandbox.tool_client };
        Self { making, language, preload, template, group }
    }
}

/// What the pool has for a run.
pub(crate) enum PoolLookup {
    /// A cell that waits for its job.
    Parked(Box<Cell>),
    /// No parked cell, but a template that can fork one.
    Template(Arc<Template>),
    /// Neither: start a cold cell.
    Nothing,
}

/// The pool and its refilling tasks.
pub(crate) struct Pool {
    inner: Arc<PoolInner>,
    refill: [JoinHandle<()>; 2],
}

/// A run that the pool counts as under way; by default one that uses no pool.
///
/// [`PoolRun::finish`] says that the run is over. Dropping it does the same, for runs that fail or
/// whose task is dropped.
#[derive(Default)]
pub(crate) struct PoolRun<'a>(Option<&'a Pool>);

impl PoolRun<'_> {
    /// The run is over: wakes the tasks that refill.
    pub(crate) fn finish(&mut self) {
        if let Some(pool) = self.0.take() {
            pool.inner.running.fetch_sub(1, Ordering::Relaxed);
            pool.inner.wake_refill();
        }
    }
}

impl Drop for PoolRun<'_> {
    fn drop(&mut self) {
        self.finish();
    }
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
    /// Wakes each of the refilling tasks.
    wake: [Notify; 2],
    /// How many runs are under way.
    running: AtomicUsize,
}

/// How often the buckets are checked when nothing happens.
const ROUND: Duration = Duration::from_secs(1);
/// Templates may use one part in this many of the memory for parked cells.
const TEMPLATE_SHARE: u64 = 2;
/// The assumed memory of a template, until one has been started.
const USUAL_TEMPLATE: u64 = 32 << 20;
/// Refilling waits while more cells than this are being torn down.
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

    /// Ends what is parked on an image that is gone.
    pub(crate) async fn discard_image(&self, image: &ImageDigest) {
        let is_on_it =
            |key: &PoolKey| key.making.image.as_ref().is_some_and(|it| it.digest == *image);
        let gone: Vec<(PoolKey, PoolBucket)> =
            self.inner.lock_buckets().extract_if(|key, _| is_on_it(key)).collect();
        for cell in gone.iter().flat_map(|(_, bucket)| bucket.all_cells()) {
            self.inner.spawner.kill_cell(cell).await;
        }
    }

    /// Looks for a cell, without waiting. Counts the run as under way until it is finished.
    pub(crate) fn begin_run(&self, key: &PoolKey) -> (PoolLookup, PoolRun<'_>) {
        self.inner.running.fetch_add(1, Ordering::Relaxed);
        let run = PoolRun(Some(self));
        let mut buckets = self.inner.lock_buckets();
        let bucket = buckets.entry(key.clone()).or_insert_with(PoolBucket::new);
        let found = bucket.take(&self.inner.settings);
        self.inner.metrics.died_parked.fetch_add(bucket.take_dead_count(), Ordering::Relaxed);
        let found = match found {
            Some(cell) => {
                increment_counter(&self.inner.metrics.hits);
                PoolLookup::Parked(Box::new(cell))
            }
            None => bucket.living_template().map_or(PoolLookup::Nothing, PoolLookup::Template),
        };
        (found, run)
    }

    /// Fills a bucket to the floor before its first run.
    pub(crate) fn prewarm_bucket(&self, key: PoolKey) {
        self.inner
            .lock_buckets()
            .entry(key)
            .or_insert_with(PoolBucket::new)
            .raise_target(self.inner.settings.floor);
        self.inner.wake_refill();
    }

    pub(crate) fn bucket_readings(&self) -> Vec<BucketReading> {
        let buckets = self.inner.lock_buckets();
        buckets.iter().map(|(key, bucket)| bucket.to_reading(key.language)).collect()
    }

    /// How many parked cells and templates wait for runs.
    pub(crate) fn count_waiting(&self) -> usize {
        self.bucket_readings().iter().map(|bucket| bucket.parked + bucket.templates).sum()
    }

    /// Whether every bucket has its target number of cells. A bucket whose image cannot be used
    /// does not count: it concerns one sandbox, not the host.
    pub(crate) fn is_full(&self) -> bool {
        let buckets = self.inner.lock_buckets();
        buckets.iter().all(|(key, bucket)| {
            bucket.is_full() || (key.making.image.is_some() && bucket.has_failed())
        })
    }

    /// Ends the refilling tasks. The parked cells end with the spawner.
    pub(crate) async fn stop(self) {
        for refill in self.refill {
            refill.abort();
            let _ = refill.await;
        }
    }
}

/// What a refilling task does next.
enum RefillWork {
    Template(PoolKey),
    Cell(PoolKey, Option<Arc<Template>>),
}

impl PoolInner {
    fn lock_buckets(&self) -> MutexGuard<'_, HashMap<PoolKey, PoolBucket>> {
        // A poisoned lock is still used: a panic leaves the maps consistent.
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_refill(&self) {
        self.wake.iter().for_each(Notify::notify_one);
    }

    async fn run_refill_lane(self: Arc<Self>, lane: RefillLane) {
        let mut turn = 0_usize;
        loop {
            // Also without a wake-up: cells die, and configurations fall out of use.
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

    /// Removes dead cells, kills surplus cells and templates, and drops unused buckets.
    async fn prune_buckets(&self) {
        let surplus: Vec<CellId> = {
            let mut buckets = self.lock_buckets();
            let mut surplus = Vec::new();
            for bucket in buckets.values_mut() {
                surplus.extend(bucket.prune_surplus(&self.settings));
                self.metrics.died_parked.fetch_add(bucket.take_dead_count(), Ordering::Relaxed);
            }
            buckets.retain(|_, bucket| !bucket.is_unused(&self.settings));
            surplus
        };
        for cell in surplus {
            self.spawner.kill_cell(cell).await;
        }
        self.spawner.release_idle_images(self.settings.idle);
    }

    /// The next thing to do. Buckets take turns, so that a busy one does not starve another.
    fn next_work(&self, turn: usize, lane: RefillLane) -> Option<RefillWork> {
        let buckets = self.lock_buckets();
        let parked: usize = buckets.values().map(PoolBucket::parked_count).sum();
        let running = self.running.load(Ordering::Relaxed);
        // Cells that are neither parked nor running are being torn down. That goes first.
        let dying = self.spawner.count_alive().saturating_sub(parked + running);
        let memory: u64 = buckets.values().map(PoolBucket::parked_memory).sum();
        if dying > BACKLOG || memory > self.settings.memory.bytes() {
            return None;
        }
        let room_for_template = self.has_room_for_template(&buckets);
        let mut keys: Vec<&PoolKey> = buckets.keys().collect();
        let order = |key: &&PoolKey| {
            let CellConfig { memory, disk, .. } = key.making.config;
            (key.language, memory, disk)
        };
        keys.sort_by(|one, other| {
            order(one).cmp(&order(other)).then_with(|| one.group.cmp(&other.group))
        });
        let len = keys.len();
        let in_turn = (0..len).map(|at| keys[(at + turn) % len]);
        let mut work = in_turn.filter_map(|key| {
            let bucket = &buckets[key];
            let template = bucket.living_template();
            let starts = lane == RefillLane::Starts;
            let templated = key.language == Language::Python && key.template;
            let may_have_one = room_for_template || bucket.has_template();
            if starts && templated && may_have_one && bucket.needs_template(&self.settings) {
                return Some(RefillWork::Template(key.clone()));
            }
            if starts == template.is_some() {
                return None;
            }
            // While runs are under way, only a bucket below the floor is worth the processor time.
            let worth =
                bucket.wants_more() && (running < 2 || bucket.parked_count() < self.settings.floor);
            worth.then(|| RefillWork::Cell(key.clone(), template))
        });
        work.next()
    }

    /// Whether the memory budget allows one more group its own template. Without it, each cell of
    /// the group starts its own interpreter: slower, but nothing is shared with other groups.
    fn has_room_for_template(&self, buckets: &HashMap<PoolKey, PoolBucket>) -> bool {
        let all = || buckets.values().map(PoolBucket::template_memory);
        let next = all().filter(|bytes| *bytes > 0).max().unwrap_or(USUAL_TEMPLATE);
        all().sum::<u64>() + next <= self.settings.memory.bytes() / TEMPLATE_SHARE
    }

    async fn refill_one(&self, work: RefillWork) {
        match work {
            RefillWork::Template(key) => {
                let started = Template::start(&self.spawner, &key.making, &key.preload).await;
                if let Some(bucket) = self.lock_buckets().get_mut(&key) {
                    bucket.put_template(started);
                }
                // The other task forks its first cells.
                self.wake_refill();
            }
            RefillWork::Cell(key, template) => {
                let parked = self.park_cell(&key, template.as_deref()).await;
                if let Some(bucket) = self.lock_buckets().get_mut(&key) {
                    bucket.put_cell(parked, &self.settings);
                }
            }
        }
    }

    async fn park_cell(
        &self,
        key: &PoolKey,
        template: Option<&Template>,
    ) -> Result<Cell, RunError> {
        let bucket_waits = self.lock_buckets().get(key).is_none_or(PoolBucket::interpreters_wait);
        match template {
            Some(template) => template.fork_parked(&self.spawner, &key.making).await,
            None if !bucket_waits => warm::start_empty_cell(&self.spawner, &key.making).await,
            None => warm::start_parked_cell(&self.spawner, &key.making, key.language).await,
        }
    }
}

/// Seconds of processor time that one process may use: at least the time limit of the run on all
/// its processors. In few steps, as cells with different limits are not interchangeable.
fn cpu_seconds(limits: &RunLimits) -> u64 {
    const STEPS: [u64; 3] = [128, 4096, 90_000];
    let wanted = limits.timeout.as_secs().saturating_add(1);
    let step = STEPS.into_iter().find(|step| wanted <= *step).unwrap_or(wanted);
    step.saturating_mul(limits.cpus.millicores().div_ceil(1000).max(1).into())
}

/// When a bucket may try again after this many failures: exponential backoff.
pub(crate) fn retry_time(failures: u32) -> Instant {
    Instant::now() + Duration::from_millis(250 << failures.min(8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_seconds_cover_the_time_limit_on_all_processors() {
        for seconds in [1, 30, 60, 127, 128, 300, 86_400] {
            let timeout = Duration::from_secs(seconds);
            let limits = RunLimits { timeout, ..RunLimits::default() };
            let cpus = u64::from(limits.cpus.millicores().div_ceil(1000));
            assert!(cpu_seconds(&limits) > seconds * cpus, "{seconds}");
        }
        let endless = RunLimits { timeout: Duration::MAX, ..RunLimits::default() };
        assert_eq!(cpu_seconds(&endless), u64::MAX);
    }
}
