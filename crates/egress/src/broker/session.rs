//! Runs in: broker (no capabilities).
//!
//! One session: the socket to its worker, the tasks that serve it, and its report. The worker is
//! not trusted: whatever it sends, it gets no more than the policy and the limits of its session.

use std::{
    collections::{HashMap, HashSet},
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use cloche_interception::Interceptor;
use cloche_model::{DenialReason, NetworkLimits, NetworkPolicy, NetworkProtocol, NetworkReport};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{sleep_until, timeout},
};

use super::{
    BrokerShared, connect, dns, pins::PinTable, relay_places::SessionPlaces, scan::ScanWatch,
};
use crate::{
    SessionSpec,
    protocol::{FlowId, FlowRefusal, MAX_STACK_PACKET, PacketSocket, StackMessage, WorkerMessage},
    stack::budget::TokenBucket,
};

/// Tasks of one session beyond its connections and flows: queries, and checks that end.
const SPARE_TASKS: usize = 128;
/// How long a worker has to report its last bytes.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What the control loop tells a session.
pub(super) enum SessionCommand {
    Finish(oneshot::Sender<NetworkReport>),
}

pub(super) struct Session {
    pub(super) shared: Arc<BrokerShared>,
    pub(super) policy: NetworkPolicy,
    limits: NetworkLimits,
    /// Adds the credentials of the session to its requests, if it has any.
    pub(super) interceptor: Option<Arc<Interceptor>>,
    /// For connections that the broker relays itself.
    pub(super) relay_places: Arc<SessionPlaces>,
    worker: PacketSocket,
    state: Mutex<SessionState>,
}

pub(super) struct SessionState {
    pub(super) pins: PinTable,
    pub(super) scan: ScanWatch,
    pub(super) dns_queries: TokenBucket,
    report: NetworkReport,
    /// TCP connections and UDP flows that the worker has not ended.
    connections: HashSet<FlowId>,
    flows: HashSet<FlowId>,
    /// Connections whose first bytes are checked.
    unnamed: HashMap<FlowId, mpsc::UnboundedSender<Vec<u8>>>,
}

/// Starts the task of a session.
pub(super) fn start_session(
    shared: Arc<BrokerShared>,
    spec: SessionSpec,
    interceptor: Option<Arc<Interceptor>>,
    worker: OwnedFd,
) -> io::Result<mpsc::UnboundedSender<SessionCommand>> {
    let now = Instant::now();
    let per_second = u64::from(spec.limits.dns_per_second);
    let session = Arc::new(Session {
        relay_places: shared.relay_places.open_session(),
        shared,
        policy: spec.policy,
        limits: spec.limits,
        interceptor,
        worker: PacketSocket::new(worker)?,
        state: Mutex::new(SessionState {
            pins: PinTable::default(),
            scan: ScanWatch::new(now),
            dns_queries: TokenBucket::new(per_second, per_second * 2, now),
            report: NetworkReport::default(),
            connections: HashSet::new(),
            flows: HashSet::new(),
            unnamed: HashMap::new(),
        }),
    });
    let (commands, queue) = mpsc::unbounded_channel();
    tokio::spawn(serve_session(session, queue));
    Ok(commands)
}

/// Ends a session and returns its report.
pub(super) async fn finish(
    commands: Option<mpsc::UnboundedSender<SessionCommand>>,
) -> NetworkReport {
    let lost = || NetworkReport {
        lost: Some("the network session ended before the run".to_owned()),
        ..NetworkReport::default()
    };
    let Some(commands) = commands else {
        return lost();
    };
    let (send, receive) = oneshot::channel();
    match commands.send(SessionCommand::Finish(send)) {
        Ok(()) => receive.await.unwrap_or_else(|_| lost()),
        Err(_) => lost(),
    }
}

