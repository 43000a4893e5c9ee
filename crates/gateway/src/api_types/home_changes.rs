//! Runs in: server (no capabilities). What changed in a home before a call that waits for a person, on the
//! wire.

use cloche_model::{ChangeKind, ChangedPath, HomeChanges};
use serde::Serialize;
use utoipa::ToSchema;

/// What differs between the home that was last approved and the one that the call would run in.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HomeChangesRecord {
    /// The approval that was given last for this thread; null if all of the home is listed.
    since: Option<String>,
    /// Why the call is asked about again, if an earlier approval of it was invalidated.
    note: Option<String>,
    /// The paths, those with a warning first.
    paths: Vec<ChangedPathRecord>,
    /// How many more there are than are listed.
    omitted: u64,
}

/// One path of a home that differs.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChangedPathRecord {
    path: String,
    change: ChangeName,
    size: u64,
    /// Why a program may run or obey it without naming it.
    warning: Option<String>,
    /// Where a symbolic link points.
    target: Option<String>,
    /// SHA-256 of the content, of files whose content is not here.
    sha256: Option<String>,
    /// The content of a small text file.
    content: Option<String>,
    /// Whether it is a file that is no text.
    binary: bool,
}

/// What became of a path.
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
