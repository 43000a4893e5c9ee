//! Runs in: server (no capabilities), command line. A thread's home as an approval is bound to it, and what
//! a person is shown of it.

use serde::{Deserialize, Serialize};

use crate::{LayerDigest, ThreadId};

/// The content of a thread's home at one moment. Two of them are equal if and only if nothing in the
/// home was changed in between; layers that were squashed are no change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HomeState {
    /// The thread.
    pub thread: ThreadId,
    /// The layers that make up its home, the oldest first; none for a thread that does not exist.
    pub layers: Vec<LayerDigest>,
}

/// What differs between the home that was last approved and the one that a call would run in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeChanges {
    /// The approval that was given last for this thread; without one the whole home is listed.
    pub since: Option<String>,
    /// Why the call is asked about again, if its earlier question or approval was invalidated.
    pub note: Option<String>,
    /// The paths, those that run by themselves first.
    pub paths: Vec<ChangedPath>,
    /// How many more there are than are listed.
    pub omitted: u64,
}

/// One path that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedPath {
    /// Below the home.
    pub path: String,
    /// What became of it.
    pub change: ChangeKind,
    /// Its size in bytes; 0 for what was removed.
    pub size: u64,
    /// Why a program may run or obey it without naming it.
    pub warning: Option<String>,
    /// Where a symbolic link points.
    pub target: Option<String>,
    /// SHA-256 of the content, of files whose content is not here.
    pub sha256: Option<String>,
    /// The content of a small text file.
    pub content: Option<String>,
    /// Whether it is a file that is no text.
    pub binary: bool,
}

/// What became of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// It is new.
    Added,
    /// It has other content, attributes, or is of another kind.
    Changed,
    /// It is gone.
    Removed,
}

impl ChangeKind {
    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Changed => "changed",
            Self::Removed => "removed",
        }
    }
}

impl HomeChanges {
    /// Whether everything that could matter is listed: each path, and each text with its content.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let shown = |path: &ChangedPath| {
            path.change == ChangeKind::Removed
                || path.binary
                || path.target.is_some()
                || path.content.is_some()
        };
        self.omitted == 0 && self.paths.iter().all(shown)
    }
}
