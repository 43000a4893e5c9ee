//! The spawner's loop: reads requests, starts and kills cells, notices ends, cleans up.
//!
//! Single-threaded and blocking only where it waits to be woken. It never reads what a guest wrote and
//! never holds a program.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    thread,
    time::Duration,
};

use cloche_jail::{
    cgroup::{Cgroup, CgroupEntry, CgroupLimits},
    launch::{LaunchRequest, launch_cell},
    plan::CellPlan,
    sys,
};
use rustix::{
    event::Timespec,
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
};

use super::{
    cell_record::{CellRecord, CellState},
    home_mounter::{HomeMountOutcome, HomeMounter},
    host_ids::GUEST_IDS,
    host_setup,
    lock_watch::LockWatch,
    packer::PackerProcess,
    plan_cache::{CellPlanKind, PlanCache},
    poller::{EpollSet, WakeEvents, WakeSource},
    prepared::PreparedResources,
    protocol::{
        self, CellConfig, CellId, CellUsage, HomeRequest, PacketBuffer, ProtocolError,
        RequestPacket, SpawnKind, SpawnerEvent, SpawnerRequest,
    },
    template_connection::TemplateConnection,
};

/// How long the dead may take before we look again whether their cgroups can go.
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
const SOON: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
/// How long nothing must happen before something is made ahead.
const QUIET: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// Serves one executor until it closes the socket; the exit code of the process.
pub(super) fn run_event_loop(
    socket: &OwnedFd,
    layers: Option<&OwnedFd>,
    change: &dyn Fn(CellPlan) -> CellPlan,
) -> i32 {
    let ground = match host_setup::prepare_host(layers) {
        Ok(ground) => ground,
        Err(error) => {
            let reason = format!("cannot prepare the ground for cells: {error}");
            let missing = vec![("ground".to_owned(), reason)];
            let _ = protocol::send_packet(
                socket.as_fd(),
                &SpawnerEvent::Hello { walls_missing: missing },
                &[],
            );
            return 0;
        }
    };
    // A request that waits for a time slice behind guests is answered late. Refused to an
    // ordinary user, who is served all the same.
    let _ = sys::set_realtime_priority();
    let bells =
        EpollSet::new().and_then(|bells| bells.add(WakeSource::Executor, socket).map(|()| bells));
    let Ok(bells) = bells else { return 1 };
    let lock_watch = LockWatch::start(ground.privileged)
        .and_then(|watch| bells.add(WakeSource::LockWatch, &watch).map(|()| watch));
    let Ok(lock_watch) = lock_watch else { return 1 };
    let packer =
        PackerProcess { privileged: ground.privileged, first_guest: ground.ids.guest_id(0) };
    let mut worker = EventLoop {
        socket: socket.as_fd(),
        cells: BTreeMap::new(),
        templates: BTreeMap::new(),
        homes: HomeMounter::new(ground.privileged.then_some(ground.ids)),
        plans: PlanCache::new(ground, change),
        prepared: PreparedResources::new(packer),
        poller: bells,
        lock_watch,
    };
    let code = match worker.serve() {
        // Closed is also how a send notices that the executor has ended: no reason to start again.
        Ok(()) | Err(ProtocolError::Closed) => 0,
        Err(_) => 1,
    };
    worker.shut_down();
    code
}

struct EventLoop<'a> {
    socket: BorrowedFd<'a>,
    cells: BTreeMap<CellId, CellRecord>,
    /// The sockets on which templates are asked for forks.
    templates: BTreeMap<CellId, TemplateConnection>,
    homes: HomeMounter,
    plans: PlanCache<'a>,
    prepared: PreparedResources,
    poller: EpollSet,
    lock_watch: LockWatch,
}

