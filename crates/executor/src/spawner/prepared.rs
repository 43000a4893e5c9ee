//! What a cell needs and can be there before anyone asks: a cgroup, and a network with its loopback
//! up. Making them takes longer than the rest of a cold start together. And a packer, once something
//! was packed.
//!
//! A network is used once. A cgroup is used again after cells that have left nothing in it.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    io,
    os::fd::{AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

use cloche_jail::{
    cgroup::{Cgroup, CgroupHierarchy, CgroupLimits},
    sys,
};

use super::{
    cell_record::CellRecord,
    packer::{IdlePacker, PackerProcess},
    protocol::{CellId, PackRequest},
};

/// How many of each are made ahead.
const LEVEL: usize = 4;
/// How many cgroups are kept for the next cells, and how many whose gauges may still be read.
const MOST_CGROUPS: usize = 32;
/// How many cgroups of the past are kept for the page cache that is charged to them.
const MOST_CACHED: usize = 64;
/// How long page cache is given back when we end.
const LAST_MOMENTS: Duration = Duration::from_millis(200);

/// There for the next cells.
pub(super) struct PreparedResources {
    networks: Vec<OwnedFd>,
    /// Nobody is in them. The last one is taken first.
    cgroups: Vec<(CgroupLimits, Cgroup)>,
    /// Of cells that are gone and whose gauges may still be read.
    being_read: BTreeMap<CellId, (CgroupLimits, Cgroup)>,
    /// Not to be used again, and not removed yet.
    retired: Vec<Cgroup>,
    /// The same, with page cache, the oldest first.
    cached: VecDeque<Cgroup>,
    /// What the next cgroups will most likely be asked to hold to.
    limits: Option<CgroupLimits>,
    /// Our own network, to go back to.
    own_network: Option<OwnedFd>,
    cgroups_made: u64,
    packer: PackerProcess,
    /// None if it is in use; nothing was ever packed if there is not even that.
    idle_packer: Option<Option<IdlePacker>>,
}

impl PreparedResources {
    pub(super) fn new(packer: PackerProcess) -> Self {
        Self {
            packer,
            idle_packer: None,
            networks: Vec::new(),
            cgroups: Vec::new(),
            being_read: BTreeMap::new(),
            retired: Vec::new(),
            cached: VecDeque::new(),
            limits: None,
            own_network: File::open("/proc/self/ns/net").ok().map(OwnedFd::from),
            cgroups_made: 0,
        }
    }

    /// A network of its own for one cell; none where we cannot make them.
    pub(super) fn take_network(&mut self) -> Option<OwnedFd> {
        self.networks.pop().or_else(|| self.make_network().ok())
    }

    /// Has something packed. Whoever waits for it sees the pipes close if nobody can.
    pub(super) fn pack_upper_dir(&mut self, request: &PackRequest, fds: &[OwnedFd]) {
        let spare = self.idle_packer.replace(None).flatten();
        if !spare.is_some_and(|spare| spare.pack(request, fds)) {
            let _ = self.packer.start(request, fds);
        }
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

    /// Takes the cgroup of a cell that has ended; false if it has one that cannot go yet.
    pub(super) fn reclaim_cgroup(&mut self, cell: CellId, held: &mut CellRecord) -> bool {
        let Some(mut cgroup) = held.cgroup.take() else { return true };
        // Killing has changed what it holds to.
        if held.kill_requested || !cgroup.is_renewable() {
            if cgroup.is_empty() && cgroup.page_cache_bytes() > 0 {
                self.retire_cgroup(cgroup);
                return true;
            }
            let is_removed = cgroup.remove();
            held.cgroup = (!is_removed).then_some(cgroup);
            return is_removed;
        }
        self.being_read.insert(cell, (held.limits, cgroup));
        if held.gauges_released {
            self.release_gauges(cell);
        } else if self.being_read.len() > MOST_CGROUPS
            && let Some((_, (_, cgroup))) = self.being_read.pop_first()
        {
            self.retire_cgroup(cgroup);
        }
        true
    }

    /// Lets go of a cgroup without members. Removed with page cache it would stay in the kernel for as
    /// long as that does. The next cells may read the same files, so some are kept as they are.
    fn retire_cgroup(&mut self, mut cgroup: Cgroup) {
        if cgroup.page_cache_bytes() == 0 {
            self.retired.push(cgroup);
            return;
        }
        cgroup.close_files();
        self.cached.push_back(cgroup);
        if self.cached.len() > 2 * MOST_CACHED {
            // It has not been quiet for long.
            self.drop_oldest_page_cache();
        }
    }

    /// Has the kernel let go of the oldest page cache, if there is too much; false if there is not.
    fn drop_oldest_page_cache(&mut self) -> bool {
        if self.cached.len() <= MOST_CACHED {
            return false;
        }
        let Some(cgroup) = self.cached.pop_front() else { return false };
        cgroup.drop_page_cache();
        self.retired.push(cgroup);
        true
    }

    /// Nobody reads the gauges of a cell that is gone: its cgroup can be used again.
    pub(super) fn release_gauges(&mut self, cell: CellId) {
        let Some((limits, cgroup)) = self.being_read.remove(&cell) else { return };
        if !cgroup.renew() {
            self.retire_cgroup(cgroup);
            return;
        }
        self.cgroups.push((limits, cgroup));
        if self.cgroups.len() > MOST_CGROUPS {
            // The one that was not used for the longest time.
            let unused = self.cgroups.remove(0).1;
            self.retire_cgroup(unused);
        }
    }

    /// Whether something waits to be removed.
    pub(super) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Removes what can go.
    pub(super) fn remove_retired(&mut self) {
        self.retired.retain_mut(|cgroup| !cgroup.remove());
    }

    /// Whether something is missing that could be made ahead.
    pub(super) fn needs_refill(&self, with_cgroups: bool) -> bool {
        // If nobody has asked for a cell yet, what will be asked for is not known.
        self.limits.is_some()
            && (self.cached.len() > MOST_CACHED
                || matches!(self.idle_packer, Some(None))
                || self.networks.len() < LEVEL
                || with_cgroups && self.missing_cgroup_limits().is_some())
    }

    /// The limits of a cgroup that should be made ahead.
    fn missing_cgroup_limits(&self) -> Option<CgroupLimits> {
        let limits = self.limits?;
        let there = self.cgroups.iter().filter(|(have, _)| *have == limits).count();
        (there < LEVEL).then_some(limits)
    }

    /// Makes one thing that is missing; false when nothing is.
    pub(super) fn refill_one(&mut self, all: Option<&CgroupHierarchy>) -> bool {
        if self.limits.is_none() {
            // Nobody has asked for a cell yet: what will be asked for is not known.
            return false;
        }
        if self.drop_oldest_page_cache() {
            return true;
        }
        if matches!(self.idle_packer, Some(None))
            && let Ok(spare) = self.packer.start_idle()
        {
            self.idle_packer = Some(Some(spare));
            return true;
        }
        if self.networks.len() < LEVEL
            && let Ok(network) = self.make_network()
        {
            self.networks.push(network);
            return true;
        }
        if let (Some(all), Some(limits)) = (all, self.missing_cgroup_limits())
            && let Ok(cgroup) = self.make_cgroup(all, limits)
        {
            self.cgroups.push((limits, cgroup));
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
        let read = std::mem::take(&mut self.being_read).into_values().map(|(_, cgroup)| cgroup);
        let cached = self.cached.drain(..);
        let until = Instant::now() + LAST_MOMENTS;
        for mut cgroup in idle.chain(read).chain(self.retired.drain(..)).chain(cached) {
            if Instant::now() < until && cgroup.page_cache_bytes() > 0 {
                cgroup.drop_page_cache();
            }
            // Nobody is in it, so it goes at once.
            cgroup.remove();
        }
    }
}
