//! Runs in: spawner (root). The mount servers of all cells, until they have ended.
//!
//! A mount server outlives the end of its cell for a while: it stores what the program has left
//! open, and reports. It does not outlive a cell that is killed.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use cloche_jail::{
    cgroup::{Cgroup, CgroupEntry, CgroupLimits},
    sys,
};
use rustix::event::Timespec;

use super::{
    cell_registry::CellRegistry,
    home_target::{HomeMountPoint, HomeTarget},
    poller::WakeSource,
    prepared::WorkerKind,
    storage_mounter::{MountTarget, StorageMountError, StorageMounter},
};
use crate::protocol::{CellId, MountServerUser, StorageMountRequest};

/// How long a mount server may outlive its cell. The server closes its socket before.
const MOUNT_SERVER_GRACE: Duration = Duration::from_secs(100);

/// The limits of a mount server. Its buffers take less than half of the memory; the rest is page
/// cache of what it reads and writes.
pub(super) const MOUNT_SERVER_LIMITS: CgroupLimits =
    CgroupLimits { memory: Some(512 << 20), pids: Some(64), cpu: Some(1000) };

/// The storage mounts of cells.
pub(super) struct CellMountServers {
    mounter: StorageMounter,
    servers: BTreeMap<CellId, MountServerProcess>,
}

struct MountServerProcess {
    /// The record of the cell has it, too.
    pidfd: Arc<OwnedFd>,
    cgroup: Option<Cgroup>,
    /// When it is killed, once its cell has ended.
    kill_at: Option<Instant>,
}

impl MountServerProcess {
    fn kill(&mut self) {
        self.kill_at = None;
        let _ = sys::pidfd_kill(self.pidfd.as_raw_fd(), 9);
    }
}

impl CellMountServers {
    pub(super) fn new(mounter: StorageMounter) -> Self {
        Self { mounter, servers: BTreeMap::new() }
    }

    /// What mounts storage.
    pub(super) const fn mounter(&self) -> &StorageMounter {
        &self.mounter
    }

    /// The cell has ended: its mount server must end, too, when it has reported.
    pub(super) fn note_cell_end(&mut self, cell: CellId) {
        if let Some(server) = self.servers.get_mut(&cell) {
            server.kill_at = Some(Instant::now() + MOUNT_SERVER_GRACE);
        }
    }

    /// Kills every mount server.
    pub(super) fn kill_all(&mut self) {
        self.servers.values_mut().for_each(MountServerProcess::kill);
    }

    /// How long until a mount server has outlived its cell for too long.
    pub(super) fn time_to_next_kill(&self) -> Option<Timespec> {
        let due = self.servers.values().filter_map(|server| server.kill_at).min()?;
        let left = due.saturating_duration_since(Instant::now());
        Some(Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() })
    }

    /// Whether no mount server is left.
    pub(super) fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }
}

impl CellRegistry<'_> {
    /// Mounts storage in a cell that waits for its job, and starts its mount server. `fds` is the
    /// socket of that server.
    pub(super) fn mount_storage(
        &mut self,
        cell: CellId,
        (requests, user): (&[StorageMountRequest], MountServerUser),
        fds: &[OwnedFd],
    ) -> Result<(), StorageMountError> {
        let refused = StorageMountError::without_slug;
        let (slot, pid_one) = match self.running_cell(cell) {
            Some(HomeTarget { place: HomeMountPoint::OnStage, .. }) => {
                return Err(refused("storage needs the substrate native"));
            }
            Some(HomeTarget { slot, cell, .. }) => {
                (slot, cell.try_clone_to_owned().map_err(|_| refused("too many open files"))?)
            }
            None => return Err(refused("the cell is gone")),
        };
        if self.storage.servers.contains_key(&cell) {
            return Err(refused("the cell has storage"));
        }
        let hierarchy = self.plans.host.cgroups.as_ref();
        let (idle, cgroup) = match self.prepared.take_mount_server() {
            Some(mut idle) => {
                let cgroup = idle.cgroup.take();
                (Some(idle), cgroup)
            }
            None => {
                let kind = WorkerKind::MountServer;
                let take = |all| self.prepared.take_worker_cgroup(all, kind);
                let cgroup = hierarchy.map(take).transpose();
                (None, cgroup.map_err(|_| refused("there is no cgroup for the mount server"))?)
            }
        };
        let entry = cgroup.as_ref().map_or_else(CgroupEntry::default, Cgroup::entry);
        let target = MountTarget { slot, cell: pid_one.as_fd(), user, cgroup: &entry, idle };
        match self.storage.mounter.mount(target, requests, fds) {
            Ok(pidfd) => self.keep_mount_server(cell, Arc::new(pidfd), cgroup),
            Err(error) => {
                cgroup.into_iter().for_each(|cgroup| self.prepared.retire_cgroup(cgroup));
                Err(error)
            }
        }
    }

    /// Keeps the mount server of a cell, and watches for its end.
    fn keep_mount_server(
        &mut self,
        cell: CellId,
        pidfd: Arc<OwnedFd>,
        cgroup: Option<Cgroup>,
    ) -> Result<(), StorageMountError> {
        let mut server = MountServerProcess { pidfd: Arc::clone(&pidfd), cgroup, kill_at: None };
        let watched = self.poller.add(WakeSource::MountServer(cell), &pidfd);
        if watched.is_err() {
            // Its end would go unnoticed, so it ends now.
            server.kill();
            server.cgroup.into_iter().for_each(|cgroup| self.prepared.retire_cgroup(cgroup));
            return Err(StorageMountError::without_slug("the mount server cannot be watched"));
        }
        self.storage.servers.insert(cell, server);
        if let Some(record) = self.cells.get_mut(&cell) {
            record.mount_server = Some(pidfd);
            if record.kill_requested {
                record.kill_mount_server();
            }
        }
        Ok(())
    }

    /// Forgets mount servers that have ended, and kills those that have outlived their cells.
    pub(super) fn reap_mount_servers(&mut self, ended: &[CellId]) {
        let now = Instant::now();
        for server in self.storage.servers.values_mut() {
            if server.kill_at.is_some_and(|due| due <= now) {
                server.kill();
            }
        }
        for server in ended.iter().filter_map(|cell| self.storage.servers.remove(cell)) {
            self.poller.remove(server.pidfd.as_fd());
            server.cgroup.into_iter().for_each(|cgroup| self.prepared.retire_cgroup(cgroup));
        }
    }
}
