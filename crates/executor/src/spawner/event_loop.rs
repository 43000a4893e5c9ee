//! Runs in: spawner (root). The event loop: reads requests of the server, and reports what
//! happened.
//!
//! Single-threaded; it blocks only while it waits for events. It never reads bytes of a guest and
//! never holds a program.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread,
    time::Duration,
};

use cloche_jail::{plan::CellPlan, sys};
use rustix::event::Timespec;

use super::{
    cell_registry::{CellRegistry, StartedCell},
    home_mounter::{HomeMountOutcome, HomeMounter},
    home_target::{HomeMountPoint, HomeTarget},
    host_setup::{self, HostSetup, SpawnerGround},
    lock_watch::LockWatch,
    packer_process::PackerProcess,
    plan_cache::PlanCache,
    poller::{EpollSet, WakeEvents, WakeSource},
    prepared::PreparedResources,
    tool_socket::ToolSocketMounter,
};
use crate::protocol::{
    self, CellId, CellUsage, HomeRequest, PacketBuffer, ProtocolError, RequestPacket, SpawnerEvent,
    SpawnerRequest,
};

const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// How long it must be quiet before resources are prepared.
const QUIET: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
/// How often the shutdown looks whether all cells are gone, and how long it waits between.
const SHUTDOWN_ROUNDS: u32 = 2500;
const SHUTDOWN_PAUSE: Duration = Duration::from_millis(2);

/// Serves one server until it closes the socket. Returns the exit code of the process.
pub(super) fn run_event_loop(
    socket: &OwnedFd,
    ground: &SpawnerGround,
    change: &dyn Fn(CellPlan) -> CellPlan,
) -> i32 {
    let host = match host_setup::prepare_host(ground) {
        Ok(host) => host,
        Err(error) => {
            let reason = format!("cannot set up the mount namespace of the spawner: {error}");
            let walls_missing = vec![("ground".to_owned(), reason)];
            let hello = SpawnerEvent::Hello { walls_missing };
            let _ = protocol::send_packet(socket.as_fd(), &hello, &[]);
            return 0;
        }
    };
    // A request must not wait for a time slice behind guests. The kernel refuses this to an
    // ordinary user, whose spawner works without it.
    let _ = sys::set_realtime_priority();
    let Ok(mut event_loop) = EventLoop::new(socket, host, change) else { return 1 };
    let code = match event_loop.serve() {
        // A send fails with `Closed` when the server has ended: no reason to start again.
        Ok(()) | Err(ProtocolError::Closed) => 0,
        Err(_) => 1,
    };
    event_loop.shut_down();
    code
}

struct EventLoop<'a> {
    socket: BorrowedFd<'a>,
    cells: CellRegistry<'a>,
    homes: HomeMounter,
    tool_sockets: ToolSocketMounter,
    lock_watch: LockWatch,
}

impl<'a> EventLoop<'a> {
    fn new(
        socket: &'a OwnedFd,
        host: HostSetup,
        change: &'a dyn Fn(CellPlan) -> CellPlan,
    ) -> io::Result<Self> {
        let poller = EpollSet::new()?;
        poller.add(WakeSource::Server, socket)?;
        let lock_watch = LockWatch::start(host.privileged)?;
        poller.add(WakeSource::LockWatch, &lock_watch)?;
        let packer =
            PackerProcess { privileged: host.privileged, first_guest: host.ids.guest_id(0) };
        let homes = HomeMounter::new(host.privileged.then_some(host.ids));
        let plans = PlanCache::new(host, change);
        let cells = CellRegistry::new(plans, PreparedResources::new(packer), poller);
        let tool_sockets = ToolSocketMounter::new();
        Ok(Self { socket: socket.as_fd(), cells, homes, tool_sockets, lock_watch })
    }

