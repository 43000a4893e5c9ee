//! Runs in: spawner (root). Starts the driver of a cell that an OCI runtime builds.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
};

use cloche_jail::{
    cgroup::{Cgroup, CgroupEntry},
    sys::{self, CloneRequest, CloneSide},
};
use cloche_model::OciRuntime;

use super::{
    cell_registry::CellRegistry, home_target::HomeMountPoint, io_error, plan_cache::CellPlanKind,
};
use crate::{
    driver::{self, DriverFds, DriverSetup},
    protocol::{CellConfig, CellId, SpawnKind},
};

/// The first number of the descriptors that a driver moves to lower numbers.
const FIRST_COPY: RawFd = 16;

impl CellRegistry<'_> {
    /// Starts the driver of a cell that an OCI runtime builds.
    pub(super) fn spawn_driven_cell(
        &mut self,
        cell: CellId,
        config: &CellConfig,
        (runtime, kind): (OciRuntime, SpawnKind),
        fds: &[OwnedFd; 5],
    ) -> io::Result<()> {
        if matches!(kind, SpawnKind::Template | SpawnKind::Gated) {
            return Err(io::Error::other("an OCI runtime has no templates and no gates"));
        }
        let limits = self.plans.cgroup_limits(config, CellPlanKind::Cell);
        let watch = self.plans.watch_cell(config);
        self.register_cell(cell, limits, watch, HomeMountPoint::OnStage)?;
        let network = self.prepared.take_network();
        let record = &self.cells[&cell];
        let mut setup = self.plans.driver_setup(config, runtime, record.slot)?;
        setup.checks_version = kind == SpawnKind::Trial;
        let cgroup = record.cgroup.as_ref().map_or_else(CgroupEntry::default, Cgroup::entry);
        let pidfd = start_driver(&setup, &cgroup, network, fds)?;
        self.mark_running(cell, pidfd)
    }
}

/// Starts a driver. `fds` are the cell's stdin, stdout, stderr, job and control. Returns its pidfd.
fn start_driver(
    setup: &DriverSetup,
    cgroup: &CgroupEntry,
    network: Option<OwnedFd>,
    fds: &[OwnedFd; 5],
) -> io::Result<OwnedFd> {
    let copy = |fd: RawFd| sys::dup_above(fd, FIRST_COPY).map(sys::into_owned_fd).map_err(io_error);
    let [stdin, stdout, stderr, job, control] = fds.each_ref().map(|fd| copy(fd.as_raw_fd()));
    let own_network = if network.is_some() { 0 } else { sys::CLONE_NEWNET };
    let network = network.map(|network| copy(network.as_raw_fd())).transpose()?;
    let cgroups = cgroup.tasks.iter().map(|fd| copy(*fd)).collect::<io::Result<_>>()?;
    let fds = DriverFds { cell: [stdin?, stdout?, stderr?, job?, control?], cgroups, network };
    let namespaces = sys::CLONE_NEWPID | sys::CLONE_NEWNS | own_network;
    let request = CloneRequest { namespaces, cgroup: cgroup.start_in };
    match sys::clone(request).map_err(io_error)? {
        CloneSide::Child => driver::run_driver(setup, &fds),
        CloneSide::Parent(_, pidfd) => Ok(sys::into_owned_fd(pidfd)),
    }
}
