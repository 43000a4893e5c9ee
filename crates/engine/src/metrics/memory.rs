//! Runs in: server (no capabilities).
//!
//! The memory budgets as gauges: how large each is, how much of it is taken, and how often there was
//! none.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::memory::MemoryBudgets;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BudgetLabels {
    budget: &'static str,
}

/// One gauge for each number of a budget.
#[derive(Default)]
pub(super) struct MemoryMetrics {
    total: Family<BudgetLabels, Gauge>,
    used: Family<BudgetLabels, Gauge>,
    peak: Family<BudgetLabels, Gauge>,
    shortages: Family<BudgetLabels, Gauge>,
}

impl MemoryMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        let total = "Bytes of memory that bodies, outputs and replies may take";
        registry.register("memory_budget_bytes", total, self.total.clone());
        let used = "Bytes of a memory budget that are taken";
        registry.register("memory_used_bytes", used, self.used.clone());
        let peak = "The most bytes of a memory budget that were taken at once";
        registry.register("memory_peak_bytes", peak, self.peak.clone());
        let shortages = "How often memory was not to be had at once";
        registry.register("memory_shortages", shortages, self.shortages.clone());
    }

    pub(super) fn set_gauges(&self, memory: &MemoryBudgets) {
        let gauge = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        for (name, pool) in memory.named_pools() {
            let (labels, budget) = (BudgetLabels { budget: name }, pool.budget());
            self.total.get_or_create(&labels).set(gauge(budget.total_bytes()));
            self.used.get_or_create(&labels).set(gauge(budget.used_bytes()));
            self.peak.get_or_create(&labels).set(gauge(budget.peak_bytes()));
            self.shortages.get_or_create(&labels).set(gauge(budget.refusal_count()));
        }
    }
}
