//! One cell in the spawner's books, from its start to the last of its cgroup.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use cloche_jail::{
    cgroup::{Cgroup, CgroupLimits},
    sys,
};

use super::protocol::CellUsage;

/// A cell and all that is held for it.
pub(super) struct CellRecord {
    /// Which host id it has.
    pub(super) slot: u32,
    pub(super) state: CellState,
    /// To be killed as soon as it exists.
    pub(super) kill_requested: bool,
    pub(super) cgroup: Option<Cgroup>,
    /// What the cgroup holds its members to.
    pub(super) limits: CgroupLimits,
    /// Killed for kernel memory that its cgroup does not count.
    pub(super) exceeded_kernel_memory: bool,
    /// Nobody reads its gauges any more.
    pub(super) gauges_released: bool,
    /// Read when pid 1 has ended, and with it everything in the cell.
    pub(super) used: CellUsage,
}

/// Where a cell is in its life.
pub(super) enum CellState {
    /// A template was asked for it.
    Pending,
    /// Its pid 1, readable when it has ended.
    Running(OwnedFd),
    /// No process of it is left; its cgroup may take a moment.
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
    /// Pid 1 first: the kernel then kills the whole namespace, and no fork in it succeeds any more.
    pub(super) fn kill(&mut self) {
        self.kill_requested = true;
        if let Some(pidfd) = self.state.pidfd() {
            let _ = sys::pidfd_kill(pidfd.as_raw_fd(), 9);
        }
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
    }
}
