//! A response as it is kept and shown: what was done, what came of it, what it cost.

use cloche_model::{ErrorCode, Moment, ResponseId, ResponseStatus, TraceId};
use serde::{Deserialize, Serialize};

use crate::{ChatMessage, ResponseBill, price::ResponseContainer};

/// A response, as far as it has come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// Its id.
    pub id: ResponseId,
    /// When it was accepted.
    pub created_at: Moment,
    /// Where it stands.
    pub status: ResponseStatus,
    /// The model that answered last, or the first that will be asked.
    pub model: String,
    /// Whether the caller did not wait for it.
    pub background: bool,
    /// Whether it can be retrieved.
    pub store: bool,
    /// The response it continues.
    pub previous: Option<ResponseId>,
    /// What came of it.
    pub output: Vec<ResponseItem>,
    /// Why it failed.
    pub error: Option<ResponseFailure>,
    /// What somebody has to do before it goes on.
    pub action: Option<PendingAction>,
    /// What it used.
    pub bill: ResponseBill,
}

impl Response {
    /// Ends it where it stands: what was under way has failed with it.
    pub(crate) fn break_off(&mut self, failure: ResponseFailure) {
        self.status = ResponseStatus::Failed;
        self.error = Some(failure);
        self.action = None;
        for item in &mut self.output {
            if let ResponseItem::Sandbox(call) = item
                && call.status == RunStatus::InProgress
            {
                call.status = RunStatus::Failed;
            }
        }
    }
}

/// A call that waits for a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingAction {
    /// What they decide about.
    pub approval_id: String,
    /// Who can do what.
    pub message: String,
}

/// One thing that came of a response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseItem {
    /// Something the model said.
    Message {
        /// Its id.
        id: String,
        /// The text.
        text: String,
        /// Whether there is no more to come.
        done: bool,
    },
    /// Code that the model ran.
    Sandbox(SandboxCall),
    /// A function that the caller has to run.
    Function {
        /// Its id.
        id: String,
        /// What its result is matched by.
        call_id: String,
        /// The function.
        name: String,
        /// Its arguments, JSON.
        arguments: String,
    },
}

impl ResponseItem {
    /// Bytes of text in it.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Message { text, .. } => text.len(),
            Self::Function { arguments, .. } => arguments.len(),
            Self::Sandbox(call) => {
                let outputs = call.results.iter().map(|run| run.stdout.len() + run.stderr.len());
                call.code.len() + outputs.sum::<usize>()
            }
        }
    }
}

/// One call of the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxCall {
    /// The model's id of the call.
    pub call_id: String,
    /// The container it ran in.
    pub container_id: String,
    /// The language of the code.
    pub language: String,
    /// The code.
    pub code: String,
    /// Where it stands.
    pub status: RunStatus,
    /// What came of it, one for each execution.
    pub results: Vec<RunResult>,
}

/// One execution in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunResult {
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
    /// The program's exit code; -1 where there is none.
    pub exit_code: i32,
    /// How long it took.
    pub duration_ms: u64,
    /// How it ended.
    pub status: RunStatus,
}

/// Where a call of the sandbox stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Under way.
    InProgress,
    /// The program ran to its end, whatever its exit code.
    Completed,
    /// The time limit was reached.
    TimedOut,
    /// It did not run, or was ended from outside.
    Failed,
}

impl RunStatus {
    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::TimedOut => "timed_out",
            Self::Failed => "failed",
        }
    }
}

/// Why a response failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseFailure {
    /// A name for machines.
    pub code: String,
    /// A sentence for people.
    pub message: String,
}

impl ResponseFailure {
    pub(crate) fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into() }
    }

    /// What the engine refused.
    pub(crate) fn from_refusal(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::new(code.name(), message)
    }
}

/// What the store keeps of a response as its record.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StoredResponse {
    pub(crate) response: Response,
    /// The container of its chain, once there is one.
    pub(crate) container: Option<ResponseContainer>,
    /// Files that its runs wrote.
    pub(crate) files: Vec<StoredResponseFile>,
}

/// A file that a run wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredResponseFile {
    pub(crate) id: String,
    /// The execution that wrote it.
    pub(crate) trace_id: TraceId,
    /// Its path below the home.
    pub(crate) path: String,
    pub(crate) size: u64,
    pub(crate) written_at: Moment,
}

/// What was said in a chain of responses.
pub(crate) type Conversation = Vec<ChatMessage>;
