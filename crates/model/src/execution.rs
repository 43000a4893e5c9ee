//! The record of one execution, as the ledger keeps it and as its owner may read it.

use std::{collections::BTreeMap, fmt, str::FromStr};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    HomeWrites, Invalid, KeyId, Language, Moment, SandboxId, StreamName, TeamId, ThreadId, TraceId,
};

/// Where an execution stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExecutionStatus {
    /// Under way.
    Running,
    /// The program exited with 0.
    Success,
    /// The program failed (no error) or we did (an error).
    Failed,
    /// The time limit was reached.
    Timeout,
    /// Someone asked for it to be stopped.
    Cancelled,
    /// The memory limit was reached.
    Oom,
    /// It was refused and never started.
    Blocked,
}

impl ExecutionStatus {
    /// Every status.
    pub const ALL: [Self; 7] = [
        Self::Running,
        Self::Success,
        Self::Failed,
        Self::Timeout,
        Self::Cancelled,
        Self::Oom,
        Self::Blocked,
    ];

    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Success => "success",
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Oom => "oom",
            Self::Blocked => "blocked",
        }
    }
}

impl fmt::Display for ExecutionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ExecutionStatus {
    type Err = Invalid;

    fn from_str(name: &str) -> Result<Self, Invalid> {
        Self::ALL.into_iter().find(|status| status.name() == name).ok_or_else(|| {
            Invalid::new(
                "status must be one of: running, success, failed, timeout, cancelled, oom, blocked",
            )
        })
    }
}

/// How the result reaches whoever asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryMode {
    /// In the answer to the request.
    Inline,
    /// As events while it runs.
    Streaming,
    /// Later, to a URL.
    Webhook,
}

impl DeliveryMode {
    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Streaming => "streaming",
            Self::Webhook => "webhook",
        }
    }
}

impl FromStr for DeliveryMode {
    type Err = Invalid;

    fn from_str(name: &str) -> Result<Self, Invalid> {
        [Self::Inline, Self::Streaming, Self::Webhook]
            .into_iter()
            .find(|delivery| delivery.name() == name)
            .ok_or_else(|| Invalid::new("delivery must be one of: inline, streaming, webhook"))
    }
}

/// Where the delivery of a webhook stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryStatus {
    /// Not delivered yet; it will be tried.
    Pending,
    /// The receiver said yes.
    Delivered,
    /// Every attempt failed.
    Failed,
}

impl DeliveryStatus {
    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivered => "delivered",
            Self::Failed => "failed",
        }
    }
}

impl FromStr for DeliveryStatus {
    type Err = Invalid;

    fn from_str(name: &str) -> Result<Self, Invalid> {
        [Self::Pending, Self::Delivered, Self::Failed]
            .into_iter()
            .find(|status| status.name() == name)
            .ok_or_else(|| {
                Invalid::new("delivery status must be one of: pending, delivered, failed")
            })
    }
}

/// What is known of an execution before it starts.
#[derive(Clone, Debug)]
pub struct ExecutionStart {
    /// Its name.
    pub trace_id: TraceId,
    /// Whose it is.
    pub team: TeamId,
    /// The key that asked.
    pub key: KeyId,
    /// The sandbox configuration it runs in.
    pub sandbox: SandboxId,
    /// The language; `None` when the request was refused before that was known.
    pub language: Option<Language>,
    /// The thread whose home it uses.
    pub thread: Option<ThreadId>,
    /// How the result is delivered.
    pub delivery: DeliveryMode,
    /// Where to, in webhook mode.
    pub webhook_url: Option<String>,
    /// What the caller wants to find it by. Never seen by the program.
    pub metadata: BTreeMap<String, String>,
    /// SHA-256 of the code, in hex.
    pub code_digest: String,
    /// The size of the code.
    pub code_bytes: u64,
    /// The code, where the sandbox's retention keeps it.
    pub code: Option<Vec<u8>>,
    /// When it was accepted.
    pub created_at: Moment,
}

/// How an execution ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutionEnd {
    /// The program's exit code, or -1 where there is none.
    pub exit_code: i32,
    /// What it wrote to standard output: the head, as bytes.
    pub stdout: Bytes,
    /// The same for standard error.
    pub stderr: Bytes,
    /// Bytes of standard output that did not fit.
    pub stdout_dropped: u64,
    /// Bytes of standard error that did not fit.
    pub stderr_dropped: u64,
    /// The end of standard output where not all of it fitted. Not kept in the record.
    pub stdout_tail: Vec<u8>,
    /// The same for standard error.
    pub stderr_tail: Vec<u8>,
    /// What went wrong, where it was not the code.
    pub error: Option<String>,
    /// What it used.
    pub usage: UsageReport,
    /// The order of the output events, for replay.
    pub event_order: EventOrder,
    /// What it left in its home.
    pub written: HomeWrites,
    /// When it was over.
    pub completed_at: Moment,
}

/// What an execution used, in the units it is accounted in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageReport {
    /// Wall-clock time of the program, in milliseconds.
    pub wall_ms: u64,
    /// Processor time, in milliseconds.
    pub cpu_ms: u64,
    /// The most memory held at once.
    pub peak_memory_bytes: u64,
    /// Millionths of a credit; one credit is a minute at one core and 1 GiB.
    pub micro_credits: u64,
}

/// The order in which lines were put out, without the lines: with the captured streams it gives
/// back every event, byte for byte and number for number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventOrder {
    /// The number of the first event that is still known.
    pub first_seq: u64,
    /// Bytes of standard output before that event.
    pub stdout_skipped: u64,
    /// Bytes of standard error before that event.
    pub stderr_skipped: u64,
    /// The events in order.
    pub marks: Vec<EventMark>,
}

/// One event of a [`Score`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventMark {
    /// So many bytes of a stream.
    Output(StreamName, u32),
    /// A sign of life.
    Keepalive,
}

/// An execution, as far as it has come.
#[derive(Clone, Debug)]
pub struct Execution {
    /// What was known when it started.
    pub start: ExecutionStart,
    /// Where it stands.
    pub status: ExecutionStatus,
    /// How it ended, once it has.
    pub end: Option<ExecutionEnd>,
    /// Where its webhook stands, if it has one.
    pub webhook_status: Option<DeliveryStatus>,
}
