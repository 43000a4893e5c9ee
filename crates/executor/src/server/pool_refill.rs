//! Runs in: server (no capabilities). Refills the pool: decides what is made next, and makes it.
//!
//! Templates fork one cell after the other. Interpreters that start by themselves take longer: one
//! starts at a time while cells of its kind are parked, so that a run meets a processor of its own.
//! Where none is parked, as many start at once as there are processors: a pool must follow the rate
//! of arrivals.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    thread::available_parallelism,
    time::Duration,
};

use cloche_model::Language;
use futures::{StreamExt, stream::FuturesUnordered};
use tokio::time::timeout;

use super::{
    cell::Cell,
    pool::{PoolInner, PoolKey},
    pool_bucket::{PoolBucket, WARM_UP_PAUSE},
    run_error::RunError,
    warm::{self, Template},
};
use crate::protocol::{CellConfig, CellId};

/// How often the buckets are checked when nothing happens.
const ROUND: Duration = Duration::from_secs(1);
/// Templates may use one part in this many of the memory for parked cells.
const TEMPLATE_SHARE: u64 = 2;
/// The assumed memory of a template, until one has been started.
const USUAL_TEMPLATE: u64 = 32 << 20;
/// Refilling waits while more cells than this are being torn down.
const BACKLOG: usize = 64;
/// The most interpreters that start at once.
const MAX_STARTS: usize = 4;

/// What a refilling task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefillLane {
    /// Forks cells from templates: a millisecond each.
    Forks,
    /// Starts interpreters and templates: tens of milliseconds each, more on a busy host.
    Starts,
}

impl RefillLane {
    /// How many cells it makes at once.
    fn width(self) -> usize {
        match self {
            Self::Forks => 1,
            Self::Starts => available_parallelism().map_or(1, usize::from).min(MAX_STARTS),
        }
    }
}

/// What a refilling task does next.
enum RefillWork {
    Template(PoolKey),
    Cell(PoolKey, Option<Arc<Template>>),
}

impl RefillWork {
    const fn key(&self) -> &PoolKey {
        match self {
            Self::Template(key) | Self::Cell(key, _) => key,
        }
    }
}

impl PoolInner {
    pub(super) async fn run_refill_lane(self: Arc<Self>, lane: RefillLane) {
        let (mut turn, width) = (0_usize, lane.width());
        let (mut under_way, mut look) = (FuturesUnordered::new(), ROUND);
        loop {
            tokio::select! {
                Some(()) = under_way.next() => {}
                // Also without a wake-up: cells die, and configurations fall out of use.
                _ = timeout(look, self.wake[lane as usize].notified()) => {}
            }
            if lane == RefillLane::Forks && under_way.is_empty() {
                self.prune_buckets().await;
            }
            while under_way.len() < width
                && let Some(work) = self.next_work(turn, lane, under_way.len())
            {
                turn = turn.wrapping_add(1);
                under_way.push(self.refill_one(work));
            }
            if lane == RefillLane::Forks {
                look = if self.warm_up_next() { WARM_UP_PAUSE } else { ROUND };
            }
        }
    }

    /// Has the cells that are taken next warm up, while no run needs the processors. That takes
    /// memory, so it is done for few. Returns whether some have to wait for a pause.
    fn warm_up_next(&self) -> bool {
        if self.running.load(Ordering::Relaxed) > 0 {
            return false;
        }
        let (mut buckets, mut is_early) = (self.lock_buckets(), false);
        for bucket in buckets.values_mut() {
            is_early |= bucket.warm_up_next(self.settings.floor);
        }
        is_early
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

    /// The next thing to do beside so many others. Buckets take turns, so that a busy one does not
    /// starve another.
    fn next_work(&self, turn: usize, lane: RefillLane, beside: usize) -> Option<RefillWork> {
        let mut buckets = self.lock_buckets();
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
            // Its first cells are forked: an interpreter of its own would not be of this group, nor
            // have imported anything ahead.
            if starts && (bucket.is_template_starting() || key.has_slow_imports) {
                return None;
            }
            if starts == template.is_some() {
                return None;
            }
            if beside > 0 && bucket.parked_count() > 0 {
                return None;
            }
            // While runs are under way, only a bucket below the floor is worth the processor time.
            let is_low = running < 2 || bucket.parked_count() < self.settings.floor;
            let is_quiet = running == 0 && template.is_some() && !key.has_slow_imports;
            let worth = (is_low && bucket.wants_more())
                || (is_quiet && bucket.wants_quiet_fork(&self.settings));
            worth.then(|| RefillWork::Cell(key.clone(), template))
        });
        let work = work.next();
        if let Some(bucket) = work.as_ref().and_then(|work| buckets.get_mut(work.key())) {
            bucket.note_started(matches!(work, Some(RefillWork::Template(_))));
        }
        work
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
                let started =
                    Template::start(&self.spawner, &key.making, key.template_modules()).await;
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
            None if !bucket_waits || key.starts_anew => {
                warm::start_empty_cell(&self.spawner, &key.making).await
            }
            None => warm::start_parked_cell(&self.spawner, &key.making, key.language).await,
        }
    }
}
