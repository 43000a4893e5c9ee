//! Runs in: unit tests. One connection of a guest, packet by packet: what becomes of its place.

use std::os::fd::AsFd;

use cloche_model::ByteSize;
use rustix::net::{
    AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, send, shutdown, socketpair,
    sockopt,
};

use super::*;
use crate::{
    protocol::{MAX_STACK_PACKET, decode_message, encode_message, receive_packet, send_packet},
    stack::{VNET_HEADER, v4_packet},
};

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;
/// The first sequence number of the guest.
const FIRST: u32 = 1000;

/// A worker between a guest and a broker that the test plays.
struct Played {
    worker: StackWorker,
    cell: OwnedFd,
    broker: OwnedFd,
    /// The next sequence number of the guest, and the one that it expects.
    next: u32,
    expected: u32,
}

/// A segment of the worker.
struct Segment {
    sequence: u32,
    flags: u8,
    payload: Vec<u8>,
}

fn pair(kind: SocketType) -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, kind, flags, None).unwrap()
}

impl Played {
    fn start(limits: NetworkLimits) -> Self {
        let (cell, tun) = pair(SocketType::DGRAM);
        let (broker, link) = pair(SocketType::SEQPACKET);
        let start = StackMessage::Start { limits, ipv6: true };
        send_packet(broker.as_fd(), &encode_message(&start).unwrap(), None).unwrap();
        let worker = StackWorker::start(tun, link).unwrap();
        Self { worker, cell, broker, next: FIRST, expected: 0 }
    }

    /// A connection that the broker has opened: `None` if it waits for first bytes, or its socket.
    /// The guest has the SYN-ACK and has not answered it.
    fn opened(socket: Option<&OwnedFd>) -> (Self, FlowId) {
        Self::start(NetworkLimits::default()).open(socket)
    }

    fn open(self, socket: Option<&OwnedFd>) -> (Self, FlowId) {
        let mut played = self;
        played.send(SYN, &[]);
        let [WorkerMessage::OpenTcp { id, .. }] = played.hear()[..] else {
            panic!("the worker did not ask for the connection");
        };
        match socket {
            Some(fd) => played.tell(&StackMessage::Attached { id, sent: 0 }, Some(fd)),
            None => played.tell(&StackMessage::Established { id }, None),
        }
        played.turn();
        let [answer] = &played.segments()[..] else {
            panic!("the worker did not answer the SYN once");
        };
        assert_eq!(answer.flags, SYN | ACK);
        (played, id)
    }

    /// The same, established.
    fn established(socket: Option<&OwnedFd>) -> (Self, FlowId) {
        let (mut played, id) = Self::opened(socket);
        played.send(ACK, &[]);
        (played, id)
    }

    fn turn(&mut self) {
        for _ in 0..4 {
            assert!(self.worker.turn_without_waiting().unwrap());
        }
    }

    fn tell(&self, message: &StackMessage, fd: Option<&OwnedFd>) {
        let bytes = encode_message(message).unwrap();
        send_packet(self.broker.as_fd(), &bytes, fd.map(AsFd::as_fd)).unwrap();
    }

    /// What the worker has told the broker.
    fn hear(&mut self) -> Vec<WorkerMessage> {
        let mut buffer = vec![0; MAX_STACK_PACKET];
        let mut heard = Vec::new();
        while let Ok((len, _)) = receive_packet(self.broker.as_fd(), &mut buffer) {
            heard.push(decode_message(&buffer[..len]).unwrap());
        }
        heard
    }

    fn is_told_gone(&mut self, flow: FlowId) -> bool {
        self.hear().iter().any(|told| matches!(told, WorkerMessage::Gone { id } if *id == flow))
    }

    /// Sends a segment of the guest.
    fn send(&mut self, flags: u8, payload: &[u8]) {
        let options: &[u8] = if flags == SYN { &[2, 4, 5, 0xb4, 1, 3, 3, 7] } else { &[] };
        let mut segment = vec![0x9c, 0x40, 0, 80];
        segment.extend(self.next.to_be_bytes());
        segment.extend(self.expected.to_be_bytes());
        segment.extend([(((20 + options.len()) / 4) << 4) as u8, flags, 0xff, 0xff, 0, 0, 0, 0]);
        segment.extend(options);
        segment.extend(payload);
        let ends = flags & (SYN | FIN) != 0;
        self.next += payload.len() as u32 + u32::from(ends);
        let mut packet = vec![0; VNET_HEADER];
        packet.extend(v4_packet(6, [1, 1, 1, 1], &segment));
        send(&self.cell, &packet, SendFlags::empty()).unwrap();
        self.turn();
    }

    /// What the worker has sent to the guest.
    fn segments(&mut self) -> Vec<Segment> {
        let mut buffer = vec![0; 70_000];
        let mut segments = Vec::new();
        while let Ok(len) = rustix::io::read(&self.cell, &mut buffer) {
            let tcp = &buffer[VNET_HEADER + 20..len];
            let header = usize::from(tcp[12] >> 4) * 4;
            let sequence = u32::from_be_bytes(*tcp[4..].first_chunk().unwrap());
            let (flags, payload) = (tcp[13], tcp[header..].to_vec());
            let ends = flags & (SYN | FIN) != 0;
            // The byte of a question whether the guest is there has been received long ago.
            if sequence.wrapping_sub(self.expected) < 0x8000_0000 || flags & SYN != 0 {
                let after = payload.len() as u32 + u32::from(ends);
                self.expected = sequence.wrapping_add(after);
            }
            segments.push(Segment { sequence, flags, payload });
        }
        segments
    }

    fn pass(&mut self, time: Duration) {
        self.worker.started = self.worker.started.checked_sub(time).unwrap();
        self.turn();
    }
}

