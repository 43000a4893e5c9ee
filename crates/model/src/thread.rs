//! Threads: homes that outlive a run, and the points in time that they can go back to.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{ByteSize, Invalid, LayerDigest, Moment, TeamId, ThreadId, TraceId};

/// A home that outlives a run, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Whose it is.
    pub team: TeamId,
    /// What its owner calls it.
    pub id: ThreadId,
    /// When it was first used.
    pub created_at: Moment,
    /// When its head last moved, or a run last used it.
    pub updated_at: Moment,
    /// The number of its newest point.
    pub head: u64,
    /// Its layers, the oldest first.
    pub layers: Vec<LayerDigest>,
    /// What it holds.
    pub usage: HomeUsage,
}

/// What a home holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeUsage {
    /// Bytes in files.
    pub bytes: ByteSize,
    /// Files, directories and links.
    pub entries: u64,
    /// Whether they were counted; if not, neither number is less than the true one.
    pub counted: bool,
}

impl HomeUsage {
    /// With another layer on top. What it replaces or removes is not known without counting.
    #[must_use]
    pub fn with_layer(self, bytes: ByteSize, entries: u64) -> Self {
        Self {
            bytes: ByteSize(self.bytes.bytes().saturating_add(bytes.bytes())),
            entries: self.entries.saturating_add(entries),
            counted: false,
        }
    }
}

/// How a point in time came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SnapshotKind {
    /// An execution.
    Run,
    /// A file that was put there.
    Upload,
    /// The thread was made from another.
    Fork,
    /// The thread went back to an earlier point.
    Rollback,
    /// The thread came from outside.
    Import,
    /// Its layers were made one; nothing in the home changed.
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
            .ok_or_else(|| Invalid::new("not a kind of point"))
    }
}

/// A point in time of a thread. It never changes, and the thread can always go back to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadSnapshot {
    /// Its number; the first is 1.
    pub seq: u64,
    /// How it came to be.
    pub kind: SnapshotKind,
    /// The execution, if it was one.
    pub trace_id: Option<TraceId>,
    /// When.
    pub at: Moment,
    /// The home's layers at that point, the oldest first.
    pub layers: Vec<LayerDigest>,
    /// The layer that was added, if one was.
    pub layer: Option<LayerDigest>,
    /// Bytes of the files in that layer.
    pub added: ByteSize,
    /// Paths that it adds, changes or removes.
    pub changed: u64,
    /// What the home held.
    pub usage: HomeUsage,
}

/// How a caller names a point: by its number, or by the execution that made it.
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
    fn a_point_is_named_by_number_or_trace() {
        assert_eq!("7".parse(), Ok(SnapshotRef::Seq(7)));
        assert_eq!("trc_abc".parse(), Ok(SnapshotRef::Trace("trc_abc".parse().unwrap())));
        for wrong in ["", "-1", "1.5", "head", "trc_", "99999999999999999999"] {
            assert!(wrong.parse::<SnapshotRef>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_sum_is_not_a_count() {
        let counted = HomeUsage { bytes: ByteSize(5), entries: 2, counted: true };
        let sum = counted.with_layer(ByteSize(3), 1);
        assert_eq!(sum, HomeUsage { bytes: ByteSize(8), entries: 3, counted: false });
    }
}
