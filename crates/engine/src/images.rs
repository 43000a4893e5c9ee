//! Runs in: server (no capabilities).
//!
//! Images: pulled or imported one at a time, listed, removed. An image exists once its record is in
//! the store. What an attempt stored before it failed or was cancelled is removed.

mod clients;
mod probe;

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use cloche_images::{
    ImageAssembler, ImageError, ImageLimits, ImageProgress, ImportChoice, LayerCatalog, NewImage,
    ProgressReport, PullRequest,
};
use cloche_layers::Layers;
use cloche_model::{
    ErrorCode, ImageDigest, ImageLayer, ImageRecord, ImageReference, LayerDigest, ListedImage,
};
use cloche_store::{ImageRemoval, Store};
use tokio::{io::AsyncRead, sync::Mutex, task::JoinHandle};
use tokio_util::{
    io::SyncIoBridge,
    sync::{CancellationToken, DropGuard},
};

use crate::{
    Dispatcher, EngineConfig, EngineOpenError, Refusal, StorageBudgets, clock,
    lifecycle::Lifecycle, shared_parts::SharedParts, tenancy::KeyCache,
};
use clients::RegistryClients;

pub use cloche_images::{
    ImportChoice as ImageImportChoice, ProgressPhase, ProgressReport as ImageProgressReport,
    PullRequest as ImagePull, RegistryAccess, RegistryCredentials,
};

/// How long an unfinished download is kept for the next pull.
const KEEP_PARTIAL: Duration = Duration::from_hours(24);

/// Images of this host.
pub struct Images {
    parts: Arc<ImageParts>,
}

struct ImageParts {
    store: Arc<dyn Store>,
    storage: Arc<StorageBudgets>,
    dispatcher: Arc<dyn Dispatcher>,
    key_cache: Arc<KeyCache>,
    lifecycle: Arc<Lifecycle>,
    layers: Option<Layers>,
    limits: ImageLimits,
    clients: Arc<RegistryClients>,
    /// Temporary files of one attempt.
    scratch: PathBuf,
    /// Layers that are not complete, for the next pull.
    partial: PathBuf,
    /// Held by the pull or import under way.
    turn: Mutex<()>,
}

/// A pull or an import under way. It is cancelled if this is dropped.
pub struct ImageWork {
    progress: ImageProgress,
    task: JoinHandle<Result<ListedImage, Refusal>>,
    _cancel: DropGuard,
}

impl ImageWork {
    /// How far it is.
    #[must_use]
    pub fn report(&self) -> ProgressReport {
        self.progress.report()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// Why there is no image. Nothing of it is kept then.
    pub async fn finish(&mut self) -> Result<ListedImage, Refusal> {
        (&mut self.task).await.map_err(Refusal::internal)?
    }
}

/// What a removal of images has freed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovedImages {
    /// The images that are gone.
    pub images: Vec<ImageDigest>,
    /// The stored size of their layers that no other row needs.
    pub freed_bytes: u64,
}

impl Images {
    pub(crate) fn new(
        shared: &SharedParts,
        storage: &Arc<StorageBudgets>,
        config: &EngineConfig,
        (data_dir, scratch): (&Path, &Path),
    ) -> Result<Self, EngineOpenError> {
        let partial = data_dir.join("images").join("partial");
        let unusable =
            |source| EngineOpenError::Directory { path: data_dir.display().to_string(), source };
        fs::create_dir_all(&partial).map_err(unusable)?;
        Ok(Self {
            parts: Arc::new(ImageParts {
                store: Arc::clone(&shared.store),
                storage: Arc::clone(storage),
                dispatcher: Arc::clone(&shared.dispatcher),
                key_cache: Arc::clone(&shared.key_cache),
                lifecycle: Arc::clone(&shared.lifecycle),
                layers: config.homes.layers.clone(),
                limits: ImageLimits::default(),
                clients: Arc::new(RegistryClients),
                scratch: scratch.to_owned(),
                partial,
                turn: Mutex::default(),
            }),
        })
    }

    /// Begins to pull an image.
    ///
    /// # Errors
    /// If the server takes no new work, or its disk is short.
    pub fn start_pull(&self, request: PullRequest) -> Result<ImageWork, Refusal> {
        let parts = Arc::clone(&self.parts);
        self.start_work(move |assembler| async move {
            let (clients, partial) = (Arc::clone(&parts.clients), parts.partial.clone());
            let now = clock::now();
            assembler.pull_image(clients, request, &partial, now).await
        })
    }

    /// Begins to import the image in a tar.
    ///
    /// # Errors
    /// If the server takes no new work, or its disk is short.
    pub fn start_import(
        &self,
        tar: impl AsyncRead + Send + Unpin + 'static,
        choice: ImportChoice,
    ) -> Result<ImageWork, Refusal> {
        self.start_work(move |assembler| async move {
            let tar = SyncIoBridge::new(tar);
            assembler.import_tar(tar, choice, clock::now()).await
        })
    }

