//! Runs in: tests and fuzz targets.
//!
//! A session whose stack worker has been broken into.

use std::{
    collections::HashSet,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use cloche_model::{NetworkLimits, NetworkPolicy, NetworkReport};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::ALLOWED;
use crate::{
    EgressSettings, SessionSpec,
    broker::{configure, session},
    protocol::{
        FlowId, MAX_STACK_PACKET, PacketSocket, StackMessage, WorkerMessage, decode_message,
        encode_message, send_packet,
    },
};

/// The connections and flows that the session may have at once.
const MOST: u16 = 4;
/// How often the worker may free a place. One that lies about it makes its own session wait.
const MOST_GONE: usize = 64;
/// The number of the query that comes last.
const LAST: FlowId = FlowId::MAX;

/// Bytes as messages of a worker: two bytes of length, then the message, again and again. The
/// session neither panics nor stalls, dials nothing that its policy has not allowed, hands out no
/// more sockets than its limits have, and its report stays short.
pub(crate) fn check_worker_messages(bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (Ok(runtime), Ok((ours, worker))) = (runtime, pair) else { return };
    runtime.block_on(async {
        let Some(report) = play_messages(bytes, ours, worker).await else { return };
        assert!(report.denied.len() <= NetworkReport::MOST_DENIED);
        assert_eq!(report.connections, 0, "the session dialled");
    });
}

async fn play_messages(bytes: &[u8], ours: OwnedFd, worker: OwnedFd) -> Option<NetworkReport> {
    let limits = NetworkLimits { connections: MOST, udp_flows: MOST, ..NetworkLimits::default() };
    let policy = NetworkPolicy::from_texts("allowlist", &[ALLOWED]).ok()?;
    // Without name servers no name has an address, so nothing can be dialled.
    let settings = EgressSettings { ipv6: false, ..EgressSettings::default() };
    let shared = Arc::new(configure(settings));
    let spec = SessionSpec::new(policy, limits);
    let commands = session::start_session(shared, spec, None, ours).ok()?;
    let freed = send_messages(bytes, &worker);
    let query = [0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1].to_vec();
    let query = WorkerMessage::Query { id: LAST, bytes: query };
    send_packet(worker.as_fd(), &encode_message(&query).ok()?, None).ok()?;
    let worker = PacketSocket::new(worker).ok()?;
    let (mut attached, mut buffer) = (HashSet::new(), vec![0; MAX_STACK_PACKET]);
    loop {
        match worker.receive(&mut buffer).await.ok()?? {
            (StackMessage::Answer { id: LAST, .. }, _) => break,
            (StackMessage::Attached { id, sent }, fd) => {
                assert!(fd.is_some() && sent == 0);
                attached.insert(id);
            }
            _ => {}
        }
    }
    // A place is free again only when the worker says so.
    assert!(attached.len() <= usize::from(MOST) + freed, "{attached:?}");
    worker.send(&WorkerMessage::Ended, None).await.ok()?;
    Some(session::finish(Some(commands)).await)
}

/// Sends the messages up to the first that ends the session. Returns how many places they free.
fn send_messages(mut bytes: &[u8], worker: &OwnedFd) -> usize {
    let mut gone = 0;
    while let [high, low, tail @ ..] = bytes {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(tail.len());
        let (message, rest) = tail.split_at(len);
        bytes = rest;
        match decode_message(message) {
            None | Some(WorkerMessage::Ended) => break,
            Some(WorkerMessage::Query { id: LAST, .. }) => break,
            Some(WorkerMessage::Gone { .. }) if gone == MOST_GONE => break,
            Some(WorkerMessage::Gone { .. }) => gone += 1,
            Some(_) => {}
        }
        if send_packet(worker.as_fd(), message, None).is_err() {
            break;
        }
    }
    gone
}
