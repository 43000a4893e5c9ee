//! A response as stored and returned: its output, its status and its cost.

use cloche_engine::{FetchedPage, SearchHit};
use cloche_model::{ErrorCode, Moment, ResponseId, ResponseStatus, TraceId, WebTool};
use serde::{Deserialize, Serialize};

use crate::{ChatMessage, ResponseBill, price::ResponseContainer};

/// A response in its current state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// Its id.
    pub id: ResponseId,
    /// When it was accepted.
    pub created_at: Moment,
    /// Its status.
    pub status: ResponseStatus,
    /// The model that answered last, or the first model of the chain.
    pub model: String,
    /// Whether it was created in the background.
    pub background: bool,
    /// Whether it can be retrieved.
    pub store: bool,
    /// The response it continues.
    pub previous: Option<ResponseId>,
    /// Its output items.
    pub output: Vec<ResponseItem>,
    /// Why it failed.
    pub error: Option<ResponseFailure>,
    /// The action required before it continues.
    pub action: Option<PendingAction>,
    /// Its usage and cost.
    pub bill: ResponseBill,
}

impl Response {
    /// Marks it as failed, including the sandbox call in progress.
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

/// A call that waits for a person's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingAction {
    /// The approval to answer.
    pub approval_id: String,
    /// A message that says who can approve and how.
    pub message: String,
}

/// One output item of a response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseItem {
    /// A message from the model.
    Message {
        /// Its id.
        id: String,
        /// The text.
        text: String,
        /// Whether the text is complete.
        done: bool,
    },
    /// A sandbox call by the model.
    Sandbox(SandboxCall),
    /// A search by the model.
    Search {
        /// Which search.
        tool: WebTool,
        /// What was searched for.
        queries: Vec<String>,
        /// What was found.
        results: Vec<SearchHit>,
        /// Why nothing was found.
        error: Option<String>,
    },
    /// Pages that the model read.
    Fetch {
        /// The pages, with the beginning of their text.
        pages: Vec<FetchedPage>,
        /// Why none could be read.
        error: Option<String>,
    },
    /// A function call for the caller to run.
    Function {
        /// Its id.
        id: String,
        /// The id that its result refers to.
        call_id: String,
        /// The name of the function.
        name: String,
        /// Its arguments as JSON.
        arguments: String,
    },
}

impl ResponseItem {
    /// The number of bytes of text.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Message { text, .. } => text.len(),
            Self::Function { arguments, .. } => arguments.len(),
            Self::Search { results, .. } => {
                results.iter().map(|hit| hit.title.len() + hit.url.len() + hit.snippet.len()).sum()
            }
            Self::Fetch { pages, .. } => {
                pages.iter().map(|page| page.title.len() + page.url.len() + page.text.len()).sum()
            }
            Self::Sandbox(call) => {
                let outputs = call.results.iter().map(|run| run.stdout.len() + run.stderr.len());
                call.code.len() + outputs.sum::<usize>()
            }
        }
    }
}

/// One sandbox call.
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
    /// Its status.
    pub status: RunStatus,
    /// One result for each execution.
    pub results: Vec<RunResult>,
}

/// One execution in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunResult {
    /// Its standard output as the program wrote it, or the beginning of it.
    pub stdout: String,
    /// Its standard error, likewise. For a program that did not run, the reason.
    pub stderr: String,
    /// The exit code of the program; -1 if there is none.
    pub exit_code: i32,
    /// Its wall-clock duration in milliseconds.
    pub duration_ms: u64,
    /// How it ended.
    pub status: RunStatus,
    /// What is left out of the two streams, if anything is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncation: Option<OutputTruncation>,
}

/// The output of an execution that its result leaves out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputTruncation {
    /// How many bytes follow those in `stdout`.
    pub stdout_dropped: u64,
    /// How many bytes follow those in `stderr`.
    pub stderr_dropped: u64,
    /// The execution, whose record has more.
    pub trace_id: TraceId,
}

/// The status of a sandbox call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// In progress.
    InProgress,
    /// The program exited, with any exit code.
    Completed,
    /// The time limit was reached.
    TimedOut,
    /// The program did not run, or was stopped.
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
    /// The machine-readable code.
    pub code: String,
    /// A message for people.
    pub message: String,
}

impl ResponseFailure {
    pub(crate) fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into() }
    }

    /// Converts a refusal of the engine.
    pub(crate) fn from_refusal(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::new(code.name(), message)
    }
}

/// The record of a response in the store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StoredResponse {
    pub(crate) response: Response,
    /// The container of its chain, once it exists.
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

/// The messages of a chain of responses.
pub(crate) type Conversation = Vec<ChatMessage>;
