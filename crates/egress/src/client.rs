//! Runs in: server (no capabilities).
//!
//! The server's side of the broker: opens a session for a run, and gets its report at the end.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use cloche_model::{BrokeredCredential, NetworkLimits, NetworkPolicy, NetworkReport};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};

use crate::{
    EgressSettings, SessionCredential,
    protocol::{
        AUTHORITIES_PART, BrokerReply, BrokerRequest, MAX_CONTROL_PACKET, PacketSocket,
        encode_message, set_packet_buffers,
    },
    supervisor::SupervisorMessage,
};

/// What a session is for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionSpec {
    pub(crate) policy: NetworkPolicy,
    pub(crate) limits: NetworkLimits,
    pub(crate) credentials: Vec<SessionCredential>,
}

impl SessionSpec {
    /// A session with a policy and limits.
    #[must_use]
    pub fn new(policy: NetworkPolicy, limits: NetworkLimits) -> Self {
        Self { policy, limits, credentials: Vec::new() }
    }

    /// The same with credentials that the broker adds to requests.
    #[must_use]
    pub fn with_credentials(mut self, credentials: &[BrokeredCredential]) -> Self {
        self.credentials = credentials.iter().map(SessionCredential::from).collect();
        self
    }
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The broker has ended.
    #[error("the network broker has ended, so no cell gets a network; restart cloche")]
    BrokerLost,
    /// The broker refused.
    #[error("the network broker opened no session: {0}")]
    NotOpened(String),
}

/// A connection to the broker, and to the next one if a supervisor starts it. Clones share it.
#[derive(Clone, Debug)]
pub struct BrokerClient {
    /// The broker that was started last. Its sender lives as long as there can be a next one.
    connection: watch::Receiver<BrokerConnection>,
    next: Arc<AtomicU64>,
}

/// The connection to one broker; closed when that has ended.
#[derive(Clone, Debug)]
struct BrokerConnection {
    commands: mpsc::UnboundedSender<Command>,
    ipv6: bool,
}

/// The network of one run. Dropping it closes every connection of the run.
#[derive(Debug)]
pub struct NetworkSession {
    id: u64,
    broker: BrokerConnection,
    stack_socket: Option<OwnedFd>,
    authority: Option<String>,
    finished: bool,
}

#[derive(Debug)]
enum Command {
    Open(u64, Box<SessionSpec>, oneshot::Sender<Opened>),
    Finish(u64, oneshot::Sender<NetworkReport>),
    Close(u64),
}

type Opened = Result<(OwnedFd, Option<String>), SessionError>;

impl BrokerClient {
    /// Takes over the socket to a broker that was started with the other end, and configures it.
    /// Needs a tokio runtime, on which one task of the client runs.
    ///
    /// # Errors
    /// If the broker does not answer.
    pub async fn connect(control: OwnedFd, settings: &EgressSettings) -> io::Result<Self> {
        let (connection, _) = connect_broker(control, settings).await?;
        let (_, connection) = watch::channel(connection);
        Ok(Self { connection, next: Arc::default() })
    }

    /// The same with the socket to a [`crate::supervisor`], which sends that of each broker.
    ///
    /// # Errors
    /// If the supervisor or the first broker does not answer.
    pub async fn connect_supervised(
        supervisor: OwnedFd,
        settings: EgressSettings,
    ) -> io::Result<Self> {
        let brokers = PacketSocket::new(supervisor)?;
        let (connection, ended) =
            connect_broker(receive_broker(&brokers).await?, &settings).await?;
        let (sender, connection) = watch::channel(connection);
        tokio::spawn(follow_brokers(brokers, settings, ended, sender));
        Ok(Self { connection, next: Arc::default() })
    }

    /// Whether cells get an IPv6 address.
    #[must_use]
    pub fn ipv6(&self) -> bool {
        self.connection.borrow().ipv6
    }

