//! Runs in: spawner (root). The record of one cell, from its start until its cgroup is gone.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use cloche_jail::{
    END_SIGNAL,
    cgroup::{Cgroup, CgroupLimits},
    report::CLEAN_NETNS,
    sys,
};
use rustix::process::{WaitId, WaitIdOptions, waitid};

use super::{home_target::HomeMountPoint, process_watch::CellWatch, scratch_dir::ScratchDir};
use crate::protocol::CellUsage;

/// A cell and the resources that it has.
pub(super) struct CellRecord {
    /// The slot of its host id.
    pub(super) slot: u32,
    pub(super) state: CellState,
    /// Where its home is mounted.
    pub(super) home: HomeMountPoint,
    /// The server asked to kill it. A cell that does not exist yet is killed once it does.
    pub(super) kill_requested: bool,
    pub(super) cgroup: Option<Cgroup>,
    /// The limits of the cgroup.
    pub(super) limits: CgroupLimits,
    /// The spawner killed it for kernel memory that its cgroup does not count.
    pub(super) exceeded_kernel_memory: bool,
    /// What the process watch knows about it, where a cgroup is missing.
    pub(super) watch: Option<CellWatch>,
    /// The directory of a contained cell.
    pub(super) directory: Option<ScratchDir>,
    /// The netns that it was started in, if another cell may use it afterwards.
    pub(super) network: Option<OwnedFd>,
    /// The pidfd of its mount server, if it has storage mounts.
    pub(super) mount_server: Option<Arc<OwnedFd>>,
    /// The server does not read its gauges any more.
    pub(super) gauges_released: bool,
    /// Read after the end of pid 1, and so of every process of the cell.
    pub(super) used: CellUsage,
}

/// The state of a cell.
pub(super) enum CellState {
    /// It is being started, or a template was asked for it.
    Pending,
    /// It runs. The pidfd of its pid 1 is readable when pid 1 has ended.
    Running(OwnedFd),
    /// No process of it is left. Its cgroup may still exist.
    Ended,
}

impl CellState {
    pub(super) fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Running(pidfd) => Some(pidfd.as_fd()),
            Self::Pending | Self::Ended => None,
        }
    }
}

impl CellRecord {
    /// Reaps pid 1, which has ended. Returns the netns of the cell if pid 1 has left it as it was
    /// made.
    pub(super) fn take_clean_network(&mut self) -> Option<OwnedFd> {
        let network = self.network.take()?;
        let pid_one = WaitId::PidFd(self.state.pidfd()?);
        let ended = waitid(pid_one, WaitIdOptions::EXITED | WaitIdOptions::NOHANG).ok()??;
        (ended.exit_status() == Some(CLEAN_NETNS)).then_some(network)
    }

    /// Ends the mount server, and with it every request of the guest to its storage.
    pub(super) fn kill_mount_server(&mut self) {
        if let Some(server) = self.mount_server.take() {
            let _ = sys::pidfd_kill(server.as_raw_fd(), 9);
        }
    }

    /// Kills every process. Pid 1 first: then the kernel kills the whole pid namespace, and no fork
    /// in it succeeds any more.
    pub(super) fn kill(&mut self) {
        self.kill_requested = true;
        // First: a process that waits for storage does not die before its request has ended.
        self.kill_mount_server();
        // The first process of a contained cell kills the others, which no namespace holds.
        let signal = if self.directory.is_some() { END_SIGNAL } else { 9 };
        if let Some(pidfd) = self.state.pidfd() {
            let _ = sys::pidfd_kill(pidfd.as_raw_fd(), signal);
        }
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
    }
}
