//! Runs in: `cloche backup`.
//!
//! Reads a backup from a running server, and writes it to a place. Layers that the place has are not
//! read again. The manifest is written last.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use clap::Args;
use cloche_model::{LayerDigest, VolumeId};
use cloche_store::KeySource;
use futures::{StreamExt, TryStreamExt, stream};
use reqwest::Method;
use serde::Deserialize;

use super::{
    BackupError,
    manifest::{BackupManifest, LayerRecord, PartRecord, VolumePart},
    place::{BackupPlace, ObjectDigest, PlaceArguments},
};
use crate::admin::{AdminArguments, AdminClient};

/// How many layers are copied at once.
const AT_ONCE: usize = 4;

/// The arguments of `cloche backup`.
#[derive(Args)]
pub(crate) struct BackupArguments {
    #[command(flatten)]
    place: PlaceArguments,
    #[command(flatten)]
    server: AdminArguments,
    /// Put the key that seals secrets into the backup, too: the path of the server's `secret.key`.
    /// Whoever has the backup can then read all secrets.
    #[arg(long, value_name = "FILE")]
    include_secret_key: Option<PathBuf>,
}

/// The answer to the request for a backup.
#[derive(Deserialize)]
struct BegunBackup {
    id: String,
    created_at: String,
    version: String,
    schema: i64,
    sealing_key: Option<String>,
    layers: Vec<LayerRecord>,
    volumes: Vec<VolumeId>,
}

/// A running server, and where its backup goes.
struct BackupSession<'a> {
    server: AdminClient,
    client: reqwest::Client,
    place: &'a BackupPlace,
    begun: BegunBackup,
    /// The name of the backup in its place.
    name: String,
}

/// Makes a backup. Returns what was done, in words.
pub(super) async fn save_backup(arguments: BackupArguments) -> Result<String, BackupError> {
    let place = BackupPlace::open(&arguments.place, true)?;
    let server = arguments.server.find_server()?;
    let client = server.build_client()?;
    let answer = server.open_answer(&client, Method::POST, "backups").await?;
    let record = server.read_record(answer).await?;
    let begun: BegunBackup = serde_json::from_value(record).map_err(|_| BackupError::Answer)?;
    let name = backup_name(&begun);
    let wants_json = arguments.server.wants_json();
    let session = BackupSession { server, client, place: &place, begun, name };
    let saved = session.save_parts(arguments.include_secret_key.as_deref()).await;
    // Also after a failure: until then the server deletes no layer.
    let path = format!("backups/{}", session.begun.id);
    let ended = session.server.open_answer(&session.client, Method::DELETE, &path).await;
    let saved = saved?;
    ended?;
    Ok(if wants_json { saved.to_json() } else { saved.to_sentence() })
}

/// The time to the millisecond and a part of the id, so that names sort by time.
fn backup_name(begun: &BegunBackup) -> String {
    let time: String = begun.created_at.chars().filter(char::is_ascii_alphanumeric).collect();
    let end = begun.id.len().saturating_sub(6);
    format!("{}Z-{}", time.trim_end_matches('Z'), &begun.id[end..])
}

/// What was saved.
struct SavedBackup {
    name: String,
    place: String,
    layers: usize,
    new_layers: usize,
    volumes: usize,
    has_secret_key: bool,
}

impl SavedBackup {
    fn to_json(&self) -> String {
        let value = serde_json::json!({
            "backup": self.name,
            "place": self.place,
            "layers": self.layers,
            "new_layers": self.new_layers,
            "volumes": self.volumes,
            "secret_key": self.has_secret_key,
        });
        format!("{value:#}")
    }

    fn to_sentence(&self) -> String {
        let Self { name, place, layers, new_layers, volumes, has_secret_key } = self;
        let key = match has_secret_key {
            true => "the secret key is in it",
            false => "the secret key is not in it: keep the server's secret.key elsewhere",
        };
        format!(
            "backup {name} in {place}: {layers} layers ({new_layers} new), {volumes} volumes; {key}"
        )
    }
}

