//! Runs in: server (no capabilities). Who waits for which answer of the spawner.

use std::{collections::HashMap, os::fd::OwnedFd, sync::Arc};

use cloche_jail::cgroup::CgroupGauges;
use tokio::sync::oneshot;

use super::{cell_exit::CellExit, image_mounts::MountedImage, spawner_client::SpawnError};
use crate::protocol::{CellId, ImageNumber, SpawnerEvent};

/// Whether the storage of a cell was mounted; if not, which mount failed, and why.
pub(super) type StorageAnswer = Result<(), (String, String)>;

/// Who waits for which answer about which cell.
#[derive(Default)]
pub(super) struct CellWaiters {
    pub(super) spawns: HashMap<CellId, oneshot::Sender<Result<CgroupGauges, SpawnError>>>,
    pub(super) home_mounts: HashMap<CellId, oneshot::Sender<Result<OverlayDirs, SpawnError>>>,
    pub(super) storage_mounts: HashMap<CellId, oneshot::Sender<StorageAnswer>>,
    pub(super) networks: HashMap<CellId, oneshot::Sender<Result<(), SpawnError>>>,
    pub(super) tool_sockets: HashMap<CellId, oneshot::Sender<Result<OwnedFd, SpawnError>>>,
    pub(super) image_mounts: HashMap<ImageNumber, oneshot::Sender<Result<(), SpawnError>>>,
    /// Every cell that is not gone yet, with the image that it keeps mounted.
    pub(super) alive: HashMap<CellId, (CellExit, Option<Arc<MountedImage>>)>,
}

impl CellWaiters {
    /// Hands on what became of something that was to be mounted or attached.
    pub(super) fn answer_mount(&mut self, event: SpawnerEvent, fds: Vec<OwnedFd>) {
        match event {
            SpawnerEvent::ImageMounted { image } => {
                answer_waiter(self.image_mounts.remove(&image), Ok(()));
            }
            SpawnerEvent::ImageRefused { image, reason } => {
                let waiter = self.image_mounts.remove(&image);
                answer_waiter(waiter, Err(SpawnError::Refused(reason)));
            }
            SpawnerEvent::HomeMounted { cell } => {
                let mut fds = fds.into_iter();
                let (waiter, upper) = (self.home_mounts.remove(&cell), fds.next());
                if let Some(upper) = upper {
                    answer_waiter(waiter, Ok(OverlayDirs { upper, merged: fds.next() }));
                }
            }
            SpawnerEvent::HomeRefused { cell, reason } => {
                let refused = Err(SpawnError::Refused(reason));
                answer_waiter(self.home_mounts.remove(&cell), refused);
            }
            SpawnerEvent::HomeBlocked { cell, name } => {
                let blocked = Err(SpawnError::Blocked(name));
                answer_waiter(self.home_mounts.remove(&cell), blocked);
            }
            SpawnerEvent::ToolSocketMounted { cell } => {
                let waiter = self.tool_sockets.remove(&cell);
                answer_waiter(waiter, fds.into_iter().next().ok_or(SpawnError::SpawnerLost));
            }
            SpawnerEvent::ToolSocketRefused { cell, reason } => {
                let waiter = self.tool_sockets.remove(&cell);
                answer_waiter(waiter, Err(SpawnError::Refused(reason)));
            }
            SpawnerEvent::NetworkAttached { cell } => {
                answer_waiter(self.networks.remove(&cell), Ok(()));
            }
            SpawnerEvent::NetworkRefused { cell, reason } => {
                let waiter = self.networks.remove(&cell);
                answer_waiter(waiter, Err(SpawnError::Refused(reason)));
            }
            SpawnerEvent::StorageMounted { cell, failed } => {
                let waiter = self.storage_mounts.remove(&cell);
                answer_waiter(waiter, failed.map_or(Ok(()), Err));
            }
            SpawnerEvent::Hello { .. }
            | SpawnerEvent::Spawned { .. }
            | SpawnerEvent::Refused { .. }
            | SpawnerEvent::Gone { .. } => {}
        }
    }
}

/// Answers a request, if anything still waits for it.
pub(super) fn answer_waiter<T>(waiter: Option<oneshot::Sender<T>>, answer: T) {
    if let Some(waiter) = waiter {
        let _ = waiter.send(answer);
    }
}

/// The directories of a mounted home.
pub(crate) struct OverlayDirs {
    /// What a run writes is in this directory.
    pub(crate) upper: OwnedFd,
    /// The home as the run sees it, if it has layers.
    pub(crate) merged: Option<OwnedFd>,
}
