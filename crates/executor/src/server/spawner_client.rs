//! Speaking to the spawner from the async side.
//!
//! One task reads its events. A cell that was asked for ends in `Spawned` or an error, also when
//! the spawner dies: it never hangs.

use std::{
    collections::HashMap,
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
use tokio::{
    io::unix::AsyncFd,
    sync::{Notify, oneshot, watch},
};

use super::{
    cell_exit::CellExit,
    cell_meter::{CellMeter, ReleasedGauges},
    spawner_process::SpawnerProcess,
};
use crate::protocol::{
    self, CellConfig, CellId, HomeRequest, PackRequest, PacketBuffer, ProtocolError, RequestPacket,
    SpawnKind, SpawnerEvent, SpawnerRequest,
};

/// Why a cell could not be had.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SpawnError {
    /// The spawner said no, and why.
    #[error("the cell could not be started: {0}")]
    Refused(String),
    /// A directory of the home has the name of a file that the run needs.
    #[error("{0} in the thread's home is a directory; the run needs a file of that name")]
    Blocked(String),
    /// The spawner died; it is started again, what it held is lost.
    #[error("the spawner died")]
    SpawnerLost,
}

/// A handle to the running spawner.
pub(crate) struct SpawnerClient {
    shared: Arc<SpawnerConnection>,
    reader: tokio::task::JoinHandle<()>,
    supervisor: Child,
}

struct SpawnerConnection {
    socket: AsyncFd<OwnedFd>,
    state: Mutex<CellWaiters>,
    next: AtomicU64,
    released: Arc<ReleasedGauges>,
    /// Told whenever a cell is gone.
    settled: Notify,
    missing: watch::Sender<Option<Vec<(String, String)>>>,
}

#[derive(Default)]
struct CellWaiters {
    spawns: HashMap<CellId, oneshot::Sender<Result<CgroupGauges, SpawnError>>>,
    /// Homes that are being mounted.
    home_mounts: HashMap<CellId, oneshot::Sender<Result<OverlayDirs, SpawnError>>>,
    /// Told when the cell is gone or lost.
    alive: HashMap<CellId, CellExit>,
}

/// How often the cells are counted anew.
const SETTLE_ROUND: Duration = Duration::from_millis(10);

/// What a cell is made from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CellSource {
    /// From nothing.
    Nothing(SpawnKind),
    /// By a template's fork.
    Template(CellId),
}

/// What a run writes to its home.
pub(crate) struct OverlayDirs {
    /// The directory that holds it.
    pub(crate) upper: OwnedFd,
    /// The home, where that is not the same.
    pub(crate) merged: Option<OwnedFd>,
}

/// A cell the spawner has started.
pub(crate) struct SpawnedCell {
    pub(crate) cell: CellId,
    pub(crate) meter: CellMeter,
    /// Told when the cell is gone or lost.
    pub(crate) gone: CellExit,
}

impl SpawnerClient {
    /// Takes over a spawner that has been started.
    pub(crate) fn from_process(
        SpawnerProcess { socket, supervisor }: SpawnerProcess,
    ) -> io::Result<Self> {
        #[expect(deprecated, reason = "unsound only for types that may change their descriptor")]
        let socket = AsyncFd::new(socket)?;
        let shared = Arc::new(SpawnerConnection {
            socket,
            state: Mutex::default(),
            next: AtomicU64::new(1),
            released: Arc::default(),
            settled: Notify::new(),
            missing: watch::Sender::new(None),
        });
        let reader = tokio::spawn(Arc::clone(&shared).read_events());
        Ok(Self { shared, reader, supervisor })
    }

    /// What this host cannot build, once the spawner has said so.
    pub(crate) async fn missing_walls(&self) -> Result<Vec<(String, String)>, SpawnError> {
        let mut seen = self.shared.missing.subscribe();
        let seen = seen.wait_for(Option::is_some).await.map_err(|_| SpawnError::SpawnerLost)?;
        Ok(seen.clone().unwrap_or_default())
    }

