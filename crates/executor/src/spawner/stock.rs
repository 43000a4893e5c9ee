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
    cgroup::{Cgroup, CgroupLimits, Hierarchy},
    sys,
};

use super::{
    held::Held,
    packer::{Packer, Spare},
    protocol::{CellId, PackRequest},
};

const NEW_NET: u64 = 0x4000_0000;
/// How many of each are made ahead.
const LEVEL: usize = 4;
/// How many cgroups are kept for the next cells, and how many whose gauges may still be read.
const MOST_CGROUPS: usize = 32;
/// How many cgroups of the past are kept for the page cache that is charged to them.
const MOST_CACHED: usize = 64;
/// How long page cache is given back when we end.
const LAST_MOMENTS: Duration = Duration::from_millis(200);

/// There for the next cells.
pub(super) struct Stock {
    networks: Vec<OwnedFd>,
    /// Nobody is in them. The last one is taken first.
    cgroups: Vec<(CgroupLimits, Cgroup)>,
    /// Of cells that are gone and whose gauges may still be read.
    read: BTreeMap<CellId, (CgroupLimits, Cgroup)>,
    /// Not to be used again, and not removed yet.
    leaving: Vec<Cgroup>,
    /// The same, with page cache, the oldest first.
    cached: VecDeque<Cgroup>,
    /// What the next cgroups will most likely be asked to hold to.
    limits: Option<CgroupLimits>,
    /// Our own network, to go back to.
    home: Option<OwnedFd>,
    made: u64,
    packer: Packer,
    /// None if it is in use; nothing was ever packed if there is not even that.
    spare: Option<Option<Spare>>,
}

impl Stock {
    pub(super) fn new(packer: Packer) -> Self {
        Self {
            packer,
            spare: None,
            networks: Vec::new(),
            cgroups: Vec::new(),
            read: BTreeMap::new(),
            leaving: Vec::new(),
            cached: VecDeque::new(),
            limits: None,
            home: File::open("/proc/self/ns/net").ok().map(OwnedFd::from),
            made: 0,
        }
    }

    /// A network of its own for one cell; none where we cannot make them.
    pub(super) fn network(&mut self) -> Option<OwnedFd> {
        self.networks.pop().or_else(|| self.make_network().ok())
    }

    /// Has something packed. Whoever waits for it sees the pipes close if nobody can.
    pub(super) fn pack(&mut self, request: &PackRequest, fds: &[OwnedFd]) {
        let spare = self.spare.replace(None).flatten();
        if !spare.is_some_and(|spare| spare.pack(request, fds)) {
            let _ = self.packer.start(request, fds);
        }
    }

    /// A cgroup with these limits.
    pub(super) fn cgroup(&mut self, all: &Hierarchy, limits: CgroupLimits) -> io::Result<Cgroup> {
        self.limits = Some(limits);
        match self.cgroups.iter().rposition(|(have, _)| *have == limits) {
            Some(at) => Ok(self.cgroups.remove(at).1),
            None => self.make_cgroup(all, limits),
        }
    }

    /// Takes the cgroup of a cell that has ended; false if it has one that cannot go yet.
    pub(super) fn take_back(&mut self, cell: CellId, held: &mut Held) -> bool {
        let Some(mut cgroup) = held.cgroup.take() else { return true };
        // Killing has changed what it holds to.
        if held.doomed || !cgroup.is_renewable() {
            if cgroup.is_empty() && cgroup.page_cache() > 0 {
                self.dismiss(cgroup);
                return true;
            }
            let is_removed = cgroup.remove();
            held.cgroup = (!is_removed).then_some(cgroup);
            return is_removed;
        }
        self.read.insert(cell, (held.limits, cgroup));
        if held.let_go {
            self.let_go(cell);
        } else if self.read.len() > MOST_CGROUPS
            && let Some((_, (_, cgroup))) = self.read.pop_first()
        {
            self.dismiss(cgroup);
        }
        true
    }

