//! Runs in: server (no capabilities).
//!
//! Export and import of threads: an OCI image layout, as a tar over any stream.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Read, Write},
    path::{Component, Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cloche_layers::{ExportMeta, LayerError};
use cloche_model::{
    ErrorCode, HomeUsage, Layer, LayerDigest, SnapshotKind, SnapshotRef, Team, Thread, ThreadId,
    ThreadSnapshot,
};
use cloche_store::{HeadMoveOutcome, ThreadCreation, ThreadKey};
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncWriteExt, DuplexStream},
    runtime::Handle,
};
use tokio_util::io::SyncIoBridge;

use super::{Threads, layer_refusal, moved_thread, thread_key};
use crate::{Refusal, clock, files::over_quota_refusal, storage::StorageReservation};

/// How much of an archive waits for its reader.
const BUFFER: usize = 256 << 10;
/// How much of it is written at once.
const PIECE: usize = 64 << 10;
/// The most files of an image: its layers, and four that describe them.
const MOST_FILES: usize = 4096;
/// How much larger than what a home may hold an image may be: what describes it.
const DESCRIPTION: u64 = 64 << 20;

/// A tar as it is made.
pub type TarStream = DuplexStream;

/// The refusal of an image that could not be imported. A damaged or truncated blob is an error of the
/// caller.
fn not_imported(error: LayerError) -> Refusal {
    match error {
        LayerError::Damaged { .. } | LayerError::Missing(_) | LayerError::Io { .. } => {
            tracing::info!(%error, "an image was not imported");
            Refusal::new(ErrorCode::Validation, "not an image that can be imported: it is damaged")
        }
        error => layer_refusal(error),
    }
}

impl Threads {
    /// A thread at a snapshot, or as it is now, as a tar of an OCI image layout.
    ///
    /// # Errors
    /// When there is no such thread or snapshot, or its layers cannot be read.
    pub async fn export_thread(
        &self,
        team: &Team,
        id: &ThreadId,
        at: Option<&SnapshotRef>,
    ) -> Result<TarStream, Refusal> {
        let thread = self.find_thread(team, id).await?;
        let name = at.cloned().unwrap_or(SnapshotRef::Seq(thread.head));
        let point = self.find_snapshot(team, id, &name).await?;
        let (slot, place) =
            (self.storage.begin_export(team)?, self.admission.enter_transfer(team).await?);
        let meta = ExportMeta {
            name: id.to_string(),
            created: Some(clock::format_rfc3339(point.at)),
            ..ExportMeta::default()
        };
        let (stack, made) = self.plain_stack(team, &point).await?;
        let (reader, writer) = tokio::io::duplex(BUFFER);
        let patience = self.storage.export_stall();
        let (storage, layers) = (Arc::clone(&self.storage), self.layers()?.clone());
        tokio::spawn(async move {
            let out = StallingWriter { out: writer, patience, handle: Handle::current() };
            let work =
                move || layers.export_tar(&stack, meta, BufWriter::with_capacity(PIECE, out));
            // A reader sees the end too early, and knows that it is not whole.
            match tokio::task::spawn_blocking(work).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "an export broke off"),
                Err(error) => tracing::error!(%error, "an export stopped"),
            }
            if let Some((made, _reservation)) = made {
                storage.discard_layer(&made).await;
            }
            drop((slot, place));
        });
        Ok(reader)
    }

    /// The stack of a snapshot as other tools can read it: one layer if a directory was renamed. That
    /// one is made for this export only, on the team's account.
    async fn plain_stack(
        &self,
        team: &Team,
        point: &ThreadSnapshot,
    ) -> Result<PlainStack, Refusal> {
        let layers = self.layers()?;
        if !layers.has_redirects(&point.layers).await.map_err(layer_refusal)? {
            return Ok((point.layers.clone(), None));
        }
        let reservation =
            self.storage.reserve(team, self.squash_bound(&point.layers).await?).await?;
        let stored = layers.squash_stack(&point.layers).await.map_err(layer_refusal)?;
        let made = stored.map(|stored| stored.layer.digest);
        Ok((made.clone().into_iter().collect(), made.map(|made| (made, reservation))))
    }

    /// Makes a thread from a tar of an OCI image layout.
    ///
    /// # Errors
    /// When the name is taken, or the tar is not such an image, or too large.
    pub async fn import_thread(
        &self,
        team: &Team,
        id: &ThreadId,
        tar: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<Thread, Refusal> {
        let layers = self.layers()?;
        let key = thread_key(team, id);
        if self.store.find_thread(&key).await?.is_some() {
            return moved_thread(HeadMoveOutcome::Taken);
        }
        let _place = self.admission.enter_transfer(team).await?;
        let directory = self.scratch_dir()?;
        let reservation = self.storage.reserve(team, 0).await?;
        let reservation = self.receive_archive(team, tar, directory.path(), reservation).await?;
        let stored = layers.import_image(directory.path()).await.map_err(not_imported)?;
        drop(directory);
        let stack: Vec<Layer> = stored.into_iter().map(|stored| stored.layer).collect();
        let made = self.found_imported(team, key, &stack, &reservation).await;
        for layer in &stack {
            match &made {
                Ok(_) => self.storage.settle_layer(&layer.digest),
                Err(_) => self.storage.discard_layer(&layer.digest).await,
            }
        }
        made
    }

    /// Unpacks what arrives; a part of the team's budget is held before each piece of it is read.
    async fn receive_archive(
        &self,
        team: &Team,
        tar: impl AsyncRead + Send + Unpin + 'static,
        directory: &Path,
        reservation: StorageReservation,
    ) -> Result<StorageReservation, Refusal> {
        let most = self.home_quota(team).bytes.bytes().saturating_add(DESCRIPTION);
        let path = directory.to_owned();
        let received = tokio::task::spawn_blocking(move || {
            let mut metered = reservation.metered_reader(SyncIoBridge::new(tar));
            let unpacked = unpack_layout(&mut metered, &path, most);
            metered.finish().map(|reservation| (unpacked, reservation))
        });
        let (unpacked, reservation) = received.await.map_err(Refusal::internal)??;
        unpacked.map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull => {
                Refusal::new(ErrorCode::InsufficientStorage, crate::storage::NO_ROOM)
            }
            _ => Refusal::new(
                ErrorCode::Validation,
                format!("not a tar of an OCI image layout: {error}"),
            ),
        })?;
        Ok(reservation)
    }

    /// Makes the thread of layers that are stored, if it may hold them and the team may store them.
    async fn found_imported(
        &self,
        team: &Team,
        key: ThreadKey,
        stack: &[Layer],
        reservation: &StorageReservation,
    ) -> Result<Thread, Refusal> {
        let limit = self.home_quota(team);
        let digests: Vec<LayerDigest> = stack.iter().map(|layer| layer.digest.clone()).collect();
        let tree = self.home_tree(&digests).await?;
        if tree.data_bytes() > limit.bytes.bytes() || tree.entry_count() > limit.inodes {
            return Err(over_quota_refusal(team, limit));
        }
        let bytes = cloche_model::ByteSize(tree.data_bytes());
        let usage = HomeUsage { bytes, entries: tree.entry_count(), counted: true };
        let (kind, layers) = (SnapshotKind::Import, stack.to_vec());
        let (at, budget) = (clock::now(), reservation.append_budget());
        let mut founding = ThreadCreation { thread: key, kind, layers, usage, at, budget };
        let mut moved = self.store.create_thread(founding.clone()).await?;
        if moved == HeadMoveOutcome::OverBudget {
            self.storage.make_room(team, stack.iter().map(Layer::disk_bytes).sum()).await?;
            founding.budget = reservation.append_budget();
            moved = self.store.create_thread(founding).await?;
        }
        match moved {
            HeadMoveOutcome::OverBudget => Err(self.storage.over_budget(team)),
            moved => moved_thread(moved),
        }
    }

    /// A directory that is removed when it is dropped.
    fn scratch_dir(&self) -> Result<TempDir, Refusal> {
        TempDir::with_prefix_in("exchange-", &self.scratch).map_err(Refusal::internal)
    }
}

