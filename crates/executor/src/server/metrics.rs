//! What the executor counts and times, for whoever asks.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Upper bounds of the buckets, in microseconds; a last one takes the rest.
pub const BOUNDS_US: [u64; 15] = [
    100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200, 102_400, 400_000, 1_600_000,
    6_400_000, 60_000_000,
];

/// How long something took, counted in buckets.
#[derive(Debug, Default)]
pub struct DurationHistogram {
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    total_us: AtomicU64,
}

/// A histogram at one moment.
#[derive(Clone, Debug, Default)]
pub struct HistogramReading {
    /// How many fell into each bucket, by [`BOUNDS_US`], and how many above the last.
    pub buckets: [u64; BOUNDS_US.len() + 1],
    /// All of them added up.
    pub total: Duration,
}

impl DurationHistogram {
    pub(crate) fn add(&self, taken: Duration) {
        let us = u64::try_from(taken.as_micros()).unwrap_or(u64::MAX);
        let at = BOUNDS_US.iter().position(|bound| us <= *bound).unwrap_or(BOUNDS_US.len());
        self.buckets[at].fetch_add(1, Ordering::Relaxed);
        self.total_us.fetch_add(us, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> HistogramReading {
        let mut buckets = [0; BOUNDS_US.len() + 1];
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        buckets.iter_mut().zip(counts).for_each(|(to, from)| *to = from);
        let total = Duration::from_micros(self.total_us.load(Ordering::Relaxed));
        HistogramReading { buckets, total }
    }
}

/// Everything that is counted.
#[derive(Debug, Default)]
pub(crate) struct ExecutorMetrics {
    pub(crate) hits: AtomicU64,
    pub(crate) forks: AtomicU64,
    pub(crate) cold: AtomicU64,
    pub(crate) died_parked: AtomicU64,
    pub(crate) cell: DurationHistogram,
    pub(crate) attach: DurationHistogram,
    pub(crate) run: DurationHistogram,
    pub(crate) seal: DurationHistogram,
    pub(crate) teardown: DurationHistogram,
}

pub(crate) fn increment_counter(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The executor at one moment.
#[derive(Clone, Debug, Default)]
pub struct ExecutorReading {
    /// Runs that found a parked cell.
    pub pool_hits: u64,
    /// Runs whose cell was forked from a template when they came.
    pub on_demand_forks: u64,
    /// Runs whose cell was built from nothing.
    pub cold_starts: u64,
    /// Cells that died while they were parked.
    pub died_parked: u64,
    /// Waiting for a cell.
    pub cell: HistogramReading,
    /// Bringing the job in.
    pub attach: HistogramReading,
    /// The program.
    pub run: HistogramReading,
    /// Keeping what was written.
    pub seal: HistogramReading,
    /// From the reply until nothing of the cell is left.
    pub teardown: HistogramReading,
    /// Cells alive or being cleaned up, templates included.
    pub cells: usize,
    /// What is parked.
    pub buckets: Vec<BucketReading>,
}

/// One shelf of the pool at one moment.
#[derive(Clone, Debug)]
pub struct BucketReading {
    /// The language of its cells.
    pub language: cloche_model::Language,
    /// How many are parked.
    pub parked: usize,
    /// How many should be.
    pub target: usize,
    /// How many templates serve it.
    pub templates: usize,
}

impl ExecutorMetrics {
    pub(crate) fn read(&self, cells: usize, shelves: Vec<BucketReading>) -> ExecutorReading {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ExecutorReading {
            pool_hits: get(&self.hits),
            on_demand_forks: get(&self.forks),
            cold_starts: get(&self.cold),
            died_parked: get(&self.died_parked),
            cell: self.cell.read(),
            attach: self.attach.read(),
            run: self.run.read(),
            seal: self.seal.read(),
            teardown: self.teardown.read(),
            cells,
            buckets: shelves,
        }
    }
}
