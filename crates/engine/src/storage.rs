//! Runs in: server (no capabilities).
//!
//! How much a team may store: its budget, what is reserved of it by bytes that are on their way, and
//! what is dropped of its past before a write is refused. The store compares once more, in the
//! transaction that appends; see `docs/decisions/0017-storage-budgets.md`.

mod config;
mod host;
mod prune;
mod reserve;

use std::{path::Path, sync::Arc, time::Duration};

use cloche_layers::{LayerError, Layers};
use cloche_model::{ByteSize, ErrorCode, LayerDigest, Team};
use cloche_store::{StorageUsage, Store, StoreError};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{EngineConfig, Refusal, metrics::StorageMetrics, shared_parts::SharedParts};

pub use config::{PlanStorage, StorageConfig, StorageReserve};
pub use host::DiskSpace;
pub(crate) use host::{HostStorage, NO_ROOM};
pub use prune::{HistoryPolicy, PrunedHistory};
pub(crate) use reserve::StorageReservation;
use reserve::StorageReservations;

/// What a team stores and may store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TeamStorage {
    /// What its data takes.
    pub used: StorageUsage,
    /// The most that it may take; none is no limit but the host's.
    pub budget: Option<ByteSize>,
}

/// How often the free space of the data directory is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The setting that records that everything was counted once.
const COUNTED: &str = "storage_counted";

/// A failure of either store.
#[derive(Debug, thiserror::Error)]
enum RemoveError {
    #[error(transparent)]
    Layers(#[from] LayerError),
    #[error(transparent)]
    Rows(#[from] StoreError),
}

/// The refusal for a team that has used up this budget.
fn over_budget_refusal(team: &Team, budget: u64) -> Refusal {
    let (plan, budget) = (team.plan.display_name(), ByteSize(budget));
    Refusal::new(
        ErrorCode::QuotaExceeded,
        format!(
            "storage budget exceeded: a team may store {budget} on the {plan} plan, counting the \
             history of its threads, output files and execution records; delete threads or prune \
             their history, or ask your administrator to raise the budget"
        ),
    )
}

/// What teams store and may store, and how much the disk has left.
pub struct StorageBudgets {
    store: Arc<dyn Store>,
    layers: Option<Layers>,
    config: StorageConfig,
    /// Parts of budgets that are promised to bytes on their way.
    reservations: StorageReservations,
    /// The file system of the data directory.
    host: HostStorage,
    /// Held while history is pruned to make room.
    pruning: Mutex<()>,
}

impl StorageBudgets {
    pub(crate) fn new(shared: &SharedParts, data_dir: &Path, config: &EngineConfig) -> Self {
        Self {
            store: Arc::clone(&shared.store),
            layers: config.homes.layers.clone(),
            config: config.storage.clone(),
            reservations: StorageReservations::default(),
            host: HostStorage::open(data_dir, config.storage.reserve),
            pruning: Mutex::default(),
        }
    }

    /// The file system of the data directory.
    pub(crate) fn host(&self) -> &HostStorage {
        &self.host
    }

    /// How long the reader of an export may read nothing.
    pub(crate) fn export_stall(&self) -> Duration {
        self.config.export_stall
    }

    /// The most that a team may store.
    pub(crate) fn budget_of(&self, team: &Team) -> Option<u64> {
        let plan = self.config.of_plan(team.plan).bytes;
        team.storage.or(plan).map(ByteSize::bytes)
    }

    /// The same without what is promised to bytes that are on their way.
    pub(crate) fn unreserved_budget(&self, team: &Team) -> Option<u64> {
        let reserved = self.reservations.bytes_of(&team.id);
        self.budget_of(team).map(|budget| budget.saturating_sub(reserved))
    }

    /// The refusal for a team that has used up its budget.
    pub(crate) fn over_budget(&self, team: &Team) -> Refusal {
        over_budget_refusal(team, self.budget_of(team).unwrap_or_default())
    }

    /// What a team stores and may store.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn team_storage(&self, team: &Team) -> Result<TeamStorage, Refusal> {
        let used = self.store.storage_usage(&team.id).await?;
        Ok(TeamStorage { used, budget: self.budget_of(team).map(ByteSize) })
    }

    /// What every team stores, in the order of their ids.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn storage_usages(
        &self,
    ) -> Result<Vec<(cloche_model::TeamId, StorageUsage)>, Refusal> {
        Ok(self.store.storage_usages().await?)
    }

    /// Counts anew what every team stores, from the rows and the layers themselves.
    ///
    /// # Errors
    /// When the layers cannot be listed or the store fails.
    pub async fn recount_storage(&self) -> Result<(), Refusal> {
        let sizes = match &self.layers {
            Some(layers) => layers.layer_sizes().await.map_err(Refusal::internal)?,
            None => std::collections::HashMap::new(),
        };
        self.store.recount_storage(&sizes).await?;
        Ok(self.store.set_setting(COUNTED, "1").await?)
    }

    /// Counts once what an older version left uncounted.
    pub(crate) async fn count_once(&self) -> Result<(), Refusal> {
        match self.store.read_setting(COUNTED).await? {
            Some(_) => Ok(()),
            None => self.recount_storage().await,
        }
    }

    /// Measures the free space of the disk until the engine closes. While it is short, files of
    /// executions without a thread are not kept and the cache of unpacked layers is emptied.
    pub(crate) async fn watch_disk(self: Arc<Self>, closing: CancellationToken) {
        let host = &self.host;
        let mut was_short = false;
        loop {
            let is_short = host.measure().is_short();
            if let Some(layers) = &self.layers {
                layers.set_keeps_output(!is_short);
                if is_short
                    && !was_short
                    && let Err(error) = layers.empty_cache().await
                {
                    tracing::error!(%error, "the layer cache was not emptied");
                }
            }
            if !is_short {
                host.keep_ballast();
            }
            was_short = is_short;
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = closing.cancelled() => return,
            }
        }
    }

    /// Brings the metrics of storage up to date.
    pub(crate) async fn show_usage(&self, metrics: &StorageMetrics) {
        let host = &self.host;
        let usages = match self.store.storage_usages().await {
            Ok(usages) => usages,
            Err(error) => return tracing::error!(%error, "storage could not be measured"),
        };
        metrics.set_gauges(&usages, host.measure(), host.refusal_count());
    }

    /// Refuses new data if the disk of the data directory is short.
    pub(crate) fn check_host(&self) -> Result<(), Refusal> {
        self.host.check_now()
    }

    /// Lets go of the pin of a stored layer: a row refers to it from now on.
    pub(crate) fn settle_layer(&self, layer: &LayerDigest) {
        if let Some(layers) = &self.layers {
            layers.release_pin(layer);
        }
    }

    /// Removes a layer that was stored for a write that did not take place.
    pub(crate) async fn discard_layer(&self, layer: &LayerDigest) {
        self.settle_layer(layer);
        self.remove_layers(std::slice::from_ref(layer)).await;
    }

    /// Removes those of the layers that nothing needs any more.
    pub(crate) async fn remove_layers(&self, candidates: &[LayerDigest]) {
        let Some(layers) = &self.layers else { return };
        for digest in candidates {
            let needed = async { Ok(self.store.is_layer_needed(digest).await?) };
            if let Err(error) = layers.remove_unless::<RemoveError>(digest, needed).await {
                tracing::error!(%error, %digest, "a layer was not removed; a sweep will");
            }
        }
    }
}