    /// Whether the broker has ended, and no other one is going to be started.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.connection.borrow().commands.is_closed() && self.connection.has_changed().is_err()
    }

    /// The broker that runs; waits if the next one is being started.
    async fn find_broker(&self) -> Result<BrokerConnection, SessionError> {
        let mut connection = self.connection.clone();
        let found = connection.wait_for(|broker| !broker.commands.is_closed()).await;
        found.map(|broker| broker.clone()).map_err(|_| SessionError::BrokerLost)
    }

    /// Opens a session.
    ///
    /// # Errors
    /// If the broker has ended, or refuses.
    pub async fn open_session(&self, spec: SessionSpec) -> Result<NetworkSession, SessionError> {
        let broker = self.find_broker().await?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (send, receive) = oneshot::channel();
        broker
            .commands
            .send(Command::Open(id, Box::new(spec), send))
            .map_err(|_| SessionError::BrokerLost)?;
        // Dropped together with this future, so that a session is closed when its run is cancelled
        // while it is opened.
        let mut session =
            NetworkSession { id, broker, stack_socket: None, authority: None, finished: false };
        let (stack_socket, authority) = receive.await.map_err(|_| SessionError::BrokerLost)??;
        session.stack_socket = Some(stack_socket);
        session.authority = authority;
        Ok(session)
    }
}

impl NetworkSession {
    /// The socket for [`crate::stack::run`], once.
    #[must_use]
    pub fn take_stack_socket(&mut self) -> Option<OwnedFd> {
        self.stack_socket.take()
    }

    /// Whether the cell gets an IPv6 address.
    #[must_use]
    pub fn ipv6(&self) -> bool {
        self.broker.ipv6
    }

    /// The certificate that the cell has to trust, in PEM, if the broker intercepts TLS for this
    /// session.
    #[must_use]
    pub fn authority(&self) -> Option<&str> {
        self.authority.as_deref()
    }

    /// Ends the network of the run: the worker ends, connections are closed. Returns what it did.
    /// Call it at the end of the run, before the worker is killed: a worker that ends first is
    /// reported as lost.
    pub async fn finish(mut self) -> NetworkReport {
        self.finished = true;
        let (send, receive) = oneshot::channel();
        let sent = self.broker.commands.send(Command::Finish(self.id, send));
        match sent {
            Ok(()) => receive.await.unwrap_or_else(|_| report_without_broker()),
            Err(_) => report_without_broker(),
        }
    }
}

fn report_without_broker() -> NetworkReport {
    let lost = "the network broker ended during the run, and the network with it";
    NetworkReport { lost: Some(lost.to_owned()), ..NetworkReport::default() }
}

impl Drop for NetworkSession {
    fn drop(&mut self) {
        if !self.finished {
            // If the broker is gone, so is the session.
            let _ = self.broker.commands.send(Command::Close(self.id));
        }
    }
}

/// Configures a broker. The task carries commands to it until it has ended.
async fn connect_broker(
    control: OwnedFd,
    settings: &EgressSettings,
) -> io::Result<(BrokerConnection, JoinHandle<()>)> {
    set_packet_buffers(control.as_fd())?;
    let socket = PacketSocket::new(control)?;
    configure_broker(&socket, settings.clone()).await?;
    let mut buffer = vec![0; MAX_CONTROL_PACKET];
    let Some((BrokerReply::Configured { ipv6 }, _)) = socket.receive(&mut buffer).await? else {
        return Err(io::ErrorKind::UnexpectedEof.into());
    };
    let (commands, queue) = mpsc::unbounded_channel();
    let task = tokio::spawn(carry_commands(socket, queue));
    Ok((BrokerConnection { commands, ipv6 }, task))
}

/// Sends the settings. A packet that is too long would end the broker.
async fn configure_broker(socket: &PacketSocket, mut settings: EgressSettings) -> io::Result<()> {
    let authorities = std::mem::take(&mut settings.authorities);
    for part in authorities.as_bytes().chunks(AUTHORITIES_PART) {
        socket.send(&BrokerRequest::Authorities(part.to_vec()), None).await?;
    }
    let configure = BrokerRequest::Configure(settings);
    if !fits_control_packet(&configure) {
        let sentence = "the lists of [network] in the settings are too long";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, sentence));
    }
    socket.send(&configure, None).await
}

