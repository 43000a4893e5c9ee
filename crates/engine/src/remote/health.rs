//! Runs in: server (no capabilities).
//!
//! Checks the health of every sidecar at intervals. A failing one is left out until it is healthy.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use reqwest::StatusCode;
use url::Url;

use super::RemoteInner;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Goes on until the task is ended.
pub(super) async fn watch_sidecars(shared: Arc<RemoteInner>) {
    let mut tick = tokio::time::interval(shared.config.check_every);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let urls = shared.registry.urls().iter();
        let found = join_all(urls.map(|url| check_sidecar(&shared, url))).await;
        for (index, found) in found.into_iter().enumerate() {
            shared.registry.note_health(index, found);
        }
    }
}

/// With our key: a sidecar that refuses it could not run anything for us.
async fn check_sidecar(shared: &RemoteInner, url: &Url) -> Result<(), String> {
    let url = url.join("healthz").map_err(|error| error.to_string())?;
    let answer = shared.client.get(url).timeout(PATIENCE).send().await;
    match answer.map(|answer| answer.status()) {
        Ok(StatusCode::OK) => Ok(()),
        Ok(StatusCode::UNAUTHORIZED) => Err("it refuses the key".to_owned()),
        Ok(status) => Err(format!("its health check answers {status}")),
        Err(_) => Err("it cannot be reached".to_owned()),
    }
}
