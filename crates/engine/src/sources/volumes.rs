//! Runs in: server (no capabilities).
//!
//! Volumes: storage of a team that this server keeps, with a quota.

use std::{io, ops::RangeInclusive, sync::Arc};

use cloche_model::{
    ByteSize, ErrorCode, Invalid, StorageBacking, StorageId, StorageSource, VolumeId,
    VolumeSettings, check_name,
};
use cloche_mounts::{VolumeStore, VolumeUsage};

use super::{StorageSources, in_use_refusal};
use crate::{Refusal, clock, secrets};

/// From one mebibyte to one pebibyte.
const QUOTA: RangeInclusive<u64> = 1 << 20..=1 << 50;

/// A volume and how much of it is used.
#[derive(Clone, Debug)]
pub struct VolumeState {
    /// The volume.
    pub source: StorageSource,
    /// The most bytes of its files.
    pub quota: ByteSize,
    /// The bytes of its files now.
    pub used: ByteSize,
    /// Its files and directories now.
    pub entries: u64,
}

fn check_quota(quota: ByteSize) -> Result<(), Invalid> {
    match QUOTA.contains(&quota.bytes()) {
        true => Ok(()),
        false => Err(Invalid::new("quota_bytes must be between 1 MiB and 1 PiB")),
    }
}

fn missing_volume() -> Refusal {
    Refusal::not_found("volume")
}

impl StorageSources {
    /// Runs blocking work on the files of volumes.
    pub(super) async fn with_volumes<T: Send + 'static>(
        &self,
        work: impl FnOnce(&VolumeStore) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let volumes = Arc::clone(&self.volumes);
        let done = tokio::task::spawn_blocking(move || work(&volumes)).await;
        done.unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    /// Makes a volume.
    ///
    /// # Errors
    /// When a field breaks a rule, or the name is taken.
    pub async fn create_volume(
        &self,
        team: &str,
        name: &str,
        quota: ByteSize,
    ) -> Result<VolumeState, Refusal> {
        let team = self.find_team(team).await?;
        check_name("name", name)?;
        check_quota(quota)?;
        let id = VolumeId::from_random(secrets::random_bytes()?);
        let source = StorageSource {
            id: StorageId::from_random(secrets::random_bytes()?),
            team: team.id,
            name: name.to_owned(),
            backing: StorageBacking::Volume(VolumeSettings { id: id.clone(), quota }),
            created_at: clock::now(),
        };
        // The files first: a row must never name files that are not there.
        let made = id.clone();
        self.with_volumes(move |volumes| volumes.create(&made)).await.map_err(volume_refusal)?;
        if let Err(error) = self.store.create_source(&source).await {
            self.remove_files(id).await;
            return Err(error.into());
        }
        self.volume_state(source).await
    }

    /// The volumes of a team (by id or name), or of all.
    ///
    /// # Errors
    /// When there is no such team, or files cannot be read.
    pub async fn list_volumes(&self, team: Option<&str>) -> Result<Vec<VolumeState>, Refusal> {
        let mut states = Vec::new();
        for source in self.list(team).await? {
            if source.volume().is_some() {
                states.push(self.volume_state(source).await?);
            }
        }
        Ok(states)
    }

    /// A volume with its usage.
    ///
    /// # Errors
    /// When it is not a volume, or its files cannot be read.
    pub async fn volume_state(&self, source: StorageSource) -> Result<VolumeState, Refusal> {
        let volume = source.volume().cloned().ok_or_else(missing_volume)?;
        let usage = self.with_volumes(move |volumes| volumes.usage(&volume.id)).await;
        let VolumeUsage { bytes, entries, .. } = usage.map_err(volume_refusal)?;
        Ok(VolumeState { source, quota: volume.quota, used: ByteSize(bytes), entries })
    }

    /// Changes the quota of a volume. Files that are there stay.
    ///
    /// # Errors
    /// When it is not a volume, or the quota breaks a rule.
    pub async fn set_quota(
        &self,
        source: StorageSource,
        quota: ByteSize,
    ) -> Result<VolumeState, Refusal> {
        check_quota(quota)?;
        let _turn = self.updating.lock().await;
        let source = self.store.find_source(&source.id).await?.ok_or_else(missing_volume)?;
        let id = source.volume().ok_or_else(missing_volume)?.id.clone();
        let backing = StorageBacking::Volume(VolumeSettings { id, quota });
        let source = StorageSource { backing, ..source };
        if !self.store.update_source(&source).await? {
            return Err(missing_volume());
        }
        self.key_cache.forget_all();
        self.volume_state(source).await
    }

    /// Removes a volume with its files.
    ///
    /// # Errors
    /// When there is none, or something uses it.
    pub async fn remove_volume(&self, source: StorageSource) -> Result<(), Refusal> {
        let id = source.volume().ok_or_else(missing_volume)?.id.clone();
        let removal = self.store.remove_source(&source.id).await?;
        self.key_cache.forget_all();
        in_use_refusal(removal, "volume", &source.name)?;
        self.remove_files(id).await;
        Ok(())
    }

    /// Removes the files of a volume that has no row. What cannot be removed is logged.
    async fn remove_files(&self, id: VolumeId) {
        let removed = id.clone();
        if let Err(error) = self.with_volumes(move |volumes| volumes.remove(&removed)).await {
            tracing::error!(%error, %id, "the files of a removed volume are still there");
        }
    }
}

/// The refusal for a failure at the files of a volume.
pub(super) fn volume_refusal(error: io::Error) -> Refusal {
    use io::ErrorKind;
    match error.kind() {
        ErrorKind::NotFound => Refusal::not_found("file"),
        ErrorKind::QuotaExceeded => {
            Refusal::new(ErrorCode::QuotaExceeded, "the quota of the volume is used up")
        }
        ErrorKind::StorageFull => {
            Refusal::new(ErrorCode::InsufficientStorage, crate::storage::NO_ROOM)
        }
        ErrorKind::NotADirectory => {
            Refusal::new(ErrorCode::Validation, "path: a part of it is not a directory")
        }
        ErrorKind::IsADirectory => Refusal::new(ErrorCode::Validation, "path: it is a directory"),
        ErrorKind::InvalidInput => {
            Refusal::new(ErrorCode::Validation, "path: it is not a path of a volume")
        }
        ErrorKind::PermissionDenied => {
            let message = "path: its directory does not allow writing; change its mode first";
            Refusal::new(ErrorCode::Forbidden, message)
        }
        _ => Refusal::internal(error),
    }
}
