//! Runs in: tests and fuzz targets.
//!
//! The properties that the fuzz targets check of the readers of a guest's bytes. Each function takes
//! any bytes and panics if a property does not hold. The tests at the end replay the seeds that are
//! in the tree.

use std::{net::SocketAddr, os::fd::OwnedFd};

use cloche_model::NetworkLimits;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

use crate::{
    broker::fuzzing::{
        check_asked_name, check_dns_answer, check_first_bytes, check_plain_requests,
        check_worker_messages,
    },
    protocol::{
        FlowRefusal, MAX_STACK_PACKET, StackMessage, WorkerMessage, decode_message, encode_message,
        receive_packet, send_packet,
    },
    stack::{VNET_HEADER, worker::StackWorker},
};

/// Bytes as the packets of a guest: two bytes of length, then the packet, again and again. A broker
/// answers with connections, refusals and first bytes. The worker must neither panic nor end, and
/// every turn must do a bounded amount of work.
pub fn check_guest_packets(bytes: &[u8]) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = |kind| socketpair(AddressFamily::UNIX, kind, flags, None);
    let (Ok((cell, tun)), Ok((broker, link))) =
        (pair(SocketType::DGRAM), pair(SocketType::SEQPACKET))
    else {
        return;
    };
    let mut fake = ScriptedBroker { socket: broker, far_ends: Vec::new() };
    fake.tell(&StackMessage::Start { limits: NetworkLimits::default(), ipv6: true }, None);
    let Ok(mut worker) = StackWorker::start(tun, link) else {
        return;
    };
    let mut sent = Vec::new();
    let mut rest = bytes;
    while let [high, low, tail @ ..] = rest {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(tail.len());
        let (packet, next) = tail.split_at(len);
        rest = next;
        sent.clear();
        sent.resize(VNET_HEADER, 0);
        sent.extend(packet);
        // A full queue is a packet that was lost.
        let _ = send(&cell, &sent, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        for _ in 0..3 {
            assert!(worker.turn_without_waiting().is_ok_and(|goes_on| goes_on));
            fake.answer();
        }
        // The cell reads nothing: what the worker sends may not make it wait.
        let mut discard = [0; 2048];
        while rustix::io::read(&cell, &mut discard).is_ok() {}
    }
    for _ in 0..8 {
        assert!(worker.turn_without_waiting().is_ok_and(|goes_on| goes_on));
    }
}

/// Bytes as a DNS query: what is accepted has one name, in one spelling.
pub fn check_query(bytes: &[u8]) {
    check_asked_name(bytes);
}

/// Bytes as the first bytes of a connection: more bytes never turn one verdict into another.
pub fn check_hello(bytes: &[u8]) {
    check_first_bytes(bytes);
}

/// Bytes as the answer of a name server.
pub fn check_name_server(bytes: &[u8]) {
    check_dns_answer(bytes);
}

/// Bytes as what a guest sends on a connection of plain HTTP under an allowlist.
pub fn check_http(bytes: &[u8]) {
    check_plain_requests(bytes);
}

/// Bytes as the messages of a stack worker that has been broken into.
pub fn check_worker(bytes: &[u8]) {
    check_worker_messages(bytes);
}

/// A broker that answers by the last bits of the port.
struct ScriptedBroker {
    socket: OwnedFd,
    far_ends: Vec<OwnedFd>,
}

impl ScriptedBroker {
    fn tell(&self, message: &StackMessage, fd: Option<&OwnedFd>) {
        use std::os::fd::AsFd;
        if let Ok(bytes) = encode_message(message) {
            let _ = send_packet(self.socket.as_fd(), &bytes, fd.map(AsFd::as_fd));
        }
    }

    fn answer(&mut self) {
        use std::os::fd::AsFd;
        let mut buffer = vec![0; MAX_STACK_PACKET];
        while let Ok((len @ 1.., _)) = receive_packet(self.socket.as_fd(), &mut buffer) {
            match decode_message::<WorkerMessage>(&buffer[..len]) {
                Some(WorkerMessage::OpenTcp { id, remote }) => self.open(id, remote),
                Some(WorkerMessage::OpenUdp { id, .. }) => {
                    self.tell(&StackMessage::Refused { id, how: FlowRefusal::Reset }, None);
                }
                Some(WorkerMessage::FirstBytes { id, bytes }) => {
                    self.attach(id, bytes.len() as u32)
                }
                Some(WorkerMessage::Query { id, bytes }) => {
                    self.tell(&StackMessage::Answer { id, bytes }, None);
                }
                Some(_) => {}
                None => panic!("a worker sent what is no message"),
            }
        }
    }

