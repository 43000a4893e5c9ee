//! Runs in: server (no capabilities). The client of the spawner.
//!
//! One task reads the spawner's events. A request for a cell ends in `Spawned` or an error, also
//! when the spawner dies: it never hangs.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    process::Child,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use cloche_jail::cgroup::CgroupGauges;
use cloche_layers::Layers;
use tokio::{
    io::unix::AsyncFd,
    sync::{Notify, oneshot, watch},
};

use super::{
    cell_exit::CellExit,
    cell_meter::{CellMeter, ReleasedGauges},
    cell_waiters::{CellWaiters, OverlayDirs, answer_waiter},
    image_mounts::{ImageMounts, MountedImage},
    spawner_process::SpawnerProcess,
};
use crate::protocol::{
    self, CellConfig, CellId, HomeRequest, ImageNumber, MountServerUser, PackRequest, PacketBuffer,
    ProtocolError, RequestPacket, SpawnKind, SpawnerEvent, SpawnerRequest, StorageMountRequest,
};

/// Why the spawner did not do what was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SpawnError {
    /// The spawner could not do it, and why.
    #[error("the spawner refused: {0}")]
    Refused(String),
    /// A directory of the home has the name of a file that the run needs.
    #[error("{0} in the thread's home is a directory; the run needs a file of that name")]
    Blocked(String),
    /// The spawner died. The supervisor starts it again, but all its cells are lost.
    #[error("the spawner died")]
    SpawnerLost,
}

/// The connection to the running spawner.
pub(crate) struct SpawnerClient {
    shared: Arc<SpawnerConnection>,
    reader: tokio::task::JoinHandle<()>,
    supervisor: Child,
}

struct SpawnerConnection {
    socket: AsyncFd<OwnedFd>,
    state: Mutex<CellWaiters>,
    next_cell: AtomicU64,
    released: Arc<ReleasedGauges>,
    images: ImageMounts,
    /// How often the spawner was started again.
    life: AtomicU64,
    /// Notified whenever a cell is gone.
    cell_gone: Notify,
    missing: watch::Sender<Option<Vec<(String, String)>>>,
}

/// How often cells are counted again without an event.
const RECOUNT_INTERVAL: Duration = Duration::from_millis(10);

/// How a cell is made.
#[derive(Clone, Debug)]
pub(crate) enum CellSource {
    /// The spawner clones itself.
    Nothing(SpawnKind),
    /// This template forks.
    Template(CellId),
    /// The spawner clones itself, without namespaces, in a new directory of this name.
    Contained(String),
}

/// A cell that the spawner has started.
pub(crate) struct SpawnedCell {
    pub(crate) cell: CellId,
    pub(crate) meter: CellMeter,
    /// Completes when the cell is gone or lost.
    pub(crate) exit: CellExit,
}

impl SpawnerClient {
    /// Connects to a spawner that has been started.
    pub(crate) fn from_process(
        SpawnerProcess { socket, supervisor }: SpawnerProcess,
        layers: Option<Layers>,
    ) -> io::Result<Self> {
        #[expect(deprecated, reason = "unsound only for types that may change their descriptor")]
        let socket = AsyncFd::new(socket)?;
        let shared = Arc::new(SpawnerConnection {
            socket,
            state: Mutex::default(),
            next_cell: AtomicU64::new(1),
            released: Arc::default(),
            images: ImageMounts::new(layers),
            life: AtomicU64::new(0),
            cell_gone: Notify::new(),
            missing: watch::Sender::new(None),
        });
        let reader = tokio::spawn(Arc::clone(&shared).read_events());
        Ok(Self { shared, reader, supervisor })
    }

    /// Whether the supervisor of the spawner is there.
    pub(crate) fn is_connected(&self) -> bool {
        !self.reader.is_finished()
    }

    /// The walls that this host cannot build. Waits for the first event of the spawner.
    pub(crate) async fn missing_walls(&self) -> Result<Vec<(String, String)>, SpawnError> {
        let mut seen = self.shared.missing.subscribe();
        let seen = seen.wait_for(Option::is_some).await.map_err(|_| SpawnError::SpawnerLost)?;
        Ok(seen.clone().unwrap_or_default())
    }

    /// The images of this spawner.
    pub(super) fn images(&self) -> &ImageMounts {
        &self.shared.images
    }

    /// How often the spawner was started again. It has forgotten what it knew before.
    pub(super) fn life(&self) -> u64 {
        self.shared.life.load(Ordering::Acquire)
    }

