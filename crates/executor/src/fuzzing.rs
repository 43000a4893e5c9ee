//! Runs in: test. What the fuzz target checks of the packets between server and spawner.
//!
//! The function takes any bytes and panics if a property of the reader does not hold. The test at
//! the end replays the seeds of the tree.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use cloche_jail::sys;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    protocol::{
        PackReport, PackRequest, PacketBuffer, ProtocolError, RequestPacket, SpawnerEvent,
        SpawnerRequest, is_plain_name, send_packet,
    },
    spawner::check_layer_name,
};

/// Sends bytes with file descriptors over a socket and reads them as a packet. The first byte
/// chooses the kind of packet, the second the number of file descriptors. Checks that no file
/// descriptor is left open, that an accepted packet has the same meaning when it is sent again, and
/// that a name which passes the spawner's checks is plain.
pub fn check_packet(bytes: &[u8]) {
    let [kind, fds, packet @ ..] = bytes else { return };
    let fds = usize::from(*fds) % (sys::MAX_FDS + 1);
    match kind % 4 {
        0 => {
            if let Some(packet) = send_and_receive::<RequestPacket>(packet, fds) {
                check_names(&packet.request);
            }
        }
        1 => drop(send_and_receive::<SpawnerEvent>(packet, fds)),
        2 => drop(
            serde_json::from_slice::<PackReport>(packet).map(|report| check_round_trip(&report)),
        ),
        _ => drop(send_and_receive::<PackRequest>(packet, fds)),
    }
}

/// Sends the bytes, receives them as a packet, and checks it.
fn send_and_receive<T: Serialize + DeserializeOwned>(bytes: &[u8], fds: usize) -> Option<T> {
    let (ours, theirs) = open_socket_pair()?;
    let lowest = next_descriptor(&ours);
    let passed: Vec<i32> = vec![ours.as_raw_fd(); fds];
    if sys::sendmsg(ours.as_raw_fd(), bytes, &passed).is_err() {
        return None;
    }
    let received = PacketBuffer::new().receive::<T>(&theirs);
    let packet = match received {
        Ok((packet, received)) => {
            assert_eq!(received.len(), fds, "descriptors were lost");
            Some(packet)
        }
        Err(ProtocolError::Closed) => {
            assert!(bytes.is_empty());
            None
        }
        Err(ProtocolError::Malformed(_)) => None,
        Err(error) => panic!("receiving: {error}"),
    };
    assert_eq!(next_descriptor(&ours), lowest, "descriptors were left open");
    packet.inspect(check_round_trip)
}

/// Checks that a packet has the same meaning after it was sent and received.
fn check_round_trip<T: Serialize + DeserializeOwned>(packet: &T) {
    let Some((ours, theirs)) = open_socket_pair() else { return };
    let text = |packet: &T| serde_json::to_string(packet).unwrap_or_default();
    match send_packet(ours.as_fd(), packet, &[]) {
        Ok(()) => {}
        // A number can be written in several ways, so the second form may be longer.
        Err(error) => return assert!(text(packet).len() > 64 << 10, "sending: {error}"),
    }
    match PacketBuffer::new().receive::<T>(&theirs) {
        Ok((again, _)) => assert_eq!(text(&again), text(packet), "the meaning has changed"),
        Err(error) => assert!(text(packet).len() > 64 << 10, "our own packet: {error}"),
    }
}

/// Whether the name of a file or a layer cannot be a path.
fn is_one_part(name: &str) -> bool {
    !name.contains(['/', '\0']) && !matches!(name, "" | "." | "..")
}

fn check_layers(layers: &[String]) {
    for name in layers.iter().filter(|name| check_layer_name(name).is_ok()) {
        assert!(is_one_part(name) && !name.contains(['.', ',', ':', '\\', '=']), "{name:?}");
    }
}

fn check_names(request: &SpawnerRequest) {
    match request {
        SpawnerRequest::MountImage { layers, .. } => check_layers(layers),
        SpawnerRequest::Home { home, .. } => {
            check_layers(&home.layers);
            let placed = home.placed.iter().filter(|name| is_plain_name(name));
            assert!(placed.into_iter().all(|name| is_one_part(name)));
        }
        SpawnerRequest::Pack { request } => {
            let placed = request.placed.iter().filter(|placed| is_plain_name(&placed.name));
            assert!(placed.into_iter().all(|placed| is_one_part(&placed.name)));
        }
        SpawnerRequest::Storage { mounts, .. } => {
            let plain = mounts.iter().filter(|mount| is_plain_name(&mount.slug));
            assert!(plain.into_iter().all(|mount| is_one_part(&mount.slug)));
        }
        SpawnerRequest::Contain { directory, .. } => {
            assert!(!is_plain_name(directory) || is_one_part(directory), "{directory:?}");
        }
        SpawnerRequest::Spawn { .. }
        | SpawnerRequest::Fork { .. }
        | SpawnerRequest::Network { .. }
        | SpawnerRequest::ToolSocket { .. }
        | SpawnerRequest::Kill { .. } => {}
    }
}

fn open_socket_pair() -> Option<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()
}

/// The lowest free file descriptor.
fn next_descriptor(any: &OwnedFd) -> i32 {
    any.try_clone().map_or(-1, |next| next.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// Changes, inserts or removes a few bytes. Equal numbers give equal changes.
    fn mutate(mut bytes: Vec<u8>, mut number: u64) -> Vec<u8> {
        let mut next = |below: usize| {
            number ^= number << 13;
            number ^= number >> 7;
            number ^= number << 17;
            usize::try_from(number % below.max(1) as u64).unwrap()
        };
        for _ in 0..=next(4) {
            let (at, kind, byte) = (next(bytes.len()), next(4), next(256));
            match kind {
                0 if !bytes.is_empty() => bytes[at] = u8::try_from(byte).unwrap(),
                1 if !bytes.is_empty() => drop(bytes.remove(at)),
                2 => bytes.insert(at, u8::try_from(byte).unwrap()),
                _ => bytes.extend_from_within(at..),
            }
        }
        bytes
    }

    #[test]
    fn seeds_of_the_fuzz_target_and_random_changes_of_them_pass() {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/packets");
        let seeds: Vec<_> = fs::read_dir(seeds).unwrap().map(|seed| seed.unwrap().path()).collect();
        assert!(!seeds.is_empty());
        for seed in seeds.iter().map(|seed| fs::read(seed).unwrap()) {
            check_packet(&seed);
            (1..1000).for_each(|number| check_packet(&mutate(seed.clone(), number)));
        }
    }
}
