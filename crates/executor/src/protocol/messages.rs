//! Runs in: server (no capabilities) and spawner (root). The requests of the server and the events
//! of the spawner, one packet each.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use cloche_jail::cgroup::CgroupReading;
use cloche_model::Substrate;
use serde::{Deserialize, Serialize};

use super::pack_messages::PackRequest;

/// The first word of the spawner's command line. Guests can read it, so it is no path of the host.
pub(crate) const SPAWNER_ARG0: &str = "cloche";

/// The variable of a spawner that makes contained cells only, and so enters no user namespace.
pub(crate) const SPAWNER_CONTAINED: &str = "CLOCHE_SPAWNER_CONTAINED";

/// The number of a cell. The server chooses it and never reuses one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct CellId(pub(crate) u64);

/// The number of a mounted image. The server chooses it and never reuses one, so that no cell is
/// built on another image than it was asked for, whatever becomes of the names of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ImageNumber(pub(crate) u64);

/// The configuration of a cell. Cells with equal configurations are interchangeable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct CellConfig {
    /// The mounted image that is its root; `None` for the image `host`.
    pub(crate) image: Option<ImageNumber>,
    pub(crate) memory: u64,
    pub(crate) cpu_milli: u32,
    pub(crate) pids: u32,
    pub(crate) disk: u64,
    /// Seconds of processor time that one process may use.
    pub(crate) cpu_seconds: u64,
    /// Whether the sandbox has the profile `strict`.
    pub(crate) strict: bool,
    /// What builds the cell.
    pub(crate) substrate: Substrate,
    /// Whether a network is attached to it before it gets its job.
    pub(crate) network: bool,
    /// Whether its job brings authorities that it trusts besides those of its image.
    pub(crate) trust: bool,
}

/// How many files a guest may have on a disk of this many bytes.
pub(crate) const fn inodes_for_disk(bytes: u64) -> u64 {
    const INODES_PER_MIB: u64 = 256;
    const LEAST_MIB: u64 = 16;
    let mebibytes = bytes >> 20;
    INODES_PER_MIB * if mebibytes < LEAST_MIB { LEAST_MIB } else { mebibytes }
}

/// What the spawner clones itself, in contrast to what a template forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum SpawnKind {
    /// A cell for guest code.
    Cell,
    /// The same, to find out whether its substrate can be used.
    Trial,
    /// A cell for guest code, whose interpreter waits at the gate.
    Gated,
    /// A template, which never runs guest code.
    Template,
}

/// The first packet to a new spawner: what it needs before it can make a cell.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SpawnerSetup {
    /// Whether the packet carries the directory of unpacked layers. It is passed as a file
    /// descriptor, because pid 1 of a cell has the arguments of the spawner and guests can read
    /// them.
    pub(crate) has_layers: bool,
    /// Whether the packet carries the directory in which contained cells have theirs. Then the
    /// spawner makes contained cells only.
    pub(crate) has_scratch: bool,
    /// Whether the host's Python packages are hidden, so that cells have the standard library only.
    pub(crate) hides_packages: bool,
}

/// One packet from the server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RequestPacket {
    /// The request.
    pub(crate) request: SpawnerRequest,
    /// Cells whose gauges the server will not read any more.
    #[serde(rename = "let_go")]
    pub(crate) released_gauges: Vec<CellId>,
    /// Images that the server will start no cell on any more.
    pub(crate) released_images: Vec<ImageNumber>,
}

/// A request of the server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SpawnerRequest {
    /// Start a cell. Carries stdin, stdout, stderr, job and control.
    Spawn { cell: CellId, config: CellConfig, kind: SpawnKind },
    /// Start a contained cell in a new directory with this plain name. Carries the same.
    Contain { cell: CellId, config: CellConfig, directory: String },
    /// Let a template fork a cell. Carries the same.
    Fork { cell: CellId, config: CellConfig, template: CellId },
    /// Kill every process of a cell.
    Kill { cell: CellId },
    /// Mount an image: the names of its unpacked layers, the lowest first.
    MountImage { image: ImageNumber, layers: Vec<String> },
    /// Mount a home in a cell that has run nothing yet.
    Home { cell: CellId, home: HomeRequest },
    /// Attach a network to a cell that has run nothing yet. Carries the stack worker's end of a
    /// session with the broker.
    Network { cell: CellId, ipv6: bool },
    /// Mount the socket of the web tools in a cell that has run nothing yet.
    ToolSocket { cell: CellId },
    /// Mount storage in a cell that has run nothing yet. Carries the socket of its mount server.
    Storage { cell: CellId, mounts: Vec<StorageMountRequest>, user: MountServerUser },
    /// Pack a directory that a guest has written to. Carries the directory, a pipe for the archive,
    /// a pipe for the packer's report, and the merged directory if the first is an overlay's upper.
    Pack { request: PackRequest },
}