#[test]
fn a_guest_that_does_not_wait_for_the_answer_gives_its_place_back() {
    let (near, _far) = pair(SocketType::STREAM);
    let (mut played, id) = Played::opened(Some(&near));
    played.send(RST | ACK, &[]);
    assert!(played.is_told_gone(id));
    assert!(played.worker.connections.is_empty() && played.worker.by_flow.is_empty());
}

#[test]
fn a_closed_connection_gives_its_place_back() {
    let (near, far) = pair(SocketType::STREAM);
    let (mut played, id) = Played::established(Some(&near));
    drop(near);
    played.send(FIN | ACK, &[]);
    assert_eq!(rustix::io::read(&far, &mut [0; 8]).unwrap(), 0, "the end was not passed on");
    assert!(!played.is_told_gone(id), "the other end has not ended");
    drop(far);
    played.turn();
    assert!(played.segments().iter().any(|segment| segment.flags & FIN != 0));
    played.send(ACK, &[]);
    assert!(played.is_told_gone(id));
}

#[test]
fn a_quiet_connection_lives_as_long_as_the_guest_has_it() {
    let (near, far) = pair(SocketType::STREAM);
    let (mut played, id) = Played::established(Some(&near));
    played.segments();
    for _ in 0..10 {
        played.pass(Duration::from_secs(25));
        let asked = played.segments();
        let [question] = &asked[..] else {
            panic!("{} segments instead of one question", asked.len());
        };
        assert_eq!((question.flags & RST, question.payload.len()), (0, 1));
        assert_eq!(question.sequence.wrapping_add(1), played.expected);
        played.send(ACK, &[]);
    }
    assert!(!played.is_told_gone(id));
    send(&far, b"late", SendFlags::empty()).unwrap();
    played.turn();
    assert_eq!(played.segments()[0].payload, b"late");
}

#[test]
fn a_connection_that_the_guest_has_forgotten_gives_its_place_back() {
    for resets in [true, false] {
        let (near, _far) = pair(SocketType::STREAM);
        let (mut played, id) = Played::established(Some(&near));
        played.send(FIN | ACK, &[]);
        played.segments();
        played.pass(Duration::from_secs(25));
        assert_eq!(played.segments().len(), 1, "the guest is asked");
        assert!(!played.is_told_gone(id));
        match resets {
            true => played.send(RST | ACK, &[]),
            false => played.pass(Duration::from_secs(61)),
        }
        assert!(played.is_told_gone(id), "{resets}");
    }
}

#[test]
fn the_last_bytes_of_a_guest_reach_a_slow_server_that_has_ended() {
    let (near, far) = pair(SocketType::STREAM);
    sockopt::set_socket_send_buffer_size(&near, 4096).unwrap();
    let (mut played, id) = Played::established(Some(&near));
    drop(near);
    shutdown(&far, Shutdown::Write).unwrap();
    played.turn();
    played.segments();
    played.send(ACK, &[7; 30_000]);
    played.segments();
    played.send(FIN | ACK, &[7; 30_000]);
    played.segments();
    played.send(ACK, &[]);
    assert!(!played.is_told_gone(id), "bytes of the guest were thrown away");
    played.pass(Duration::from_secs(20));
    let mut received = 0;
    let mut buffer = [0; 8192];
    loop {
        match rustix::io::read(&far, &mut buffer) {
            Ok(0) => break,
            Ok(len) => received += len,
            Err(_) => played.turn(),
        }
    }
    assert_eq!(received, 60_000);
    assert!(played.is_told_gone(id));
}

#[test]
fn a_guest_gets_every_byte_that_was_counted_before_the_run_has_no_more() {
    let (near, far) = pair(SocketType::STREAM);
    send(&far, &[7; 5000], SendFlags::empty()).unwrap();
    let limits =
        NetworkLimits { bytes_per_run: Some(ByteSize::kib(1)), ..NetworkLimits::default() };
    let (mut played, id) = Played::start(limits).open(Some(&near));
    played.send(ACK, &[]);
    let sent = played.segments();
    assert!(sent.iter().all(|segment| segment.flags & RST == 0), "reset before it was delivered");
    assert_eq!(sent.iter().map(|segment| segment.payload.len()).sum::<usize>(), 1024);
    assert!(!played.is_told_gone(id));
    played.send(ACK, &[]);
    assert!(played.segments().iter().any(|segment| segment.flags & RST != 0));
    assert!(played.is_told_gone(id));
}

#[test]
fn the_broker_learns_that_a_guest_has_nothing_to_say() {
    let (mut played, id) = Played::established(None);
    played.send(FIN | ACK, &[]);
    let told = played.hear();
    let [WorkerMessage::FirstBytes { id: flow, bytes }] = &told[..] else {
        panic!("{told:?}");
    };
    assert_eq!((*flow, bytes.len()), (id, 0));
    played.turn();
    assert!(played.hear().is_empty(), "it was told twice");
}

#[test]
fn a_flow_of_datagrams_that_fails_gives_its_place_back() {
    let mut played = Played::start(NetworkLimits::default());
    let mut packet = vec![0; VNET_HEADER];
    packet.extend(v4_packet(17, [1, 1, 1, 1], &[0x9c, 0x40, 0, 80, 0, 10, 0, 0, b'h', b'i']));
    send(&played.cell, &packet, SendFlags::empty()).unwrap();
    played.turn();
    let [WorkerMessage::OpenUdp { id, .. }] = played.hear()[..] else {
        panic!("the worker did not ask for the flow");
    };
    // The end of a pipe that cannot be read.
    let (read_end, write_end) = io::pipe().unwrap();
    drop(read_end);
    played.tell(&StackMessage::Attached { id, sent: 0 }, Some(&write_end.into()));
    played.turn();
    assert!(played.is_told_gone(id));
}
