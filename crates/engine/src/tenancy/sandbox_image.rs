//! Runs in: server (no capabilities).
//!
//! The image of a sandbox. A name is resolved to a digest when the sandbox is saved, so that a tag
//! that moves does not change a sandbox. A new sandbox without an image gets the default image if
//! there is one, otherwise `host`.

use std::sync::Arc;

use cloche_model::{ErrorCode, HOST_IMAGE, ImageReference, ImageRoot, SandboxShape};
use cloche_store::Store;

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
        // The sandbox is what was asked for. An image that does not exist is a wrong field of it.
        let in_field = |refusal: Refusal| match refusal.code {
            ErrorCode::NotFound | ErrorCode::Validation => {
                Refusal::new(ErrorCode::Validation, format!("image: {}", refusal.message))
            }
            _ => refusal,
        };
        let found = find_by_reference(&*self.store, image).await.map_err(in_field)?;
        let name = image.parse::<ImageReference>()?.name;
        let resolved = ImageReference { name, digest: Some(found.digest) };
        Ok(SandboxChange { image: Some(resolved.to_string()), ..change })
    }

    /// The image of new sandboxes that name none, as `NAME@DIGEST`: the default image that was
    /// added last. `None` if there is none, or nothing here can run images; then it is `host`.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn find_default_image(&self) -> Result<Option<ImageReference>, Refusal> {
        if !self.dispatcher.runs_images() {
            return Ok(None);
        }
        let images = self.store.list_images().await?;
        let last = images.into_iter().rev().find_map(|listed| {
            let name = listed.names.into_iter().find(|name| name.is_default_image())?;
            Some(ImageReference { name: Some(name), digest: Some(listed.image.digest) })
        });
        Ok(last)
    }

    /// The shape of a sandbox with its image as the root; `None` if that image is not here.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn load_image(&self, shape: SandboxShape) -> Result<Option<SandboxShape>, Refusal> {
        let root = find_root(&*self.store, &shape.image).await?;
        let is_here = root.is_some() || shape.image == HOST_IMAGE;
        Ok(is_here.then_some(SandboxShape { root, ..shape }))
    }

    /// The settings of a new sandbox, with the default image unless they name one.
    pub(super) async fn choose_image(
        &self,
        settings: SandboxChange,
    ) -> Result<SandboxChange, Refusal> {
        if settings.image.is_some() {
            return self.resolve_image(settings).await;
        }
        let image = self.find_default_image().await?.map(|image| image.to_string());
        Ok(SandboxChange { image, ..settings })
    }
}

/// The image of a sandbox as the root of its cells; `None` for `host`, and for an image that is not
/// here. Executions on the latter are refused, but its keys can still be used for everything else.
pub(super) async fn find_root(
    store: &dyn Store,
    image: &str,
) -> Result<Option<Arc<ImageRoot>>, Refusal> {
    if image == HOST_IMAGE {
        return Ok(None);
    }
    let Ok(ImageReference { digest: Some(digest), .. }) = image.parse() else { return Ok(None) };
    let found = store.find_image(&digest).await?;
    Ok(found.map(|image| Arc::new(image.to_root())))
}
