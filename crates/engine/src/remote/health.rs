//! Runs in: server (no capabilities).
//!
//! Checks the health of every sidecar at intervals. A failing one is left out until it is healthy.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use reqwest::{Response, StatusCode};
use url::Url;

use cloche_model::LayerStoreId;

use crate::sidecar::SidecarHealthReport;

use super::{RemoteInner, read_bounded, registry::SidecarOffer};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Goes on until the task is ended.
pub(super) async fn watch_sidecars(shared: Arc<RemoteInner>) {
    let mut tick = tokio::time::interval(shared.config.check_every);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        check_sidecars(&shared).await;
    }
}

/// One check of every sidecar.
pub(super) async fn check_sidecars(shared: &RemoteInner) {
    let store = read_own_store(shared).await;
    let urls = shared.registry.urls().iter();
    let found = join_all(urls.map(|url| check_sidecar(shared, url, store))).await;
    for (index, found) in found.into_iter().enumerate() {
        shared.registry.note_health(index, found);
    }
}

/// The name of this server's layer store. Without it no sidecar is known to share the store.
async fn read_own_store(shared: &RemoteInner) -> Option<LayerStoreId> {
    let layers = shared.layers.as_ref()?;
    match tokio::time::timeout(PATIENCE, layers.store_id()).await {
        Ok(Ok(id)) => Some(id),
        Ok(Err(error)) => {
            tracing::warn!(%error, "the layer store does not tell its name");
            None
        }
        Err(_) => None,
    }
}

/// With our key: a sidecar that refuses it could not run anything for us.
async fn check_sidecar(
    shared: &RemoteInner,
    url: &Url,
    store: Option<LayerStoreId>,
) -> Result<SidecarOffer, String> {
    let url = url.join("healthz").map_err(|error| error.to_string())?;
    let answer = shared.client.get(url).timeout(PATIENCE).send().await;
    let answer = answer.map_err(|_| "it cannot be reached".to_owned())?;
    match answer.status() {
        StatusCode::OK => Ok(read_offer(answer, store).await),
        StatusCode::UNAUTHORIZED => Err("it refuses the key".to_owned()),
        status => Err(format!("its health check answers {status}")),
    }
}

/// What the answer offers. An executor that speaks only the contract offers nothing.
async fn read_offer(answer: Response, store: Option<LayerStoreId>) -> SidecarOffer {
    let health: SidecarHealthReport =
        serde_json::from_slice(&read_bounded(answer).await).unwrap_or_default();
    SidecarOffer {
        shares_store: store.is_some() && health.layer_store == store,
        max_timeout: health.max_timeout_ms.map(Duration::from_millis),
    }
}
