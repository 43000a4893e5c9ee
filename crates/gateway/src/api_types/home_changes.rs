//! Runs in: server (no capabilities).
//!
//! The wire format of the changes in a home that a person sees before they answer a call.

use cloche_model::{ChangeKind, ChangedPath, HomeChanges};
use serde::Serialize;
use utoipa::ToSchema;

/// The difference between the last approved home and the home that the call would run in.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HomeChangesRecord {
    /// The last approval given for this thread; null if the whole home is listed.
    since: Option<String>,
    /// Why the call needs a new approval, if an earlier approval of it was invalidated.
    note: Option<String>,
    /// The changed paths; those with a warning come first.
    paths: Vec<ChangedPathRecord>,
    /// How many changed paths are not listed.
    omitted: u64,
}

/// One path of a home that differs.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChangedPathRecord {
    path: String,
    change: ChangeName,
    size: u64,
    /// Why a program may run or load this file without naming it.
    warning: Option<String>,
    /// The target of a symbolic link.
    target: Option<String>,
    /// SHA-256 of the content, for files whose content is not included.
    sha256: Option<String>,
    /// The content of a small text file.
    content: Option<String>,
    /// Whether it is a file that is not text.
    binary: bool,
}

/// The kind of change to a path.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ChangeName {
    Added,
    Changed,
    Removed,
}

impl From<HomeChanges> for HomeChangesRecord {
    fn from(changes: HomeChanges) -> Self {
        Self {
            since: changes.since,
            note: changes.note,
            paths: changes.paths.into_iter().map(Into::into).collect(),
            omitted: changes.omitted,
        }
    }
}

impl From<ChangedPath> for ChangedPathRecord {
    fn from(path: ChangedPath) -> Self {
        Self {
            path: path.path,
            change: match path.change {
                ChangeKind::Added => ChangeName::Added,
                ChangeKind::Changed => ChangeName::Changed,
                ChangeKind::Removed => ChangeName::Removed,
            },
            size: path.size,
            warning: path.warning,
            target: path.target,
            sha256: path.sha256,
            content: path.content,
            binary: path.binary,
        }
    }
}
