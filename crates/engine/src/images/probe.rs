//! Runs in: server (no capabilities).
//!
//! Tries the interpreters of a new image before its record is written. An image whose interpreters
//! do not start is kept, and its notes say why.

use std::sync::Arc;

use cloche_images::ImageProgress;
use cloche_model::{ImageRecord, InterpreterProbe, InterpreterStart};

use super::ImageParts;

impl ImageParts {
    /// Adds to a record what its interpreters are. This also unpacks the layers, so that the first
    /// run does not have to.
    pub(super) async fn probe_interpreters(
        &self,
        image: &mut ImageRecord,
        progress: &ImageProgress,
    ) {
        if image.interpreters.found.is_empty() {
            return;
        }
        progress.begin_unpacking();
        let reported = progress.clone();
        let on_try = Box::new(move |name: &str| reported.begin_trial(name));
        match self.dispatcher.probe_image(Arc::new(image.to_root()), on_try).await {
            Ok(Some(probes)) => {
                image.notes.extend(probes.iter().filter_map(describe_failure));
                image.probes = probes;
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, image = %image.digest, "could not try the interpreters");
                image.notes.push(format!("its interpreters were not tried: {error}"));
            }
        }
    }
}

fn describe_failure(probe: &InterpreterProbe) -> Option<String> {
    let reason = probe.reason.as_deref().unwrap_or("it gives no reason");
    (probe.start == InterpreterStart::Failed)
        .then(|| format!("its {} does not start: {reason}", probe.language))
}