    fn start_work<F>(
        &self,
        work: impl FnOnce(Arc<ImageAssembler>) -> F + Send + 'static,
    ) -> Result<ImageWork, Refusal>
    where
        F: Future<Output = Result<NewImage, ImageError>> + Send,
    {
        let parts = Arc::clone(&self.parts);
        parts.lifecycle.check_taking_work()?;
        parts.storage.check_host()?;
        let layers = parts.layers()?.clone();
        let progress = ImageProgress::default();
        let cancel = CancellationToken::new();
        let (reported, cancelled) = (progress.clone(), cancel.clone());
        let task = tokio::spawn(async move {
            let _turn = parts.turn.lock().await;
            let catalog: Arc<dyn LayerCatalog> = Arc::clone(&parts) as _;
            let limits = (parts.limits, reported.clone());
            let assembler = ImageAssembler::new(layers, limits, catalog, &parts.scratch);
            let assembler = Arc::new(assembler);
            let work = async {
                let mut made = work(Arc::clone(&assembler)).await.map_err(image_refusal)?;
                parts.probe_interpreters(&mut made.image, &reported).await;
                Ok(made)
            };
            let made = tokio::select! {
                made = work => made,
                () = cancelled.cancelled() => Err(stopped_refusal()),
                () = parts.lifecycle.closed() => Err(stopped_refusal()),
            };
            parts.keep_image(&assembler, made).await
        });
        Ok(ImageWork { progress, task, _cancel: cancel.drop_guard() })
    }

    /// Every image, oldest first.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn list_images(&self) -> Result<Vec<ListedImage>, Refusal> {
        Ok(self.parts.store.list_images().await?)
    }

    /// One image, by name, digest or the beginning of its digest.
    ///
    /// # Errors
    /// If there is none, or more than one.
    pub async fn find_image(&self, reference: &str) -> Result<ListedImage, Refusal> {
        let images = self.list_images().await?;
        let digest = match parse_digest_prefix(reference) {
            Some(prefix) => {
                let mut found = images.iter().map(|listed| &listed.image.digest);
                let matches = |digest: &&ImageDigest| digest.hex_digits().starts_with(&prefix);
                let first = found.find(matches).cloned();
                if found.any(|digest| matches(&digest)) {
                    return Err(Refusal::new(
                        ErrorCode::Conflict,
                        "several images begin with these digits; give more of them",
                    ));
                }
                first
            }
            None => None,
        };
        let digest = match digest {
            Some(digest) => digest,
            None => match find_by_reference(&*self.parts.store, reference).await {
                Ok(image) => image.digest,
                // A malformed name names nothing.
                Err(refusal) if refusal.code == ErrorCode::Validation => {
                    return Err(Refusal::not_found("image"));
                }
                Err(refusal) => return Err(refusal),
            },
        };
        let found = images.into_iter().find(|listed| listed.image.digest == digest);
        found.ok_or_else(|| Refusal::not_found("image"))
    }

    /// Removes an image with its names and the layers that nothing else needs.
    ///
    /// # Errors
    /// If there is no such image, or a sandbox uses it.
    pub async fn remove_image(&self, reference: &str) -> Result<RemovedImages, Refusal> {
        let listed = self.find_image(reference).await?;
        self.parts.remove_record(&listed.image).await
    }

    /// Removes every image that no sandbox uses, and every unfinished download.
    ///
    /// # Errors
    /// If the store fails. Images that were removed before stay removed.
    pub async fn prune_images(&self) -> Result<RemovedImages, Refusal> {
        let _turn = self.parts.turn.lock().await;
        let mut removed = RemovedImages::default();
        for listed in self.list_images().await? {
            if !listed.used_by.is_empty() {
                continue;
            }
            match self.parts.remove_record(&listed.image).await {
                Ok(more) => {
                    removed.images.extend(more.images);
                    removed.freed_bytes += more.freed_bytes;
                }
                // A sandbox began to use it meanwhile.
                Err(refusal) if refusal.code == ErrorCode::Conflict => {}
                Err(refusal) => return Err(refusal),
            }
        }
        self.parts.remove_partials(Duration::ZERO);
        Ok(removed)
    }

    /// Removes downloads that no pull has continued for a day.
    pub(crate) fn remove_old_partials(&self) {
        if let Ok(_turn) = self.parts.turn.try_lock() {
            self.parts.remove_partials(KEEP_PARTIAL);
        }
    }
}

