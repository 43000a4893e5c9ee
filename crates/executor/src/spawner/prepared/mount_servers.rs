//! Runs in: spawner (root). Mount servers that are started ahead, each with a mount.

use cloche_jail::cgroup::CgroupHierarchy;

use super::{PreparedResources, WorkerKind};
use crate::spawner::{mount_server_process::IdleMountServer, storage_mounter::StorageMounter};

/// How many mount servers are started ahead.
const MOUNT_SERVERS: usize = 2;

impl PreparedResources {
    /// A mount server that waits for its mounts.
    pub(in crate::spawner) fn take_mount_server(&mut self) -> Option<IdleMountServer> {
        self.worker_cgroups[WorkerKind::MountServer as usize].is_needed = true;
        loop {
            let mut idle = self.mount_servers.pop()?;
            if idle.is_alive() {
                return Some(idle);
            }
            // It was killed while it waited.
            idle.cgroup.take().into_iter().for_each(|cgroup| self.retire_cgroup(cgroup));
        }
    }

    /// Starts a mount server ahead; false if that is not possible.
    pub(super) fn start_mount_server(
        &mut self,
        all: Option<&CgroupHierarchy>,
        mounter: &StorageMounter,
    ) -> bool {
        let Ok(mount) = mounter.make_fuse_mount() else { return false };
        let kind = WorkerKind::MountServer;
        let cgroup = match all.map(|all| self.take_worker_cgroup(all, kind)).transpose() {
            Ok(cgroup) => cgroup,
            Err(_) => return false,
        };
        match IdleMountServer::start(cgroup, mount) {
            Ok(idle) => {
                self.mount_servers.push(idle);
                true
            }
            Err((_, cgroup)) => {
                cgroup.into_iter().for_each(|cgroup| self.retire_cgroup(cgroup));
                false
            }
        }
    }

    pub(super) fn misses_mount_server(&self) -> bool {
        self.worker_cgroups[WorkerKind::MountServer as usize].is_needed
            && self.mount_servers.len() < MOUNT_SERVERS
    }
}