/// Serves the worker until the server finishes or drops the session. Dropping the tasks closes what
/// they hold.
async fn serve_session(
    session: Arc<Session>,
    mut commands: mpsc::UnboundedReceiver<SessionCommand>,
) {
    let start = StackMessage::Start { limits: session.limits, ipv6: session.shared.ipv6 };
    let mut over = session.worker.send(&start, None).await.is_err();
    let mut tasks = JoinSet::new();
    let mut buffer = vec![0; MAX_STACK_PACKET];
    loop {
        let room = tasks.len() < session.most_tasks();
        tokio::select! {
            command = commands.recv() => {
                let Some(SessionCommand::Finish(caller)) = command else {
                    return;
                };
                if !over {
                    let _ = timeout(LAST_WORDS, session.hear_last_words(&mut buffer)).await;
                }
                let report = session.lock().report.clone();
                // The caller is gone only if the broker ends.
                let _ = caller.send(report);
                return;
            }
            message = session.worker.receive(&mut buffer), if room && !over => {
                over = match message {
                    Ok(Some((WorkerMessage::Ended, _))) => true,
                    Ok(Some((message, _))) => {
                        session.handle(message, &mut tasks);
                        false
                    }
                    Ok(None) | Err(_) => {
                        session.note_lost();
                        true
                    }
                };
                if over {
                    tasks.abort_all();
                }
            }
            Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
        }
    }
}

