//! Runs in: spawner (root). The stack workers of all cells, until they have ended.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use cloche_jail::cgroup::Cgroup;
use rustix::event::Timespec;

use super::{
    cell_registry::CellRegistry,
    network_worker::{NetworkAttacher, NetworkWorker},
    poller::{EpollSet, WakeSource},
    prepared::WorkerKind,
};
use crate::protocol::CellId;

/// How long a worker may outlive its cell. The server ends its session in this time, and gets the
/// last counts of the worker with the report.
const WORKER_GRACE: Duration = Duration::from_secs(1);

/// The networks of cells.
pub(super) struct CellNetworks {
    pub(super) attacher: NetworkAttacher,
    workers: BTreeMap<CellId, NetworkWorker>,
}

impl CellNetworks {
    pub(super) fn new(attacher: NetworkAttacher) -> Self {
        Self { attacher, workers: BTreeMap::new() }
    }

    /// Keeps the worker of a cell, and watches for its end.
    pub(super) fn insert(
        &mut self,
        cell: CellId,
        mut worker: NetworkWorker,
        poller: &EpollSet,
    ) -> io::Result<()> {
        if self.workers.contains_key(&cell) {
            worker.kill();
            return Err(io::Error::other("the cell has a network"));
        }
        if let Err(error) = poller.add(WakeSource::Network(cell), &worker.pidfd) {
            // Its end would go unnoticed, so it ends now.
            worker.kill();
            return Err(error);
        }
        self.workers.insert(cell, worker);
        Ok(())
    }

    /// The cell has ended: its worker must end soon.
    pub(super) fn note_cell_end(&mut self, cell: CellId) {
        if let Some(worker) = self.workers.get_mut(&cell) {
            worker.kill_at = Some(Instant::now() + WORKER_GRACE);
        }
    }

    /// Kills the workers whose cells have ended and whose sessions have not.
    pub(super) fn kill_overdue(&mut self) {
        let now = Instant::now();
        for worker in self.workers.values_mut() {
            if worker.kill_at.is_some_and(|due| due <= now) {
                worker.kill();
            }
        }
    }

    /// Kills every worker.
    pub(super) fn kill_all(&mut self) {
        self.workers.values_mut().for_each(NetworkWorker::kill);
    }

    /// Forgets workers that have ended. Returns their cgroups.
    pub(super) fn remove_ended(&mut self, ended: &[CellId], poller: &EpollSet) -> Vec<Cgroup> {
        let ended = ended.iter().filter_map(|cell| self.workers.remove(cell));
        ended
            .filter_map(|worker| {
                poller.remove(worker.pidfd.as_fd());
                worker.cgroup
            })
            .collect()
    }

    /// How long until a worker has outlived its cell for too long.
    pub(super) fn time_to_next_kill(&self) -> Option<Timespec> {
        let due = self.workers.values().filter_map(|worker| worker.kill_at).min()?;
        let left = due.saturating_duration_since(Instant::now());
        Some(Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() })
    }

    /// Whether no worker is left.
    pub(super) fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }
}

impl CellRegistry<'_> {
    /// Attaches a network to a cell that waits for its job. `fds` is the stack worker's end of a
    /// session with the broker.
    pub(super) fn attach_network(
        &mut self,
        cell: CellId,
        ipv6: bool,
        fds: Vec<OwnedFd>,
    ) -> io::Result<()> {
        let record = self.cells.get(&cell);
        let running = record.and_then(|record| Some((record.slot, record.state.pidfd()?)));
        let running = running.ok_or_else(|| io::Error::other("the cell is gone"))?;
        let Ok([session]) = <[OwnedFd; 1]>::try_from(fds) else {
            return Err(io::Error::other("a network needs one file descriptor"));
        };
        let hierarchy = self.plans.host.cgroups.as_ref();
        let cgroup = hierarchy
            .map(|hierarchy| self.prepared.take_worker_cgroup(hierarchy, WorkerKind::Stack))
            .transpose()?;
        match self.networks.attacher.attach(running, ipv6, session, cgroup.as_ref()) {
            Ok(pidfd) => {
                let worker = NetworkWorker { pidfd, cgroup, kill_at: None };
                self.networks.insert(cell, worker, &self.poller)
            }
            Err(error) => {
                cgroup.into_iter().for_each(|cgroup| self.prepared.retire_worker_cgroup(cgroup));
                Err(error)
            }
        }
    }

    /// Forgets stack workers that have ended, and kills those that have outlived their cells.
    pub(super) fn reap_workers(&mut self, ended: &[CellId]) {
        self.networks.kill_overdue();
        for cgroup in self.networks.remove_ended(ended, &self.poller) {
            self.prepared.retire_worker_cgroup(cgroup);
        }
    }
}
