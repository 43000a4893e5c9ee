//! Runs in: sidecar (no capabilities).
//!
//! What a sidecar counts, for Prometheus. The names are listed in `docs/SIDECAR.md`.

use cloche_model::{Language, RunEnding, RunOutcome};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::{DispatchError, DispatcherLoad, JobRefusal};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JobLabels {
    language: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SidecarPoolLabels {
    pool: String,
}

/// The counters of one sidecar.
pub(super) struct SidecarMetrics {
    registry: Registry,
    jobs: Family<JobLabels, Counter>,
    refused: Family<ReasonLabels, Counter>,
    seconds: Histogram,
    running: Gauge,
    capacity: Gauge,
    cells: Gauge,
    parked: Family<SidecarPoolLabels, Gauge>,
}

/// A job that is over.
pub(super) struct FinishedJob<'a> {
    pub(super) language: Language,
    pub(super) result: &'a Result<RunOutcome, DispatchError>,
}

impl SidecarMetrics {
    pub(super) fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("sandbox_executor"),
            jobs: Family::default(),
            refused: Family::default(),
            // 1 ms to about 65 s.
            seconds: Histogram::new(exponential_buckets(0.001, 2.0, 17)),
            running: Gauge::default(),
            capacity: Gauge::default(),
            cells: Gauge::default(),
            parked: Family::default(),
        };
        let registry = &mut metrics.registry;
        registry.register(
            "jobs",
            "Jobs that are over, by language and result",
            metrics.jobs.clone(),
        );
        registry.register(
            "jobs_refused",
            "Requests that did not become a job, by reason",
            metrics.refused.clone(),
        );
        registry.register("job_seconds", "How long programs ran", metrics.seconds.clone());
        registry.register("jobs_running", "Jobs under way", metrics.running.clone());
        registry.register("jobs_capacity", "Jobs that can be under way", metrics.capacity.clone());
        registry.register("cells_running", "Cells that run guest code", metrics.cells.clone());
        registry.register("pool_parked", "Cells parked in a pool", metrics.parked.clone());
        metrics
    }

    pub(super) fn count_finished(&self, FinishedJob { language, result }: FinishedJob<'_>) {
        let name = match result {
            Ok(outcome) => {
                self.seconds.observe(outcome.usage.wall.as_secs_f64());
                match outcome.ending {
                    RunEnding::Exited(0) => "success",
                    RunEnding::Exited(_) | RunEnding::Signalled(_) => "failed",
                    RunEnding::TimedOut => "timeout",
                    RunEnding::OutOfMemory => "oom",
                    RunEnding::Cancelled => "cancelled",
                }
            }
            Err(_) => "error",
        };
        self.jobs.get_or_create(&JobLabels { language: language.name(), result: name }).inc();
    }

    pub(super) fn count_refusal(&self, refusal: &JobRefusal) {
        self.refused_for(match refusal {
            JobRefusal::Invalid(_) => "invalid",
            JobRefusal::Beyond(_) => "beyond",
            JobRefusal::OtherStore(_) => "layer_store",
            JobRefusal::Busy(_) => "busy",
            JobRefusal::Full => "full",
            JobRefusal::NoSandbox => "no_sandbox",
            JobRefusal::Draining => "draining",
            JobRefusal::Internal => "internal",
        });
    }

    pub(super) fn refused_for(&self, reason: &'static str) {
        self.refused.get_or_create(&ReasonLabels { reason }).inc();
    }

    pub(super) fn encode_text(&self, load: (usize, usize), snapshot: DispatcherLoad) -> String {
        let gauge = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.running.set(gauge(load.0 as u64));
        self.capacity.set(gauge(load.1 as u64));
        self.cells.set(gauge(snapshot.cells_running));
        // A pool that is gone must not be shown as it was.
        self.parked.clear();
        for pool in snapshot.pools {
            let labels = SidecarPoolLabels { pool: pool.name };
            self.parked.get_or_create(&labels).set(gauge(pool.parked));
        }
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}