impl Session {
    pub(super) fn lock(&self) -> MutexGuard<'_, SessionState> {
        // Nothing panics while it holds the lock; if it did, the state is still a state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn most_tasks(&self) -> usize {
        usize::from(self.limits.connections) + usize::from(self.limits.udp_flows) + SPARE_TASKS
    }

    fn note_lost(&self) {
        let lost = "the network stack of this run ended early, and the network with it";
        self.lock().report.lost = Some(lost.to_owned());
    }

    /// Lets the worker end and counts the bytes that it still reports.
    async fn hear_last_words(&self, buffer: &mut [u8]) {
        if self.worker.send(&StackMessage::End, None).await.is_err() {
            return;
        }
        while let Ok(Some((message, _))) = self.worker.receive(buffer).await {
            match message {
                WorkerMessage::Meter { bytes_in, bytes_out } => self.meter(bytes_in, bytes_out),
                WorkerMessage::Denied { remote, protocol, reason } => {
                    self.count_denied_address(remote, protocol, reason);
                }
                WorkerMessage::Ended => return,
                _ => {}
            }
        }
    }

    fn handle(self: &Arc<Self>, message: WorkerMessage, tasks: &mut JoinSet<()>) {
        match message {
            WorkerMessage::OpenTcp { id, remote } => self.open_tcp(id, remote, tasks),
            WorkerMessage::OpenUdp { id, remote } => self.open_udp(id, remote, tasks),
            WorkerMessage::FirstBytes { id, bytes } => {
                // Without a receiver the verdict was given, and these bytes are the worker's.
                let _ = self.lock().unnamed.get(&id).map(|check| check.send(bytes));
            }
            WorkerMessage::Query { id, bytes } => {
                let session = Arc::clone(self);
                tasks.spawn(async move {
                    if let Some(bytes) = dns::answer_query(&session, &bytes, false).await {
                        session.tell_worker(&StackMessage::Answer { id, bytes }, None).await;
                    }
                });
            }
            WorkerMessage::Gone { id } => self.forget_flow(id),
            WorkerMessage::Meter { bytes_in, bytes_out } => self.meter(bytes_in, bytes_out),
            WorkerMessage::Denied { remote, protocol, reason } => {
                self.count_denied_address(remote, protocol, reason);
            }
            WorkerMessage::Ended => {}
        }
    }

    fn open_tcp(self: &Arc<Self>, id: FlowId, remote: SocketAddr, tasks: &mut JoinSet<()>) {
        let session = Arc::clone(self);
        let fits = {
            let mut state = self.lock();
            let fits = state.connections.len() < usize::from(self.limits.connections);
            fits && state.connections.insert(id)
        };
        tasks.spawn(async move {
            if fits {
                connect::serve_tcp(&session, id, remote).await;
            } else {
                session.refuse_opening(id).await;
            }
        });
    }

    fn open_udp(self: &Arc<Self>, id: FlowId, remote: SocketAddr, tasks: &mut JoinSet<()>) {
        let session = Arc::clone(self);
        let fits = {
            let mut state = self.lock();
            let fits = state.flows.len() < usize::from(self.limits.udp_flows);
            fits && state.flows.insert(id)
        };
        tasks.spawn(async move {
            if fits {
                connect::serve_udp(&session, id, remote).await;
            } else {
                session.refuse_opening(id).await;
            }
        });
    }

    /// Waits for the first bytes of a connection from now on.
    pub(super) fn expect_first_bytes(&self, id: FlowId) -> mpsc::UnboundedReceiver<Vec<u8>> {
        let (send, receive) = mpsc::unbounded_channel();
        self.lock().unnamed.insert(id, send);
        receive
    }

    /// The verdict about the first bytes of a connection was given.
    pub(super) fn stop_first_bytes(&self, id: FlowId) {
        self.lock().unnamed.remove(&id);
    }

    pub(super) fn forget_flow(&self, id: FlowId) {
        let mut state = self.lock();
        state.connections.remove(&id);
        state.flows.remove(&id);
        state.unnamed.remove(&id);
    }

    /// Refuses what was not opened. The number may be that of an open connection, which stays so.
    async fn refuse_opening(&self, id: FlowId) {
        let how = FlowRefusal::Reset;
        self.tell_worker(&StackMessage::Refused { id, how }, None).await;
    }

    pub(super) async fn refuse(&self, id: FlowId, how: FlowRefusal) {
        self.forget_flow(id);
        self.tell_worker(&StackMessage::Refused { id, how }, None).await;
    }

    /// Sends a message to the worker. If it is gone, the session's loop finds out.
    pub(super) async fn tell_worker(&self, message: &StackMessage, fd: Option<&OwnedFd>) {
        let _ = self.worker.send(message, fd).await;
    }

    /// Hands a socket to the worker, after the first `sent` bytes of the guest were sent. If the
    /// host cannot pass it on, the worker learns that there is none: nothing waits for it.
    pub(super) async fn attach(&self, id: FlowId, sent: u32, fd: &OwnedFd) {
        let attached = StackMessage::Attached { id, sent };
        if let Err(error) = self.worker.send(&attached, Some(fd)).await {
            tracing::debug!(%error, "a socket was not handed to the worker of a cell");
            self.refuse(id, FlowRefusal::Reset).await;
        }
    }

    pub(super) fn count_connection(&self) {
        self.lock().report.connections += 1;
    }

    fn meter(&self, bytes_in: u64, bytes_out: u64) {
        let report = &mut self.lock().report;
        report.bytes_in = report.bytes_in.saturating_add(bytes_in);
        report.bytes_out = report.bytes_out.saturating_add(bytes_out);
    }

    pub(super) fn count_denied(
        &self,
        host: &str,
        port: u16,
        protocol: NetworkProtocol,
        reason: DenialReason,
    ) {
        self.lock().report.count_denied(host, port, protocol, reason);
    }

    /// Counts a denied address by the name that the program knows it by, if it has one.
    pub(super) fn count_denied_address(
        &self,
        remote: SocketAddr,
        protocol: NetworkProtocol,
        reason: DenialReason,
    ) {
        let mut state = self.lock();
        let name = state.pins.names_of(remote.ip(), Instant::now()).into_iter().min();
        let host = name.map_or_else(|| remote.ip().to_string(), String::from);
        state.report.count_denied(&host, remote.port(), protocol, reason);
    }

    /// Counts a destination that policy, floor or scan rule refused.
    pub(super) fn count_refused(
        &self,
        remote: SocketAddr,
        protocol: NetworkProtocol,
        reason: DenialReason,
    ) {
        if reason == DenialReason::AddressBlocked {
            self.note_failure(remote);
        }
        self.count_denied_address(remote, protocol, reason);
    }

    pub(super) fn note_failure(&self, remote: SocketAddr) {
        self.lock().scan.note_failure(remote, Instant::now());
    }

    pub(super) fn is_cut(&self) -> bool {
        self.lock().scan.is_cut(Instant::now())
    }
}

/// Sleeps until a deadline; for use in `select!`.
pub(super) async fn deadline(at: Instant) {
    sleep_until(at.into()).await;
}
