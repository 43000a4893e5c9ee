//! The filter and the cursor of a list of executions.

use std::{collections::BTreeMap, str::FromStr};

use cloche_model::{
    ExecutionStatus, Invalid, KeyId, Language, Moment, SandboxId, ThreadId, TraceId,
};

/// Which executions to list. An empty field does not filter.
#[derive(Clone, Debug, Default)]
pub struct ExecutionFilter {
    /// Only those with this status.
    pub status: Option<ExecutionStatus>,
    /// Only those in this language.
    pub language: Option<Language>,
    /// Only those of this thread.
    pub thread: Option<ThreadId>,
    /// Only those in this sandbox.
    pub sandbox: Option<SandboxId>,
    /// Only those of this key.
    pub key: Option<KeyId>,
    /// Only those whose code or output has all of these words or phrases.
    pub text: Vec<String>,
    /// Only those with all of these metadata pairs.
    pub metadata: BTreeMap<String, String>,
    /// Only those accepted at or after.
    pub since: Option<Moment>,
    /// Only those accepted before.
    pub until: Option<Moment>,
    /// Only those after this position in the list.
    pub after: Option<ExecutionCursor>,
    /// The maximum number of rows.
    pub limit: u32,
}

/// A position in a list of executions: the last one that was returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutionCursor {
    /// The time it was accepted.
    pub created_at: Moment,
    /// Its id, which orders executions of the same microsecond.
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