    /// Starts a cell; `fds` are its stdin, stdout, stderr, job and control.
    pub(crate) async fn spawn_cell(
        &self,
        config: &CellConfig,
        image: Option<Arc<MountedImage>>,
        source: CellSource,
        fds: [BorrowedFd<'_>; 5],
    ) -> Result<SpawnedCell, SpawnError> {
        let cell = CellId(self.shared.next_cell.fetch_add(1, Ordering::Relaxed));
        let number = image.as_ref().map(|image| image.number());
        let config = CellConfig { image: number, ..config.clone() };
        let request = match source {
            CellSource::Nothing(kind) => SpawnerRequest::Spawn { cell, config, kind },
            CellSource::Template(template) => SpawnerRequest::Fork { cell, config, template },
            CellSource::Contained(directory) => SpawnerRequest::Contain { cell, config, directory },
        };
        let (answer, answered) = oneshot::channel();
        let exit = CellExit::default();
        {
            let mut state = self.shared.lock_waiters();
            state.spawns.insert(cell, answer);
            state.alive.insert(cell, (exit.clone(), image));
        }
        if self.shared.send_request(request, &fds).await.is_err() {
            self.shared.forget_cell(cell);
            return Err(SpawnError::SpawnerLost);
        }
        let gauges = answered.await.map_err(|_| SpawnError::SpawnerLost)??;
        let meter = CellMeter::new(cell, gauges, Arc::clone(&self.shared.released));
        Ok(SpawnedCell { cell, meter, exit })
    }

    /// Mounts a home in a cell that waits for its job.
    pub(crate) async fn mount_home(
        &self,
        cell: CellId,
        home: HomeRequest,
    ) -> Result<OverlayDirs, SpawnError> {
        let (answer, answered) = oneshot::channel();
        self.shared.lock_waiters().home_mounts.insert(cell, answer);
        if self.shared.send_request(SpawnerRequest::Home { cell, home }, &[]).await.is_err() {
            self.shared.lock_waiters().home_mounts.remove(&cell);
            return Err(SpawnError::SpawnerLost);
        }
        answered.await.map_err(|_| SpawnError::SpawnerLost)?
    }

    /// Attaches a network to a cell that waits for its job. `socket` is the stack worker's.
    pub(super) async fn attach_network(
        &self,
        cell: CellId,
        ipv6: bool,
        socket: OwnedFd,
    ) -> Result<(), SpawnError> {
        let (answer, answered) = oneshot::channel();
        self.shared.lock_waiters().networks.insert(cell, answer);
        let request = SpawnerRequest::Network { cell, ipv6 };
        if self.shared.send_request(request, &[socket.as_fd()]).await.is_err() {
            self.shared.lock_waiters().networks.remove(&cell);
            return Err(SpawnError::SpawnerLost);
        }
        answered.await.map_err(|_| SpawnError::SpawnerLost)?
    }

    /// Mounts the socket of the web tools in a cell that waits for its job. Returns its listener.
    pub(crate) async fn mount_tool_socket(&self, cell: CellId) -> Result<OwnedFd, SpawnError> {
        let (answer, answered) = oneshot::channel();
        self.shared.lock_waiters().tool_sockets.insert(cell, answer);
        if self.shared.send_request(SpawnerRequest::ToolSocket { cell }, &[]).await.is_err() {
            self.shared.lock_waiters().tool_sockets.remove(&cell);
            return Err(SpawnError::SpawnerLost);
        }
        answered.await.map_err(|_| SpawnError::SpawnerLost)?
    }

    /// Mounts storage in a cell that waits for its job. `server` is the socket of its mount server.
    /// The error has the name of the mount, which may be empty, and says why it failed.
    pub(crate) async fn mount_storage(
        &self,
        cell: CellId,
        (mounts, user): (Vec<StorageMountRequest>, MountServerUser),
        server: BorrowedFd<'_>,
    ) -> Result<(), (String, String)> {
        let lost = || (String::new(), SpawnError::SpawnerLost.to_string());
        let (answer, answered) = oneshot::channel();
        self.shared.lock_waiters().storage_mounts.insert(cell, answer);
        let request = SpawnerRequest::Storage { cell, mounts, user };
        if self.shared.send_request(request, &[server]).await.is_err() {
            self.shared.lock_waiters().storage_mounts.remove(&cell);
            return Err(lost());
        }
        answered.await.map_err(|_| lost())?
    }

    /// Mounts an image.
    pub(super) async fn mount_image(
        &self,
        image: ImageNumber,
        layers: Vec<String>,
    ) -> Result<(), SpawnError> {
        let (answer, answered) = oneshot::channel();
        self.shared.lock_waiters().image_mounts.insert(image, answer);
        let request = SpawnerRequest::MountImage { image, layers };
        if self.shared.send_request(request, &[]).await.is_err() {
            self.shared.lock_waiters().image_mounts.remove(&image);
            return Err(SpawnError::SpawnerLost);
        }
        answered.await.map_err(|_| SpawnError::SpawnerLost)?
    }

    /// Packs a directory. `fds` are the directory, the pipe for the archive, the pipe for the
    /// report, and the merged directory if there is one.
    pub(crate) async fn pack_upper_dir(
        &self,
        request: PackRequest,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), SpawnError> {
        let sent = self.shared.send_request(SpawnerRequest::Pack { request }, fds).await;
        sent.map_err(|_| SpawnError::SpawnerLost)
    }

    /// Kills every process of a cell.
    pub(crate) async fn kill_cell(&self, cell: CellId) {
        // If the spawner is gone, its cells are gone too.
        let _ = self.shared.send_request(SpawnerRequest::Kill { cell }, &[]).await;
    }

    /// How many cells are alive or being torn down.
    pub(crate) fn count_alive(&self) -> usize {
        self.shared.lock_waiters().alive.len()
    }

    /// Waits until no more cells are alive than wait for a run.
    pub(crate) async fn wait_for_teardown(&self, waiting: impl Fn() -> usize) {
        loop {
            let gone = self.shared.cell_gone.notified();
            if self.count_alive() <= waiting() {
                return;
            }
            // Also without an event: a cell that is being parked will count as waiting.
            let _ = tokio::time::timeout(RECOUNT_INTERVAL, gone).await;
        }
    }

    /// Ends the spawner and every cell with it.
    pub(crate) async fn stop(mut self) {
        self.reader.abort();
        let _ = (&mut self.reader).await;
        let Self { shared, mut supervisor, .. } = self;
        // This closes the socket, which tells the spawner to end.
        drop(shared);
        let _ = tokio::task::spawn_blocking(move || supervisor.wait()).await;
    }
}

impl SpawnerConnection {
    fn lock_waiters(&self) -> MutexGuard<'_, CellWaiters> {
        // A poisoned lock is still used: a panic leaves the maps consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget_cell(&self, cell: CellId) {
        let mut state = self.lock_waiters();
        state.spawns.remove(&cell);
        state.alive.remove(&cell);
        self.cell_gone.notify_waiters();
    }

