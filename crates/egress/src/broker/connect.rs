//! Runs in: broker (no capabilities).
//!
//! From a request of the worker to a socket: policy, floor, dialling, and the check of the name in
//! the first bytes.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use cloche_model::{DenialReason, HostName, NetworkProtocol};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket, UnixStream},
    sync::mpsc,
    time::timeout,
};

use super::{
    dns,
    first_bytes::{FirstBytes, read_first_bytes},
    floor::PermittedAddress,
    http_proxy,
    policy::{Grant, judge_tcp, judge_udp, requires_name},
    relay_places::RelayPlace,
    session::{Session, deadline},
};
use crate::{
    addresses::is_gateway,
    protocol::{FlowId, FlowRefusal, MAX_FIRST_BYTES, StackMessage},
};

/// How long a connection may take to be made.
const DIAL: Duration = Duration::from_secs(30);
/// How long a guest has to show the name where it must.
const SHOW_NAME: Duration = Duration::from_secs(5);

/// Serves a TCP connection until the worker has its socket, or to its end if the broker relays.
pub(super) async fn serve_tcp(session: &Session, id: FlowId, remote: SocketAddr) {
    if is_gateway(remote.ip()) {
        return serve_gateway(session, id, remote).await;
    }
    let (grant, address) = match permit_tcp(session, remote) {
        Ok(permitted) => permitted,
        Err(reason) => {
            session.count_refused(remote, NetworkProtocol::Tcp, reason);
            return session.refuse(id, FlowRefusal::Reset).await;
        }
    };
    match (dial(address).await, grant) {
        (Ok(upstream), Grant::Direct) => {
            session.count_connection();
            // A name with a credential has to be seen; every other one may pass.
            match session.bound_names(remote) {
                names if names.is_empty() => attach_stream(session, id, upstream, 0).await,
                names => {
                    let is_open = true;
                    NamedConnection { session, id, remote, names, is_open }.serve(upstream).await;
                }
            }
        }
        (Ok(upstream), Grant::Named(names)) => {
            session.count_connection();
            let is_open = false;
            NamedConnection { session, id, remote, names, is_open }.serve(upstream).await;
        }
        (Err(error), _) => {
            session.note_failure(remote);
            session.refuse(id, refusal_of(&error)).await;
        }
    }
}

/// The policy, then the floor, which has the last word.
fn permit_tcp(
    session: &Session,
    remote: SocketAddr,
) -> Result<(Grant, PermittedAddress), DenialReason> {
    let grant = judge_tcp(&session.policy, &mut session.lock().pins, remote)?;
    let address = session.shared.floor.permit(remote, NetworkProtocol::Tcp)?;
    match session.is_cut() {
        true => Err(DenialReason::ScanDetected),
        false => Ok((grant, address)),
    }
}

fn permit_udp(session: &Session, remote: SocketAddr) -> Result<PermittedAddress, DenialReason> {
    judge_udp(&session.policy, remote)?;
    // QUIC would go past the credential; clients fall back to TLS over TCP.
    if !session.bound_names(remote).is_empty() {
        return Err(DenialReason::ProtocolBlocked);
    }
    let address = session.shared.floor.permit(remote, NetworkProtocol::Udp)?;
    match session.is_cut() {
        true => Err(DenialReason::ScanDetected),
        false => Ok(address),
    }
}

async fn dial(address: PermittedAddress) -> io::Result<TcpStream> {
    let stream = timeout(DIAL, TcpStream::connect(address.get()))
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    // The guest's own stack has already decided how to cut its bytes.
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn refusal_of(error: &io::Error) -> FlowRefusal {
    match error.kind() {
        io::ErrorKind::NetworkUnreachable => FlowRefusal::NetworkUnreachable,
        io::ErrorKind::HostUnreachable => FlowRefusal::HostUnreachable,
        io::ErrorKind::TimedOut => FlowRefusal::Silence,
        _ => FlowRefusal::Reset,
    }
}

/// Hands a connection to the worker, after the first `sent` bytes of the guest were sent.
async fn attach_stream(session: &Session, id: FlowId, stream: TcpStream, sent: u32) {
    match stream.into_std().map(OwnedFd::from) {
        Ok(fd) => session.attach(id, sent, &fd).await,
        Err(_) => session.refuse(id, FlowRefusal::Reset).await,
    }
}

/// Gives the worker one end of a pair, through which the broker sees every byte of the guest. The
/// place is to be held until the connection ends. `None` if the connection was refused instead.
async fn attach_pair(
    session: &Session,
    id: FlowId,
    remote: SocketAddr,
) -> Option<(UnixStream, RelayPlace)> {
    let Some(place) = session.relay_places.take() else {
        session.count_denied_address(remote, NetworkProtocol::Tcp, DenialReason::LimitReached);
        session.refuse(id, FlowRefusal::Reset).await;
        return None;
    };
    let pair = UnixStream::pair().and_then(|(ours, workers)| Ok((ours, workers.into_std()?)));
    let Ok((ours, workers)) = pair else {
        session.refuse(id, FlowRefusal::Reset).await;
        return None;
    };
    session.attach(id, 0, &OwnedFd::from(workers)).await;
    Some((ours, place))
}

/// A connection that is allowed by name, or one whose name may have a credential.
struct NamedConnection<'a> {
    session: &'a Session,
    id: FlowId,
    remote: SocketAddr,
    names: Vec<HostName>,
    /// Whether the policy allows the connection with every name and without one.
    is_open: bool,
}