impl EventLoop<'_> {
    fn serve(&mut self) -> Result<(), ProtocolError> {
        let missing = self.plans.host.missing.clone();
        protocol::send_packet(self.socket, &SpawnerEvent::Hello { walls_missing: missing }, &[])?;
        let mut inbox = PacketBuffer::new();
        loop {
            // What is made ahead is made when nobody has asked for a while: a cell that was just
            // started has more use for the time.
            let is_short = self.prepared.needs_refill(self.plans.host.cgroups.is_some());
            let mut woken = self.wait_for_events(is_short.then_some(&QUIET))?;
            if is_short && woken.is_empty() {
                if self.prepared.refill_one(self.plans.host.cgroups.as_ref()) {
                    continue;
                }
                woken = self.wait_for_events(None)?;
            }
            for template in woken.answered {
                self.handle_template_answer(template)?;
            }
            // Whoever asks waits; what has ended does not.
            if woken.request {
                match inbox.receive::<RequestPacket>(self.socket) {
                    Ok((RequestPacket { request, let_go }, fds)) => {
                        let_go.into_iter().for_each(|cell| self.release_gauges(cell));
                        self.handle_request(request, &fds)?;
                    }
                    Err(ProtocolError::Closed) => return Ok(()),
                    Err(ProtocolError::WouldBlock | ProtocolError::Malformed(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            if woken.lock_report {
                self.lock_watch.kill_reported(&mut self.cells)?;
            }
            self.reap_cells(&woken.ended)?;
            self.lock_watch.set_active(!self.cells.is_empty())?;
        }
    }

    /// Sleeps until something is to be done, at most this long; not for long while some are dying.
    fn wait_for_events(&mut self, most: Option<&Timespec>) -> Result<WakeEvents, ProtocolError> {
        let dying = self.cells.values().any(|held| matches!(held.state, CellState::Ended));
        let dying = dying || self.prepared.has_retired();
        let woken = self.poller.wait(most.or(dying.then_some(&SOON)));
        woken.map_err(|error| ProtocolError::System(error.raw_os_error().unwrap_or(0)))
    }

    fn handle_request(
        &mut self,
        request: SpawnerRequest,
        fds: &[OwnedFd],
    ) -> Result<(), ProtocolError> {
        let (cell, started) = match request {
            SpawnerRequest::Spawn { cell, config, kind } => {
                (cell, self.spawn_cell(cell, config, kind, fds))
            }
            SpawnerRequest::Fork { cell, config, template } => {
                match self.fork_cell(cell, config, template, fds) {
                    // The template will say when it is done.
                    Ok(()) => return Ok(()),
                    Err(error) => (cell, Err(error)),
                }
            }
            SpawnerRequest::Kill { cell } => {
                if let Some(held) = self.cells.get_mut(&cell) {
                    held.kill();
                }
                return Ok(());
            }
            SpawnerRequest::Home { cell, home } => return self.mount_home(cell, &home),
            SpawnerRequest::Pack { request } => {
                self.prepared.pack_upper_dir(&request, fds);
                return Ok(());
            }
        };
        match started {
            Ok(()) => self.send_spawned(cell),
            Err(error) => self.refuse_cell(cell, error.to_string()),
        }
    }

    /// Mounts a home in a cell that waits for its job.
    fn mount_home(&mut self, cell: CellId, home: &HomeRequest) -> Result<(), ProtocolError> {
        let held = self.cells.get(&cell).and_then(|held| Some((held.slot, held.state.pidfd()?)));
        let mounted = match held {
            Some((slot, pidfd)) => self.homes.mount(slot, pidfd, home),
            None => Err(io::Error::other("the cell is gone")),
        };
        match mounted {
            Ok(HomeMountOutcome::Mounted(upper, merged)) => {
                let fds: Vec<_> = [Some(&upper), merged.as_ref()].into_iter().flatten().collect();
                let fds: Vec<_> = fds.into_iter().map(AsFd::as_fd).collect();
                protocol::send_packet(self.socket, &SpawnerEvent::Housed { cell }, &fds)
            }
            Ok(HomeMountOutcome::Blocked(name)) => {
                protocol::send_packet(self.socket, &SpawnerEvent::Blocked { cell, name }, &[])
            }
            Err(error) => {
                let reason = error.to_string();
                protocol::send_packet(self.socket, &SpawnerEvent::Homeless { cell, reason }, &[])
            }
        }
    }

    fn send_spawned(&self, cell: CellId) -> Result<(), ProtocolError> {
        let gauges = self.cells.get(&cell).and_then(|held| Some(held.cgroup.as_ref()?.gauges()));
        let files = gauges.map_or([None; 4], |g| {
            [g.oom.as_ref(), g.cpu.as_ref(), g.peak.as_ref(), g.idle.as_ref()]
        });
        let event = SpawnerEvent::Spawned { cell, gauges: files.map(|file| file.is_some()) };
        let files: Vec<_> = files.iter().flatten().map(|file| file.as_fd()).collect();
        protocol::send_packet(self.socket, &event, &files)
    }

    /// Says no, and leaves whatever there is of the cell to be cleaned up.
    fn refuse_cell(&mut self, cell: CellId, reason: String) -> Result<(), ProtocolError> {
        if let Some(held) = self.cells.get_mut(&cell) {
            held.state = CellState::Ended;
        }
        protocol::send_packet(self.socket, &SpawnerEvent::Refused { cell, reason }, &[])
    }

    /// Takes a cell into the books: a host id of its own and a cgroup.
    fn register_cell(&mut self, cell: CellId, limits: CgroupLimits) -> io::Result<&mut CellRecord> {
        let slot = self.find_free_slot();
        let all = self.plans.host.cgroups.as_ref();
        let cgroup = all.map(|all| self.prepared.take_cgroup(all, limits)).transpose()?;
        let (life, used) = (CellState::Pending, CellUsage::default());
        let held = CellRecord {
            slot,
            state: life,
            kill_requested: false,
            cgroup,
            limits,
            exceeded_kernel_memory: false,
            gauges_released: false,
            used,
        };
        Ok(self.cells.entry(cell).or_insert(held))
    }

    fn spawn_cell(
        &mut self,
        cell: CellId,
        config: CellConfig,
        kind: SpawnKind,
        fds: &[OwnedFd],
    ) -> io::Result<()> {
        let [stdin, stdout, stderr, job, control] = fds else {
            return Err(io::Error::other("a cell needs five descriptors"));
        };
        if kind == SpawnKind::Template && host_setup::is_suid_dumpable() {
            return Err(io::Error::other("no templates where fs.suid_dumpable is 1"));
        }
        let shape =
            if kind == SpawnKind::Template { CellPlanKind::Template } else { CellPlanKind::Cell };
        let at = self.plans.find_or_build(&config, shape)?;
        let limits = self.plans.get(at).plan.cgroup;
        self.register_cell(cell, limits)?;
        let fork = (kind == SpawnKind::Template)
            .then(|| {
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            })
            .transpose()?;
        let network =
            if self.plans.get(at).wants_network { self.prepared.take_network() } else { None };
        let held = &self.cells[&cell];
        let prepared = self.plans.get(at);
        let launched = launch_cell(&LaunchRequest {
            namespaces: prepared.plan.namespaces,
            program: prepared.encoded_steps(network.is_some()),
            network: network.as_ref().map(AsFd::as_fd),
            identity: self.plans.cell_identity(shape, held.slot),
            guest: prepared.plan.guest,
            cgroup: held.cgroup.as_ref().map_or_else(CgroupEntry::default, Cgroup::entry),
            stdio: [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()],
            job: job.as_fd(),
            control: control.as_fd(),
            fork: fork.as_ref().map(|(_, theirs)| theirs.as_fd()),
        })?;
        if let Some((ours, _)) = fork {
            self.poller.add(WakeSource::Template(cell), &ours)?;
            self.templates.insert(cell, TemplateConnection::new(ours));
        }
        self.mark_running(cell, launched.pidfd)
    }

    fn fork_cell(
        &mut self,
        cell: CellId,
        config: CellConfig,
        template: CellId,
        fds: &[OwnedFd],
    ) -> io::Result<()> {
        let at = self.plans.find_or_build(&config, CellPlanKind::Forked)?;
        let limits = self.plans.get(at).plan.cgroup;
        self.register_cell(cell, limits)?;
        let held = &self.cells[&cell];
        let template = self.templates.get_mut(&template);
        let template = template.ok_or_else(|| io::Error::other("the template is gone"))?;
        let doors = held.cgroup.as_ref().map(Cgroup::entry_fds).unwrap_or_default();
        let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).chain(doors).collect();
        let ids = self.plans.ids_in_template(held.slot);
        template.request_fork(cell, ids, self.plans.get(at).encoded_steps(false), &fds)
    }

    /// A cell has a pid 1, whose end will be heard.
    fn mark_running(&mut self, cell: CellId, pidfd: OwnedFd) -> io::Result<()> {
        let Some(held) = self.cells.get_mut(&cell) else { return Ok(()) };
        if let Err(error) = self.poller.add(WakeSource::Cell(cell), &pidfd) {
            // Nobody would hear of its end, so it ends now.
            let _ = sys::pidfd_kill(pidfd.as_raw_fd(), 9);
            return Err(error);
        }
        held.state = CellState::Running(pidfd);
        if held.kill_requested {
            held.kill();
        }
        Ok(())
    }

    /// A template has forked, or could not, or is gone.
    fn handle_template_answer(&mut self, template: CellId) -> Result<(), ProtocolError> {
        let Some(asked) = self.templates.get_mut(&template) else { return Ok(()) };
        match asked.read_answer() {
            Ok((cell, Ok(pidfd))) => match self.mark_running(cell, pidfd) {
                Ok(()) => self.send_spawned(cell),
                Err(error) => self.refuse_cell(cell, error.to_string()),
            },
            Ok((cell, Err(error))) => {
                self.refuse_cell(cell, format!("the template could not fork: {error}"))
            }
            Err(lost) => {
                if let Some(gone) = self.templates.remove(&template) {
                    self.poller.remove(gone.socket.as_fd());
                }
                lost.into_iter()
                    .try_for_each(|cell| self.refuse_cell(cell, "the template died".into()))
            }
        }
    }

    /// The lowest host id that no living cell has: the fewer there are, the fewer views of layers.
    fn find_free_slot(&self) -> u32 {
        let taken: BTreeSet<u32> = self.cells.values().map(|held| held.slot).collect();
        (0..GUEST_IDS).find(|slot| !taken.contains(slot)).unwrap_or(0)
    }

    /// Nobody reads the gauges of this cell any more.
    fn release_gauges(&mut self, cell: CellId) {
        match self.cells.get_mut(&cell) {
            Some(held) => held.gauges_released = true,
            None => self.prepared.release_gauges(cell),
        }
    }

    /// Reaps what has ended and cleans up after it.
    fn reap_cells(&mut self, ended: &[CellId]) -> Result<(), ProtocolError> {
        for cell in ended {
            if let Some(held) = self.cells.get_mut(cell) {
                if let Some(pidfd) = held.state.pidfd() {
                    self.poller.remove(pidfd);
                }
                held.state = CellState::Ended;
                let used = held.cgroup.as_ref().and_then(Cgroup::read_usage);
                held.used = used.map(CellUsage::from).unwrap_or_default();
                held.used.oom_kills += u64::from(held.exceeded_kernel_memory);
            }
        }
        while let Ok(true) = sys::reap_child() {}
        let mut gone = Vec::new();
        for (cell, held) in &mut self.cells {
            if matches!(held.state, CellState::Ended) && self.prepared.reclaim_cgroup(*cell, held) {
                gone.push((*cell, held.used));
            }
        }
        self.prepared.remove_retired();
        // All of them, although the first that cannot be told of means that nobody listens.
        let mut told = Ok(());
        for (cell, used) in gone {
            self.cells.remove(&cell);
            told = told.and(protocol::send_packet(
                self.socket,
                &SpawnerEvent::Gone { cell, used },
                &[],
            ));
        }
        told
    }

    /// Kills every cell and waits until nothing of them is left.
    fn shut_down(mut self) {
        self.templates.clear();
        for held in self.cells.values_mut() {
            held.kill();
            // What a template was asked for dies with the template, and nobody will say so.
            if matches!(held.state, CellState::Pending) {
                held.state = CellState::Ended;
            }
        }
        for _ in 0..2500 {
            let ended =
                self.wait_for_events(Some(&NOW)).map(|woken| woken.ended).unwrap_or_default();
            // The executor may be gone, and with it whoever would hear of it.
            let _ = self.reap_cells(&ended);
            if self.cells.is_empty() && !self.prepared.has_retired() {
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        drop(self.prepared);
        if let Some(cgroups) = &self.plans.host.cgroups {
            cgroups.release();
        }
    }
}