impl BackupSession<'_> {
    async fn save_parts(&self, secret_key: Option<&Path>) -> Result<SavedBackup, BackupError> {
        let secret_key = match secret_key {
            Some(path) => Some(self.save_secret_key(path).await?),
            None => None,
        };
        let database = self.save_part("database", "database").await?;
        let new_layers = self.save_layers().await?;
        let mut volumes = Vec::new();
        for id in &self.begun.volumes {
            let part = format!("volumes/{id}");
            let ObjectDigest { bytes, sha256 } =
                self.save_part(&part, &format!("{part}.tar")).await?;
            volumes.push(VolumePart { id: id.clone(), bytes, sha256 });
        }
        let layers = self.begun.layers.iter();
        let layers = layers.map(|it| LayerRecord { digest: it.digest.clone(), bytes: it.bytes });
        let manifest = BackupManifest {
            format: BackupManifest::FORMAT,
            id: self.name.clone(),
            created_at: self.begun.created_at.clone(),
            version: self.begun.version.clone(),
            schema: self.begun.schema,
            sealing_key: self.begun.sealing_key.clone(),
            database: database.into(),
            layers: layers.collect(),
            volumes,
            secret_key,
        };
        self.place.write_manifest(&manifest).await?;
        Ok(SavedBackup {
            name: self.name.clone(),
            place: self.place.name().to_owned(),
            layers: manifest.layers.len(),
            new_layers,
            volumes: manifest.volumes.len(),
            has_secret_key: manifest.secret_key.is_some(),
        })
    }

    /// Reads a part from the server and writes it below the name of the backup.
    async fn save_part(&self, part: &str, to: &str) -> Result<ObjectDigest, BackupError> {
        let to = BackupPlace::part_name(&self.name, to);
        self.copy_object(part, &to, None).await
    }

    async fn copy_object(
        &self,
        part: &str,
        to: &str,
        wanted: Option<&str>,
    ) -> Result<ObjectDigest, BackupError> {
        let path = format!("backups/{}/{part}", self.begun.id);
        let answer = self.server.open_answer(&self.client, Method::GET, &path).await?;
        let broken = |source: reqwest::Error| BackupError::File {
            path: part.to_owned(),
            source: std::io::Error::other(source.without_url()),
        };
        let pieces = answer.bytes_stream().map_err(broken);
        self.place.write_object(to, Box::pin(pieces), wanted).await
    }

    /// Copies the layers that the place does not have. Returns their number.
    async fn save_layers(&self) -> Result<usize, BackupError> {
        let known: HashMap<String, u64> = self.place.list_layers().await?.into_iter().collect();
        let is_new = |layer: &&LayerRecord| {
            known.get(layer.digest.hex_digits()).is_none_or(|size| *size != layer.bytes)
        };
        let new: Vec<&LayerRecord> = self.begun.layers.iter().filter(is_new).collect();
        let copies = stream::iter(&new).map(|layer| self.save_layer(&layer.digest));
        copies.buffer_unordered(AT_ONCE).try_collect::<Vec<_>>().await?;
        Ok(new.len())
    }

    async fn save_layer(&self, digest: &LayerDigest) -> Result<(), BackupError> {
        let (part, to) = (format!("layers/{digest}"), BackupPlace::layer_name(digest));
        self.copy_object(&part, &to, Some(digest.hex_digits())).await.map(drop)
    }

    async fn save_secret_key(&self, path: &Path) -> Result<PartRecord, BackupError> {
        let source = KeySource::File(path.to_owned());
        if let Some(id) = &self.begun.sealing_key {
            source.check_key(id).map_err(BackupError::SecretKey)?;
        }
        let failed = |source| BackupError::File { path: path.display().to_string(), source };
        let key = std::fs::read(path).map_err(failed)?;
        let to = BackupPlace::part_name(&self.name, "secret.key");
        let pieces = stream::iter([Ok(key.into())]);
        Ok(self.place.write_object(&to, pieces, None).await?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::{BegunBackup, backup_name};

    fn begun(id: &str, created_at: &str) -> BegunBackup {
        BegunBackup {
            id: id.to_owned(),
            created_at: created_at.to_owned(),
            version: String::new(),
            schema: 1,
            sealing_key: None,
            layers: Vec::new(),
            volumes: Vec::new(),
        }
    }

    #[test]
    fn names_of_one_second_sort_by_time() {
        let first = backup_name(&begun("bck_zzzzzz", "2026-01-02T03:04:05.006Z"));
        let second = backup_name(&begun("bck_aaaaaa", "2026-01-02T03:04:05.070Z"));
        assert_eq!(first, "20260102T030405006Z-zzzzzz");
        assert!(first < second);
    }
}