/// Who speaks first.
enum FirstSpeaker {
    /// The guest, whose bytes were read as far as necessary.
    Guest(FirstBytes, Vec<u8>),
    /// The server: a protocol without a name in its first bytes.
    Server,
    /// The guest has said too little in time.
    Silent,
    /// The guest has sent nothing, and is not going to.
    Ended,
    /// The connection is over at the guest's side.
    Gone,
}

impl NamedConnection<'_> {
    async fn serve(&self, upstream: TcpStream) {
        let (session, id) = (self.session, self.id);
        let first_bytes = session.expect_first_bytes(id);
        session.tell_worker(&StackMessage::Established { id }, None).await;
        let speaker = self.wait_for_speaker(first_bytes, &upstream).await;
        session.stop_first_bytes(id);
        let strict = self.is_strict();
        match speaker {
            FirstSpeaker::Guest(FirstBytes::Tls(name), bytes) => {
                self.pass_tls(name, upstream, &bytes).await;
            }
            FirstSpeaker::Guest(FirstBytes::HiddenName(name), bytes) => {
                self.pass_hidden_name(name, upstream, &bytes).await;
            }
            FirstSpeaker::Guest(FirstBytes::Http, _) if !self.is_open => {
                self.proxy_http(upstream).await;
            }
            FirstSpeaker::Guest(_, bytes) if !strict => self.pass(upstream, &bytes).await,
            FirstSpeaker::Server => attach_stream(session, id, upstream, 0).await,
            FirstSpeaker::Ended if !strict => self.pass_end(upstream).await,
            FirstSpeaker::Guest(..) | FirstSpeaker::Silent => {
                let reason = DenialReason::UnknownProtocol;
                session.count_denied_address(self.remote, NetworkProtocol::Tcp, reason);
                session.refuse(id, FlowRefusal::Reset).await;
            }
            FirstSpeaker::Ended | FirstSpeaker::Gone => {
                session.refuse(id, FlowRefusal::Reset).await;
            }
        }
    }

    /// Whether the guest has to show a name.
    fn is_strict(&self) -> bool {
        !self.is_open && requires_name(self.remote.port())
    }

    async fn wait_for_speaker(
        &self,
        mut first_bytes: mpsc::UnboundedReceiver<Vec<u8>>,
        upstream: &TcpStream,
    ) -> FirstSpeaker {
        let strict = self.is_strict();
        let until = Instant::now() + SHOW_NAME;
        let mut bytes = Vec::new();
        loop {
            let begun = !bytes.is_empty();
            tokio::select! {
                part = first_bytes.recv() => match part {
                    Some(part) if part.is_empty() => match (begun, self.is_open) {
                        (false, _) => return FirstSpeaker::Ended,
                        (true, true) => return FirstSpeaker::Guest(FirstBytes::Other, bytes),
                        (true, false) => return FirstSpeaker::Silent,
                    },
                    Some(part) => bytes.extend(part),
                    None => return FirstSpeaker::Gone,
                },
                // TLS and HTTP servers wait for the client, so a guest that waits gains nothing.
                _ = upstream.readable(), if !strict && !begun => return FirstSpeaker::Server,
                () = deadline(until), if begun && self.is_open => {
                    return FirstSpeaker::Guest(FirstBytes::Other, bytes);
                }
                () = deadline(until), if !self.is_open && (strict || begun) => {
                    return FirstSpeaker::Silent;
                }
            }
            match read_first_bytes(&bytes) {
                FirstBytes::Incomplete if bytes.len() < MAX_FIRST_BYTES => {}
                found => return FirstSpeaker::Guest(found, bytes),
            }
        }
    }

    /// TLS: the name has to be one of those that were resolved to this address. What follows is
    /// opaque and goes past the broker, unless the name has a credential.
    async fn pass_tls(&self, name: Option<HostName>, upstream: TcpStream, bytes: &[u8]) {
        let (session, port) = (self.session, self.remote.port());
        match &name {
            Some(shown) if self.names.contains(shown) && session.is_bound(shown, port) => {
                let pair = attach_pair(session, self.id, self.remote).await;
                if let Some((guest, _place)) = pair {
                    session.intercept((guest, upstream), shown, port).await;
                }
            }
            Some(shown) if self.names.contains(shown) => self.pass(upstream, bytes).await,
            _ if self.is_open => self.pass(upstream, bytes).await,
            _ => {
                self.deny_name(name.as_ref(), NetworkProtocol::Tls);
                self.session.refuse(self.id, FlowRefusal::Reset).await;
            }
        }
    }

    /// TLS with an Encrypted ClientHello. Which name it is for cannot be judged, so an allowlist
    /// refuses it. Where every name is allowed, the outer name decides about credentials: the
    /// broker does not accept the inner one, and the client falls back.
    async fn pass_hidden_name(&self, name: Option<HostName>, upstream: TcpStream, bytes: &[u8]) {
        if self.is_open {
            return self.pass_tls(name, upstream, bytes).await;
        }
        let (port, reason) = (self.remote.port(), DenialReason::NameHidden);
        match name {
            Some(name) => {
                self.session.count_denied(name.as_str(), port, NetworkProtocol::Tls, reason);
            }
            None => self.session.count_denied_address(self.remote, NetworkProtocol::Tls, reason),
        }
        self.session.refuse(self.id, FlowRefusal::Reset).await;
    }

    /// Sends the bytes that were judged, these and no others, and hands the connection over.
    async fn pass(&self, mut upstream: TcpStream, bytes: &[u8]) {
        let sent = timeout(SHOW_NAME, upstream.write_all(bytes)).await;
        match (sent, u32::try_from(bytes.len())) {
            (Ok(Ok(())), Ok(sent)) => attach_stream(self.session, self.id, upstream, sent).await,
            _ => self.session.refuse(self.id, FlowRefusal::Reset).await,
        }
    }

    /// Hands over a connection on which the guest said nothing before it ended. Nothing can be sent
    /// on it any more, whatever the worker says.
    async fn pass_end(&self, mut upstream: TcpStream) {
        match upstream.shutdown().await {
            Ok(()) => attach_stream(self.session, self.id, upstream, 0).await,
            Err(_) => self.session.refuse(self.id, FlowRefusal::Reset).await,
        }
    }

    /// HTTP: every request of the connection has to name an allowed host.
    async fn proxy_http(&self, upstream: TcpStream) {
        let pair = attach_pair(self.session, self.id, self.remote).await;
        let Some((guest, _place)) = pair else { return };
        let deny = |name: Option<&HostName>| self.deny_name(name, NetworkProtocol::Http);
        http_proxy::serve_requests(guest, upstream, &self.names, deny).await;
    }

    fn deny_name(&self, name: Option<&HostName>, protocol: NetworkProtocol) {
        let port = self.remote.port();
        let Some(name) = name else {
            let reason = DenialReason::NameMismatch;
            return self.session.count_denied_address(self.remote, protocol, reason);
        };
        let reason = match super::policy::allows_name(&self.session.policy, name) {
            true => DenialReason::NameMismatch,
            false => DenialReason::NotAllowed,
        };
        self.session.count_denied(name.as_str(), port, protocol, reason);
    }
}

