//! What a list of executions is narrowed by, and where it goes on.

use std::{collections::BTreeMap, str::FromStr};

use cloche_model::{ExecutionStatus, Invalid, Language, Moment, ThreadId, TraceId};

/// Which executions to list. Empty fields do not narrow.
#[derive(Clone, Debug, Default)]
pub struct ExecutionFilter {
    /// Only those that stand there.
    pub status: Option<ExecutionStatus>,
    /// Only those in this language.
    pub language: Option<Language>,
    /// Only those of this thread.
    pub thread: Option<ThreadId>,
    /// Only those with all of these pairs.
    pub metadata: BTreeMap<String, String>,
    /// Only those accepted at or after.
    pub since: Option<Moment>,
    /// Only those accepted before.
    pub until: Option<Moment>,
    /// Only those after this place in the list.
    pub after: Option<ExecutionCursor>,
    /// At most so many.
    pub limit: u32,
}

/// A place in a list of executions: the last one that was shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutionCursor {
    /// When it was accepted.
    pub created_at: Moment,
    /// Its id, for those of the same microsecond.
    pub trace_id: TraceId,
}

impl std::fmt::Display for ExecutionCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.created_at.0, self.trace_id)
    }
}

impl FromStr for ExecutionCursor {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let invalid = || Invalid::new("cursor is not one that this API gave out");
        let (time, trace) = text.split_once('.').ok_or_else(invalid)?;
        Ok(Self {
            created_at: Moment(time.parse().map_err(|_| invalid())?),
            trace_id: trace.parse().map_err(|_| invalid())?,
        })
    }
}