    async fn send_request(
        &self,
        request: SpawnerRequest,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ProtocolError> {
        let (released_gauges, released_images) =
            (self.released.take_batch(), self.images.take_released());
        let packet = RequestPacket { request, released_gauges, released_images };
        loop {
            match protocol::send_packet(self.socket.as_fd(), &packet, fds) {
                Err(ProtocolError::WouldBlock) => {
                    let ready = self.socket.writable().await;
                    ready.map_err(|_| ProtocolError::Closed)?.clear_ready();
                }
                sent => return sent,
            }
        }
    }

    async fn read_events(self: Arc<Self>) {
        let mut inbox = PacketBuffer::new();
        loop {
            match inbox.receive::<SpawnerEvent>(self.socket.as_fd()) {
                Ok((event, fds)) => self.handle_event(event, fds),
                Err(ProtocolError::WouldBlock) => match self.socket.readable().await {
                    Ok(mut ready) => ready.clear_ready(),
                    Err(_) => break,
                },
                Err(error) => {
                    tracing::error!(%error, "the supervisor of the spawner is gone");
                    break;
                }
            }
        }
        self.fail_all_waiters();
    }

    fn handle_event(&self, event: SpawnerEvent, fds: Vec<OwnedFd>) {
        match event {
            SpawnerEvent::Hello { walls_missing } => {
                if self.missing.send_replace(Some(walls_missing)).is_some() {
                    tracing::error!("the spawner died and was started again");
                    self.life.fetch_add(1, Ordering::Release);
                    self.fail_all_waiters();
                }
            }
            SpawnerEvent::Spawned { cell, gauges: exists } => {
                let mut files = fds.into_iter().map(File::from);
                let [oom, cpu, peak, idle] =
                    exists.map(|exists| exists.then(|| files.next()).flatten());
                let waiter = self.lock_waiters().spawns.remove(&cell);
                answer_waiter(waiter, Ok(CgroupGauges { oom, cpu, peak, idle }));
            }
            SpawnerEvent::Refused { cell, reason } => {
                let waiter = self.lock_waiters().spawns.remove(&cell);
                answer_waiter(waiter, Err(SpawnError::Refused(reason)));
            }
            SpawnerEvent::Gone { cell, used } => {
                let gone = self.lock_waiters().alive.remove(&cell);
                if let Some((exit, _image)) = gone {
                    exit.mark_gone(used);
                }
                self.cell_gone.notify_waiters();
            }
            answer => self.lock_waiters().answer_mount(answer, fds),
        }
    }

    /// Fails every request that waits and marks every cell as lost. Dropping a sender fails its
    /// request.
    fn fail_all_waiters(&self) {
        let lost = std::mem::take(&mut *self.lock_waiters());
        lost.alive.values().for_each(|(exit, _)| exit.mark_lost());
        drop(lost);
        self.cell_gone.notify_waiters();
    }
}
