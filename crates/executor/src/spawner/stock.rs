//! What a cell needs and can be made before anyone asks: a cgroup, and a network with its loopback
//! up. Each is used once. Making them takes longer than the rest of a cold start together.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use cloche_jail::{
    cgroup::{Cgroup, CgroupLimits, Hierarchy},
    sys,
};

const NEW_NET: u64 = 0x4000_0000;
/// How many of each are kept.
const LEVEL: usize = 4;

/// Made ahead, for the next cells.
pub(super) struct Stock {
    networks: Vec<OwnedFd>,
    cgroups: Vec<Cgroup>,
    /// What the next cgroups will most likely be asked to hold to.
    limits: Option<CgroupLimits>,
    /// Our own network, to go back to.
    home: Option<OwnedFd>,
    made: u64,
}

impl Stock {
    pub(super) fn new() -> Self {
        let home = File::open("/proc/self/ns/net").ok().map(OwnedFd::from);
        Self { networks: Vec::new(), cgroups: Vec::new(), limits: None, home, made: 0 }
    }

    /// A network of its own for one cell; none where we cannot make them.
    pub(super) fn network(&mut self) -> Option<OwnedFd> {
        self.networks.pop().or_else(|| self.make_network().ok())
    }

    /// A cgroup with these limits.
    pub(super) fn cgroup(&mut self, all: &Hierarchy, limits: CgroupLimits) -> io::Result<Cgroup> {
        if self.limits == Some(limits)
            && let Some(cgroup) = self.cgroups.pop()
        {
            return Ok(cgroup);
        }
        self.clear_cgroups();
        self.limits = Some(limits);
        self.make_cgroup(all, limits)
    }

    /// Whether something is missing that could be made ahead.
    pub(super) fn is_short(&self, with_cgroups: bool) -> bool {
        // If nobody has asked for a cell yet, what will be asked for is not known.
        self.limits.is_some()
            && (self.networks.len() < LEVEL || with_cgroups && self.cgroups.len() < LEVEL)
    }

    /// Makes one thing that is missing; false when nothing is.
    pub(super) fn fill(&mut self, all: Option<&Hierarchy>) -> bool {
        if self.limits.is_none() {
            // Nobody has asked for a cell yet: what will be asked for is not known.
            return false;
        }
        if self.networks.len() < LEVEL
            && let Ok(network) = self.make_network()
        {
            self.networks.push(network);
            return true;
        }
        if let (Some(all), Some(limits)) = (all, self.limits)
            && self.cgroups.len() < LEVEL
            && let Ok(cgroup) = self.make_cgroup(all, limits)
        {
            self.cgroups.push(cgroup);
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

    fn clear_cgroups(&mut self) {
        for mut cgroup in self.cgroups.drain(..) {
            // Nobody was ever in it, so it goes at once.
            cgroup.remove();
        }
    }
}

impl Drop for Stock {
    fn drop(&mut self) {
        self.clear_cgroups();
    }
}
