//! Runs in: server (no capabilities).
//!
//! What teams used in this month, for Prometheus.

use std::sync::atomic::AtomicU64;

use cloche_model::TeamId;
use cloche_store::{StorageTraffic, UsageTotals};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UsageLabels {
    team: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TransferLabels {
    team: String,
    direction: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StorageTrafficLabels {
    team: String,
    storage: String,
    direction: &'static str,
}

/// A gauge of a number that is not whole.
type FloatGauge = Gauge<f64, AtomicU64>;

/// Gauges of usage. Each starts again at zero with the month.
#[derive(Default)]
pub(crate) struct UsageMetrics {
    executions: Family<UsageLabels, Gauge>,
    credits: Family<UsageLabels, FloatGauge>,
    cpu_seconds: Family<UsageLabels, FloatGauge>,
    transferred: Family<TransferLabels, Gauge>,
    network: Family<TransferLabels, Gauge>,
    storage: Family<StorageTrafficLabels, Gauge>,
}

impl UsageMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "team_month_executions",
            "Executions of a team that ended in this month (UTC)",
            self.executions.clone(),
        );
        registry.register(
            "team_month_credits",
            "Credits that a team used in this month (UTC)",
            self.credits.clone(),
        );
        registry.register(
            "team_month_cpu_seconds",
            "Processor time that a team used in this month (UTC)",
            self.cpu_seconds.clone(),
        );
        registry.register(
            "team_month_transferred_bytes",
            "HTTP bodies of a team in this month (UTC), by direction",
            self.transferred.clone(),
        );
        registry.register(
            "team_month_network_bytes",
            "What the programs of a team transferred in this month (UTC), by direction",
            self.network.clone(),
        );
        registry.register(
            "team_month_storage_bytes",
            "Bytes that executions of a team read and wrote in storage in this month (UTC)",
            self.storage.clone(),
        );
    }

    pub(crate) fn set_storage(&self, traffic: &[StorageTraffic]) {
        self.storage.clear();
        for one in traffic {
            for (direction, bytes) in [("read", one.read_bytes), ("written", one.written_bytes)] {
                let (team, storage) = (one.team.to_string(), one.name.clone());
                let labels = StorageTrafficLabels { team, storage, direction };
                let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
                self.storage.get_or_create(&labels).set(bytes);
            }
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "gauges are floating-point numbers")]
    pub(crate) fn set_gauges(&self, usages: &[(TeamId, UsageTotals)]) {
        let gauge = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.executions.clear();
        self.credits.clear();
        self.cpu_seconds.clear();
        self.transferred.clear();
        self.network.clear();
        for (team, usage) in usages {
            let labels = UsageLabels { team: team.to_string() };
            self.executions.get_or_create(&labels).set(gauge(usage.executions));
            self.credits.get_or_create(&labels).set(usage.micro_credits as f64 / 1e6);
            self.cpu_seconds.get_or_create(&labels).set(usage.cpu_ms as f64 / 1e3);
            for (direction, bytes) in
                [("received", usage.received_bytes), ("sent", usage.sent_bytes)]
            {
                let labels = TransferLabels { team: team.to_string(), direction };
                self.transferred.get_or_create(&labels).set(gauge(bytes));
            }
            for (direction, bytes) in
                [("received", usage.network_in_bytes), ("sent", usage.network_out_bytes)]
            {
                let labels = TransferLabels { team: team.to_string(), direction };
                self.network.get_or_create(&labels).set(gauge(bytes));
            }
        }
    }
}
