//! The record of one execution, as the ledger stores it and its owner can read it.

use std::{collections::BTreeMap, fmt, str::FromStr};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    HomeWrites, Invalid, KeyId, Language, Moment, MountUse, NetworkReport, SandboxId, StreamName,
    TeamId, ThreadId, TraceId,
};

/// The status of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExecutionStatus {
    /// It is still running.
    Running,
    /// The program exited with 0.
    Success,
    /// The program failed (no error), or the platform failed (an error).
    Failed,
    /// The time limit was reached.
    Timeout,
    /// A caller cancelled it.
    Cancelled,
    /// The memory limit was reached.
    Oom,
    /// It was refused and never started, or the program failed after its network had denied it
    /// something.
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

/// How the result is delivered to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryMode {
    /// In the response to the request.
    Inline,
    /// As events while the program runs.
    Streaming,
    /// Later, with a POST to a URL.
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

/// The status of a webhook delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryStatus {
    /// Not delivered yet; another attempt follows.
    Pending,
    /// The receiver accepted it.
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

/// The facts about an execution that are known before it starts.
#[derive(Clone, Debug)]
pub struct ExecutionStart {
    /// Its trace id.
    pub trace_id: TraceId,
    /// The team that owns it.
    pub team: TeamId,
    /// The key of the request.
    pub key: KeyId,
    /// The sandbox configuration that it runs in.
    pub sandbox: SandboxId,
    /// The language; `None` if the request was refused before it was known.
    pub language: Option<Language>,
    /// The thread whose home it uses.
    pub thread: Option<ThreadId>,
    /// How the result is delivered.
    pub delivery: DeliveryMode,
    /// The URL, in webhook mode.
    pub webhook_url: Option<String>,
    /// Labels for finding the execution. The program never sees them.
    pub metadata: BTreeMap<String, String>,
    /// SHA-256 of the code, in hex.
    pub code_digest: String,
    /// The size of the code.
    pub code_bytes: u64,
    /// The code, if the sandbox's retention keeps it.
    pub code: Option<Vec<u8>>,
    /// When it was accepted.
    pub created_at: Moment,
}

/// Where the time of an execution went, in microseconds, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutionPhases {
    /// From the request to the turn of the execution.
    pub queue: u64,
    /// Waiting for a cell.
    pub cell: u64,
    /// Bringing code, files and environment into the cell.
    pub attach: u64,
    /// Running the program.
    pub run: u64,
    /// Making its changes durable.
    pub store: u64,
}

/// How an execution ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutionEnd {
    /// Where its time went; `None` if that is not known.
    pub phases: Option<ExecutionPhases>,
    /// The exit code of the program, or -1 if there is none.
    pub exit_code: i32,
    /// The beginning of standard output, as bytes.
    pub stdout: Bytes,
    /// The beginning of standard error, as bytes.
    pub stderr: Bytes,
    /// Bytes of standard output that exceeded the limit.
    pub stdout_dropped: u64,
    /// Bytes of standard error that exceeded the limit.
    pub stderr_dropped: u64,
    /// Whether something that was printed can no longer be read: see
    /// [`ExecutionEnd::loses_output`]. Every entry point shows this value and computes none.
    pub output_truncated: bool,
    /// The end of standard output if it exceeded the limit. Not stored in the record.
    pub stdout_tail: Vec<u8>,
    /// The end of standard error if it exceeded the limit. Not stored in the record.
    pub stderr_tail: Vec<u8>,
    /// The failure, if the platform and not the code failed.
    pub error: Option<String>,
    /// The resources it used.
    pub usage: UsageReport,
    /// The order of the output events, for replay.
    pub event_order: EventOrder,
    /// The files it wrote to its home.
    pub written: HomeWrites,
    /// What it did over its network, if it had one.
    pub network: Option<NetworkReport>,
    /// The storage it had, and the bytes that it read and wrote there.
    pub mounts: Vec<MountUse>,
    /// When it ended.
    pub completed_at: Moment,
}

impl ExecutionEnd {
    /// Whether bytes of a stream exceeded the limit, or the replay leaves out events. The one
    /// definition of `output_truncated`.
    #[must_use]
    pub fn loses_output(&self) -> bool {
        self.stdout_dropped > 0 || self.stderr_dropped > 0 || self.event_order.leaves_out_events()
    }

    /// Bytes of a stream that the replay leaves out: those that exceeded the limit, and those of
    /// events that left the log.
    #[must_use]
    pub fn bytes_left_out(&self, stream: StreamName) -> u64 {
        let order = &self.event_order;
        match stream {
            StreamName::Stdout => self.stdout_dropped.saturating_add(order.stdout_skipped),
            StreamName::Stderr => self.stderr_dropped.saturating_add(order.stderr_skipped),
        }
    }
}

/// The resources that an execution used, in units of accounting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageReport {
    /// Wall-clock time of the program, in milliseconds.
    pub wall_ms: u64,
    /// Processor time, in milliseconds.
    pub cpu_ms: u64,
    /// The most memory held at once.
    pub peak_memory_bytes: u64,
    /// Millionths of a credit; one credit is a minute at one core and 1 GiB, half of it for each.
    pub micro_credits: u64,
}

/// The order of output events without their text. Together with the captured streams it reproduces
/// every event, byte for byte and with the same sequence numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventOrder {
    /// The sequence number of the first event that is still known.
    pub first_seq: u64,
    /// Bytes of standard output before that event.
    pub stdout_skipped: u64,
    /// Bytes of standard error before that event.
    pub stderr_skipped: u64,
    /// The events in order.
    pub marks: Vec<EventMark>,
}

impl EventOrder {
    /// Whether there were events that a replay leaves out.
    #[must_use]
    pub fn leaves_out_events(&self) -> bool {
        // The first event after the start has number 2.
        self.first_seq > 2 || self.marks.iter().any(|mark| matches!(mark, EventMark::LeftOut(_)))
    }
}

/// One event of an [`EventOrder`], or several that are not known any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventMark {
    /// This many bytes of a stream.
    Output(StreamName, u32),
    /// This many events whose text is beyond the limit of its stream. Their numbers stay taken.
    LeftOut(u64),
    /// A keepalive event.
    Keepalive,
}

/// An execution and its current status.
#[derive(Clone, Debug)]
pub struct Execution {
    /// The facts known when it started.
    pub start: ExecutionStart,
    /// Its status.
    pub status: ExecutionStatus,
    /// How it ended; `None` while it runs.
    pub end: Option<ExecutionEnd>,
    /// The status of its webhook delivery, if it has one.
    pub webhook_status: Option<DeliveryStatus>,
}