/// A stack to be exported, and the layer of it that was made for that, with what is held for it.
type PlainStack = (Vec<LayerDigest>, Option<(LayerDigest, StorageReservation)>);

/// Writes to a reader that must go on reading. For threads that may block.
struct StallingWriter {
    out: DuplexStream,
    patience: Duration,
    handle: Handle,
}

impl Write for StallingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let write = tokio::time::timeout(self.patience, self.out.write(bytes));
        self.handle.block_on(write).map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    fn flush(&mut self) -> io::Result<()> {
        self.handle.block_on(self.out.flush())
    }
}

/// Unpacks the few names that an image layout has, and nothing else.
fn unpack_layout(tar: impl Read, directory: &Path, most: u64) -> io::Result<()> {
    let mut archive = tar::Archive::new(tar.take(most));
    fs::create_dir_all(directory.join("blobs/sha256"))?;
    for (count, entry) in archive.entries()?.enumerate() {
        let mut entry = entry?;
        if count >= MOST_FILES {
            return Err(io::Error::other("too many files"));
        }
        if entry.header().entry_type().is_dir() {
            continue;
        }
        let name = image_file(&entry.path()?)?;
        if !entry.header().entry_type().is_file() {
            return Err(io::Error::other(format!("{} is not a file", name.display())));
        }
        let mut file = File::create_new(directory.join(name))?;
        let copied = io::copy(&mut entry, &mut file)?;
        if copied != entry.header().entry_size()? {
            return Err(io::Error::other("it ends early, or it is too large"));
        }
    }
    Ok(())
}

/// `oci-layout`, `index.json` or a blob.
fn image_file(path: &Path) -> io::Result<PathBuf> {
    let names: Vec<&str> = path
        .components()
        .filter(|part| !matches!(part, Component::CurDir))
        .map(|part| match part {
            Component::Normal(name) => name.to_str().unwrap_or("?"),
            _ => "?",
        })
        .collect();
    let is_digest = |name: &str| format!("sha256:{name}").parse::<LayerDigest>().is_ok();
    match names.as_slice() {
        ["oci-layout" | "index.json"] => Ok(names.iter().collect()),
        ["blobs", "sha256", name] if is_digest(name) => Ok(names.iter().collect()),
        _ => Err(io::Error::other(format!("{:?} has no place in it", path.display().to_string()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tar_of(name: &str, content: &[u8]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_ustar();
        header.as_ustar_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        archive.append(&header, content).unwrap();
        archive.into_inner().unwrap()
    }

    #[test]
    fn nothing_leaves_the_directory_and_nothing_unknown_comes_in() {
        let directory = TempDir::new().unwrap();
        for name in ["../x", "/etc/x", "blobs/sha256/../../x", "oci-layout/x", "blobs/md5/a", "x"] {
            assert!(
                unpack_layout(&tar_of(name, b"1")[..], directory.path(), 1 << 20).is_err(),
                "{name}"
            );
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        unpack_layout(&tar_of("./oci-layout", b"1")[..], directory.path(), 1 << 20).unwrap();
        assert_eq!(fs::read(directory.path().join("oci-layout")).unwrap(), b"1");
        let large = tar_of("index.json", &[0; 4096]);
        assert!(unpack_layout(&large[..], directory.path(), 2048).is_err());
    }
}
