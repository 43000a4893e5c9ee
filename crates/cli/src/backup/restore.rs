//! Runs in: `cloche restore`.
//!
//! Makes a data directory from a backup. Every part is compared with the manifest. The directory
//! appears under its name only when everything is there.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use clap::Args;
use cloche_layers::{Layers, LayersConfig};
use cloche_model::{LayerDigest, VolumeId};
use cloche_mounts::VolumeStore;
use cloche_store::{KeySource, check_database};
use futures::{StreamExt, TryStreamExt};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio_util::io::{StreamReader, SyncIoBridge};

use super::{
    BackupError,
    manifest::BackupManifest,
    place::{BackupPlace, PlaceArguments},
};
use crate::{
    identity::ServerUser,
    serve::{LayersArguments, absolute_path, layers_config_of},
};

/// The arguments of `cloche restore`.
#[derive(Args)]
pub(crate) struct RestoreArguments {
    #[command(flatten)]
    place: PlaceArguments,
    /// The new data directory; it must be empty or missing.
    #[arg(long, env = "CLOCHE_DATA_DIR", value_name = "DIR", default_value = "cloche-data")]
    data_dir: PathBuf,
    /// The backup [default: the newest complete one].
    #[arg(long, value_name = "ID")]
    backup: Option<String>,
    /// List the backups, and restore nothing.
    #[arg(long, conflicts_with = "check")]
    list: bool,
    /// Compare every part of the backup with its manifest, and restore nothing.
    #[arg(long)]
    check: bool,
    /// The key that seals secrets, which is copied to the data directory.
    #[arg(long, value_name = "FILE")]
    secret_key_file: Option<PathBuf>,
    /// The configuration of the server, which says where layers are stored.
    #[arg(long, env = "CLOCHE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// The user that the server will run as, if this is run as root [default: cloche, else 65529].
    #[arg(long, env = "CLOCHE_USER", value_name = "NAME|UID[:GID]")]
    user: Option<String>,
    #[command(flatten)]
    layers: LayersArguments,
}

/// Restores, checks or lists. Returns what was done, in words.
pub(super) async fn restore_backup(arguments: RestoreArguments) -> Result<String, BackupError> {
    let place = BackupPlace::open(&arguments.place, false)?;
    if arguments.list {
        return list_backups(&place).await;
    }
    let id = match &arguments.backup {
        Some(id) => id.clone(),
        None => newest_backup(&place).await?,
    };
    let manifest = place.read_manifest(&id).await?;
    let source = BackupSource { place: &place, manifest };
    match arguments.check {
        true => source.check_parts().await,
        false => source.restore_parts(arguments).await,
    }
}

async fn list_backups(place: &BackupPlace) -> Result<String, BackupError> {
    let backups = place.list_backups().await?;
    let line = |(id, is_complete): &(String, bool)| match is_complete {
        true => id.clone(),
        false => format!("{id}  not complete"),
    };
    match backups.is_empty() {
        true => Err(BackupError::NoBackup(place.name().to_owned())),
        false => Ok(backups.iter().map(line).collect::<Vec<_>>().join("\n")),
    }
}

/// The newest backup, which must be complete: an older one is restored only by its name.
async fn newest_backup(place: &BackupPlace) -> Result<String, BackupError> {
    match place.list_backups().await?.pop() {
        Some((id, true)) => Ok(id),
        Some((id, false)) => Err(BackupError::Incomplete(id)),
        None => Err(BackupError::NoBackup(place.name().to_owned())),
    }
}

struct BackupSource<'a> {
    place: &'a BackupPlace,
    manifest: BackupManifest,
}

