//! Runs in: server (no capabilities). What is counted of admission: who runs, who waits and for how
//! long, who was refused.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::{Family, MetricConstructor},
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

/// What is admitted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestClass {
    /// Executions.
    Run,
    /// Uploads, imports and exports.
    Transfer,
}

impl RequestClass {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Transfer => "transfer",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClassLabels {
    class: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusedLabels {
    class: &'static str,
    reason: &'static str,
}

/// Makes the histograms of waiting times: 1 ms to about 2 min.
#[derive(Clone)]
struct WaitBuckets;

impl MetricConstructor<Histogram> for WaitBuckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(exponential_buckets(0.001, 2.0, 18))
    }
}

/// The counters of admission. Cheap to clone.
#[derive(Clone)]
pub(crate) struct AdmissionMetrics {
    running: Family<ClassLabels, Gauge>,
    queued: Family<ClassLabels, Gauge>,
    refused: Family<RefusedLabels, Counter>,
    waited: Family<ClassLabels, Histogram, WaitBuckets>,
}

impl Default for AdmissionMetrics {
    fn default() -> Self {
        Self {
            running: Family::default(),
            queued: Family::default(),
            refused: Family::default(),
            waited: Family::new_with_constructor(WaitBuckets),
        }
    }
}

impl AdmissionMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "admission_running",
            "Requests that have a place on the host, by class",
            self.running.clone(),
        );
        registry.register(
            "admission_queued",
            "Requests that wait for a place, by class",
            self.queued.clone(),
        );
        registry.register(
            "admission_refused",
            "Requests that got no place, by class and reason",
            self.refused.clone(),
        );
        registry.register(
            "admission_wait_seconds",
            "How long requests waited that did not get a place at once, by class",
            self.waited.clone(),
        );
        // From the start, so that the first refusal is an increase.
        for class in [RequestClass::Run, RequestClass::Transfer].map(RequestClass::name) {
            drop(self.waited.get_or_create(&ClassLabels { class }));
            for reason in ["team_queue", "host_queue", "timeout"] {
                drop(self.refused.get_or_create(&RefusedLabels { class, reason }));
            }
        }
    }

    pub(crate) fn set_level(&self, class: RequestClass, running: usize, queued: usize) {
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let labels = ClassLabels { class: class.name() };
        self.running.get_or_create(&labels).set(gauge(running));
        self.queued.get_or_create(&labels).set(gauge(queued));
    }

    pub(crate) fn note_wait(&self, class: RequestClass, waited: Duration) {
        let labels = ClassLabels { class: class.name() };
        self.waited.get_or_create(&labels).observe(waited.as_secs_f64());
    }

    pub(crate) fn note_refused(&self, class: RequestClass, reason: &'static str) {
        self.refused.get_or_create(&RefusedLabels { class: class.name(), reason }).inc();
    }
}
