//! Runs in: spawner (root). All cells of this spawner: starts them, lets templates fork them, kills
//! them, and cleans up after them.
//!
//! It sends nothing to the server: what it returns, the event loop reports.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    time::Instant,
};

use cloche_jail::{
    cgroup::{Cgroup, CgroupEntry, CgroupGauges, CgroupLimits},
    launch::{LaunchKind, LaunchRequest, launch_cell},
    sys,
};
use cloche_model::Substrate;
use rustix::{
    event::Timespec,
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
};

use super::{
    cell_mount_servers::CellMountServers,
    cell_networks::CellNetworks,
    cell_record::{CellRecord, CellState},
    home_target::{HomeMountPoint, HomeTarget},
    host_ids::GUEST_IDS,
    lock_watch::LockWatch,
    network_worker::NetworkAttacher,
    plan_cache::{CellPlanKind, PlanCache},
    poller::{EpollSet, WakeEvents, WakeSource},
    prepared::PreparedResources,
    process_watch::CellWatch,
    scratch_dir::PendingRemovals,
    storage_mounter::StorageMounter,
    template_connection::{self, ForkAnswer, TemplateConnection},
};
use crate::protocol::{CellConfig, CellId, CellUsage, ProtocolError, SpawnKind};

/// How soon the registry looks again whether the cgroup of an ended cell can be removed.
const SOON: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// The cells of this spawner, and what they are made from.
pub(super) struct CellRegistry<'a> {
    pub(super) cells: BTreeMap<CellId, CellRecord>,
    /// The sockets on which templates are asked for forks.
    templates: BTreeMap<CellId, TemplateConnection>,
    pub(super) plans: PlanCache<'a>,
    pub(super) prepared: PreparedResources,
    pub(super) poller: EpollSet,
    removals: PendingRemovals,
    pub(super) networks: CellNetworks,
    pub(super) storage: CellMountServers,
}

/// A cell whose start has succeeded or failed.
pub(super) type StartedCell = (CellId, io::Result<()>);

impl<'a> CellRegistry<'a> {
    pub(super) fn new(
        mut plans: PlanCache<'a>,
        prepared: PreparedResources,
        poller: EpollSet,
    ) -> Self {
        let ids = plans.host.privileged.then_some(plans.host.ids);
        let networks = CellNetworks::new(NetworkAttacher::new(ids, plans.host.tun_node.take()));
        let storage =
            CellMountServers::new(StorageMounter::new(ids, plans.host.mount_devices.take()));
        let (cells, templates) = (BTreeMap::new(), BTreeMap::new());
        let removals = PendingRemovals::default();
        Self { cells, templates, plans, prepared, poller, removals, networks, storage }
    }

    /// Waits for events, at most this long; shorter while ended cells are not cleaned up.
    pub(super) fn wait_for_events(&mut self, most: Option<&Timespec>) -> io::Result<WakeEvents> {
        let is_ended = |record: &CellRecord| matches!(record.state, CellState::Ended);
        let has_ended = self.cells.values().any(is_ended) || self.prepared.has_retired();
        let look = self.time_to_next_look();
        let (overdue, late) = (self.networks.time_to_next_kill(), self.storage.time_to_next_kill());
        let earlier = |one: Timespec, other: Timespec| {
            if (one.tv_sec, one.tv_nsec) < (other.tv_sec, other.tv_nsec) { one } else { other }
        };
        let removes = (!self.removals.is_empty()).then(Timespec::default);
        let times = [most.copied(), has_ended.then_some(SOON), look, overdue, late, removes];
        self.poller.wait(times.into_iter().flatten().reduce(earlier).as_ref())
    }