impl BackupSource<'_> {
    async fn check_parts(&self) -> Result<String, BackupError> {
        let failed = |source| BackupError::File { path: "a temporary directory".into(), source };
        let draft = tempfile::tempdir().map_err(failed)?;
        self.fetch_database(draft.path()).await?;
        for layer in &self.manifest.layers {
            let name = BackupPlace::layer_name(&layer.digest);
            self.compare_object(&name, layer.digest.hex_digits()).await?;
        }
        for volume in &self.manifest.volumes {
            let name = self.part_name(&format!("volumes/{}.tar", volume.id));
            self.compare_object(&name, &volume.sha256).await?;
        }
        if let Some(key) = &self.manifest.secret_key {
            self.compare_object(&self.part_name("secret.key"), &key.sha256).await?;
        }
        Ok(format!("backup {}: every part is as in its manifest", self.manifest.id))
    }

    async fn restore_parts(&self, arguments: RestoreArguments) -> Result<String, BackupError> {
        let target = absolute_path(arguments.data_dir.clone());
        let draft = make_draft(&target)?;
        self.fetch_database(draft.path()).await?;
        let config = layers_config_of(arguments.config, arguments.layers, draft.path())?;
        let user = ServerUser::choose(arguments.user.as_deref());
        let user = user.map_err(|error| BackupError::User(error.into()))?;
        self.restore_layers(config).await?;
        self.restore_volumes(draft.path()).await?;
        let has_key = self.restore_key(draft.path(), arguments.secret_key_file.as_deref()).await?;
        give_to_user(draft.path(), &user)?;
        publish_draft(draft, &target)?;
        let key = match has_key {
            true => String::new(),
            false => format!(
                "; put the server's secret key into {} before it starts",
                target.join("secret.key").display()
            ),
        };
        let id = &self.manifest.id;
        Ok(format!("restored backup {id} to {}{key}", target.display()))
    }

    fn part_name(&self, part: &str) -> String {
        BackupPlace::part_name(&self.manifest.id, part)
    }

    /// Reads an object, passes its pieces to `keep`, and compares its digest.
    async fn read_pieces(
        &self,
        name: &str,
        sha256: &str,
        mut keep: impl AsyncFnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), BackupError> {
        let mut hash = Sha256::new();
        let mut pieces = self.place.read_object(name).await?;
        while let Some(piece) = pieces.next().await {
            let failed = |source| BackupError::Object { name: name.to_owned(), source };
            let piece = piece.map_err(failed)?;
            hash.update(&piece);
            let failed = |source| BackupError::File { path: name.to_owned(), source };
            keep(&piece).await.map_err(failed)?;
        }
        match hex::encode(hash.finalize()) == sha256 {
            true => Ok(()),
            false => Err(BackupError::Damaged { name: name.to_owned() }),
        }
    }

    async fn compare_object(&self, name: &str, sha256: &str) -> Result<(), BackupError> {
        self.read_pieces(name, sha256, async |_| Ok(())).await
    }

    async fn fetch_object(&self, name: &str, sha256: &str, to: &Path) -> Result<(), BackupError> {
        let failed = |source| BackupError::File { path: to.display().to_string(), source };
        let mut file = tokio::fs::File::create_new(to).await.map_err(failed)?;
        self.read_pieces(name, sha256, async |piece| file.write_all(piece).await).await?;
        file.sync_all().await.map_err(failed)
    }

    /// Copies the database, checks it, and checks that the manifest has what it refers to.
    async fn fetch_database(&self, draft: &Path) -> Result<(), BackupError> {
        let to = draft.join("cloche.db");
        let name = self.part_name("database");
        self.fetch_object(&name, &self.manifest.database.sha256, &to).await?;
        let contents = check_database(&to).await.map_err(BackupError::Database)?;
        let layers: BTreeSet<&LayerDigest> =
            self.manifest.layers.iter().map(|layer| &layer.digest).collect();
        if let Some(layer) = contents.layers.iter().find(|layer| !layers.contains(layer)) {
            return Err(BackupError::Unlisted(layer.to_string()));
        }
        let has = |id: &VolumeId| self.manifest.volumes.iter().any(|volume| volume.id == *id);
        match contents.volumes.iter().find(|id| !has(id)) {
            Some(volume) => Err(BackupError::Unlisted(volume.to_string())),
            None => Ok(()),
        }
    }

    async fn restore_layers(&self, config: LayersConfig) -> Result<(), BackupError> {
        let layers = Layers::open(config).await?;
        for layer in &self.manifest.layers {
            // A bucket or a shared directory may still have it.
            if layers.blob_size(&layer.digest).await? == Some(layer.bytes) {
                continue;
            }
            let name = BackupPlace::layer_name(&layer.digest);
            let pieces = self.place.read_object(&name).await?;
            let reader = SyncIoBridge::new(StreamReader::new(pieces.map_err(io::Error::other)));
            match layers.restore_blob(&layer.digest, reader).await {
                Err(cloche_layers::LayerError::Damaged { .. }) => {
                    return Err(BackupError::Damaged { name });
                }
                restored => restored?,
            }
        }
        Ok(())
    }

    async fn restore_volumes(&self, draft: &Path) -> Result<(), BackupError> {
        for volume in &self.manifest.volumes {
            let id = volume.id.clone();
            let failed = |source| BackupError::Volume { id: volume.id.to_string(), source };
            let name = self.part_name(&format!("volumes/{id}.tar"));
            let pieces = self.place.read_object(&name).await?;
            let reader = SyncIoBridge::new(StreamReader::new(pieces.map_err(io::Error::other)));
            let directory = draft.join("volumes");
            let restored = tokio::task::spawn_blocking(move || {
                let mut reader = HashedReader { from: reader, hash: Sha256::new() };
                VolumeStore::open(directory)?.restore_archive(&id, &mut reader)?;
                // The end of the archive is part of its digest.
                io::copy(&mut reader, &mut io::sink())?;
                Ok(hex::encode(reader.hash.finalize()))
            });
            let found = restored.await.map_err(|error| failed(io::Error::other(error)))?;
            match found {
                Ok(found) if found == volume.sha256 => {}
                Ok(_) => return Err(BackupError::Damaged { name }),
                Err(error) if is_damage(&error) => return Err(BackupError::Damaged { name }),
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }

    /// Writes the secret key, from the operator or from the backup. Returns whether there is one.
    async fn restore_key(&self, draft: &Path, given: Option<&Path>) -> Result<bool, BackupError> {
        let to = draft.join("secret.key");
        match (given, &self.manifest.secret_key) {
            (Some(path), _) => {
                let failed =
                    |source| BackupError::File { path: path.display().to_string(), source };
                fs::copy(path, &to).map_err(failed)?;
            }
            (None, Some(key)) => {
                self.fetch_object(&self.part_name("secret.key"), &key.sha256, &to).await?;
            }
            (None, None) => return Ok(false),
        }
        if let Some(id) = &self.manifest.sealing_key {
            KeySource::File(to).check_key(id).map_err(BackupError::SecretKey)?;
        }
        Ok(true)
    }
}

/// Whether an archive is to blame, and not this host.
fn is_damage(error: &io::Error) -> bool {
    use io::ErrorKind;
    matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof)
        || (error.kind() == ErrorKind::Other && error.raw_os_error().is_none())
}

