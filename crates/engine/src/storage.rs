//! Runs in: server (no capabilities).
//!
//! How much a team may store: its budget, what is reserved of it by bytes that are on their way, and
//! what is dropped of its past before a write is refused. The store compares once more, in the
//! transaction that appends; see `docs/decisions/0017-storage-budgets.md`.

mod config;
mod host;
mod prune;
mod reserve;

use std::time::Duration;

use cloche_layers::LayerError;
use cloche_model::{ByteSize, ErrorCode, Layer, LayerDigest, Team};
use cloche_store::{StorageUsage, StoreError};

use crate::{Engine, Refusal};

pub use config::{PlanStorage, StorageConfig, StorageReserve};
pub use host::DiskSpace;
pub(crate) use host::{HostStorage, NO_ROOM};
pub use prune::{HistoryPolicy, PrunedHistory};
pub(crate) use reserve::{StorageReservation, StorageReservations};

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

/// The name of the setting that says that everything was counted once.
const COUNTED: &str = "storage_counted";

/// A failure of either store.
#[derive(Debug, thiserror::Error)]
enum RemoveError {
    #[error(transparent)]
    Layers(#[from] LayerError),
    #[error(transparent)]
    Rows(#[from] StoreError),
}

/// What a team hears that has used up its budget.
pub(crate) fn over_budget_refusal(team: &Team, budget: u64) -> Refusal {
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

impl Engine {
    /// The most that a team may store.
    pub(crate) fn storage_budget(&self, team: &Team) -> Option<u64> {
        let plan = self.inner.config.storage.of_plan(team.plan).bytes;
        team.storage.or(plan).map(ByteSize::bytes)
    }

    /// The same without what is promised to bytes that are on their way.
    pub(crate) fn unreserved_budget(&self, team: &Team) -> Option<u64> {
        let reserved = self.inner.reservations.bytes_of(&team.id);
        self.storage_budget(team).map(|budget| budget.saturating_sub(reserved))
    }

    /// What a team stores and may store.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn team_storage(&self, team: &Team) -> Result<TeamStorage, Refusal> {
        let used = self.inner.store.storage_usage(&team.id).await?;
        Ok(TeamStorage { used, budget: self.storage_budget(team).map(ByteSize) })
    }

    /// What every team stores, in the order of their ids.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn storage_usages(
        &self,
    ) -> Result<Vec<(cloche_model::TeamId, StorageUsage)>, Refusal> {
        Ok(self.inner.store.storage_usages().await?)
    }

    /// Counts anew what every team stores, from the rows and the layers themselves.
    ///
    /// # Errors
    /// When the layers cannot be listed or the store fails.
    pub async fn recount_storage(&self) -> Result<(), Refusal> {
        let sizes = match &self.inner.config.homes.layers {
            Some(layers) => layers.layer_sizes().await.map_err(Refusal::internal)?,
            None => std::collections::HashMap::new(),
        };
        self.inner.store.recount_storage(&sizes).await?;
        Ok(self.inner.store.set_setting(COUNTED, "1").await?)
    }

    /// Counts once what an older version left uncounted.
    pub(crate) async fn count_storage_once(&self) -> Result<(), Refusal> {
        match self.inner.store.read_setting(COUNTED).await? {
            Some(_) => Ok(()),
            None => self.recount_storage().await,
        }
    }

    /// Looks how much of the disk is free, all the time; while it is short, files of runs without a
    /// thread are not kept and the cache of unpacked layers is given back.
    pub(crate) async fn watch_disk(self) {
        let host = &self.inner.host_storage;
        let mut was_short = false;
        loop {
            let is_short = host.measure().is_short();
            if let Some(layers) = &self.inner.config.homes.layers {
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
                () = self.inner.closing.cancelled() => return,
            }
        }
    }

    /// Brings the metrics of storage up to date.
    pub(crate) async fn measure_storage(&self) {
        let host = &self.inner.host_storage;
        let usages = match self.inner.store.storage_usages().await {
            Ok(usages) => usages,
            Err(error) => return tracing::error!(%error, "storage could not be measured"),
        };
        self.inner.metrics.storage.set_gauges(&usages, host.measure(), host.refusal_count());
    }

    /// Says that a layer that was stored is needed from now on.
    pub(crate) fn settle_layer(&self, layer: &LayerDigest) {
        if let Some(layers) = &self.inner.config.homes.layers {
            layers.release_pin(layer);
        }
    }

    /// Removes a layer that was stored for a write that did not come to be.
    pub(crate) async fn discard_layer(&self, layer: &LayerDigest) {
        self.settle_layer(layer);
        self.remove_layers(std::slice::from_ref(layer)).await;
    }

    /// Removes those of the layers that nothing needs any more.
    pub(crate) async fn remove_layers(&self, candidates: &[LayerDigest]) {
        let Some(layers) = &self.inner.config.homes.layers else { return };
        for digest in candidates {
            let needed = async { Ok(self.inner.store.is_layer_needed(digest).await?) };
            if let Err(error) = layers.remove_unless::<RemoveError>(digest, needed).await {
                tracing::error!(%error, %digest, "a layer was not removed; a sweep will");
            }
        }
    }

    /// An upper bound of what one layer in the place of a stack takes.
    pub(crate) async fn squash_bound(&self, stack: &[LayerDigest]) -> Result<u64, Refusal> {
        let layers = self.layers()?;
        let mut sum = 0_u64;
        for digest in stack {
            let stored = layers.stored_size(digest).await.map_err(crate::threads::layer_refusal)?;
            sum = sum.saturating_add(Layer::disk_bytes_for(stored));
        }
        Ok(sum)
    }
}