/// A home to mount: its layers, and how much may be written.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HomeRequest {
    /// The names of the unpacked layers, the oldest first.
    pub(crate) layers: Vec<String>,
    /// Bytes that may be written.
    pub(crate) bytes: u64,
    /// Files that may be made.
    pub(crate) inodes: u64,
    /// Bytes and files of the disk limit that remain for `/tmp` and `/dev/shm`.
    pub(crate) elsewhere: (u64, u64),
    /// Top-level names that the run needs for its own files.
    pub(crate) placed: Vec<String>,
}

/// Whose rights a mount server has on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum MountServerUser {
    /// The server's, which owns volumes.
    Server,
    /// None: an id of its own, which owns nothing.
    Own,
}

/// A storage mount: a directory of `/data`. What is behind it, only the mount server knows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StorageMountRequest {
    /// Its name in `/data`, a plain name.
    pub(crate) slug: String,
    pub(crate) read_only: bool,
}

/// Whether a name from a packet is one path component, so that it names an entry of the directory
/// it is looked up in.
pub(crate) fn is_plain_name(name: &str) -> bool {
    !name.contains(['/', '\0']) && !matches!(name, "" | "." | "..")
}

/// The directory of a contained cell: a sibling of `scratch` whose name begins with its name. All
/// contained cells have one user, who may change the mode of every directory that it owns, so they
/// have no parent of that user in common: a guest could close it for all.
pub(crate) fn contained_cell_dir(scratch: &Path, name: &str) -> PathBuf {
    let mut own = scratch.file_name().unwrap_or_default().to_owned();
    own.push("-");
    own.push(name);
    scratch.with_file_name(own)
}

/// What a cell had used at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CellUsage {
    pub(crate) oom_kills: u64,
    pub(crate) cpu: Duration,
    pub(crate) peak: u64,
    /// The spawner killed it for the number of its processes.
    #[serde(default)]
    pub(crate) too_many_processes: bool,
}

impl From<CgroupReading> for CellUsage {
    fn from(CgroupReading { oom_kills, cpu, peak }: CgroupReading) -> Self {
        Self { oom_kills, cpu, peak, too_many_processes: false }
    }
}

/// An event of the spawner.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum SpawnerEvent {
    /// The event loop has started. All cells of an earlier one are gone.
    Hello { walls_missing: Vec<(String, String)> },
    /// A cell was started. Carries those of its gauges oom, cpu, peak and idle that exist.
    Spawned { cell: CellId, gauges: [bool; 4] },
    /// A cell could not be started.
    Refused { cell: CellId, reason: String },
    /// An image was mounted.
    ImageMounted { image: ImageNumber },
    /// An image could not be mounted.
    ImageRefused { image: ImageNumber, reason: String },
    /// A home was mounted. Carries its upper directory, and the merged directory if the home has
    /// layers.
    #[serde(rename = "Housed")]
    HomeMounted { cell: CellId },
    /// A home could not be mounted.
    #[serde(rename = "Homeless")]
    HomeRefused { cell: CellId, reason: String },
    /// The home has a directory with the name of a file that the run needs.
    #[serde(rename = "Blocked")]
    HomeBlocked { cell: CellId, name: String },
    /// A network was attached to a cell.
    NetworkAttached { cell: CellId },
    /// A network could not be attached.
    NetworkRefused { cell: CellId, reason: String },
    /// The socket of the web tools was mounted. Carries its listener.
    ToolSocketMounted { cell: CellId },
    /// The socket of the web tools could not be mounted.
    ToolSocketRefused { cell: CellId, reason: String },
    /// The storage of a cell was mounted, or could not be: which mount failed, and why.
    StorageMounted { cell: CellId, failed: Option<(String, String)> },
    /// A cell is gone: its processes, its mounts, and its cgroup unless that is reused. Carries the
    /// usage, which was read before.
    Gone { cell: CellId, used: CellUsage },
}
