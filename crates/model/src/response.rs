//! The status of a response of the Agent API.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::Invalid;

/// The status of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseStatus {
    /// Accepted, not started yet.
    Queued,
    /// In progress.
    InProgress,
    /// Waiting: the caller must run a function, or a person must approve a call.
    RequiresAction,
    /// Completed.
    Completed,
    /// Failed; the error says why.
    Failed,
    /// Cancelled by a caller.
    Cancelled,
}

impl ResponseStatus {
    /// Every status.
    pub const ALL: [Self; 6] = [
        Self::Queued,
        Self::InProgress,
        Self::RequiresAction,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
    ];

    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::InProgress => "in_progress",
            Self::RequiresAction => "requires_action",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for ResponseStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ResponseStatus {
    type Err = Invalid;

    fn from_str(name: &str) -> Result<Self, Invalid> {
        Self::ALL
            .into_iter()
            .find(|status| status.name() == name)
            .ok_or_else(|| Invalid::new("unknown status of a response"))
    }
}
