//! Runs in: test. A name server whose answers a test writes, and a resolver that asks one question.

use std::{
    collections::HashMap,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use hickory_proto::{
    op::{Message, MessageType, OpCode, Query, ResponseCode},
    rr::{
        Name, RData, Record, RecordType,
        rdata::{A, AAAA, CNAME},
    },
};

/// Answers of names. Names that are not here do not exist.
#[derive(Clone, Default)]
pub(crate) struct NameServer {
    answers: Arc<Mutex<HashMap<String, Vec<String>>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl NameServer {
    pub(crate) fn start(address: SocketAddr) -> Self {
        let server = Self::default();
        let socket = UdpSocket::bind(address).unwrap();
        let udp = server.clone();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                let answer = udp.answer(&buffer[..len]);
                let mut bytes = answer.to_vec().unwrap();
                if bytes.len() > 512 {
                    let mut cut = answer;
                    cut.answers.clear();
                    cut.metadata.truncation = true;
                    bytes = cut.to_vec().unwrap();
                }
                // A forged answer with another id comes first.
                let mut forged = bytes.clone();
                forged[0] ^= 0xff;
                let _ = socket.send_to(&forged, from);
                let _ = socket.send_to(&bytes, from);
            }
        });
        let listener = TcpListener::bind(address).unwrap();
        let tcp = server.clone();
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                if let Ok(query) = read_framed(&mut stream) {
                    let bytes = tcp.answer(&query).to_vec().unwrap();
                    let _ = write_framed(&mut stream, &bytes);
                }
            }
        });
        server
    }

    /// Sets the answers of a name: addresses, or one other name.
    pub(crate) fn set(&self, name: &str, answers: &[&str]) {
        let answers = answers.iter().map(|&answer| answer.to_owned()).collect();
        self.answers.lock().unwrap().insert(name.to_owned(), answers);
    }

    /// The names that were asked for.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    fn answer(&self, query: &[u8]) -> Message {
        let query = Message::from_vec(query).unwrap();
        let asked = query.queries[0].clone();
        let mut answer = Message::response(query.metadata.id, OpCode::Query);
        answer.add_query(asked.clone());
        let name = asked.name.to_ascii().trim_end_matches('.').to_lowercase();
        self.asked.lock().unwrap().push(name.clone());
        let answers = self.answers.lock().unwrap();
        if !answers.contains_key(&name) {
            answer.metadata.response_code = ResponseCode::NXDomain;
            return answer;
        }
        let mut owner = asked.name.clone();
        let mut found = answers.get(&name);
        while let Some(list) = found {
            found = None;
            for text in list {
                match text.parse::<IpAddr>() {
                    Ok(IpAddr::V4(ip)) if asked.query_type == RecordType::A => {
                        answer.add_answer(Record::from_rdata(owner.clone(), 0, RData::A(A(ip))));
                    }
                    Ok(IpAddr::V6(ip)) if asked.query_type == RecordType::AAAA => {
                        let data = RData::AAAA(AAAA(ip));
                        answer.add_answer(Record::from_rdata(owner.clone(), 0, data));
                    }
                    Ok(_) => {}
                    Err(_) => {
                        let target = Name::from_ascii(format!("{text}.")).unwrap();
                        let data = RData::CNAME(CNAME(target.clone()));
                        answer.add_answer(Record::from_rdata(owner.clone(), 0, data));
                        owner = target;
                        found = answers.get(text);
                        break;
                    }
                }
            }
        }
        answer
    }
}

fn read_framed(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut len = [0; 2];
    stream.read_exact(&mut len)?;
    let mut bytes = vec![0; usize::from(u16::from_be_bytes(len))];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn write_framed(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(&[&(bytes.len() as u16).to_be_bytes()[..], bytes].concat())
}

/// What the resolver of the cell says: the code and the addresses.
#[derive(Debug)]
pub(crate) struct Lookup {
    pub(crate) code: ResponseCode,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) truncated: bool,
}

fn question(name: &str, kind: RecordType) -> Vec<u8> {
    let mut query = Message::new(7, MessageType::Query, OpCode::Query);
    query.metadata.recursion_desired = true;
    query.add_query(Query::query(Name::from_ascii(format!("{name}.")).unwrap(), kind));
    query.to_vec().unwrap()
}

fn read_lookup(bytes: &[u8]) -> Lookup {
    let answer = Message::from_vec(bytes).unwrap();
    assert_eq!(answer.metadata.id, 7);
    let addresses = answer.answers.iter().filter_map(|record| match &record.data {
        RData::A(a) => Some(IpAddr::V4(a.0)),
        RData::AAAA(aaaa) => Some(IpAddr::V6(aaaa.0)),
        _ => None,
    });
    Lookup {
        code: answer.metadata.response_code,
        addresses: addresses.collect(),
        truncated: answer.metadata.truncation,
    }
}

/// Asks the resolver of the cell, from the cell.
pub(crate) fn look_up(name: &str, kind: RecordType) -> Lookup {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket.connect("192.0.0.1:53").unwrap();
    socket.send(&question(name, kind)).unwrap();
    let mut buffer = [0; 4096];
    let len = socket.recv(&mut buffer).unwrap();
    read_lookup(&buffer[..len])
}

/// The same over TCP.
pub(crate) fn look_up_by_tcp(name: &str, kind: RecordType) -> Lookup {
    let mut stream = TcpStream::connect("192.0.0.1:53").unwrap();
    write_framed(&mut stream, &question(name, kind)).unwrap();
    read_lookup(&read_framed(&mut stream).unwrap())
}
