//! Runs in: server (no capabilities), sidecar (no capabilities).
//!
//! The sidecar protocol beyond the contract: exact limits in a request, events of a stream in the
//! response. Both sides use these types, so that they cannot differ.

use std::time::Duration;

use bytes::Bytes;
use cloche_model::{
    ByteSize, HomeQuota, HomeWrites, LayerDigest, LayerStoreId, OutputFile, RunEnding, RunOutcome,
    RunTimings, RunUsage, SandboxProfile, StreamName, ThreadHome,
};
use serde::{Deserialize, Serialize};

use crate::{JsonPieces, serialize_text};

/// What a job may use, exactly. An unknown limit is an error: one that is ignored would not hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JobLimits {
    /// Wall-clock time.
    pub timeout_ms: Option<u64>,
    /// Memory of all its processes, and of the files it writes.
    pub memory_bytes: Option<u64>,
    /// Thousandths of a core.
    pub cpu_milli: Option<u64>,
    /// Processes and threads at once.
    pub pids: Option<u64>,
    /// Bytes it may have in files at once.
    pub disk_bytes: Option<u64>,
    /// Bytes of each output stream that are kept.
    pub output_bytes: Option<u64>,
    /// How closely it is held; `standard` if absent. Among the limits, so that an executor that
    /// does not know it refuses the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<SandboxProfile>,
    /// The layer store that keeps what it writes; nothing is kept if absent. Among the limits, so
    /// that an executor that does not know it refuses the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer_store: Option<LayerStoreId>,
}

/// The home of a thread, in the layer store that the limits name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobHome {
    /// Its layers, the oldest first.
    pub layers: Vec<LayerDigest>,
    /// Bytes that it may grow by.
    pub bytes: u64,
    /// Files and directories that it may grow by.
    pub inodes: u64,
}

impl From<ThreadHome> for JobHome {
    fn from(home: ThreadHome) -> Self {
        Self { layers: home.layers, bytes: home.room.bytes.bytes(), inodes: home.room.inodes }
    }
}

impl From<JobHome> for ThreadHome {
    fn from(home: JobHome) -> Self {
        let room = HomeQuota { bytes: ByteSize(home.bytes), inodes: home.inodes };
        Self { layers: home.layers, room }
    }
}

/// The answer of `GET /healthz`. The last two fields are beyond the contract, and only for holders
/// of the service key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SidecarHealthReport {
    /// `ok`.
    pub status: String,
    /// Jobs that run now.
    pub running: u64,
    /// Jobs that can run at once.
    pub capacity: u64,
    /// The longest time limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_timeout_ms: Option<u64>,
    /// The layer store that jobs can use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer_store: Option<LayerStoreId>,
}

/// One line of a stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum JobEvent {
    /// The first: it has a place.
    Started {
        /// By which it can be stopped.
        id: String,
    },
    /// It printed something.
    Output {
        /// Where.
        stream: StreamName,
        /// The bytes in base64: they are cut anywhere, also within a character.
        data: String,
    },
    /// A sign of life.
    Keepalive,
    /// The last: how it ended.
    Result(Box<JobResult>),
    /// The last: there is no outcome.
    Error {
        /// A name for machines.
        error: String,
        /// A sentence for people.
        message: String,
    },
}

/// How a job ended. The contract's fields, then what only this executor says. In a stream the
/// output has come before, so the two texts are left out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobResult {
    /// Standard output, with replacement characters where it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<String>,
    /// Standard error, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
    /// The exit code; 128 + N for signal N, -1 where there is none.
    pub exit_code: i32,
    /// How long the program ran.
    pub duration_ms: u64,
    /// Whether its time was up.
    pub killed: bool,
    /// Whether its memory was.
    pub oom: bool,
    /// Whether output was left out because there was too much.
    pub truncated: bool,
    /// Files that it wrote.
    pub output_files: Vec<OutputFile>,
    /// How many more files there are than are listed.
    pub output_files_omitted: u64,
    /// Whether it filled its disk.
    pub disk_full: bool,
    /// Bytes of standard output, kept or not.
    pub stdout_bytes: u64,
    /// Bytes of standard error, kept or not.
    pub stderr_bytes: u64,
    /// Why it is over.
    pub ending: RunEnding,
    /// What it used.
    pub usage: JobUsage,
    /// Where the time went.
    pub timings: JobTimings,
    /// The layer with what it wrote, in the layer store that the job named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<LayerDigest>,
}

