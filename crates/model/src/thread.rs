//! Threads: homes that outlive executions, and the snapshots that they can return to.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{ByteSize, Invalid, LayerDigest, Moment, TeamId, ThreadId, TraceId};

/// A home that outlives executions, in its current state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// The team that owns it.
    pub team: TeamId,
    /// The name that its owner gave it.
    pub id: ThreadId,
    /// When it was first used.
    pub created_at: Moment,
    /// When its head last moved, or an execution last used it.
    pub updated_at: Moment,
    /// The number of its latest snapshot.
    pub head: u64,
    /// Its layers, oldest first.
    pub layers: Vec<LayerDigest>,
    /// The size of its home.
    pub usage: HomeUsage,
}

/// The size of a home.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeUsage {
    /// Bytes in files.
    pub bytes: ByteSize,
    /// Files, directories and links.
    pub entries: u64,
    /// Whether the numbers are exact; otherwise they are upper bounds.
    pub counted: bool,
}

impl HomeUsage {
    /// Adds a layer on top. The result is an upper bound, because the paths that the layer replaces
    /// or removes are not subtracted.
    #[must_use]
    pub fn with_layer(self, bytes: ByteSize, entries: u64) -> Self {
        Self {
            bytes: ByteSize(self.bytes.bytes().saturating_add(bytes.bytes())),
            entries: self.entries.saturating_add(entries),
            counted: false,
        }
    }
}

/// The operation that created a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SnapshotKind {
    /// An execution.
    Run,
    /// A file was uploaded.
    Upload,
    /// The thread was forked from another thread.
    Fork,
    /// The thread was rolled back to an earlier snapshot.
    Rollback,
    /// The thread was imported from an archive.
    Import,
    /// Its layers were merged into one; the content of the home is unchanged.
    Squash,
}

impl SnapshotKind {
    const ALL: [Self; 6] =
        [Self::Run, Self::Upload, Self::Fork, Self::Rollback, Self::Import, Self::Squash];

    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Upload => "upload",
            Self::Fork => "fork",
            Self::Rollback => "rollback",
            Self::Import => "import",
            Self::Squash => "squash",
        }
    }
}

impl FromStr for SnapshotKind {
    type Err = Invalid;

    fn from_str(name: &str) -> Result<Self, Invalid> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| Invalid::new("unknown kind of point"))
    }
}

/// A snapshot of a thread. It never changes, and the thread can return to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadSnapshot {
    /// Its number; the first is 1.
    pub seq: u64,
    /// The operation that created it.
    pub kind: SnapshotKind,
    /// The execution that created it, if there was one.
    pub trace_id: Option<TraceId>,
    /// When it was created.
    pub at: Moment,
    /// The home's layers in this snapshot, oldest first.
    pub layers: Vec<LayerDigest>,
    /// The layer that was added, if any.
    pub layer: Option<LayerDigest>,
    /// Bytes of the files in that layer.
    pub added: ByteSize,
    /// Paths that the layer adds, changes or removes.
    pub changed: u64,
    /// The size of the home.
    pub usage: HomeUsage,
}

/// A reference to a snapshot, by its number or by the execution that created it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotRef {
    /// Its number.
    Seq(u64),
    /// The execution.
    Trace(TraceId),
}

impl FromStr for SnapshotRef {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        if let Ok(trace) = text.parse() {
            return Ok(Self::Trace(trace));
        }
        let seq = text.parse::<i64>().ok().and_then(|seq| u64::try_from(seq).ok());
        seq.map(Self::Seq).ok_or_else(|| {
            Invalid::new("a point is named by its number or by the trace_id of its execution")
        })
    }
}

impl fmt::Display for SnapshotRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seq(seq) => write!(f, "{seq}"),
            Self::Trace(trace) => write!(f, "{trace}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_named_by_number_or_trace_id() {
        assert_eq!("7".parse(), Ok(SnapshotRef::Seq(7)));
        assert_eq!("trc_abc".parse(), Ok(SnapshotRef::Trace("trc_abc".parse().unwrap())));
        for wrong in ["", "-1", "1.5", "head", "trc_", "99999999999999999999"] {
            assert!(wrong.parse::<SnapshotRef>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn adding_a_layer_makes_the_usage_an_upper_bound() {
        let counted = HomeUsage { bytes: ByteSize(5), entries: 2, counted: true };
        let sum = counted.with_layer(ByteSize(3), 1);
        assert_eq!(sum, HomeUsage { bytes: ByteSize(8), entries: 3, counted: false });
    }
}