    fn open(&mut self, id: u64, remote: SocketAddr) {
        match remote.port() % 4 {
            0 => self.attach(id, 0),
            1 => self.tell(&StackMessage::Established { id }, None),
            2 => self.tell(&StackMessage::Refused { id, how: FlowRefusal::Reset }, None),
            _ => self.tell(&StackMessage::Refused { id, how: FlowRefusal::HostUnreachable }, None),
        }
    }

    fn attach(&mut self, id: u64, sent: u32) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        if let Ok((near, far)) = pair {
            let _ = send(&far, &[b'x'; 5000], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            self.tell(&StackMessage::Attached { id, sent }, Some(&near));
            self.far_ends.push(far);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn replay(target: &str, check: fn(&[u8])) {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
        let mut count = 0;
        for seed in fs::read_dir(seeds).unwrap() {
            check(&fs::read(seed.unwrap().path()).unwrap());
            count += 1;
        }
        assert!(count > 0, "{target} has no seeds");
    }

    #[test]
    fn the_seeds_of_guest_packets_hold() {
        replay("guest_packets", check_guest_packets);
    }

    #[test]
    fn the_seeds_of_queries_hold() {
        replay("dns_query", check_query);
    }

    #[test]
    fn the_seeds_of_first_bytes_hold() {
        replay("first_bytes", check_hello);
    }

    #[test]
    fn the_seeds_of_answers_hold() {
        replay("dns_answer", check_name_server);
    }

    #[test]
    fn the_seeds_of_plain_requests_hold() {
        replay("plain_requests", check_http);
    }

    #[test]
    fn the_seeds_of_worker_messages_hold() {
        replay("worker_messages", check_worker);
    }

    /// Numbers that look random and are the same in every run.
    struct Numbers(u64);

    impl Numbers {
        fn next(&mut self, below: u32) -> u32 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 32) as u32 % below
        }

        fn choose(&mut self, from: &[u32]) -> u32 {
            from[self.next(from.len() as u32) as usize]
        }
    }

    /// A segment that is nearly valid: few ports, sequence numbers near each other and near the
    /// wrap-around, windows that open and close.
    fn random_segment(numbers: &mut Numbers) -> Vec<u8> {
        let opens = numbers.next(4) == 0;
        let flags = match opens {
            true => 0x02,
            false => numbers.choose(&[0x10, 0x10, 0x18, 0x11, 0x04, 0x14, 0x00, 0x12, 0x19]),
        };
        let options: &[u8] = match opens {
            true => &[2, 4, 5, 0xb4, 1, 3, 3, 7],
            false => &[],
        };
        let len = match opens {
            true => 0,
            false => numbers.choose(&[0, 0, 1, 5, 100, 1400, 30_000, 60_000]),
        };
        let sequence = numbers.choose(&[1, 2, 3, 6, 102, u32::MAX, u32::MAX - 2, 1_000_000]);
        let acknowledged = numbers.next(12).wrapping_sub(2);
        let window = numbers.choose(&[0, 0, 1, 100, 0xffff]) as u16;
        let mut segment = Vec::new();
        segment.extend((40_000 + numbers.next(2) as u16).to_be_bytes());
        segment.extend((80 + numbers.next(4) as u16).to_be_bytes());
        segment.extend(sequence.to_be_bytes());
        segment.extend(acknowledged.to_be_bytes());
        segment.extend([(((20 + options.len()) / 4) << 4) as u8, flags as u8]);
        segment.extend(window.to_be_bytes());
        segment.extend([0; 4]);
        segment.extend(options);
        segment.resize(segment.len() + len as usize, b'x');
        segment
    }

    #[test]
    fn random_segments_of_a_guest_neither_stop_nor_crash_the_stack() {
        for seed in 1..=6 {
            let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
            let mut packets = Vec::new();
            for _ in 0..2000 {
                let segment = random_segment(&mut numbers);
                let packet = crate::stack::v4_packet(6, [1, 1, 1, 1], &segment);
                packets.extend((packet.len() as u16).to_be_bytes());
                packets.extend(packet);
            }
            check_guest_packets(&packets);
        }
    }
}
