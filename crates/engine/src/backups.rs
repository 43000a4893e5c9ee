//! Runs in: server (no capabilities).
//!
//! Backups of a running server: a copy of the database at one moment, and everything that it refers
//! to. A caller begins a backup, reads its parts, and ends it. Until then no layer is deleted. One
//! that is not read for a while ends by itself.

use std::{
    io,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use cloche_layers::{DeletionHold, LayerError, Layers};
use cloche_model::{ErrorCode, LayerDigest, Moment, VolumeId};
use cloche_mounts::VolumeStore;
use cloche_store::{DatabaseContents, Store};
use futures::stream::BoxStream;
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::io::DuplexStream;
use tokio_util::io::SyncIoBridge;

use crate::{
    Refusal, clock, lifecycle::Lifecycle, secrets, shared_parts::SharedParts,
    storage::StorageBudgets, threads::layer_refusal,
};

/// How long a backup may go without a request.
const IDLE: Duration = Duration::from_mins(10);
/// How much of an archive waits for its reader.
const BUFFER: usize = 256 << 10;
/// The name of the copy in its directory.
const DATABASE: &str = "cloche.db";

/// The backups of a server: at most one at a time.
pub struct Backups {
    store: Arc<dyn Store>,
    layers: Option<Layers>,
    volumes: Arc<VolumeStore>,
    storage: Arc<StorageBudgets>,
    scratch: PathBuf,
    lifecycle: Arc<Lifecycle>,
    current: Arc<Mutex<Option<Arc<OpenBackup>>>>,
    /// Held while a backup begins.
    beginning: tokio::sync::Mutex<()>,
}

/// What a backup has.
#[derive(Clone, Debug)]
pub struct BackupSummary {
    /// Its id.
    pub id: String,
    /// The moment of its database.
    pub created_at: Moment,
    /// What the database refers to.
    pub contents: DatabaseContents,
    /// The size of the database.
    pub database_bytes: u64,
    /// The size of each layer.
    pub layers: Vec<(LayerDigest, u64)>,
}

/// A backup that has not ended. Readers of its parts hold it.
struct OpenBackup {
    summary: BackupSummary,
    directory: TempDir,
    /// When a part was last asked for, or read.
    used_at: Mutex<Instant>,
    _hold: Option<DeletionHold>,
}

impl OpenBackup {
    fn touch(&self) {
        *self.used_at.lock() = Instant::now();
    }
}

/// Keeps a backup open while one of its parts is read.
pub struct BackupReader(Arc<OpenBackup>);

impl Drop for BackupReader {
    fn drop(&mut self) {
        self.0.touch();
    }
}

impl Backups {
    pub(crate) fn new(
        shared: &SharedParts,
        storage: &Arc<StorageBudgets>,
        (layers, volumes): (Option<Layers>, Arc<VolumeStore>),
        scratch: PathBuf,
    ) -> Self {
        Self {
            store: Arc::clone(&shared.store),
            layers,
            volumes,
            storage: Arc::clone(storage),
            scratch,
            lifecycle: Arc::clone(&shared.lifecycle),
            current: Arc::default(),
            beginning: tokio::sync::Mutex::default(),
        }
    }

    /// Copies the database and begins a backup.
    ///
    /// # Errors
    /// When another backup is under way, the disk is short, or a layer is missing.
    pub async fn begin_backup(&self) -> Result<BackupSummary, Refusal> {
        self.lifecycle.check_taking_work()?;
        let _turn = self.beginning.lock().await;
        if self.current.lock().is_some() {
            let message = "another backup is under way; wait for its end, or delete it";
            return Err(Refusal::new(ErrorCode::Conflict, message));
        }
        self.storage.check_host()?;
        // First, so that nothing that the copy refers to is deleted.
        let hold = match &self.layers {
            Some(layers) => Some(layers.hold_deletions().await),
            None => None,
        };
        let directory = tempfile::Builder::new().prefix("backup-").tempdir_in(&self.scratch);
        let directory = directory.map_err(Refusal::internal)?;
        let path = directory.path().join(DATABASE);
        let created_at = clock::now();
        let contents = self.store.copy_database(&path).await?;
        let size = tokio::fs::metadata(&path).await.map_err(Refusal::internal)?.len();
        let summary = BackupSummary {
            id: format!("bak_{}", hex::encode(secrets::random_bytes::<12>()?)),
            created_at,
            layers: self.list_layers(&contents).await?,
            contents,
            database_bytes: size,
        };
        let used_at = Mutex::new(Instant::now());
        let open = OpenBackup { summary: summary.clone(), directory, used_at, _hold: hold };
        *self.current.lock() = Some(Arc::new(open));
        self.end_when_idle(summary.id.clone());
        tracing::info!(id = summary.id, layers = summary.layers.len(), "a backup begins");
        Ok(summary)
    }

    /// The sizes of the layers. One that is missing would make the backup useless.
    async fn list_layers(
        &self,
        contents: &DatabaseContents,
    ) -> Result<Vec<(LayerDigest, u64)>, Refusal> {
        let Some(layers) = &self.layers else { return Ok(Vec::new()) };
        let sizes = layers.layer_sizes().await.map_err(layer_refusal)?;
        let mut listed = Vec::with_capacity(contents.layers.len());
        for digest in &contents.layers {
            let size = match sizes.get(digest) {
                Some(size) => Some(*size),
                // Stored while the list was made.
                None => layers.blob_size(digest).await.map_err(layer_refusal)?,
            };
            let missing = || layer_refusal(LayerError::Missing(digest.clone()));
            listed.push((digest.clone(), size.ok_or_else(missing)?));
        }
        Ok(listed)
    }

    fn end_when_idle(&self, id: String) {
        let (current, lifecycle) = (Arc::clone(&self.current), Arc::clone(&self.lifecycle));
        self.lifecycle.spawn(async move {
            loop {
                let open = current.lock().clone().filter(|open| open.summary.id == id);
                let Some(open) = open else { return };
                let idle = open.used_at.lock().elapsed();
                // Whoever reads a part holds the backup, too: one here, one in `current`.
                let is_read = Arc::strong_count(&open) > 2;
                if idle >= IDLE && !is_read {
                    tracing::warn!(id, "a backup ended, because no part of it was asked for");
                    current.lock().take();
                    return;
                }
                let wait = IDLE.saturating_sub(idle).max(Duration::from_secs(1));
                drop(open);
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = lifecycle.closed() => {
                        current.lock().take();
                        return;
                    }
                }
            }
        });
    }

    fn find_open(&self, id: &str) -> Result<Arc<OpenBackup>, Refusal> {
        let open = self.current.lock().clone().filter(|open| open.summary.id == id);
        let open = open.ok_or_else(|| Refusal::not_found("backup"))?;
        open.touch();
        Ok(open)
    }

    /// The copy of the database, and its size.
    ///
    /// # Errors
    /// When there is no such backup.
    pub async fn open_database(
        &self,
        id: &str,
    ) -> Result<(tokio::fs::File, u64, BackupReader), Refusal> {
        let open = self.find_open(id)?;
        let file = tokio::fs::File::open(open.directory.path().join(DATABASE)).await;
        let size = open.summary.database_bytes;
        Ok((file.map_err(Refusal::internal)?, size, BackupReader(open)))
    }

    /// The bytes of a layer, and their number.
    ///
    /// # Errors
    /// When the backup does not exist or does not have the layer.
    pub async fn read_layer(
        &self,
        id: &str,
        digest: &LayerDigest,
    ) -> Result<(BoxStream<'static, io::Result<Bytes>>, u64, BackupReader), Refusal> {
        let open = self.find_open(id)?;
        let found = open.summary.layers.binary_search_by(|(known, _)| known.cmp(digest));
        let (Ok(at), Some(layers)) = (found, &self.layers) else {
            return Err(Refusal::not_found("layer"));
        };
        let bytes = layers.read_blob(digest).await.map_err(layer_refusal)?;
        Ok((bytes, open.summary.layers[at].1, BackupReader(open)))
    }

    /// The files of a volume, as an archive.
    ///
    /// # Errors
    /// When the backup does not exist or does not have the volume.
    pub fn archive_volume(
        &self,
        id: &str,
        volume: &VolumeId,
    ) -> Result<(DuplexStream, BackupReader), Refusal> {
        let open = self.find_open(id)?;
        if !open.summary.contents.volumes.contains(volume) {
            return Err(Refusal::not_found("volume"));
        }
        let (reader, writer) = tokio::io::duplex(BUFFER);
        let (volumes, volume) = (Arc::clone(&self.volumes), volume.clone());
        tokio::task::spawn_blocking(move || {
            let out = io::BufWriter::with_capacity(BUFFER / 4, SyncIoBridge::new(writer));
            // A reader sees an archive without its last entry, and knows that it is not whole.
            match volumes.write_archive(&volume, out) {
                Ok(report) => tracing::debug!(%volume, entries = report.entries, "archived"),
                Err(error) => tracing::error!(%error, %volume, "a volume was not archived"),
            }
        });
        Ok((reader, BackupReader(open)))
    }

    /// Ends a backup: its copy is removed, and layers may be deleted again.
    ///
    /// # Errors
    /// When there is no such backup.
    pub fn end_backup(&self, id: &str) -> Result<(), Refusal> {
        self.find_open(id)?;
        self.current.lock().take();
        tracing::info!(id, "a backup has ended");
        Ok(())
    }
}
