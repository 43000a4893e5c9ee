//! Runs in: spawner (root). Resources that are prepared before a cell needs them: cgroups, and
//! netns with their loopback up. Making them takes longer than the rest of a cold start together.
//! After the first pack request there is also an idle packer.
//!
//! A netns and a cgroup are reused after a cell that has left nothing in them.

mod mount_servers;

use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    io, mem,
    os::fd::{AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

use cloche_jail::{
    cgroup::{Cgroup, CgroupHierarchy, CgroupLimits},
    sys,
};

use super::{
    cell_mount_servers::MOUNT_SERVER_LIMITS,
    cell_record::CellRecord,
    mount_server_process::IdleMountServer,
    network_worker::WORKER_LIMITS,
    packer_process::{IdlePacker, PackerProcess},
    storage_mounter::StorageMounter,
};
use crate::protocol::{CellId, PackRequest};

/// How many netns, and how many cgroups of the latest limits, are prepared.
const LEVEL: usize = 4;
/// The most netns that are kept for the next cells.
const MAX_NETWORKS: usize = 16;
/// The most cgroups that are kept for the next cells, and the most whose gauges may still be read.
const MAX_CGROUPS: usize = 32;
/// How many used cgroups are kept for the page cache that is charged to them.
const MAX_CACHED: usize = 64;
/// How long the shutdown gives page cache back.
const SHUTDOWN_BUDGET: Duration = Duration::from_millis(200);
/// How long the shutdown waits for the end of a process that it has killed, in nanoseconds.
const WAIT_FOR_END: u64 = 50_000_000;

/// What is prepared for the next cells.
pub(super) struct PreparedResources {
    networks: Vec<OwnedFd>,
    /// Without processes. The last one is taken first.
    cgroups: Vec<(CgroupLimits, Cgroup)>,
    /// Those of cells that are gone and whose gauges the server may still read.
    being_read: BTreeMap<CellId, (CgroupLimits, Cgroup)>,
    /// Never to be used again, and not removed yet.
    retired: Vec<Cgroup>,
    /// The same, with page cache. The oldest is first.
    cached: VecDeque<Cgroup>,
    /// The limits of the latest cell, which the next cells most likely have too.
    limits: Option<CgroupLimits>,
    /// The netns of the spawner, to return to.
    own_network: Option<OwnedFd>,
    cgroups_made: u64,
    /// For the next processes beside cells, by their kind.
    worker_cgroups: [WorkerCgroups; 2],
    /// Mount servers that wait for their mounts; only once one was needed.
    mount_servers: Vec<IdleMountServer>,
    packer: PackerProcess,
    packer_reserve: PackerReserve,
}

/// A process beside a cell that has a cgroup of its own.
#[derive(Clone, Copy)]
pub(super) enum WorkerKind {
    Stack,
    MountServer,
}

impl WorkerKind {
    const ALL: [Self; 2] = [Self::Stack, Self::MountServer];

    const fn limits(self) -> CgroupLimits {
        match self {
            Self::Stack => WORKER_LIMITS,
            Self::MountServer => MOUNT_SERVER_LIMITS,
        }
    }
}

/// The cgroups for the next processes of one kind; only once one was needed.
#[derive(Default)]
struct WorkerCgroups {
    prepared: Vec<Cgroup>,
    is_needed: bool,
}

/// The packer that is started ahead.
enum PackerReserve {
    /// Nothing was packed yet, so none is needed.
    Unused,
    /// The last one is in use; the next one is to be started.
    Taken,
    /// It waits for its request.
    Idle(IdlePacker),
}

impl PreparedResources {
    pub(super) fn new(packer: PackerProcess) -> Self {
        Self {
            packer,
            packer_reserve: PackerReserve::Unused,
            networks: Vec::new(),
            cgroups: Vec::new(),
            being_read: BTreeMap::new(),
            retired: Vec::new(),
            cached: VecDeque::new(),
            limits: None,
            own_network: File::open("/proc/self/ns/net").ok().map(OwnedFd::from),
            cgroups_made: 0,
            worker_cgroups: Default::default(),
            mount_servers: Vec::new(),
        }
    }

    /// A netns for one cell; `None` where the spawner cannot make one.
    pub(super) fn take_network(&mut self) -> Option<OwnedFd> {
        self.networks.pop().or_else(|| self.make_network().ok())
    }

    /// Keeps the netns of a cell that has left it as it was made.
    pub(super) fn keep_network(&mut self, network: OwnedFd) {
        if self.networks.len() < MAX_NETWORKS {
            self.networks.push(network);
        }
    }

    /// Gives the request to a packer. If no packer can be started, the server sees its pipes close.
    pub(super) fn pack_upper_dir(&mut self, request: &PackRequest, fds: &[OwnedFd]) {
        let accepted = match mem::replace(&mut self.packer_reserve, PackerReserve::Taken) {
            PackerReserve::Idle(packer) => packer.pack(request, fds),
            PackerReserve::Unused | PackerReserve::Taken => false,
        };
        if !accepted {
            let _ = self.packer.start(request, fds);
        }
    }

    /// A cgroup for a process beside a cell.
    pub(super) fn take_worker_cgroup(
        &mut self,
        all: &CgroupHierarchy,
        kind: WorkerKind,
    ) -> io::Result<Cgroup> {
        let cgroups = &mut self.worker_cgroups[kind as usize];
        cgroups.is_needed = true;
        match cgroups.prepared.pop() {
            Some(cgroup) => Ok(cgroup),
            None => self.make_worker_cgroup(all, kind),
        }
    }

    fn make_worker_cgroup(
        &mut self,
        all: &CgroupHierarchy,
        kind: WorkerKind,
    ) -> io::Result<Cgroup> {
        let (can, wanted) = (all.can_limit(), kind.limits());
        let limits = CgroupLimits {
            memory: wanted.memory.filter(|_| can[0]),
            pids: wanted.pids.filter(|_| can[1]),
            cpu: wanted.cpu.filter(|_| can[2]),
        };
        self.make_cgroup(all, limits)
    }

    /// Removes the cgroup of a stack worker that has ended, now or as soon as the kernel can.
    pub(super) fn retire_worker_cgroup(&mut self, cgroup: Cgroup) {
        self.retired.push(cgroup);
    }

    /// A cgroup with these limits.
    pub(super) fn take_cgroup(
        &mut self,
        all: &CgroupHierarchy,
        limits: CgroupLimits,
    ) -> io::Result<Cgroup> {
        self.limits = Some(limits);
        match self.cgroups.iter().rposition(|(have, _)| *have == limits) {
            Some(at) => Ok(self.cgroups.remove(at).1),
            None => self.make_cgroup(all, limits),
        }
    }

    /// Takes the cgroup of a cell that has ended; false if the kernel cannot remove it yet.
    pub(super) fn reclaim_cgroup(&mut self, cell: CellId, record: &mut CellRecord) -> bool {
        let Some(mut cgroup) = record.cgroup.take() else { return true };
        // Killing has changed its limits.
        if record.kill_requested || !cgroup.is_renewable() {
            if cgroup.is_empty() && cgroup.page_cache_bytes() > 0 {
                self.retire_cgroup(cgroup);
                return true;
            }
            let is_removed = cgroup.remove();
            record.cgroup = (!is_removed).then_some(cgroup);
            return is_removed;
        }
        self.being_read.insert(cell, (record.limits, cgroup));
        if record.gauges_released {
            self.release_gauges(cell);
        } else if self.being_read.len() > MAX_CGROUPS
            && let Some((_, (_, cgroup))) = self.being_read.pop_first()
        {
            self.retire_cgroup(cgroup);
        }
        true
    }

    /// Retires a cgroup without processes. If it were removed while page cache is charged to it,
    /// the kernel would keep it as long as the cache. The next cells may read the same files, so
    /// some cgroups are kept with their cache.
    pub(super) fn retire_cgroup(&mut self, mut cgroup: Cgroup) {
        if cgroup.page_cache_bytes() == 0 {
            self.retired.push(cgroup);
            return;
        }
        cgroup.close_files();
        self.cached.push_back(cgroup);
        if self.cached.len() > 2 * MAX_CACHED {
            // It has not been quiet for a while, so the refill did not do this.
            self.drop_oldest_page_cache();
        }
    }

    /// Drops the oldest page cache if there is too much; false if there is not.
    fn drop_oldest_page_cache(&mut self) -> bool {
        if self.cached.len() <= MAX_CACHED {
            return false;
        }
        let Some(cgroup) = self.cached.pop_front() else { return false };
        cgroup.drop_page_cache();
        self.retired.push(cgroup);
        true
    }

    /// The server has released the gauges of a cell that is gone: its cgroup can be reused.
    pub(super) fn release_gauges(&mut self, cell: CellId) {
        let Some((limits, mut cgroup)) = self.being_read.remove(&cell) else { return };
        if !cgroup.renew() {
            self.retire_cgroup(cgroup);
            return;
        }
        self.cgroups.push((limits, cgroup));
        if self.cgroups.len() > MAX_CGROUPS {
            // The one that has been unused for longest.
            let unused = self.cgroups.remove(0).1;
            self.retire_cgroup(unused);
        }
    }

    /// Whether retired cgroups wait to be removed.
    pub(super) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Removes the retired cgroups that the kernel can remove now.
    pub(super) fn remove_retired(&mut self) {
        self.retired.retain_mut(|cgroup| !cgroup.remove());
    }

    /// Whether something could be prepared now.
    pub(super) fn needs_refill(&self, with_cgroups: bool) -> bool {
        // Before the first cell its limits are not known.
        self.limits.is_some()
            && (self.cached.len() > MAX_CACHED
                || matches!(self.packer_reserve, PackerReserve::Taken)
                || self.networks.len() < LEVEL
                || self.misses_mount_server()
                || with_cgroups && self.missing_cgroup_limits().is_some()
                || with_cgroups && self.missing_worker_cgroup().is_some())
    }

    /// The kind of process for which a cgroup should be prepared.
    fn missing_worker_cgroup(&self) -> Option<WorkerKind> {
        let is_missing = |kind: &WorkerKind| {
            let cgroups = &self.worker_cgroups[*kind as usize];
            cgroups.is_needed && cgroups.prepared.len() < LEVEL
        };
        WorkerKind::ALL.into_iter().find(is_missing)
    }

    /// The limits of a cgroup that should be prepared.
    fn missing_cgroup_limits(&self) -> Option<CgroupLimits> {
        let limits = self.limits?;
        let prepared = self.cgroups.iter().filter(|(have, _)| *have == limits).count();
        (prepared < LEVEL).then_some(limits)
    }

    /// Prepares one thing; false if nothing is missing or could be made.
    pub(super) fn refill_one(
        &mut self,
        all: Option<&CgroupHierarchy>,
        mounter: &StorageMounter,
    ) -> bool {
        if self.limits.is_none() {
            return false;
        }
        if self.drop_oldest_page_cache() {
            return true;
        }
        if matches!(self.packer_reserve, PackerReserve::Taken)
            && let Ok(packer) = self.packer.start_idle()
        {
            self.packer_reserve = PackerReserve::Idle(packer);
            return true;
        }
        if self.networks.len() < LEVEL
            && let Ok(network) = self.make_network()
        {
            self.networks.push(network);
            return true;
        }
        if self.misses_mount_server() && self.start_mount_server(all, mounter) {
            return true;
        }
        if let (Some(all), Some(limits)) = (all, self.missing_cgroup_limits())
            && let Ok(cgroup) = self.make_cgroup(all, limits)
        {
            self.cgroups.push((limits, cgroup));
            return true;
        }
        if let (Some(all), Some(kind)) = (all, self.missing_worker_cgroup())
            && let Ok(cgroup) = self.make_worker_cgroup(all, kind)
        {
            self.worker_cgroups[kind as usize].prepared.push(cgroup);
            return true;
        }
        false
    }

    fn make_cgroup(&mut self, all: &CgroupHierarchy, limits: CgroupLimits) -> io::Result<Cgroup> {
        self.cgroups_made += 1;
        Cgroup::create(all, &format!("cell{}", self.cgroups_made), limits)
    }

    fn make_network(&self) -> io::Result<OwnedFd> {
        let os = |errno: sys::Errno| io::Error::from_raw_os_error(errno.0);
        let home = self.own_network.as_ref().ok_or(io::ErrorKind::NotFound)?;
        sys::unshare(sys::CLONE_NEWNET).map_err(os)?;
        let made = sys::loopback_up().map_err(os).and_then(|()| File::open("/proc/self/ns/net"));
        sys::setns(home.as_raw_fd(), sys::CLONE_NEWNET).map_err(os)?;
        made.map(OwnedFd::from)
    }
}

impl Drop for PreparedResources {
    fn drop(&mut self) {
        let idle = self.cgroups.drain(..).map(|(_, cgroup)| cgroup);
        let read = mem::take(&mut self.being_read).into_values().map(|(_, cgroup)| cgroup);
        let workers = mem::take(&mut self.worker_cgroups).into_iter();
        let workers = workers.flat_map(|cgroups| cgroups.prepared);
        let idle_servers = mem::take(&mut self.mount_servers).into_iter();
        let idle_servers = idle_servers.filter_map(|idle| idle.end(WAIT_FOR_END));
        let cached = self.cached.drain(..).chain(workers).chain(idle_servers);
        let until = Instant::now() + SHUTDOWN_BUDGET;
        for mut cgroup in idle.chain(read).chain(self.retired.drain(..)).chain(cached) {
            if Instant::now() < until && cgroup.page_cache_bytes() > 0 {
                cgroup.drop_page_cache();
            }
            // It has no process, so the kernel removes it at once.
            cgroup.remove();
        }
    }
}