    /// Lets go of a cgroup without members. Removed with page cache it would stay in the kernel for as
    /// long as that does. The next cells may read the same files, so some are kept as they are.
    fn dismiss(&mut self, mut cgroup: Cgroup) {
        if cgroup.page_cache() == 0 {
            self.leaving.push(cgroup);
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
        self.leaving.push(cgroup);
        true
    }

    /// Nobody reads the gauges of a cell that is gone: its cgroup can be used again.
    pub(super) fn let_go(&mut self, cell: CellId) {
        let Some((limits, cgroup)) = self.read.remove(&cell) else { return };
        if !cgroup.renew() {
            self.dismiss(cgroup);
            return;
        }
        self.cgroups.push((limits, cgroup));
        if self.cgroups.len() > MOST_CGROUPS {
            // The one that was not used for the longest time.
            let unused = self.cgroups.remove(0).1;
            self.dismiss(unused);
        }
    }

    /// Whether something waits to be removed.
    pub(super) fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Removes what can go.
    pub(super) fn remove_leaving(&mut self) {
        self.leaving.retain_mut(|cgroup| !cgroup.remove());
    }

    /// Whether something is missing that could be made ahead.
    pub(super) fn is_short(&self, with_cgroups: bool) -> bool {
        // If nobody has asked for a cell yet, what will be asked for is not known.
        self.limits.is_some()
            && (self.cached.len() > MOST_CACHED
                || matches!(self.spare, Some(None))
                || self.networks.len() < LEVEL
                || with_cgroups && self.wants_cgroup().is_some())
    }

    /// The limits of a cgroup that should be made ahead.
    fn wants_cgroup(&self) -> Option<CgroupLimits> {
        let limits = self.limits?;
        let there = self.cgroups.iter().filter(|(have, _)| *have == limits).count();
        (there < LEVEL).then_some(limits)
    }

    /// Makes one thing that is missing; false when nothing is.
    pub(super) fn fill(&mut self, all: Option<&Hierarchy>) -> bool {
        if self.limits.is_none() {
            // Nobody has asked for a cell yet: what will be asked for is not known.
            return false;
        }
        if self.drop_oldest_page_cache() {
            return true;
        }
        if matches!(self.spare, Some(None))
            && let Ok(spare) = self.packer.start_ahead()
        {
            self.spare = Some(Some(spare));
            return true;
        }
        if self.networks.len() < LEVEL
            && let Ok(network) = self.make_network()
        {
            self.networks.push(network);
            return true;
        }
        if let (Some(all), Some(limits)) = (all, self.wants_cgroup())
            && let Ok(cgroup) = self.make_cgroup(all, limits)
        {
            self.cgroups.push((limits, cgroup));
            return true;
        }
        false
    }

    fn make_cgroup(&mut self, all: &Hierarchy, limits: CgroupLimits) -> io::Result<Cgroup> {
        self.made += 1;
        Cgroup::create(all, &format!("cell{}", self.made), limits)
    }

    fn make_network(&self) -> io::Result<OwnedFd> {
        let os = |errno: sys::Errno| io::Error::from_raw_os_error(errno.0);
        let home = self.home.as_ref().ok_or(io::ErrorKind::NotFound)?;
        sys::unshare(NEW_NET).map_err(os)?;
        let made = sys::loopback_up().map_err(os).and_then(|()| File::open("/proc/self/ns/net"));
        sys::setns(home.as_raw_fd(), NEW_NET).map_err(os)?;
        made.map(OwnedFd::from)
    }
}

impl Drop for Stock {
    fn drop(&mut self) {
        let idle = self.cgroups.drain(..).map(|(_, cgroup)| cgroup);
        let read = std::mem::take(&mut self.read).into_values().map(|(_, cgroup)| cgroup);
        let cached = self.cached.drain(..);
        let until = Instant::now() + LAST_MOMENTS;
        for mut cgroup in idle.chain(read).chain(self.leaving.drain(..)).chain(cached) {
            if Instant::now() < until && cgroup.page_cache() > 0 {
                cgroup.drop_page_cache();
            }
            // Nobody is in it, so it goes at once.
            cgroup.remove();
        }
    }
}
