//! Runs in: server (no capabilities).
//!
//! The metrics, for Prometheus. Code that counts does not know how it is shown.

mod admission;
mod agents;
mod memory;
mod storage;
mod usage;

use std::time::Duration;

use cloche_model::{ExecutionStatus, Language, RunTimings};
use prometheus_client::{
    encoding::{
        EncodeLabelSet,
        text::{encode_eof, encode_registry},
    },
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::{DispatcherLoad, memory::MemoryBudgets};

pub(crate) use admission::{AdmissionMetrics, RequestClass};
pub use agents::AgentMetrics;
pub(crate) use storage::StorageMetrics;
pub(crate) use usage::UsageMetrics;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ExecutionLabels {
    status: &'static str,
    language: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabels {
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PoolLabels {
    pool: String,
}

/// The counters of one engine.
pub struct EngineMetrics {
    registry: Registry,
    /// What names teams, for operators only.
    teams: Registry,
    executions: Family<ExecutionLabels, Counter>,
    phases: Family<PhaseLabels, Histogram>,
    running: Gauge,
    cells: Gauge,
    parked: Family<PoolLabels, Gauge>,
    target: Family<PoolLabels, Gauge>,
    webhooks: Family<ResultLabels, Counter>,
    pub(crate) agents: AgentMetrics,
    memory: memory::MemoryMetrics,
    pub(crate) storage: StorageMetrics,
    pub(crate) usage: UsageMetrics,
    pub(crate) admission: AdmissionMetrics,
}

impl EngineMetrics {
    pub(crate) fn new() -> Self {
        // 100 µs to about 50 min.
        let histogram = || Histogram::new(exponential_buckets(0.0001, 2.0, 25));
        let mut metrics = Self {
            registry: Registry::with_prefix("cloche"),
            teams: Registry::with_prefix("cloche"),
            executions: Family::default(),
            phases: Family::new_with_constructor(histogram),
            running: Gauge::default(),
            cells: Gauge::default(),
            parked: Family::default(),
            target: Family::default(),
            webhooks: Family::default(),
            agents: AgentMetrics::default(),
            memory: memory::MemoryMetrics::default(),
            storage: StorageMetrics::default(),
            usage: UsageMetrics::default(),
            admission: AdmissionMetrics::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "executions",
            "Executions that are over, by status and language",
            self.executions.clone(),
        );
        registry.register(
            "execution_phase_seconds",
            "Where the time of executions went: queue, attach, run, seal",
            self.phases.clone(),
        );
        registry.register("executions_running", "Executions under way", self.running.clone());
        registry.register("cells_running", "Cells that run guest code", self.cells.clone());
        registry.register("pool_parked", "Cells parked in a pool", self.parked.clone());
        registry.register("pool_target", "Cells a pool tries to keep", self.target.clone());
        registry.register(
            "webhook_attempts",
            "Attempts to deliver a webhook, by result",
            self.webhooks.clone(),
        );
        for result in ["delivered", "failed"] {
            drop(self.webhooks.get_or_create(&ResultLabels { result }));
        }
        self.agents.register(registry);
        self.memory.register(registry);
        self.storage.register(registry, &mut self.teams);
        self.usage.register(&mut self.teams);
        self.admission.register(registry);
    }

    pub(crate) fn execution_over(&self, status: ExecutionStatus, language: Option<Language>) {
        let language = language.map_or("unknown", Language::name);
        self.executions.get_or_create(&ExecutionLabels { status: status.name(), language }).inc();
    }

    pub(crate) fn observe_phases(&self, timings: &RunTimings, seal: Duration) {
        for (phase, time) in [
            ("queue", timings.cell),
            ("attach", timings.attach),
            ("run", timings.run),
            ("seal", seal),
        ] {
            self.phases.get_or_create(&PhaseLabels { phase }).observe(time.as_secs_f64());
        }
    }

    pub(crate) fn webhook_attempt(&self, result: &'static str) {
        self.webhooks.get_or_create(&ResultLabels { result }).inc();
    }

    pub(crate) fn show_memory(&self, memory: &MemoryBudgets) {
        self.memory.set_gauges(memory);
    }

    /// The metrics in the text format of Prometheus.
    #[must_use]
    pub(crate) fn encode_text(
        &self,
        running: usize,
        snapshot: DispatcherLoad,
        with_teams: bool,
    ) -> String {
        let gauge = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.running.set(gauge(running as u64));
        self.cells.set(gauge(snapshot.cells_running));
        // A pool that is gone must not be shown as it was.
        self.parked.clear();
        self.target.clear();
        for pool in snapshot.pools {
            let labels = PoolLabels { pool: pool.name };
            self.parked.get_or_create(&labels).set(gauge(pool.parked));
            self.target.get_or_create(&labels).set(gauge(pool.target));
        }
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode_registry(&mut text, &self.registry);
        if with_teams {
            let _ = encode_registry(&mut text, &self.teams);
        }
        let _ = encode_eof(&mut text);
        text
    }
}