struct HashedReader<R> {
    from: R,
    hash: Sha256,
}

impl<R: Read> Read for HashedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.hash.update(&buffer[..count]);
        Ok(count)
    }
}

/// A private directory beside the target, which must be empty or missing.
fn make_draft(target: &Path) -> Result<TempDir, BackupError> {
    let failed = |source| BackupError::File { path: target.display().to_string(), source };
    match fs::read_dir(target).map(Iterator::count) {
        Ok(1..) => return Err(BackupError::NotEmpty(target.to_owned())),
        Ok(0) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let parent = target.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent).map_err(failed)?;
    tempfile::Builder::new().prefix(".cloche-restore-").tempdir_in(parent).map_err(failed)
}

/// Gives everything to the server's user, if this is root. Nothing else can write there yet.
fn give_to_user(path: &Path, user: &ServerUser) -> Result<(), BackupError> {
    let Some((uid, gid)) = user.owner() else { return Ok(()) };
    let mut waiting = vec![path.to_owned()];
    while let Some(path) = waiting.pop() {
        let failed = |source| BackupError::File { path: path.display().to_string(), source };
        std::os::unix::fs::lchown(&path, Some(uid), Some(gid)).map_err(failed)?;
        if fs::symlink_metadata(&path).map_err(failed)?.is_dir() {
            for entry in fs::read_dir(&path).map_err(failed)? {
                waiting.push(entry.map_err(failed)?.path());
            }
        }
    }
    Ok(())
}

/// Gives the draft its name, durably.
fn publish_draft(draft: TempDir, target: &Path) -> Result<(), BackupError> {
    let failed = |source| BackupError::File { path: target.display().to_string(), source };
    let synced = File::open(draft.path())
        .and_then(|directory| rustix::fs::syncfs(directory).map_err(io::Error::from));
    synced.map_err(failed)?;
    match fs::remove_dir(target) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    fs::rename(draft.path(), target).map_err(failed)?;
    // It has its new name, so there is nothing to remove.
    let _ = draft.keep();
    let parent = target.parent().unwrap_or(Path::new("/"));
    File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed)
}
