//! Runs in: server (no capabilities). Who waits for which answer of the spawner.

use std::{collections::HashMap, os::fd::OwnedFd, sync::Arc};

use cloche_jail::cgroup::CgroupGauges;
use tokio::sync::oneshot;

use super::{cell_exit::CellExit, image_mounts::MountedImage, spawner_client::SpawnError};
use crate::protocol::{CellId, ImageNumber};

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

/// The directories of a mounted home.
pub(crate) struct OverlayDirs {
    /// What a run writes is in this directory.
    pub(crate) upper: OwnedFd,
    /// The home as the run sees it, if it has layers.
    pub(crate) merged: Option<OwnedFd>,
}
