//! Runs in: server (no capabilities). The pool: cells that are made before they are needed.
//!
//! One bucket for each configuration and language holds parked cells. [`Pool::begin_run`] never
//! waits: it returns a parked cell, or a template that can fork one, or nothing. Two tasks refill
//! the buckets in turn, after replies have gone out. One forks cells from templates; the other
//! starts interpreters, which takes far longer and must not delay the first. A cell leaves the pool by value, and a run takes it by value, so a cell that has run guest code
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
use tokio::{sync::Notify, task::JoinHandle};

use super::{
    cell::{Cell, CellMaking},
    metrics::{BucketReading, ExecutorMetrics, increment_counter},
    pool_bucket::PoolBucket,
    pool_refill::RefillLane,
    slow_imports::{SLOW_IMPORTS, names_slow_import},
    spawner_client::SpawnerClient,
    warm::Template,
};
use crate::protocol::CellConfig;

/// How many cells the pool keeps, and for how long.
#[derive(Clone, Debug)]
pub struct PoolSettings {
    /// The fewest parked cells of a configuration that is in use.
    pub floor: usize,
    /// The parked cells that a template makes of such a configuration while the host is quiet.
    pub quiet_forks: usize,
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
            quiet_forks: 112,
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
    /// Whether its programs start their own interpreter, so that its cells are parked without one.
    pub(crate) starts_anew: bool,
    /// Whether its cells have imported [`SLOW_IMPORTS`] ahead. A run that wants such a cell takes
    /// another one of its configuration if there is none.
    pub(crate) has_slow_imports: bool,
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
        Self {
            making,
            language,
            preload,
            template,
            group,
            starts_anew: false,
            has_slow_imports: false,
        }
    }

    /// The same, for runs of a program that imports a slow module, if its cells come from a template.
    pub(crate) fn for_program(self, code: &[u8]) -> Self {
        let has_slow_imports = self.template && names_slow_import(code, &self.preload);
        Self { has_slow_imports, ..self }
    }

    /// The modules that its template imports, beside the usual ones.
    pub(super) fn template_modules(&self) -> impl Iterator<Item = &str> {
        let slow = if self.has_slow_imports { &SLOW_IMPORTS[..] } else { &[] };
        self.preload.iter().map(String::as_str).chain(slow.iter().copied())
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
pub(crate) struct PoolRun(Option<Arc<PoolInner>>);

impl PoolRun {
    /// The run is over: wakes the tasks that refill.
    pub(crate) fn finish(&mut self) {
        if let Some(pool) = self.0.take() {
            pool.running.fetch_sub(1, Ordering::Relaxed);
            pool.wake_refill();
        }
    }
}

impl Drop for PoolRun {
    fn drop(&mut self) {
        self.finish();
    }
}

/// What the pool shares with its refilling tasks.
pub(crate) struct PoolInner {
    pub(super) spawner: Arc<SpawnerClient>,
    pub(super) metrics: Arc<ExecutorMetrics>,
    pub(super) settings: PoolSettings,
    pub(super) buckets: Mutex<HashMap<PoolKey, PoolBucket>>,
    /// Wakes each of the refilling tasks.
    pub(super) wake: [Notify; 2],
    /// How many runs are under way.
    pub(super) running: AtomicUsize,
}

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
    pub(crate) fn begin_run(&self, key: &PoolKey) -> (PoolLookup, PoolRun) {
        self.inner.running.fetch_add(1, Ordering::Relaxed);
        let run = PoolRun(Some(Arc::clone(&self.inner)));
        let mut found = self.inner.look_up(key);
        if key.has_slow_imports && matches!(found, PoolLookup::Nothing) {
            found = self.inner.look_up(&PoolKey { has_slow_imports: false, ..key.clone() });
        }
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
    /// does not count: it concerns one sandbox, not the host. Nor does one that only saves imports
    /// and has no template.
    pub(crate) fn is_full(&self) -> bool {
        let buckets = self.inner.lock_buckets();
        buckets.iter().all(|(key, bucket)| {
            let only_saves = key.has_slow_imports && !bucket.has_or_starts_template();
            let is_unusable = key.making.image.is_some() && bucket.has_failed();
            only_saves || is_unusable || bucket.is_full()
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

impl PoolInner {
    pub(super) fn lock_buckets(&self) -> MutexGuard<'_, HashMap<PoolKey, PoolBucket>> {
        // A poisoned lock is still used: a panic leaves the maps consistent.
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a bucket has for a run. The bucket is made if need be.
    fn look_up(&self, key: &PoolKey) -> PoolLookup {
        let mut buckets = self.lock_buckets();
        let bucket = buckets.entry(key.clone()).or_insert_with(PoolBucket::new);
        let found = bucket.take(&self.settings);
        self.metrics.died_parked.fetch_add(bucket.take_dead_count(), Ordering::Relaxed);
        match found {
            Some(cell) => {
                increment_counter(&self.metrics.hits);
                PoolLookup::Parked(Box::new(cell))
            }
            None => bucket.living_template().map_or(PoolLookup::Nothing, PoolLookup::Template),
        }
    }

    pub(super) fn wake_refill(&self) {
        self.wake.iter().for_each(Notify::notify_one);
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