    /// Clones a cell or a template. `fds` are its stdin, stdout, stderr, job and control.
    pub(super) fn spawn_cell(
        &mut self,
        cell: CellId,
        config: &CellConfig,
        kind: SpawnKind,
        fds: &[OwnedFd],
    ) -> io::Result<()> {
        let Ok(fds) = <&[OwnedFd; 5]>::try_from(fds) else {
            return Err(io::Error::other("a cell needs five file descriptors"));
        };
        if let Substrate::Oci(runtime) = config.substrate {
            return self.spawn_driven_cell(cell, config, (runtime, kind), fds);
        }
        let [stdin, stdout, stderr, job, control] = fds;
        if kind == SpawnKind::Template && template_connection::is_suid_dumpable() {
            return Err(io::Error::other("no template can start while fs.suid_dumpable is 1"));
        }
        let plan_kind = match kind {
            SpawnKind::Cell | SpawnKind::Trial | SpawnKind::Gated => CellPlanKind::Cell,
            SpawnKind::Template => CellPlanKind::Template,
        };
        let at = self.plans.find_or_build(config, plan_kind)?;
        let limits = self.plans.get(at).plan.cgroup;
        // A template runs no guest code, and its cells are watched for themselves.
        let watch = match kind {
            SpawnKind::Cell | SpawnKind::Trial | SpawnKind::Gated => self.plans.watch_cell(config),
            SpawnKind::Template => None,
        };
        self.register_cell(cell, limits, watch, HomeMountPoint::InCell)?;
        let fork = match kind {
            SpawnKind::Cell | SpawnKind::Trial | SpawnKind::Gated => None,
            SpawnKind::Template => Some(fork_socket_pair()?),
        };
        let network =
            if self.plans.get(at).wants_network { self.prepared.take_network() } else { None };
        let record = &self.cells[&cell];
        let prepared = self.plans.get(at);
        let launched = launch_cell(&LaunchRequest {
            namespaces: prepared.plan.namespaces,
            program: prepared.encoded_steps(network.is_some()),
            network: network.as_ref().map(AsFd::as_fd),
            identity: self.plans.cell_identity(plan_kind, record.slot),
            guest: prepared.plan.guest,
            cgroup: record.cgroup.as_ref().map_or_else(CgroupEntry::default, Cgroup::entry),
            stdio: [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()],
            job: job.as_fd(),
            control: control.as_fd(),
            fork: fork.as_ref().map(|(_, theirs)| theirs.as_fd()),
            kind: match kind {
                SpawnKind::Gated => LaunchKind::Gated,
                _ => LaunchKind::Cold,
            },
        })?;
        // A template has the netns of its cells to itself.
        let is_reusable = kind != SpawnKind::Template && !prepared.plan.network;
        if let Some(record) = self.cells.get_mut(&cell) {
            record.network = network.filter(|_| is_reusable);
            record.cgroup.as_mut().into_iter().for_each(Cgroup::close_entry);
        }
        if let Some((ours, _)) = fork {
            self.poller.add(WakeSource::Template(cell), &ours)?;
            self.templates.insert(cell, TemplateConnection::new(ours));
        }
        self.mark_running(cell, launched.pidfd)
    }

    /// Looks at the processes of cells whose limits no cgroup keeps, and kills those beyond.
    pub(super) fn enforce_limits(&mut self) {
        let now = Instant::now();
        for record in self.cells.values_mut() {
            let Some(watch) = record.watch.as_mut() else { continue };
            if matches!(record.state, CellState::Running(_)) && watch.exceeds_limits(now) {
                record.kill();
            }
        }
    }

