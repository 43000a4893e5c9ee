//! Runs in: broker (no capabilities).
//!
//! Questions to the name servers of the host: UDP, then TCP if an answer was cut.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use cloche_model::HostName;
use hickory_proto::{
    op::{Message, MessageType, OpCode, Query, ResponseCode},
    rr::{DNSClass, Name, RData, RecordType},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    time::timeout,
};

use super::pins::MOST_ADDRESSES;

/// How long one server has for one try.
const TRY: Duration = Duration::from_secs(2);
/// Tries of each server.
const TRIES: usize = 2;

pub(super) struct Resolver {
    servers: Vec<SocketAddr>,
}

/// What a name server says about a name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Resolved {
    pub(super) code: ResponseCode,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) ttl: Duration,
}

impl Resolver {
    pub(super) fn new(servers: Vec<SocketAddr>) -> Self {
        Self { servers }
    }

    /// The addresses of a name, of one family.
    ///
    /// # Errors
    /// If no server answers.
    pub(super) async fn resolve(&self, name: &HostName, kind: RecordType) -> io::Result<Resolved> {
        let answer = self.ask(name, kind).await?;
        Ok(read_addresses(&answer, kind))
    }

    /// The answer of the first server that gives one.
    pub(super) async fn ask(&self, name: &HostName, kind: RecordType) -> io::Result<Message> {
        let mut id = [0; 2];
        getrandom::fill(&mut id).map_err(|_| io::Error::other("no random bytes"))?;
        let question = question_for(name, kind, u16::from_ne_bytes(id))?;
        let mut last = io::Error::other("no name server is configured");
        for server in self.servers.iter().cycle().take(self.servers.len() * TRIES) {
            let answer = timeout(TRY, exchange(*server, &question)).await;
            match answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(answer) if answer.metadata.response_code == ResponseCode::ServFail => {
                    last = io::Error::other("the name server failed");
                }
                Ok(answer) => return Ok(answer),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

fn question_for(name: &HostName, kind: RecordType, id: u16) -> io::Result<Message> {
    let mut name = Name::from_ascii(name.as_str()).map_err(io::Error::other)?;
    name.set_fqdn(true);
    let mut question = Message::new(id, MessageType::Query, OpCode::Query);
    question.metadata.recursion_desired = true;
    question.add_query(Query::query(name, kind));
    Ok(question)
}

/// The message and its addresses, if bytes answer the question for a name with their own number.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn read_answer(
    name: &HostName,
    kind: RecordType,
    bytes: &[u8],
) -> Option<(Message, Resolved)> {
    let id = u16::from_be_bytes(*bytes.first_chunk()?);
    let question = question_for(name, kind, id).ok()?;
    let answer = Message::from_vec(bytes).ok().filter(|answer| answers(answer, &question))?;
    let resolved = read_addresses(&answer, kind);
    Some((answer, resolved))
}

async fn exchange(server: SocketAddr, question: &Message) -> io::Result<Message> {
    let bytes = question.to_vec().map_err(io::Error::other)?;
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // A new socket for each question has a port of its own, which a forger has to guess.
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(&bytes).await?;
    let mut buffer = vec![0; 4096];
    loop {
        let len = socket.recv(&mut buffer).await?;
        match Message::from_vec(&buffer[..len]) {
            Ok(answer) if answers(&answer, question) => {
                return match answer.metadata.truncation {
                    true => exchange_by_tcp(server, &bytes, question).await,
                    false => Ok(answer),
                };
            }
            // A late answer to another question, or a forged one.
            _ => {}
        }
    }
}

async fn exchange_by_tcp(
    server: SocketAddr,
    bytes: &[u8],
    question: &Message,
) -> io::Result<Message> {
    let mut stream = TcpStream::connect(server).await?;
    let len = u16::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    stream.write_all(&[&len.to_be_bytes()[..], bytes].concat()).await?;
    let len = stream.read_u16().await?;
    let mut buffer = vec![0; usize::from(len)];
    stream.read_exact(&mut buffer).await?;
    match Message::from_vec(&buffer) {
        Ok(answer) if answers(&answer, question) => Ok(answer),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn answers(answer: &Message, question: &Message) -> bool {
    answer.metadata.message_type == MessageType::Response
        && answer.metadata.id == question.metadata.id
        && match (answer.queries.as_slice(), question.queries.as_slice()) {
            ([answered], [asked]) => {
                answered.query_type == asked.query_type
                    && answered.query_class == DNSClass::IN
                    && answered.name.to_lowercase() == asked.name.to_lowercase()
            }
            _ => false,
        }
}

/// The addresses at the end of the chain of aliases that begins with the asked name.
fn read_addresses(answer: &Message, kind: RecordType) -> Resolved {
    const MOST_ALIASES: usize = 16;
    let mut resolved = Resolved {
        code: answer.metadata.response_code,
        addresses: Vec::new(),
        ttl: Duration::from_secs(60),
    };
    let Some(mut name) = answer.queries.first().map(|query| query.name.to_lowercase()) else {
        return resolved;
    };
    let mut ttl = u32::MAX;
    for _ in 0..MOST_ALIASES {
        let alias = answer.answers.iter().find_map(|record| match &record.data {
            RData::CNAME(target) if record.name.to_lowercase() == name => {
                Some((target.0.to_lowercase(), record.ttl))
            }
            _ => None,
        });
        let Some((target, alias_ttl)) = alias else {
            break;
        };
        ttl = ttl.min(alias_ttl);
        name = target;
    }
    for record in answer.answers.iter().filter(|record| record.name.to_lowercase() == name) {
        let address = match (&record.data, kind) {
            (RData::A(address), RecordType::A) => IpAddr::V4(address.0),
            (RData::AAAA(address), RecordType::AAAA) => IpAddr::V6(address.0),
            _ => continue,
        };
        if resolved.addresses.len() < MOST_ADDRESSES && !resolved.addresses.contains(&address) {
            resolved.addresses.push(address);
            ttl = ttl.min(record.ttl);
        }
    }
    if ttl != u32::MAX {
        resolved.ttl = Duration::from_secs(ttl.into());
    }
    resolved
}
