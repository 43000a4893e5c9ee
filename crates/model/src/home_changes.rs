//! Runs in: server (no capabilities), command line.
//!
//! The state of a thread's home that an approval is bound to, and the changes that a person sees
//! before they answer.

use serde::{Deserialize, Serialize};

use crate::{LayerDigest, ThreadId};

/// The content of a thread's home at one moment. Two states are equal if and only if nothing in the
/// home changed in between. Squashing layers is not a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HomeState {
    /// The thread.
    pub thread: ThreadId,
    /// The layers of its home, oldest first; empty for a thread that does not exist.
    pub layers: Vec<LayerDigest>,
}

/// The difference between the last approved home and the home that a call would run in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeChanges {
    /// The last approval given for this thread; without one, the whole home is listed.
    pub since: Option<String>,
    /// Why the call needs a new approval, if its earlier request or approval was invalidated.
    pub note: Option<String>,
    /// The changed paths; those that run without being named come first.
    pub paths: Vec<ChangedPath>,
    /// How many changed paths are not listed.
    pub omitted: u64,
}

/// One path that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedPath {
    /// The path below the home.
    pub path: String,
    /// The kind of change.
    pub change: ChangeKind,
    /// Its size in bytes; 0 for a removed path.
    pub size: u64,
    /// Why a program may run or load this file without naming it.
    pub warning: Option<String>,
    /// The target of a symbolic link.
    pub target: Option<String>,
    /// SHA-256 of the content, for files whose content is not included.
    pub sha256: Option<String>,
    /// The content of a small text file.
    pub content: Option<String>,
    /// Whether it is a file that is not text.
    pub binary: bool,
}

/// The kind of change to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// The path is new.
    Added,
    /// Its content, attributes or file type changed.
    Changed,
    /// The path was removed.
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
    /// Whether every change is listed: each path, and the content of each text file.
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