    /// How long until the processes of a cell are to be looked at.
    fn time_to_next_look(&self) -> Option<Timespec> {
        let is_running = |record: &&CellRecord| matches!(record.state, CellState::Running(_));
        let running = self.cells.values().filter(is_running);
        let due = running.filter_map(|record| record.watch.as_ref()?.due()).min()?;
        let left = due.saturating_duration_since(Instant::now());
        Some(Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() })
    }

    /// Asks a template to fork a cell. The answer comes later, see [`Self::read_template`].
    pub(super) fn request_fork(
        &mut self,
        cell: CellId,
        config: &CellConfig,
        template: CellId,
        fds: &[OwnedFd],
    ) -> io::Result<()> {
        let at = self.plans.find_or_build(config, CellPlanKind::Forked)?;
        let limits = self.plans.get(at).plan.cgroup;
        let watch = self.plans.watch_cell(config);
        self.register_cell(cell, limits, watch, HomeMountPoint::InCell)?;
        let record = &self.cells[&cell];
        let template = self.templates.get_mut(&template);
        let template = template.ok_or_else(|| io::Error::other("the template is gone"))?;
        let cgroup_fds = record.cgroup.as_ref().map(Cgroup::entry_fds).unwrap_or_default();
        let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).chain(cgroup_fds).collect();
        let ids = self.plans.ids_in_template(record.slot);
        template.request_fork(cell, ids, self.plans.get(at).encoded_steps(false), &fds)?;
        // The template has copies.
        let record = self.cells.get_mut(&cell);
        record.and_then(|record| record.cgroup.as_mut()).into_iter().for_each(Cgroup::close_entry);
        Ok(())
    }

    /// Reads the answer of a template. If the template has ended, every fork that it owed failed.
    pub(super) fn read_template(&mut self, template: CellId) -> Vec<StartedCell> {
        let Some(connection) = self.templates.get_mut(&template) else { return Vec::new() };
        match connection.read_answer() {
            ForkAnswer::Forked(cell, pidfd) => vec![(cell, self.mark_running(cell, pidfd))],
            ForkAnswer::Failed(cell, error) => {
                let error = io::Error::other(format!("the template could not fork: {error}"));
                vec![(cell, Err(error))]
            }
            ForkAnswer::TemplateEnded(lost) => {
                if let Some(connection) = self.templates.remove(&template) {
                    self.poller.remove(connection.socket.as_fd());
                }
                let died = |cell| (cell, Err(io::Error::other("the template died")));
                lost.into_iter().map(died).collect()
            }
        }
    }

    /// Records a new cell: gives it a host id and a cgroup.
    pub(super) fn register_cell(
        &mut self,
        cell: CellId,
        limits: CgroupLimits,
        watch: Option<CellWatch>,
        home: HomeMountPoint,
    ) -> io::Result<()> {
        let slot = self.find_free_slot();
        let hierarchy = self.plans.host.cgroups.as_ref();
        let cgroup =
            hierarchy.map(|hierarchy| self.prepared.take_cgroup(hierarchy, limits)).transpose()?;
        self.cells.entry(cell).or_insert(CellRecord {
            slot,
            state: CellState::Pending,
            home,
            kill_requested: false,
            cgroup,
            limits,
            exceeded_kernel_memory: false,
            watch,
            directory: None,
            network: None,
            mount_server: None,
            gauges_released: false,
            used: CellUsage::default(),
        });
        Ok(())
    }

    /// The lowest host id that no cell has. The fewer are in use, the fewer views of layers exist.
    fn find_free_slot(&self) -> u32 {
        let taken: BTreeSet<u32> = self.cells.values().map(|record| record.slot).collect();
        (0..GUEST_IDS).find(|slot| !taken.contains(slot)).unwrap_or(0)
    }

    /// Records pid 1 of a cell, and watches for its end.
    pub(super) fn mark_running(&mut self, cell: CellId, pidfd: OwnedFd) -> io::Result<()> {
        let Some(record) = self.cells.get_mut(&cell) else { return Ok(()) };
        if let Err(error) = self.poller.add(WakeSource::Cell(cell), &pidfd) {
            // Its end would go unnoticed, so it ends now.
            let _ = sys::pidfd_kill(pidfd.as_raw_fd(), 9);
            return Err(error);
        }
        if let Some(watch) = &mut record.watch {
            watch.begin(pidfd.as_fd());
        }
        record.state = CellState::Running(pidfd);
        if record.kill_requested {
            record.kill();
        }
        Ok(())
    }

    /// A running cell, for its home.
    pub(super) fn running_cell(&self, cell: CellId) -> Option<HomeTarget<'_>> {
        let record = self.cells.get(&cell)?;
        Some(HomeTarget { slot: record.slot, cell: record.state.pidfd()?, place: record.home })
    }

    /// The gauges of a cell, if it has a cgroup.
    pub(super) fn gauges(&self, cell: CellId) -> Option<&CgroupGauges> {
        Some(self.cells.get(&cell)?.cgroup.as_ref()?.gauges())
    }

    /// Kills every process of a cell.
    pub(super) fn kill_cell(&mut self, cell: CellId) {
        if let Some(record) = self.cells.get_mut(&cell) {
            record.kill();
        }
    }

    /// The start of a cell failed. What exists of it is cleaned up with the next ended cells.
    pub(super) fn mark_failed(&mut self, cell: CellId) {
        if let Some(record) = self.cells.get_mut(&cell) {
            record.state = CellState::Ended;
        }
    }

    /// The server does not read the gauges of this cell any more.
    pub(super) fn release_gauges(&mut self, cell: CellId) {
        match self.cells.get_mut(&cell) {
            Some(record) => record.gauges_released = true,
            None => self.prepared.release_gauges(cell),
        }
    }

    /// Reaps the cells whose pid 1 has ended, and cleans up. Returns the cells that are gone now,
    /// with their usage.
    pub(super) fn reap_cells(&mut self, ended: &[CellId]) -> Vec<(CellId, CellUsage)> {
        for cell in ended {
            if let Some(record) = self.cells.get_mut(cell) {
                if let Some(pidfd) = record.state.pidfd() {
                    self.poller.remove(pidfd);
                }
                if let Some(network) = record.take_clean_network() {
                    self.prepared.keep_network(network);
                }
                record.state = CellState::Ended;
                self.networks.note_cell_end(*cell);
                self.storage.note_cell_end(*cell);
                let used = record.cgroup.as_ref().and_then(Cgroup::read_usage);
                record.used = used.map(CellUsage::from).unwrap_or_default();
                record.used.oom_kills += u64::from(record.exceeded_kernel_memory);
                if let Some(watch) = &record.watch {
                    watch.add_usage(&mut record.used);
                }
            }
        }
        while let Ok(true) = sys::reap_child() {}
        let mut gone = Vec::new();
        for (cell, record) in &mut self.cells {
            let has_ended = matches!(record.state, CellState::Ended);
            if has_ended && self.prepared.reclaim_cgroup(*cell, record) {
                if let Some(directory) = record.directory.take() {
                    self.removals.push(directory);
                }
                gone.push((*cell, record.used));
            }
        }
        self.prepared.remove_retired();
        self.removals.continue_removal();
        for (cell, _) in &gone {
            self.cells.remove(cell);
        }
        gone
    }

    /// Kills every cell, and forgets the templates.
    pub(super) fn kill_all(&mut self) {
        self.templates.clear();
        self.networks.kill_all();
        self.storage.kill_all();
        for record in self.cells.values_mut() {
            record.kill();
            // A fork that was not answered dies with its template, and no event will say so.
            if matches!(record.state, CellState::Pending) {
                record.state = CellState::Ended;
            }
        }
    }

    /// Kills the cells that the lock watcher has reported.
    pub(super) fn kill_lock_holders(&mut self, watch: &LockWatch) -> Result<(), ProtocolError> {
        watch.kill_reported(&mut self.cells)
    }

    /// Whether a cell exists.
    pub(super) fn has_cells(&self) -> bool {
        !self.cells.is_empty()
    }

    /// Whether no cell and no used cgroup is left.
    pub(super) fn is_empty(&self) -> bool {
        let has_workers = !self.networks.is_empty() || !self.storage.is_empty();
        self.cells.is_empty() && !has_workers && !self.prepared.has_retired()
    }

    /// Removes the prepared resources, then the cgroup of the spawner.
    pub(super) fn release_cgroups(self) {
        drop(self.prepared);
        if let Some(contained) = &self.plans.host.contained {
            contained.remove_scratch();
        }
        if let Some(cgroups) = &self.plans.host.cgroups {
            cgroups.release();
        }
    }
}

/// The socket on which a template is asked for forks.
fn fork_socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}