fn fits_control_packet(request: &BrokerRequest) -> bool {
    encode_message(request).is_ok_and(|bytes| bytes.len() <= MAX_CONTROL_PACKET)
}

/// The socket of the next broker that the supervisor starts.
async fn receive_broker(supervisor: &PacketSocket) -> io::Result<OwnedFd> {
    let mut buffer = [0; 16];
    match supervisor.receive(&mut buffer).await? {
        Some((SupervisorMessage::BrokerStarted, Some(control))) => Ok(control),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Connects to each broker that follows one that has ended, as long as there is a supervisor.
async fn follow_brokers(
    supervisor: PacketSocket,
    settings: EgressSettings,
    mut ended: JoinHandle<()>,
    connection: watch::Sender<BrokerConnection>,
) {
    loop {
        // It ends, it does not fail.
        let _ = ended.await;
        ended = loop {
            let Ok(control) = receive_broker(&supervisor).await else {
                tracing::error!(
                    "the supervisor of the network broker has ended; no cell gets a \
                     network until cloche is started again"
                );
                return;
            };
            match connect_broker(control, &settings).await {
                Ok((broker, ended)) => {
                    tracing::info!("a new network broker was started; cells get networks again");
                    connection.send_replace(broker);
                    break ended;
                }
                Err(error) => tracing::error!(%error, "a new network broker ended at once"),
            }
        };
    }
}

/// The callers that wait for the broker.
#[derive(Default)]
struct WaitingCallers {
    opening: HashMap<u64, oneshot::Sender<Opened>>,
    finishing: HashMap<u64, oneshot::Sender<NetworkReport>>,
}

/// Carries commands to the broker and its replies to the callers, until either side ends. Dropping
/// the queue and the callers then tells everyone.
async fn carry_commands(socket: PacketSocket, mut queue: mpsc::UnboundedReceiver<Command>) {
    let mut waiting = WaitingCallers::default();
    let mut buffer = vec![0; MAX_CONTROL_PACKET];
    loop {
        let carried = tokio::select! {
            command = queue.recv() => match command {
                Some(command) => carry_command(&socket, &mut waiting, command).await,
                None => return,
            },
            reply = socket.receive(&mut buffer) => match reply {
                Ok(Some((reply, fd))) => { waiting.deliver(reply, fd); Ok(()) }
                Ok(None) => Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => Err(error),
            },
        };
        if let Err(error) = carried {
            tracing::error!(%error, "the network broker has ended, and the networks of all runs");
            return;
        }
    }
}

async fn carry_command(
    socket: &PacketSocket,
    waiting: &mut WaitingCallers,
    command: Command,
) -> io::Result<()> {
    let request = match command {
        Command::Open(session, spec, caller) => {
            let request = BrokerRequest::Open { session, spec: *spec };
            if !fits_control_packet(&request) {
                let why = "its policy and its credentials are too long together";
                // A caller that is gone has dropped its session.
                let _ = caller.send(Err(SessionError::NotOpened(why.to_owned())));
                return Ok(());
            }
            waiting.opening.insert(session, caller);
            request
        }
        Command::Finish(session, caller) => {
            waiting.finishing.insert(session, caller);
            BrokerRequest::Finish { session }
        }
        Command::Close(session) => BrokerRequest::Close { session },
    };
    socket.send(&request, None).await
}

impl WaitingCallers {
    fn deliver(&mut self, reply: BrokerReply, fd: Option<OwnedFd>) {
        match reply {
            BrokerReply::Configured { .. } => {}
            BrokerReply::Opened { session, authority } => {
                let opened = fd
                    .map(|fd| (fd, authority))
                    .ok_or_else(|| SessionError::NotOpened("its socket did not arrive".to_owned()));
                // A caller that is gone has dropped its session, which closes it.
                let _ = self.opening.remove(&session).map(|caller| caller.send(opened));
            }
            BrokerReply::NotOpened { session, why } => {
                let refused = Err(SessionError::NotOpened(why));
                let _ = self.opening.remove(&session).map(|caller| caller.send(refused));
            }
            BrokerReply::Finished { session, report } => {
                let _ = self.finishing.remove(&session).map(|caller| caller.send(report));
            }
        }
    }
}
