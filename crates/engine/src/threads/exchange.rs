//! Threads that leave and come in: an OCI image layout, as a tar over any stream.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Component, Path, PathBuf},
};

use cloche_layers::{ExportMeta, LayerError};
use cloche_model::{
    ErrorCode, HomeUsage, LayerDigest, PointKind, PointName, Team, Thread, ThreadId,
};
use cloche_store::Founding;
use tempfile::TempDir;
use tokio::io::{AsyncRead, DuplexStream};
use tokio_util::io::SyncIoBridge;

use super::{failed, key, quota, settle};
use crate::{Engine, Refusal, clock, files::over_quota};

/// How much of an archive waits for its reader.
const BUFFER: usize = 256 << 10;
/// The most files of an image: its layers, and four that describe them.
const MOST_FILES: usize = 4096;
/// How much larger than what a home may hold an image may be: what describes it.
const DESCRIPTION: u64 = 64 << 20;

/// A tar as it is made.
pub type TarStream = DuplexStream;

/// What the caller hears of an image that could not be taken: a blob of it that is damaged or cut
/// off is the caller's.
fn not_imported(error: LayerError) -> Refusal {
    match error {
        LayerError::Damaged { .. } | LayerError::Missing(_) | LayerError::Io { .. } => {
            tracing::info!(%error, "an image was not imported");
            Refusal::new(ErrorCode::Validation, "not an image that can be imported: it is damaged")
        }
        error => failed(error),
    }
}

impl Engine {
    /// A thread at a point, or as it is now, as a tar of an OCI image layout.
    ///
    /// # Errors
    /// When there is no such thread or point, or its layers cannot be read.
    pub async fn export_thread(
        &self,
        team: &Team,
        id: &ThreadId,
        at: Option<&PointName>,
    ) -> Result<TarStream, Refusal> {
        let thread = self.find_thread(team, id).await?;
        let name = at.cloned().unwrap_or(PointName::Seq(thread.head));
        let point = self.point(team, id, &name).await?;
        let place = self.inner.admission.enter_transfer(team).await?;
        let directory = self.scratch()?;
        let meta = ExportMeta {
            name: id.to_string(),
            created: Some(clock::rfc3339(point.at)),
            ..ExportMeta::default()
        };
        let layers = self.layers()?;
        layers.export(&point.layers, directory.path(), &meta).await.map_err(failed)?;
        let (reader, writer) = tokio::io::duplex(BUFFER);
        let writer = SyncIoBridge::new(writer);
        tokio::task::spawn_blocking(move || {
            // Whoever reads sees the end too early, and knows that it is not whole.
            if let Err(error) = pack(directory.path(), writer) {
                tracing::debug!(%error, "an export broke off");
            }
            drop(place);
        });
        Ok(reader)
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
        let key = key(team, id);
        if self.inner.store.thread(&key).await?.is_some() {
            return settle(cloche_store::Moved::Taken);
        }
        let _place = self.inner.admission.enter_transfer(team).await?;
        let limit = quota(team, &self.inner.config);
        let directory = self.scratch()?;
        let (path, most) = (directory.path().to_owned(), limit.bytes.bytes() + DESCRIPTION);
        let bridge = SyncIoBridge::new(tar);
        let unpacked = tokio::task::spawn_blocking(move || unpack(bridge, &path, most)).await;
        unpacked.map_err(Refusal::internal)?.map_err(|error| {
            Refusal::new(
                ErrorCode::Validation,
                format!("not a tar of an OCI image layout: {error}"),
            )
        })?;
        let stored = layers.import(directory.path()).await.map_err(not_imported)?;
        let stack: Vec<LayerDigest> =
            stored.into_iter().map(|stored| stored.layer.digest).collect();
        let tree = self.tree(&stack).await?;
        if tree.bytes() > limit.bytes.bytes() || tree.entries() > limit.inodes {
            return Err(over_quota(team, limit));
        }
        let bytes = cloche_model::ByteSize(tree.bytes());
        let usage = HomeUsage { bytes, entries: tree.entries(), counted: true };
        let (kind, at) = (PointKind::Import, clock::now());
        let founding = Founding { thread: key, kind, layers: stack, usage, at };
        settle(self.inner.store.found(founding).await?)
    }

    /// A directory of our own that is gone after use.
    fn scratch(&self) -> Result<TempDir, Refusal> {
        TempDir::with_prefix_in("exchange-", &self.inner.scratch).map_err(Refusal::internal)
    }
}

fn pack(directory: &Path, out: impl io::Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    archive.mode(tar::HeaderMode::Deterministic);
    archive.append_dir_all("", directory)?;
    archive.into_inner()?.flush()
}

/// Unpacks the few names that an image layout has, and nothing else.
fn unpack(tar: impl Read, directory: &Path, most: u64) -> io::Result<()> {
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
            assert!(unpack(&tar_of(name, b"1")[..], directory.path(), 1 << 20).is_err(), "{name}");
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        unpack(&tar_of("./oci-layout", b"1")[..], directory.path(), 1 << 20).unwrap();
        assert_eq!(fs::read(directory.path().join("oci-layout")).unwrap(), b"1");
        let large = tar_of("index.json", &[0; 4096]);
        assert!(unpack(&large[..], directory.path(), 2048).is_err());
    }
}