    fn serve(&mut self) -> Result<(), ProtocolError> {
        let walls_missing = self.cells.plans.host.missing.clone();
        self.send_event(&SpawnerEvent::Hello { walls_missing })?;
        let mut inbox = PacketBuffer::new();
        loop {
            let woken = self.wait_for_work()?;
            for template in woken.answered {
                for started in self.cells.read_template(template) {
                    self.report_start(started)?;
                }
            }
            // The server waits for an answer; nothing waits for the cleaning up.
            if woken.request {
                match inbox.receive::<RequestPacket>(self.socket) {
                    Ok((packet, fds)) => {
                        let RequestPacket { request, released_gauges, released_images } = packet;
                        for cell in released_gauges {
                            self.cells.release_gauges(cell);
                        }
                        for image in released_images {
                            self.cells.plans.release_image(image);
                        }
                        self.handle_request(request, fds)?;
                    }
                    Err(ProtocolError::Closed) => return Ok(()),
                    Err(ProtocolError::WouldBlock | ProtocolError::Malformed(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            if woken.lock_report {
                self.cells.kill_lock_holders(&self.lock_watch)?;
            }
            self.cells.enforce_limits();
            self.cells.reap_workers(&woken.ended_workers);
            self.cells.reap_mount_servers(&woken.ended_mount_servers);
            let gone = self.cells.reap_cells(&woken.ended);
            self.report_gone(gone)?;
            self.lock_watch.set_active(self.cells.has_cells())?;
        }
    }

    /// Waits for events. Prepares resources for the next cells when it has been quiet for a while:
    /// a cell that was just started has more use for the processor.
    fn wait_for_work(&mut self) -> Result<WakeEvents, ProtocolError> {
        loop {
            let (prepared, host) = (&self.cells.prepared, &self.cells.plans.host);
            if !prepared.needs_refill(host.cgroups.is_some()) {
                return self.wait_for_events(None);
            }
            let woken = self.wait_for_events(Some(&QUIET))?;
            if !woken.is_empty() {
                return Ok(woken);
            }
            let cgroups = self.cells.plans.host.cgroups.as_ref();
            let mounter = self.cells.storage.mounter();
            if !self.cells.prepared.refill_one(cgroups, mounter) {
                return self.wait_for_events(None);
            }
        }
    }

    fn wait_for_events(&mut self, most: Option<&Timespec>) -> Result<WakeEvents, ProtocolError> {
        let woken = self.cells.wait_for_events(most);
        woken.map_err(|error| ProtocolError::System(error.raw_os_error().unwrap_or(0)))
    }

    fn handle_request(
        &mut self,
        request: SpawnerRequest,
        fds: Vec<OwnedFd>,
    ) -> Result<(), ProtocolError> {
        match request {
            SpawnerRequest::Spawn { cell, config, kind } => {
                let started = self.cells.spawn_cell(cell, &config, kind, &fds);
                self.report_start((cell, started))
            }
            SpawnerRequest::Contain { cell, config, directory } => {
                let started = self.cells.spawn_contained(cell, &config, &directory, &fds);
                self.report_start((cell, started))
            }
            SpawnerRequest::Fork { cell, config, template } => {
                match self.cells.request_fork(cell, &config, template, &fds) {
                    // The answer of the template is reported when it comes.
                    Ok(()) => Ok(()),
                    Err(error) => self.report_start((cell, Err(error))),
                }
            }
            SpawnerRequest::Kill { cell } => {
                self.cells.kill_cell(cell);
                Ok(())
            }
            SpawnerRequest::MountImage { image, layers } => {
                let event = match self.cells.plans.images.mount(image, &layers) {
                    Ok(()) => SpawnerEvent::ImageMounted { image },
                    Err(error) => SpawnerEvent::ImageRefused { image, reason: error.to_string() },
                };
                self.send_event(&event)
            }
            SpawnerRequest::Home { cell, home } => self.mount_home(cell, &home),
            SpawnerRequest::Network { cell, ipv6 } => {
                let event = match self.cells.attach_network(cell, ipv6, fds) {
                    Ok(()) => SpawnerEvent::NetworkAttached { cell },
                    Err(error) => SpawnerEvent::NetworkRefused { cell, reason: error.to_string() },
                };
                self.send_event(&event)
            }
            SpawnerRequest::ToolSocket { cell } => self.mount_tool_socket(cell),
            SpawnerRequest::Storage { cell, mounts, user } => {
                let mounted = self.cells.mount_storage(cell, (&mounts, user), &fds);
                let failed = mounted.err().map(|error| (error.slug, error.source.to_string()));
                self.send_event(&SpawnerEvent::StorageMounted { cell, failed })
            }
            SpawnerRequest::Pack { request } => {
                self.cells.prepared.pack_upper_dir(&request, &fds);
                Ok(())
            }
        }
    }

    /// Mounts a home in a cell that waits for its job, and reports.
    fn mount_home(&mut self, cell: CellId, home: &HomeRequest) -> Result<(), ProtocolError> {
        let mounted = match self.cells.running_cell(cell) {
            Some(target) => self.homes.mount(&target, home),
            None => Err(io::Error::other("the cell is gone")),
        };
        match mounted {
            Ok(HomeMountOutcome::Mounted { upper, merged }) => {
                let fds: Vec<_> = [Some(&upper), merged.as_ref()].into_iter().flatten().collect();
                let fds: Vec<_> = fds.into_iter().map(AsFd::as_fd).collect();
                protocol::send_packet(self.socket, &SpawnerEvent::HomeMounted { cell }, &fds)
            }
            Ok(HomeMountOutcome::Blocked(name)) => {
                self.send_event(&SpawnerEvent::HomeBlocked { cell, name })
            }
            Err(error) => {
                let reason = error.to_string();
                self.send_event(&SpawnerEvent::HomeRefused { cell, reason })
            }
        }
    }

    /// Mounts the socket of the web tools in a cell that waits for its job, and reports.
    fn mount_tool_socket(&mut self, cell: CellId) -> Result<(), ProtocolError> {
        let mounted = match self.cells.running_cell(cell) {
            Some(HomeTarget { place: HomeMountPoint::OnStage, .. }) => {
                Err(io::Error::other("web tools need the substrate native"))
            }
            Some(HomeTarget { cell, .. }) => self.tool_sockets.mount(cell),
            None => Err(io::Error::other("the cell is gone")),
        };
        match mounted {
            Ok(listener) => {
                let event = SpawnerEvent::ToolSocketMounted { cell };
                protocol::send_packet(self.socket, &event, &[listener.as_fd()])
            }
            Err(error) => {
                let reason = error.to_string();
                self.send_event(&SpawnerEvent::ToolSocketRefused { cell, reason })
            }
        }
    }

    /// Reports that a cell was started, with its gauges, or that its start failed.
    fn report_start(&mut self, (cell, started): StartedCell) -> Result<(), ProtocolError> {
        if let Err(error) = started {
            self.cells.mark_failed(cell);
            let reason = error.to_string();
            return self.send_event(&SpawnerEvent::Refused { cell, reason });
        }
        let files = self.cells.gauges(cell).map_or([None; 4], |gauges| {
            [&gauges.oom, &gauges.cpu, &gauges.peak, &gauges.idle].map(Option::as_ref)
        });
        let event = SpawnerEvent::Spawned { cell, gauges: files.map(|file| file.is_some()) };
        let files: Vec<_> = files.iter().flatten().map(|file| file.as_fd()).collect();
        protocol::send_packet(self.socket, &event, &files)
    }

    /// Reports every cell that is gone. Returns the first error; later sends then fail as well.
    fn report_gone(&self, gone: Vec<(CellId, CellUsage)>) -> Result<(), ProtocolError> {
        let mut sent = Ok(());
        for (cell, used) in gone {
            sent = sent.and(self.send_event(&SpawnerEvent::Gone { cell, used }));
        }
        sent
    }

    fn send_event(&self, event: &SpawnerEvent) -> Result<(), ProtocolError> {
        protocol::send_packet(self.socket, event, &[])
    }

    /// Kills every cell and waits until all of them are gone.
    fn shut_down(mut self) {
        self.cells.kill_all();
        for _ in 0..SHUTDOWN_ROUNDS {
            let woken = self.wait_for_events(Some(&NOW));
            let woken = woken.unwrap_or_default();
            self.cells.reap_workers(&woken.ended_workers);
            self.cells.reap_mount_servers(&woken.ended_mount_servers);
            let gone = self.cells.reap_cells(&woken.ended);
            // The server may have ended, and then nothing receives this.
            let _ = self.report_gone(gone);
            if self.cells.is_empty() {
                break;
            }
            thread::sleep(SHUTDOWN_PAUSE);
        }
        self.cells.release_cgroups();
    }
}
