//! Runs in: server (no capabilities).
//!
//! Keeps the search index of the ledger up to date, some time after executions end.

use std::{sync::Arc, time::Duration};

use cloche_store::Store;
use tokio_util::sync::CancellationToken;

use crate::{Activity, shared_parts::SharedParts};

/// How long executions are gathered before they are indexed together.
const GATHER: Duration = Duration::from_millis(250);
/// The pause between two batches, in which other writes take place.
const PAUSE: Duration = Duration::from_millis(5);

/// Feeds the search index.
pub(crate) struct SearchIndexer {
    store: Arc<dyn Store>,
    activity: Arc<Activity>,
}

impl SearchIndexer {
    pub(crate) fn new(shared: &SharedParts) -> Self {
        Self { store: Arc::clone(&shared.store), activity: Arc::clone(&shared.activity) }
    }

    /// Indexes what there is, and then what ends, until the engine closes.
    pub(crate) async fn run(self, closing: CancellationToken) {
        loop {
            self.index_all(&closing).await;
            tokio::select! {
                () = self.activity.wait_for_end() => {}
                () = closing.cancelled() => return,
            }
            tokio::select! {
                () = tokio::time::sleep(GATHER) => {}
                () = closing.cancelled() => return,
            }
        }
    }

    async fn index_all(&self, closing: &CancellationToken) {
        while !closing.is_cancelled() {
            match self.store.index_executions().await {
                Ok(true) => tokio::time::sleep(PAUSE).await,
                Ok(false) => return,
                Err(error) => {
                    tracing::error!(%error, "executions were not indexed; tried again later");
                    return;
                }
            }
        }
    }
}