/// A result with the two texts, which are shared with the outcome.
#[derive(Serialize)]
struct WholeResult {
    #[serde(serialize_with = "serialize_text")]
    stdout: Bytes,
    #[serde(serialize_with = "serialize_text")]
    stderr: Bytes,
    #[serde(flatten)]
    rest: JobResult,
}

/// What a job used.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct JobUsage {
    /// From the start of the program to its end.
    pub wall_us: u64,
    /// Processor time of all its processes.
    pub cpu_us: u64,
    /// The most memory it held at once; zero where the host cannot tell.
    pub peak_memory_bytes: u64,
}

/// Where the time of a job went.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct JobTimings {
    /// Waiting for a cell.
    pub cell_us: u64,
    /// Bringing the program in.
    pub attach_us: u64,
    /// The program itself.
    pub run_us: u64,
    /// Looking at what it wrote.
    pub seal_us: u64,
}

impl JobResult {
    /// Without the output.
    #[must_use]
    pub fn without_output(outcome: &RunOutcome) -> Self {
        let (usage, timings) = (&outcome.usage, &outcome.timings);
        Self {
            stdout: None,
            stderr: None,
            exit_code: exit_code(outcome.ending),
            duration_ms: to_micros(usage.wall) / 1000,
            killed: outcome.ending == RunEnding::TimedOut,
            oom: outcome.ending == RunEnding::OutOfMemory,
            truncated: outcome.stdout.dropped > 0 || outcome.stderr.dropped > 0,
            output_files: outcome.written.files.clone(),
            output_files_omitted: outcome.written.files_omitted,
            disk_full: outcome.written.quota_exceeded,
            stdout_bytes: outcome.stdout.bytes.len() as u64 + outcome.stdout.dropped,
            stderr_bytes: outcome.stderr.bytes.len() as u64 + outcome.stderr.dropped,
            ending: outcome.ending,
            usage: JobUsage {
                wall_us: to_micros(usage.wall),
                cpu_us: to_micros(usage.cpu),
                peak_memory_bytes: usage.peak_memory.bytes(),
            },
            timings: JobTimings {
                cell_us: to_micros(timings.cell),
                attach_us: to_micros(timings.attach),
                run_us: to_micros(timings.run),
                seal_us: to_micros(timings.seal),
            },
            layer: outcome.written.layer.as_ref().map(|layer| layer.digest.clone()),
        }
    }

    /// With the output, as JSON that is encoded while it is read: one byte of output can become
    /// six.
    #[must_use]
    pub fn with_output(mut outcome: RunOutcome) -> JsonPieces {
        let rest = Self::without_output(&outcome);
        let (stdout, stderr) = (outcome.stdout.take_head(), outcome.stderr.take_head());
        let sources = [stdout.clone(), stderr.clone()];
        JsonPieces::from_value(&WholeResult { stdout, stderr, rest }, &sources)
    }

    pub(crate) fn run_usage(&self) -> RunUsage {
        RunUsage {
            wall: Duration::from_micros(self.usage.wall_us),
            cpu: Duration::from_micros(self.usage.cpu_us),
            peak_memory: ByteSize(self.usage.peak_memory_bytes),
        }
    }

    pub(crate) fn run_timings(&self) -> RunTimings {
        let time = Duration::from_micros;
        let JobTimings { cell_us, attach_us, run_us, seal_us } = self.timings;
        RunTimings {
            cell: time(cell_us),
            attach: time(attach_us),
            run: time(run_us),
            seal: time(seal_us),
        }
    }

    pub(crate) fn into_written(self) -> HomeWrites {
        HomeWrites {
            files: self.output_files,
            files_omitted: self.output_files_omitted,
            quota_exceeded: self.disk_full,
            ..HomeWrites::default()
        }
    }
}

fn to_micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The exit code in words of the contract.
#[must_use]
pub fn exit_code(ending: RunEnding) -> i32 {
    match ending {
        RunEnding::Exited(code) => i32::from(code),
        RunEnding::Signalled(signal) => 128 + i32::from(signal),
        RunEnding::OutOfMemory => 137,
        RunEnding::TimedOut | RunEnding::Cancelled => -1,
    }
}
