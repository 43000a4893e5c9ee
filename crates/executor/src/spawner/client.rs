//! Speaking to the spawner from the async side.
//!
//! One task reads its events. A cell that was asked for ends in `Spawned` or an error, also when
//! the spawner dies: it never hangs.

use std::{
    collections::HashMap,
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use cloche_jail::cgroup::Gauges;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tokio::{
    io::unix::AsyncFd,
    sync::{Notify, oneshot, watch},
};

use super::{
    gone::Gone,
    meter::{LetGo, Meter},
    protocol::{
        self, CellConfig, CellId, Event, HomeRequest, Inbox, Kind, PackRequest, Packet,
        ProtocolError, Request, SpawnerSetup,
    },
};
use crate::executor::Config;

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

/// What the spawner's command line begins with. Guests can read it: it is no path of this host's.
pub(super) const ARG0: &str = "cloche";

/// A spawner that runs and that nobody speaks to yet.
///
/// Starting it needs the privileges that it keeps; speaking to it needs none. So a server starts
/// it first, then drops its own, then starts its threads.
#[derive(Debug)]
pub struct Process {
    socket: OwnedFd,
    keeper: Child,
}

impl Process {
    /// Starts the program as a spawner, with one end of a socket as its standard input, and hands it
    /// the directory of unpacked layers.
    pub fn start(config: &Config) -> io::Result<Self> {
        let layers = config.unpacked_layers.as_ref().map(File::open).transpose()?;
        let flags = SocketFlags::CLOEXEC;
        let (socket, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        let keeper = Command::new(&config.program)
            .arg0(ARG0)
            .args(&config.spawner_args)
            .env_clear()
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            // Ctrl-C is for us to handle: the spawner ends when its socket is closed.
            .process_group(0)
            .spawn()?;
        let fds: Vec<_> = layers.as_ref().map(AsFd::as_fd).into_iter().collect();
        let setup = SpawnerSetup { has_layers: layers.is_some() };
        protocol::send(socket.as_fd(), &setup, &fds).map_err(io::Error::other)?;
        Ok(Self { socket, keeper })
    }
}

/// A handle to the running spawner.
pub(crate) struct Spawner {
    shared: Arc<Shared>,
    reader: tokio::task::JoinHandle<()>,
    keeper: Child,
}

struct Shared {
    socket: AsyncFd<OwnedFd>,
    state: Mutex<State>,
    next: AtomicU64,
    let_go: Arc<LetGo>,
    /// Told whenever a cell is gone.
    settled: Notify,
    missing: watch::Sender<Option<Vec<(String, String)>>>,
}

#[derive(Default)]
struct State {
    asked: HashMap<CellId, oneshot::Sender<Result<Gauges, SpawnError>>>,
    /// Homes that are being mounted.
    housed: HashMap<CellId, oneshot::Sender<Result<Diff, SpawnError>>>,
    /// Told when the cell is gone or lost.
    alive: HashMap<CellId, Gone>,
}

/// How often the cells are counted anew.
const SETTLE_ROUND: Duration = Duration::from_millis(10);

/// What a cell is made from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// From nothing.
    Nothing(Kind),
    /// By a template's fork.
    Template(CellId),
}

/// What a run writes to its home.
pub(crate) struct Diff {
    /// The directory that holds it.
    pub(crate) upper: OwnedFd,
    /// The home, where that is not the same.
    pub(crate) merged: Option<OwnedFd>,
}

/// A cell the spawner has started.
pub(crate) struct Spawned {
    pub(crate) cell: CellId,
    pub(crate) meter: Meter,
    /// Told when the cell is gone or lost.
    pub(crate) gone: Gone,
}

impl Spawner {
    /// Takes over a spawner that has been started.
    pub(crate) fn attach(Process { socket, keeper }: Process) -> io::Result<Self> {
        #[expect(deprecated, reason = "unsound only for types that may change their descriptor")]
        let socket = AsyncFd::new(socket)?;
        let shared = Arc::new(Shared {
            socket,
            state: Mutex::default(),
            next: AtomicU64::new(1),
            let_go: Arc::default(),
            settled: Notify::new(),
            missing: watch::Sender::new(None),
        });
        let reader = tokio::spawn(Arc::clone(&shared).read());
        Ok(Self { shared, reader, keeper })
    }

    /// What this host cannot build, once the spawner has said so.
    pub(crate) async fn missing(&self) -> Result<Vec<(String, String)>, SpawnError> {
        let mut seen = self.shared.missing.subscribe();
        let seen = seen.wait_for(Option::is_some).await.map_err(|_| SpawnError::SpawnerLost)?;
        Ok(seen.clone().unwrap_or_default())
    }

    /// Starts a cell; `fds` are its stdin, stdout, stderr, job and control.
    pub(crate) async fn spawn(
        &self,
        config: &CellConfig,
        source: Source,
        fds: [BorrowedFd<'_>; 5],
    ) -> Result<Spawned, SpawnError> {
        let cell = CellId(self.shared.next.fetch_add(1, Ordering::Relaxed));
        let config = config.clone();
        let request = match source {
            Source::Nothing(kind) => Request::Spawn { cell, config, kind },
            Source::Template(template) => Request::Fork { cell, config, template },
        };
        let (answer, answered) = oneshot::channel();
        let gone = Gone::default();
        {
            let mut state = self.shared.state();
            state.asked.insert(cell, answer);
            state.alive.insert(cell, gone.clone());
        }
        if self.shared.send(request, &fds).await.is_err() {
            self.shared.forget(cell);
            return Err(SpawnError::SpawnerLost);
        }
        let gauges = answered.await.map_err(|_| SpawnError::SpawnerLost)??;
        let meter = Meter::new(cell, gauges, Arc::clone(&self.shared.let_go));
        Ok(Spawned { cell, meter, gone })
    }

    /// Mounts a home in a cell that waits for its job; gives the directory of what it will write.
    pub(crate) async fn house(&self, cell: CellId, home: HomeRequest) -> Result<Diff, SpawnError> {
        let (answer, answered) = oneshot::channel();
        self.shared.state().housed.insert(cell, answer);
        if self.shared.send(Request::Home { cell, home }, &[]).await.is_err() {
            self.shared.state().housed.remove(&cell);
            return Err(SpawnError::SpawnerLost);
        }
        answered.await.map_err(|_| SpawnError::SpawnerLost)?
    }

    /// Has a directory packed; `fds` are the directory, where the archive goes, the verdict, and the
    /// overlay if there is one.
    pub(crate) async fn pack(
        &self,
        request: PackRequest,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), SpawnError> {
        let sent = self.shared.send(Request::Pack { request }, fds).await;
        sent.map_err(|_| SpawnError::SpawnerLost)
    }

    /// Kills everything in a cell.
    pub(crate) async fn kill(&self, cell: CellId) {
        // If the spawner is gone, so are its cells.
        let _ = self.shared.send(Request::Kill { cell }, &[]).await;
    }

    /// How many cells are alive or being cleaned up.
    pub(crate) fn alive(&self) -> usize {
        self.shared.state().alive.len()
    }

    /// Waits until every cell is gone but those that are held for later.
    pub(crate) async fn settle(&self, held: impl Fn() -> usize) {
        loop {
            let settled = self.shared.settled.notified();
            if self.alive() <= held() {
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
        let Self { shared, mut keeper, .. } = self;
        // The last handle to the socket: closing it is the sign to end.
        drop(shared);
        let _ = tokio::task::spawn_blocking(move || keeper.wait()).await;
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves the maps as good as they were.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, cell: CellId) {
        let mut state = self.state();
        state.asked.remove(&cell);
        state.alive.remove(&cell);
        self.settled.notify_waiters();
    }

    async fn send(&self, request: Request, fds: &[BorrowedFd<'_>]) -> Result<(), ProtocolError> {
        let packet = Packet { request, let_go: self.let_go.take() };
        loop {
            match protocol::send(self.socket.as_fd(), &packet, fds) {
                Err(ProtocolError::WouldBlock) => {
                    let ready = self.socket.writable().await;
                    ready.map_err(|_| ProtocolError::Closed)?.clear_ready();
                }
                sent => return sent,
            }
        }
    }

    async fn read(self: Arc<Self>) {
        let mut inbox = Inbox::new();
        loop {
            match inbox.receive::<Event>(self.socket.as_fd()) {
                Ok((event, fds)) => self.take(event, fds),
                Err(ProtocolError::WouldBlock) => match self.socket.readable().await {
                    Ok(mut ready) => ready.clear_ready(),
                    Err(_) => break,
                },
                Err(error) => {
                    tracing::error!(%error, "the spawner's keeper is gone");
                    break;
                }
            }
        }
        self.lose_everything();
    }

    fn take(&self, event: Event, fds: Vec<OwnedFd>) {
        match event {
            Event::Hello { walls_missing } => {
                if self.missing.send_replace(Some(walls_missing)).is_some() {
                    tracing::error!("the spawner died and was started again");
                    self.lose_everything();
                }
            }
            Event::Spawned { cell, gauges: there } => {
                let mut files = fds.into_iter().map(File::from);
                let [oom, cpu, peak, idle] =
                    there.map(|there| there.then(|| files.next()).flatten());
                if let Some(asked) = self.state().asked.remove(&cell) {
                    let _ = asked.send(Ok(Gauges { oom, cpu, peak, idle }));
                }
            }
            Event::Refused { cell, reason } => {
                if let Some(asked) = self.state().asked.remove(&cell) {
                    let _ = asked.send(Err(SpawnError::Refused(reason)));
                }
            }
            Event::Housed { cell } => {
                let mut fds = fds.into_iter();
                let (asked, upper) = (self.state().housed.remove(&cell), fds.next());
                if let (Some(asked), Some(upper)) = (asked, upper) {
                    let _ = asked.send(Ok(Diff { upper, merged: fds.next() }));
                }
            }
            Event::Homeless { cell, reason } => {
                if let Some(asked) = self.state().housed.remove(&cell) {
                    let _ = asked.send(Err(SpawnError::Refused(reason)));
                }
            }
            Event::Blocked { cell, name } => {
                if let Some(asked) = self.state().housed.remove(&cell) {
                    let _ = asked.send(Err(SpawnError::Blocked(name)));
                }
            }
            Event::Gone { cell, used } => {
                if let Some(gone) = self.state().alive.remove(&cell) {
                    gone.tell(used);
                }
                self.settled.notify_waiters();
            }
        }
    }

    /// Everyone who waits for a cell hears that there is none: dropping the senders does that.
    fn lose_everything(&self) {
        let lost = std::mem::take(&mut *self.state());
        lost.alive.values().for_each(Gone::lose);
        drop(lost);
        self.settled.notify_waiters();
    }
}
