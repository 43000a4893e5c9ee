//! Runs in: broker (no capabilities).
//!
//! The process that decides what a cell reaches. It answers DNS, dials, and checks names in first
//! bytes. `cli` starts it as the hidden command `cloche __network-broker` before the server confines
//! itself, in the host's network namespace, and confines it.
//!
//! | module | what |
//! |---|---|
//! | `floor` | addresses and ports that no policy reaches, checked where a socket is connected |
//! | `policy`, `pins` | what a session may reach, and which addresses its names have |
//! | `dns`, `resolver` | answers to the cell, and questions to the host's name servers |
//! | `connect`, `first_bytes`, `http_proxy` | TCP: dialling, and the check of names |
//! | `interception` | TLS to hosts with a credential |
//! | `relay_places` | how many connections the broker relays itself |
//! | `session` | one session: its worker, its tasks, its report |

mod connect;
mod dns;
mod first_bytes;
mod floor;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod http_proxy;
mod interception;
mod pins;
mod policy;
mod relay_places;
mod resolver;
mod scan;
mod session;

use std::{
    collections::HashMap,
    io,
    net::{Ipv6Addr, UdpSocket},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tokio::sync::mpsc;

use crate::{
    EgressSettings, SessionSpec,
    protocol::{BrokerReply, BrokerRequest, MAX_CONTROL_PACKET, PacketSocket, set_packet_buffers},
};
use floor::AddressFloor;
use relay_places::RelayPlaces;
use resolver::Resolver;
use session::{SessionCommand, start_session};

/// Serves the server behind `control`, a seqpacket socket, until the other end is closed. Single
/// threaded.
///
/// # Errors
/// If the runtime cannot start, or the first packet is not a configuration.
pub fn run(control: OwnedFd) -> io::Result<()> {
    set_packet_buffers(control.as_fd())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let control = Arc::new(PacketSocket::new(control)?);
        serve_control(control).await
    })
}

/// What all sessions share.
struct BrokerShared {
    floor: AddressFloor,
    resolver: Resolver,
    ipv6: bool,
    /// The operator's own certificate authorities, in PEM.
    authorities: String,
    relay_places: Arc<RelayPlaces>,
}

async fn serve_control(control: Arc<PacketSocket>) -> io::Result<()> {
    let mut buffer = vec![0; MAX_CONTROL_PACKET];
    let settings = receive_settings(&control, &mut buffer).await?;
    let most = settings.sessions;
    let shared = Arc::new(configure(settings));
    control.send(&BrokerReply::Configured { ipv6: shared.ipv6 }, None).await?;
    let mut sessions: HashMap<u64, mpsc::UnboundedSender<SessionCommand>> = HashMap::new();
    while let Some((request, _)) = control.receive(&mut buffer).await? {
        match request {
            BrokerRequest::Authorities(_) | BrokerRequest::Configure(_) => {
                return Err(io::ErrorKind::InvalidData.into());
            }
            BrokerRequest::Open { session, spec } => {
                sessions.retain(|_, commands| !commands.is_closed());
                let opened = match sessions.len() < most {
                    true => open_session(&shared, spec),
                    false => Err(io::Error::other("too many sessions are open")),
                };
                match opened {
                    Ok((worker_end, commands, authority)) => {
                        sessions.insert(session, commands);
                        let reply = BrokerReply::Opened { session, authority };
                        control.send(&reply, Some(&worker_end)).await?;
                    }
                    Err(error) => {
                        let why = error.to_string();
                        control.send(&BrokerReply::NotOpened { session, why }, None).await?;
                    }
                }
            }
            BrokerRequest::Finish { session } => {
                let commands = sessions.remove(&session);
                tokio::spawn(finish_session(Arc::clone(&control), session, commands));
            }
            // The session ends when nothing can command it.
            BrokerRequest::Close { session } => drop(sessions.remove(&session)),
        }
    }
    Ok(())
}

/// The settings, and the authorities that came before them.
async fn receive_settings(control: &PacketSocket, buffer: &mut [u8]) -> io::Result<EgressSettings> {
    let mut authorities = Vec::new();
    loop {
        match control.receive(buffer).await? {
            Some((BrokerRequest::Authorities(part), _)) => authorities.extend(part),
            Some((BrokerRequest::Configure(mut settings), _)) => {
                let text = String::from_utf8(authorities);
                settings.authorities = text.map_err(|_| io::ErrorKind::InvalidData)?;
                return Ok(settings);
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn configure(settings: EgressSettings) -> BrokerShared {
    let ipv6 = settings.ipv6 && host_has_ipv6();
    BrokerShared {
        floor: AddressFloor::new(&settings),
        resolver: Resolver::new(settings.resolvers),
        ipv6,
        authorities: settings.authorities,
        relay_places: RelayPlaces::within_descriptors(),
    }
}

/// Whether there is a route to a public IPv6 address. Connecting a UDP socket sends nothing.
fn host_has_ipv6() -> bool {
    const PUBLIC: Ipv6Addr = Ipv6Addr::new(0x2606, 0x4700, 0, 0, 0, 0, 0, 0x1111);
    UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))
        .and_then(|socket| socket.connect((PUBLIC, 53)))
        .is_ok()
}

/// The worker's socket, the session, and the certificate that its cell has to trust.
type OpenedSession = (OwnedFd, mpsc::UnboundedSender<SessionCommand>, Option<String>);

fn open_session(shared: &Arc<BrokerShared>, mut spec: SessionSpec) -> io::Result<OpenedSession> {
    spec.limits.check().map_err(io::Error::other)?;
    let credentials = std::mem::take(&mut spec.credentials);
    let interceptor = interception::make_interceptor(credentials, &shared.authorities)?;
    let authority = interceptor.as_ref().map(|made| made.authority_pem().to_owned());
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, workers) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let commands = start_session(Arc::clone(shared), spec, interceptor, ours)?;
    Ok((workers, commands, authority))
}

async fn finish_session(
    control: Arc<PacketSocket>,
    session: u64,
    commands: Option<mpsc::UnboundedSender<SessionCommand>>,
) {
    let report = session::finish(commands).await;
    // The server is gone if this fails, and the broker ends.
    let _ = control.send(&BrokerReply::Finished { session, report }, None).await;
}
