//! Runs in: server (no capabilities).
//!
//! What teams store, and what the disk has left, for Prometheus.

use cloche_model::TeamId;
use cloche_store::StorageUsage;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::DiskSpace;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StorageLabels {
    team: String,
    kind: &'static str,
}

/// Gauges of storage.
#[derive(Default)]
pub(crate) struct StorageMetrics {
    used: Family<StorageLabels, Gauge>,
    free: Gauge,
    reserve: Gauge,
    refused: Gauge,
}

impl StorageMetrics {
    pub(crate) fn register(&self, registry: &mut Registry, teams: &mut Registry) {
        teams.register(
            "team_storage_bytes",
            "What a team stores: layers, and rows of the database",
            self.used.clone(),
        );
        registry.register(
            "storage_free_bytes",
            "Free space on the disk of the data directory",
            self.free.clone(),
        );
        registry.register(
            "storage_reserve_bytes",
            "Free space below which new data is refused",
            self.reserve.clone(),
        );
        registry.register(
            "storage_refusals",
            "Requests that were refused because the disk is short",
            self.refused.clone(),
        );
    }

    pub(crate) fn set_gauges(
        &self,
        usages: &[(TeamId, StorageUsage)],
        room: DiskSpace,
        refused: u64,
    ) {
        let gauge = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.used.clear();
        for (team, usage) in usages {
            for (kind, bytes) in [("layers", usage.layer_bytes), ("rows", usage.row_bytes)] {
                let labels = StorageLabels { team: team.to_string(), kind };
                self.used.get_or_create(&labels).set(gauge(bytes));
            }
        }
        self.free.set(gauge(room.free_bytes));
        self.reserve.set(gauge(room.reserve_bytes));
        self.refused.set(gauge(refused));
    }
}
