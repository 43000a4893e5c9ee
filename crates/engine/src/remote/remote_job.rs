//! Runs in: server (no capabilities).
//!
//! A run that looks for a sidecar: what it needs, its body for each sidecar, and the layer that
//! comes back. The layers stay in the store that server and sidecar share; only their digests are
//! sent.

use bytes::Bytes;
use cloche_layers::Layers;
use cloche_model::{HOST_IMAGE, Layer, LayerDigest, NetworkPolicy, RunSpec};

use super::{SidecarSlot, job_body};
use crate::{DispatchError, RunNeeds, TakenSignal};

/// A run for a sidecar.
pub(super) struct RemoteJob {
    pub(super) needs: RunNeeds,
    /// What is to be run, until a sidecar has taken it.
    spec: Option<RunSpec>,
    taken: Option<TakenSignal>,
    layers: Option<Layers>,
}

impl RemoteJob {
    pub(super) fn new(spec: RunSpec, taken: Option<TakenSignal>, layers: Option<Layers>) -> Self {
        let needs = RunNeeds {
            timeout: spec.limits.timeout,
            home: spec.home.is_some(),
            image: spec.sandbox.image != HOST_IMAGE,
            network: spec.sandbox.network != NetworkPolicy::Blocked,
        };
        Self { needs, spec: Some(spec), taken, layers }
    }

    /// The body of the request to this sidecar. What a run without a thread writes is kept if the
    /// sidecar shares the store and the disk of this server is not short.
    pub(super) fn encode_for(&self, place: &SidecarSlot) -> Result<Bytes, DispatchError> {
        let layers = self.layers.as_ref().filter(|_| place.shares_store);
        let layers = layers.filter(|layers| self.needs.home || layers.keeps_output());
        let Some(spec) = &self.spec else {
            return Err(DispatchError::Failed("the run was sent before".to_owned()));
        };
        job_body::encode_body(spec, layers.and_then(Layers::known_store_id))
    }

    /// A sidecar has taken it: the program and its files are not needed any more.
    pub(super) fn report_taken(&mut self) {
        self.spec = None;
        if let Some(taken) = self.taken.take() {
            taken.report_taken();
        }
    }

    /// Takes over the layer that the sidecar stored. A head may refer to it only if it is in the
    /// store of this server, so that is checked here and not believed.
    pub(super) async fn adopt_layer(
        &self,
        place: &SidecarSlot,
        digest: Option<LayerDigest>,
    ) -> Result<Option<Layer>, DispatchError> {
        let Some((digest, layers)) = digest.zip(self.layers.as_ref()) else { return Ok(None) };
        match layers.adopt_layer(&digest).await {
            Ok(layer) => Ok(Some(layer)),
            Err(error) if self.needs.home => {
                let url = &place.url;
                Err(DispatchError::Failed(format!("{url}: its layer cannot be used: {error}")))
            }
            Err(error) => {
                tracing::error!(%error, url = %place.url, "the files of a run are not kept");
                Ok(None)
            }
        }
    }
}