/// The gateway address has one service: DNS.
async fn serve_gateway(session: &Session, id: FlowId, remote: SocketAddr) {
    if remote.port() != 53 {
        return session.refuse(id, FlowRefusal::Reset).await;
    }
    let Some((mut guest, _place)) = attach_pair(session, id, remote).await else { return };
    const IDLE: Duration = Duration::from_secs(10);
    while let Ok(Ok(len)) = timeout(IDLE, guest.read_u16()).await {
        let mut query = vec![0; usize::from(len)];
        if !matches!(timeout(IDLE, guest.read_exact(&mut query)).await, Ok(Ok(_))) {
            return;
        }
        let Some(answer) = dns::answer_query(session, &query, true).await else {
            return;
        };
        let Ok(len) = u16::try_from(answer.len()) else {
            return;
        };
        let framed = [&len.to_be_bytes()[..], &answer].concat();
        if !matches!(timeout(IDLE, guest.write_all(&framed)).await, Ok(Ok(()))) {
            return;
        }
    }
}

/// Serves a UDP flow until the worker has its socket.
pub(super) async fn serve_udp(session: &Session, id: FlowId, remote: SocketAddr) {
    let socket = match permit_udp(session, remote) {
        Ok(address) => connect_udp(address).await,
        Err(reason) => {
            session.count_refused(remote, NetworkProtocol::Udp, reason);
            return session.refuse(id, FlowRefusal::Reset).await;
        }
    };
    match socket {
        Ok(fd) => session.attach(id, 0, &fd).await,
        Err(error) => session.refuse(id, refusal_of(&error)).await,
    }
}

async fn connect_udp(address: PermittedAddress) -> io::Result<OwnedFd> {
    let socket = match address.get() {
        SocketAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?,
        SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).await?,
    };
    socket.connect(address.get()).await?;
    socket.into_std().map(OwnedFd::from)
}
