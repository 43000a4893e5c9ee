//! What the executor and the spawner say to each other, one packet each.
//!
//! The spawner is privileged and trusts no packet to name a path or a mount: it is told limits
//! and the name of an image, and builds the rest itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use cloche_jail::{
    cgroup::CgroupReading,
    sys::{self, Errno},
};
use serde::{Deserialize, Serialize};

/// The longest packet.
const PACKET: usize = 64 << 10;

/// A cell's own number, chosen by the executor and never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct CellId(pub(crate) u64);

/// What a cell must be like; cells of equal configurations are interchangeable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct CellConfig {
    pub(crate) image: String,
    pub(crate) memory: u64,
    pub(crate) cpu_milli: u32,
    pub(crate) pids: u32,
    pub(crate) disk: u64,
    /// Whether it is for a hostile guest.
    pub(crate) strict: bool,
}

/// How many files a guest may have for so many bytes of disk.
pub(crate) const fn inodes_for_disk(bytes: u64) -> u64 {
    const INODES_PER_MIB: u64 = 256;
    const LEAST_MIB: u64 = 16;
    let mebibytes = bytes >> 20;
    INODES_PER_MIB * if mebibytes < LEAST_MIB { LEAST_MIB } else { mebibytes }
}

/// What is started from nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum SpawnKind {
    /// A cell for guest code.
    Cell,
    /// A template, which never sees any.
    Template,
}

/// The first packet to a new spawner: what it needs before it can make anything.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SpawnerSetup {
    /// Whether the packet carries the directory of unpacked layers. By descriptor, since arguments
    /// of the spawner are those of pid 1 of a cell, which every guest can read.
    pub(crate) has_layers: bool,
}

/// From the executor.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RequestPacket {
    /// What it wants.
    pub(crate) request: SpawnerRequest,
    /// Cells whose gauges it will not read any more.
    pub(crate) let_go: Vec<CellId>,
}

/// What an executor can want.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SpawnerRequest {
    /// Start a cell. Carries stdin, stdout, stderr, job, control.
    Spawn { cell: CellId, config: CellConfig, kind: SpawnKind },
    /// Have a template fork a cell. Carries the same.
    Fork { cell: CellId, config: CellConfig, template: CellId },
    /// Kill everything in a cell.
    Kill { cell: CellId },
    /// Mount a home in a cell that has run nothing yet.
    Home { cell: CellId, home: HomeRequest },
    /// Pack what is in a directory that guests have written to. Carries the directory, where the
    /// archive goes, where it is told how that went, and the overlay if it is the upper part of one.
    Pack { request: PackRequest },
}

/// A home to be mounted: layers and room.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HomeRequest {
    /// The names of the unpacked layers, the oldest first.
    pub(crate) layers: Vec<String>,
    /// Bytes that may be written.
    pub(crate) bytes: u64,
    /// Files that may be made.
    pub(crate) inodes: u64,
    /// Bytes and files that are left of the disk limit for `/tmp` and `/dev/shm`.
    pub(crate) elsewhere: (u64, u64),
    /// Names at the top that the run needs for files of its own.
    pub(crate) placed: Vec<String>,
}

/// What is to be packed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PackRequest {
    /// Files that were put there before the run.
    pub(crate) placed: Vec<PlacedDigest>,
    /// The mode that the home had before the run.
    pub(crate) home_mode: Option<u32>,
    /// How much is kept of each file, and of all; everything if this is absent.
    pub(crate) most: Option<(u64, u64)>,
}

/// What a packer says when it has finished.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PackReport {
    /// Files that are what was put there before the run.
    pub(crate) unchanged: BTreeSet<String>,
    /// Whether files have more attributes than a home keeps.
    pub(crate) lost_attributes: bool,
    /// Files of which not all was packed, and their sizes.
    pub(crate) cut: BTreeMap<String, u64>,
}

/// A file that was put there before the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PlacedDigest {
    /// Its name.
    pub(crate) name: String,
    /// The SHA-256 of what was in it.
    pub(crate) digest: [u8; 32],
    /// Whether it is left out if it is still the same.
    pub(crate) leave_out: bool,
}

/// Whether a name from a packet names a file of the very directory it is looked up in.
pub(crate) fn is_plain_name(name: &str) -> bool {
    !name.contains(['/', '\0']) && !matches!(name, "" | "." | "..")
}

/// What a cell had used at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CellUsage {
    pub(crate) oom_kills: u64,
    pub(crate) cpu: Duration,
    pub(crate) peak: u64,
}

impl From<CgroupReading> for CellUsage {
    fn from(CgroupReading { oom_kills, cpu, peak }: CgroupReading) -> Self {
        Self { oom_kills, cpu, peak }
    }
}

/// From the spawner.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SpawnerEvent {
    /// A spawner has started; whatever an earlier one held is gone.
    Hello { walls_missing: Vec<(String, String)> },
    /// A cell was started. Carries its gauges: those of oom, cpu, peak and idle that are there.
    Spawned { cell: CellId, gauges: [bool; 4] },
    /// A cell could not be started.
    Refused { cell: CellId, reason: String },
    /// A home was mounted. Carries the directory that holds what will be written, and the home if
    /// that is another.
    Housed { cell: CellId },
    /// A home could not be mounted.
    Homeless { cell: CellId, reason: String },
    /// A directory of the home is where a file of the run belongs.
    Blocked { cell: CellId, name: String },
    /// A cell is gone: its processes and mounts, and its cgroup, unless the next cell gets that one.
    /// What it had used, read before that.
    Gone { cell: CellId, used: CellUsage },
}

/// A packet that could not be sent or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProtocolError {
    /// The other side is gone.
    #[error("the other side is gone")]
    Closed,
    /// Would block: nothing to read, or no room to write.
    #[error("not now")]
    WouldBlock,
    /// Anything else.
    #[error("system error {0}")]
    System(i32),
    /// Not one of our packets.
    #[error("malformed packet: {0}")]
    Malformed(String),
}

impl From<Errno> for ProtocolError {
    fn from(errno: Errno) -> Self {
        match errno.0 {
            11 => Self::WouldBlock,
            32 | 104 => Self::Closed,
            other => Self::System(other),
        }
    }
}

/// Sends one packet.
pub(crate) fn send_packet<T: Serialize>(
    socket: BorrowedFd<'_>,
    packet: &T,
    fds: &[BorrowedFd<'_>],
) -> Result<(), ProtocolError> {
    let bytes = serde_json::to_vec(packet).map_err(|e| ProtocolError::Malformed(e.to_string()))?;
    let fds: Vec<i32> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    Ok(sys::sendmsg(socket.as_raw_fd(), &bytes, &fds)?)
}

/// Room for one packet, used again and again.
pub(crate) struct PacketBuffer(Box<[u8]>);

impl PacketBuffer {
    pub(crate) fn new() -> Self {
        Self(vec![0; PACKET].into())
    }

    /// Receives one packet with its descriptors.
    pub(crate) fn receive<T: for<'a> Deserialize<'a>>(
        &mut self,
        socket: impl AsFd,
    ) -> Result<(T, Vec<OwnedFd>), ProtocolError> {
        let (len, fds) = sys::recvmsg(socket.as_fd().as_raw_fd(), &mut self.0)?;
        let fds = fds.into_iter().flatten().map(sys::into_owned_fd).collect();
        if len == 0 {
            return Err(ProtocolError::Closed);
        }
        let packet = serde_json::from_slice(&self.0[..len]);
        packet.map(|packet| (packet, fds)).map_err(|e| ProtocolError::Malformed(e.to_string()))
    }
}
