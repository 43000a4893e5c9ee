//! Runs in: server (no capabilities).
//!
//! Images, as rows.

use async_trait::async_trait;
use cloche_model::{ImageDigest, ImageLayer, ImageName, ImageRecord, LayerDigest, ListedImage};

use crate::Result;

/// The outcome of an attempt to remove an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageRemoval {
    /// The image is gone. Other rows may still refer to its layers.
    Done(Vec<LayerDigest>),
    /// These sandboxes use it, as `TEAM/NAME`; nothing was removed.
    InUse(Vec<String>),
    /// There is no such image.
    Missing,
}

/// Images and their names.
#[async_trait]
pub trait ImageStore: Send + Sync {
    /// Adds an image or replaces its record. The names lead to it from now on. Durable when this
    /// returns.
    async fn put_image(&self, image: &ImageRecord, names: &[ImageName]) -> Result<()>;
    /// One image.
    async fn find_image(&self, digest: &ImageDigest) -> Result<Option<ImageRecord>>;
    /// The image that a name leads to.
    async fn find_image_by_name(&self, name: &ImageName) -> Result<Option<ImageRecord>>;
    /// Every image, oldest first.
    async fn list_images(&self) -> Result<Vec<ListedImage>>;
    /// A layer of any image that was made of this source.
    async fn find_image_layer(&self, source: &LayerDigest) -> Result<Option<ImageLayer>>;
    /// Removes an image with its names, unless a sandbox uses it.
    async fn remove_image(&self, digest: &ImageDigest) -> Result<ImageRemoval>;
}