    /// Starts a cell; `fds` are its stdin, stdout, stderr, job and control.
    pub(crate) async fn spawn_cell(
        &self,
        config: &CellConfig,
        source: CellSource,
        fds: [BorrowedFd<'_>; 5],
    ) -> Result<SpawnedCell, SpawnError> {
        let cell = CellId(self.shared.next.fetch_add(1, Ordering::Relaxed));
        let config = config.clone();
        let request = match source {
            CellSource::Nothing(kind) => SpawnerRequest::Spawn { cell, config, kind },
            CellSource::Template(template) => SpawnerRequest::Fork { cell, config, template },
        };
        let (answer, answered) = oneshot::channel();
        let gone = CellExit::default();
        {
            let mut state = self.shared.lock_waiters();
            state.spawns.insert(cell, answer);
            state.alive.insert(cell, gone.clone());
        }
        if self.shared.send_request(request, &fds).await.is_err() {
            self.shared.forget_cell(cell);
            return Err(SpawnError::SpawnerLost);
        }
        let gauges = answered.await.map_err(|_| SpawnError::SpawnerLost)??;
        let meter = CellMeter::new(cell, gauges, Arc::clone(&self.shared.released));
        Ok(SpawnedCell { cell, meter, gone })
    }

    /// Mounts a home in a cell that waits for its job; gives the directory of what it will write.
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

    /// Has a directory packed; `fds` are the directory, where the archive goes, the verdict, and the
    /// overlay if there is one.
    pub(crate) async fn pack_upper_dir(
        &self,
        request: PackRequest,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), SpawnError> {
        let sent = self.shared.send_request(SpawnerRequest::Pack { request }, fds).await;
        sent.map_err(|_| SpawnError::SpawnerLost)
    }

    /// Kills everything in a cell.
    pub(crate) async fn kill_cell(&self, cell: CellId) {
        // If the spawner is gone, so are its cells.
        let _ = self.shared.send_request(SpawnerRequest::Kill { cell }, &[]).await;
    }

    /// How many cells are alive or being cleaned up.
    pub(crate) fn count_alive(&self) -> usize {
        self.shared.lock_waiters().alive.len()
    }

    /// Waits until every cell is gone but those that are held for later.
    pub(crate) async fn wait_for_teardown(&self, held: impl Fn() -> usize) {
        loop {
            let settled = self.shared.settled.notified();
            if self.count_alive() <= held() {
                return;
            }
            // Also without a sign: a cell that is being parked becomes one that is held.
            let _ = tokio::time::timeout(SETTLE_ROUND, settled).await;
        }
    }

    /// Ends the spawner and every cell with it.
    pub(crate) async fn stop(mut self) {
        self.reader.abort();
        let _ = (&mut self.reader).await;
        let Self { shared, mut supervisor, .. } = self;
        // The last handle to the socket: closing it is the sign to end.
        drop(shared);
        let _ = tokio::task::spawn_blocking(move || supervisor.wait()).await;
    }
}

impl SpawnerConnection {
    fn lock_waiters(&self) -> MutexGuard<'_, CellWaiters> {
        // A panic elsewhere leaves the maps as good as they were.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget_cell(&self, cell: CellId) {
        let mut state = self.lock_waiters();
        state.spawns.remove(&cell);
        state.alive.remove(&cell);
        self.settled.notify_waiters();
    }

    async fn send_request(
        &self,
        request: SpawnerRequest,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ProtocolError> {
        let packet = RequestPacket { request, released_gauges: self.released.take_batch() };
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
                    tracing::error!(%error, "the spawner's supervisor is gone");
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
                    self.fail_all_waiters();
                }
            }
            SpawnerEvent::Spawned { cell, gauges: there } => {
                let mut files = fds.into_iter().map(File::from);
                let [oom, cpu, peak, idle] =
                    there.map(|there| there.then(|| files.next()).flatten());
                if let Some(asked) = self.lock_waiters().spawns.remove(&cell) {
                    let _ = asked.send(Ok(CgroupGauges { oom, cpu, peak, idle }));
                }
            }
            SpawnerEvent::Refused { cell, reason } => {
                if let Some(asked) = self.lock_waiters().spawns.remove(&cell) {
                    let _ = asked.send(Err(SpawnError::Refused(reason)));
                }
            }
            SpawnerEvent::HomeMounted { cell } => {
                let mut fds = fds.into_iter();
                let (asked, upper) = (self.lock_waiters().home_mounts.remove(&cell), fds.next());
                if let (Some(asked), Some(upper)) = (asked, upper) {
                    let _ = asked.send(Ok(OverlayDirs { upper, merged: fds.next() }));
                }
            }
            SpawnerEvent::HomeRefused { cell, reason } => {
                if let Some(asked) = self.lock_waiters().home_mounts.remove(&cell) {
                    let _ = asked.send(Err(SpawnError::Refused(reason)));
                }
            }
            SpawnerEvent::HomeBlocked { cell, name } => {
                if let Some(asked) = self.lock_waiters().home_mounts.remove(&cell) {
                    let _ = asked.send(Err(SpawnError::Blocked(name)));
                }
            }
            SpawnerEvent::Gone { cell, used } => {
                if let Some(gone) = self.lock_waiters().alive.remove(&cell) {
                    gone.mark_gone(used);
                }
                self.settled.notify_waiters();
            }
        }
    }

    /// Everyone who waits for a cell hears that there is none: dropping the senders does that.
    fn fail_all_waiters(&self) {
        let lost = std::mem::take(&mut *self.lock_waiters());
        lost.alive.values().for_each(CellExit::mark_lost);
        drop(lost);
        self.settled.notify_waiters();
    }
}
