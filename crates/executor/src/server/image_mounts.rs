//! Runs in: server (no capabilities). The images that cells start on: unpacked, and mounted by the
//! spawner.
//!
//! An image is mounted when the first cell needs it. Its layers stay unpacked as long as a cell is
//! alive on it, and for a while after the last one. A spawner that was started again has no images,
//! so each mount belongs to one life of the spawner.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use cloche_layers::{LayerError, Layers, UnpackedStack};
use cloche_model::{ImageRoot, LayerDigest};

use super::spawner_client::{SpawnError, SpawnerClient};
use crate::protocol::ImageNumber;

/// Why an image could not be mounted.
#[derive(Debug, thiserror::Error)]
pub enum ImageMountError {
    /// This executor keeps no layers, so it has no images.
    #[error("this executor has no storage for images")]
    NoStorage,
    /// A layer could not be fetched or unpacked.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// The spawner could not mount it.
    #[error(transparent)]
    Mount(#[from] SpawnError),
}

/// Beyond this many images, those that no cell uses are unmounted at once. The spawner mounts no
/// more than twice as many.
const KEPT_IMAGES: usize = 32;

/// The images of one spawner.
pub(super) struct ImageMounts {
    layers: Option<Layers>,
    next: AtomicU64,
    entries: Mutex<HashMap<Vec<LayerDigest>, ImageEntry>>,
    /// Numbers of images that are not used any more, for the next packet to the spawner.
    released: Arc<ReleasedImages>,
}

type ReleasedImages = Mutex<Vec<ImageNumber>>;

/// One image. The lock is held while it is unpacked and mounted, so that other cells wait for it.
#[derive(Default)]
struct ImageEntry {
    mounted: Arc<tokio::sync::Mutex<Option<Arc<MountedImage>>>>,
}

/// An image that the spawner has mounted. Dropping it unmounts the image.
pub(crate) struct MountedImage {
    number: ImageNumber,
    /// Which life of the spawner it belongs to.
    life: u64,
    /// When a cell was started on it; `None` if it is not to be kept after its last cell.
    last_use: Mutex<Option<Instant>>,
    released: Arc<ReleasedImages>,
    /// Keeps the layers unpacked.
    _unpacked: UnpackedStack,
}

impl MountedImage {
    pub(crate) const fn number(&self) -> ImageNumber {
        self.number
    }
}

impl Drop for MountedImage {
    fn drop(&mut self) {
        lock_ignoring_poison(&self.released).push(self.number);
    }
}

impl ImageMounts {
    pub(super) fn new(layers: Option<Layers>) -> Self {
        Self {
            layers,
            next: AtomicU64::new(1),
            entries: Mutex::default(),
            released: Arc::default(),
        }
    }

    /// The images that the spawner can unmount.
    pub(super) fn take_released(&self) -> Vec<ImageNumber> {
        std::mem::take(&mut *lock_ignoring_poison(&self.released))
    }
}

impl SpawnerClient {
    /// An image as the root of new cells: unpacked, and mounted by the spawner. The caller keeps
    /// the result while a cell is alive on it.
    pub(crate) async fn hold_image(
        &self,
        root: &ImageRoot,
    ) -> Result<Arc<MountedImage>, ImageMountError> {
        let images = self.images();
        let layers = images.layers.as_ref().ok_or(ImageMountError::NoStorage)?;
        let entry = {
            let mut entries = lock_ignoring_poison(&images.entries);
            Arc::clone(&entries.entry(root.layers.clone()).or_default().mounted)
        };
        let mut mounted = entry.lock().await;
        let life = self.life();
        if let Some(image) = mounted.as_ref().filter(|image| image.life == life) {
            *lock_ignoring_poison(&image.last_use) = Some(Instant::now());
            return Ok(Arc::clone(image));
        }
        if lock_ignoring_poison(&images.entries).len() > KEPT_IMAGES {
            self.release_idle_images(Duration::ZERO);
        }
        let unpacked = layers.unpack_stack(&root.layers).await?;
        let names = unpacked.layer_names().iter().map(ToString::to_string).collect();
        // Before the request: if this caller gives up while it waits, the drop unmounts the image.
        let image = Arc::new(MountedImage {
            number: ImageNumber(images.next.fetch_add(1, Ordering::Relaxed)),
            life,
            last_use: Mutex::new(Some(Instant::now())),
            released: Arc::clone(&images.released),
            _unpacked: unpacked,
        });
        self.mount_image(image.number, names).await?;
        *mounted = Some(Arc::clone(&image));
        Ok(image)
    }

    /// Lets an image be unmounted as soon as no cell is alive on it.
    pub(crate) fn forget_image(&self, root: &ImageRoot) {
        if let Some(entry) = lock_ignoring_poison(&self.images().entries).get(&root.layers)
            // A caller that has the lock is just starting a cell on it.
            && let Ok(mounted) = entry.mounted.try_lock()
            && let Some(image) = mounted.as_ref()
        {
            *lock_ignoring_poison(&image.last_use) = None;
        }
        self.release_idle_images(Duration::MAX);
    }

    /// Forgets the images that no cell has used for this long. Their layers may be evicted then.
    pub(crate) fn release_idle_images(&self, idle: Duration) {
        let is_used = |entry: &ImageEntry| {
            // A caller has the entry, or is just mounting its image.
            let Ok(mounted) = entry.mounted.try_lock() else { return true };
            mounted.as_ref().map_or(Arc::strong_count(&entry.mounted) > 1, |image| {
                let last_use = *lock_ignoring_poison(&image.last_use);
                let is_recent = last_use.is_some_and(|last_use| last_use.elapsed() < idle);
                Arc::strong_count(image) > 1 || is_recent
            })
        };
        lock_ignoring_poison(&self.images().entries).retain(|_, entry| is_used(entry));
    }
}

/// A poisoned lock is still used: a panic leaves what it guards consistent.
fn lock_ignoring_poison<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
