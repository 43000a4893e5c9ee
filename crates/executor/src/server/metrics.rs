//! Runs in: server (no capabilities). What the executor counts and times.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use cloche_model::{Language, RunTimings};

/// Upper bounds of the histogram buckets, in microseconds. A last bucket takes the rest.
pub const BOUNDS_US: [u64; 15] = [
    100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200, 102_400, 400_000, 1_600_000,
    6_400_000, 60_000_000,
];

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct DurationHistogram {
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    total_us: AtomicU64,
}

/// A histogram at one moment.
#[derive(Clone, Debug, Default)]
pub struct HistogramReading {
    /// The count of each bucket of [`BOUNDS_US`], and of those above the last bound.
    pub buckets: [u64; BOUNDS_US.len() + 1],
    /// The sum of all durations.
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

/// All counters and histograms.
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
    /// Runs for which a template forked a cell on demand.
    pub on_demand_forks: u64,
    /// Runs that started a cold cell.
    pub cold_starts: u64,
    /// Cells that died while they were parked.
    pub died_parked: u64,
    /// The wait for a cell.
    pub cell: HistogramReading,
    /// Writing the job.
    pub attach: HistogramReading,
    /// The program.
    pub run: HistogramReading,
    /// Packing and storing what was written.
    pub seal: HistogramReading,
    /// From the end of the program until the cell is gone.
    pub teardown: HistogramReading,
    /// Cells that are alive or being torn down, with templates.
    pub cells: usize,
    /// The buckets of the pool.
    pub buckets: Vec<BucketReading>,
}

/// One bucket of the pool at one moment.
#[derive(Clone, Debug)]
pub struct BucketReading {
    /// The language of its cells.
    pub language: Language,
    /// How many cells are parked.
    pub parked: usize,
    /// How many should be parked.
    pub target: usize,
    /// How many templates it has.
    pub templates: usize,
}

impl ExecutorMetrics {
    /// Adds the timings of a run that has an outcome. The wait for its cell is counted before.
    pub(crate) fn add_timings(&self, timings: &RunTimings) {
        self.attach.add(timings.attach);
        self.run.add(timings.run);
        self.seal.add(timings.seal);
    }

    pub(crate) fn read(&self, cells: usize, buckets: Vec<BucketReading>) -> ExecutorReading {
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
            buckets,
        }
    }
}