impl ImageParts {
    fn layers(&self) -> Result<&Layers, Refusal> {
        self.layers.as_ref().ok_or_else(|| {
            Refusal::new(ErrorCode::Unavailable, "this server keeps no layers, so it has no images")
        })
    }

    /// Writes the record of an image, or removes what was stored for it.
    async fn keep_image(
        &self,
        assembler: &ImageAssembler,
        made: Result<NewImage, Refusal>,
    ) -> Result<ListedImage, Refusal> {
        let kept = match made {
            Ok(NewImage { image, names }) => {
                let put = self.store.put_image(&image, &names).await;
                self.key_cache.forget_all();
                put.map(|()| image.digest).map_err(Refusal::from)
            }
            Err(refusal) => Err(refusal),
        };
        for layer in assembler.take_pins() {
            match &kept {
                Ok(_) => self.storage.settle_layer(&layer),
                Err(_) => self.storage.discard_layer(&layer).await,
            }
        }
        let digest = kept?;
        let listed = self.store.list_images().await?;
        let found = listed.into_iter().find(|listed| listed.image.digest == digest);
        found.ok_or_else(|| Refusal::not_found("image"))
    }

    async fn remove_record(&self, image: &ImageRecord) -> Result<RemovedImages, Refusal> {
        let layers = match self.store.remove_image(&image.digest).await? {
            ImageRemoval::Done(layers) => layers,
            ImageRemoval::Missing => return Err(Refusal::not_found("image")),
            ImageRemoval::InUse(users) => {
                let message = format!("the image is in use by {}", users.join(", "));
                return Err(Refusal::new(ErrorCode::Conflict, message));
            }
        };
        let mut removed = RemovedImages { images: vec![image.digest.clone()], freed_bytes: 0 };
        for layer in &layers {
            if !self.store.is_layer_needed(layer).await? {
                let stored = image.layers.iter().filter_map(|known| known.stored.as_ref());
                let sizes = stored.filter(|known| known.digest == *layer);
                removed.freed_bytes += sizes.map(|known| known.stored.bytes()).next().unwrap_or(0);
            }
        }
        self.dispatcher.forget_image(Arc::new(image.to_root())).await;
        self.storage.remove_layers(&layers).await;
        Ok(removed)
    }

    fn remove_partials(&self, older_than: Duration) {
        let Ok(entries) = fs::read_dir(&self.partial) else { return };
        for entry in entries.flatten() {
            let modified = entry.metadata().and_then(|meta| meta.modified());
            let age = modified.ok().and_then(|at| SystemTime::now().duration_since(at).ok());
            if age.unwrap_or_default() >= older_than
                && let Err(error) = fs::remove_file(entry.path())
            {
                tracing::warn!(%error, "could not remove an unfinished download");
            }
        }
    }
}

#[async_trait]
impl LayerCatalog for ImageParts {
    async fn find_layer(
        &self,
        source: &LayerDigest,
    ) -> Result<Option<ImageLayer>, Box<dyn Error + Send + Sync>> {
        Ok(self.store.find_image_layer(source).await?)
    }
}

/// The hex digits of a whole or shortened digest.
fn parse_digest_prefix(reference: &str) -> Option<String> {
    let digits = reference.strip_prefix("sha256:").unwrap_or(reference);
    let plain = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    let long_enough = (6..=64).contains(&digits.len());
    (long_enough && digits.chars().all(plain)).then(|| digits.to_owned())
}

/// The image that a name or a digest leads to.
pub(crate) async fn find_by_reference(
    store: &dyn Store,
    reference: &str,
) -> Result<ImageRecord, Refusal> {
    let parsed: ImageReference = reference.parse()?;
    let found = match (&parsed.digest, &parsed.name) {
        (Some(digest), _) => store.find_image(digest).await?,
        (None, Some(name)) => store.find_image_by_name(name).await?,
        (None, None) => None,
    };
    found.ok_or_else(|| {
        let message = format!("there is no image {parsed} here; get it with `cloche image pull`");
        Refusal::new(ErrorCode::NotFound, message)
    })
}

fn stopped_refusal() -> Refusal {
    Refusal::new(ErrorCode::Unavailable, "the work was stopped before the image was complete")
}

/// The refusal of an image that could not be pulled or imported.
fn image_refusal(error: ImageError) -> Refusal {
    let code = match &error {
        ImageError::Invalid(_) => ErrorCode::Validation,
        ImageError::NotFound(_) => ErrorCode::NotFound,
        ImageError::Denied(_) => ErrorCode::Forbidden,
        ImageError::Registry(_) => ErrorCode::Unavailable,
        ImageError::Full => ErrorCode::InsufficientStorage,
        ImageError::Layer(_) | ImageError::Io { .. } | ImageError::Catalog(_) => {
            return Refusal::internal(error);
        }
    };
    Refusal::new(code, error.to_string())
}
