//! Runs in: server (no capabilities).
//!
//! The image of a sandbox. A name is resolved to a digest when the sandbox is saved, so that a tag
//! that moves does not change a sandbox.

use cloche_model::{HOST_IMAGE, ImageReference};

use super::{SandboxChange, Tenancy};
use crate::{Refusal, images::find_by_reference};

impl Tenancy {
    /// The change with its image as `NAME@DIGEST`.
    pub(super) async fn resolve_image(
        &self,
        change: SandboxChange,
    ) -> Result<SandboxChange, Refusal> {
        let image = match change.image.as_deref() {
            None | Some(HOST_IMAGE) => return Ok(change),
            Some(image) => image,
        };
        let in_field = |refusal: Refusal| Refusal {
            message: format!("image: {}", refusal.message).into(),
            ..refusal
        };
        let found = find_by_reference(&*self.store, image).await.map_err(in_field)?;
        let name = image.parse::<ImageReference>()?.name;
        let resolved = ImageReference { name, digest: Some(found.digest) };
        Ok(SandboxChange { image: Some(resolved.to_string()), ..change })
    }
}
