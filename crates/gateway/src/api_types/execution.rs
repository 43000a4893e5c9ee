//! The record of an execution, for its owner.

use std::collections::BTreeMap;

use axum::body::Bytes;
use cloche_engine::{JsonPieces, format_rfc3339, now, serialize_text_or_null};
use cloche_model::{Decision, Execution, ExecutionPhases, ExecutionStatus, MountUse, WebToolUsage};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    DecisionRecord,
    execute::{LanguageName, StatusName},
    files::OutputFileRecord,
    network::NetworkRecord,
    responses::ToolUse,
};

/// An execution.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ExecutionRecord {
    /// Its id.
    trace_id: String,
    /// Its status.
    #[schema(value_type = StatusName)]
    status: &'static str,
    /// The exit code, once it has ended.
    exit_code: Option<i32>,
    /// Standard output, once it has ended; not in lists.
    #[serde(serialize_with = "serialize_text_or_null")]
    #[schema(value_type = Option<String>)]
    stdout: Option<Bytes>,
    /// Standard error, once it has ended; not in lists.
    #[serde(serialize_with = "serialize_text_or_null")]
    #[schema(value_type = Option<String>)]
    stderr: Option<Bytes>,
    /// The error, if the platform and not the code failed, or the reason of a refusal.
    error: Option<String>,
    /// How long it ran, or has been running so far.
    duration_ms: u64,
    /// `inline`, `streaming` or `webhook`.
    delivery_mode: String,
    /// When it was accepted.
    #[schema(format = DateTime)]
    created_at: String,
    /// When it ended.
    #[schema(format = DateTime)]
    completed_at: Option<String>,
    /// The URL that the result is posted to.
    webhook_url: Option<String>,
    /// `pending`, `delivered` or `failed`.
    webhook_delivery_status: Option<String>,
    /// The labels that the caller set.
    metadata: BTreeMap<String, String>,
    /// The resources it used, once it has ended.
    usage: Option<UsageRecord>,
    /// The language, unless the request was refused before it was known.
    #[schema(value_type = Option<LanguageName>)]
    language: Option<&'static str>,
    /// The thread.
    thread_id: Option<String>,
    /// The key of the request.
    key_id: String,
    /// The sandbox it ran in.
    sandbox_id: String,
    /// SHA-256 of the code.
    code_digest: String,
    /// The size of the code.
    code_bytes: u64,
    /// The code, if the sandbox's retention keeps it; not in lists.
    #[serde(serialize_with = "serialize_text_or_null")]
    #[schema(value_type = Option<String>)]
    code: Option<Bytes>,
    /// Whether output can no longer be read: it exceeded the limit, or events left the replay.
    output_truncated: bool,
    /// Bytes of standard output that were dropped.
    stdout_dropped_bytes: u64,
    /// Bytes of standard error that were dropped.
    stderr_dropped_bytes: u64,
    /// The decision that allowed an agent to run it; not in lists, null if it was not run by an
    /// agent.
    decision: Option<DecisionRecord>,
    /// The web tools that its code has called, by name; not in lists, absent if it has called none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    tool_calls_details: BTreeMap<&'static str, ToolUse>,
    /// The files written to the home, once it has ended; not in lists.
    output_files: Option<Vec<OutputFileRecord>>,
    /// What it did over its network; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<NetworkRecord>,
    /// The storage it had, once it has ended; not in lists.
    mounts: Option<Vec<MountRecord>>,
    /// Where its time went, once it has ended; not in lists.
    phases: Option<Vec<PhaseRecord>>,
}

/// A part of the time of an execution.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PhaseRecord {
    /// `queue`, `cell`, `attach`, `run` or `store`.
    name: &'static str,
    /// When it began, after the execution was accepted.
    start_ms: f64,
    duration_ms: f64,
}

fn phase_records(phases: &ExecutionPhases) -> Vec<PhaseRecord> {
    let mut start = 0;
    let parts = [
        ("queue", phases.queue),
        ("cell", phases.cell),
        ("attach", phases.attach),
        ("run", phases.run),
        ("store", phases.store),
    ];
    let record = |(name, micros): (&'static str, u64)| {
        let begun = start;
        start += micros;
        PhaseRecord {
            name,
            start_ms: micro_to_credits(begun) * 1000.0,
            duration_ms: micro_to_credits(micros) * 1000.0,
        }
    };
    parts.into_iter().map(record).collect()
}

/// A storage mount of an execution.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MountRecord {
    /// The connection or volume; it was mounted at `/data/{name}`.
    name: String,
    read_only: bool,
    /// The path that the request narrowed it to.
    sub_path: Option<String>,
    bytes_read: u64,
    bytes_written: u64,
}

impl From<MountUse> for MountRecord {
    fn from(mount: MountUse) -> Self {
        Self {
            name: mount.name,
            read_only: mount.read_only,
            sub_path: mount.sub_path.map(Into::into),
            bytes_read: mount.bytes_read,
            bytes_written: mount.bytes_written,
        }
    }
}

/// The resources that an execution used.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UsageRecord {
    wall_ms: u64,
    cpu_ms: u64,
    peak_memory_bytes: u64,
    /// One credit is a minute at one core and 1 GiB: minutes × (cores + GiB) / 2.
    credits: f64,
}

/// A page of executions.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ExecutionPage {
    /// Newest first.
    pub(crate) executions: Vec<ExecutionRecord>,
    /// The `cursor` of the next page; null on the last page.
    pub(crate) next_cursor: Option<String>,
}

/// The health of the server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    /// `ok` or `ready`.
    pub(crate) status: String,
}

impl ExecutionRecord {
    /// The same with the web tools that its code has called.
    pub(crate) fn with_tool_usage(self, used: &[WebToolUsage]) -> Self {
        let tool = |used: &WebToolUsage| {
            let cost_usd = micro_to_credits(used.micro_dollars);
            (used.tool.name(), ToolUse { invocation: used.calls, cost_usd })
        };
        Self { tool_calls_details: used.iter().map(tool).collect(), ..self }
    }

    /// The record with code, output and the decision that allowed it.
    pub(crate) fn with_output(execution: &Execution, decision: Option<Decision>) -> Self {
        let output = execution.end.as_ref();
        let code = execution.start.code.as_deref();
        Self {
            stdout: output.map(|end| end.stdout.clone()),
            stderr: output.map(|end| end.stderr.clone()),
            code: code.map(Bytes::copy_from_slice),
            decision: decision.map(Into::into),
            output_files: output
                .map(|end| end.written.files.iter().cloned().map(OutputFileRecord::from).collect()),
            mounts: output.map(|end| end.mounts.iter().cloned().map(Into::into).collect()),
            phases: output.and_then(|end| end.phases.as_ref()).map(phase_records),
            ..Self::without_output(execution)
        }
    }

    /// The record as JSON.
    pub(crate) fn to_json_pieces(&self) -> JsonPieces {
        let texts = [&self.stdout, &self.stderr, &self.code];
        let texts: Vec<_> = texts.into_iter().flatten().cloned().collect();
        JsonPieces::from_value(self, &texts)
    }

    /// The record without code and output.
    pub(crate) fn without_output(execution: &Execution) -> Self {
        let (start, end) = (&execution.start, execution.end.as_ref());
        let elapsed = || {
            u64::try_from(now().duration_since(start.created_at).as_millis()).unwrap_or(u64::MAX)
        };
        let running = execution.status == ExecutionStatus::Running;
        Self {
            trace_id: start.trace_id.to_string(),
            status: execution.status.name(),
            exit_code: end.map(|end| end.exit_code),
            stdout: None,
            stderr: None,
            error: end.and_then(|end| end.error.clone()),
            duration_ms: if running { elapsed() } else { end.map_or(0, |end| end.usage.wall_ms) },
            delivery_mode: start.delivery.name().to_owned(),
            created_at: format_rfc3339(start.created_at),
            completed_at: end.map(|end| format_rfc3339(end.completed_at)),
            webhook_url: start.webhook_url.clone(),
            webhook_delivery_status: execution
                .webhook_status
                .map(|status| status.name().to_owned()),
            metadata: start.metadata.clone(),
            usage: end.map(|end| UsageRecord {
                wall_ms: end.usage.wall_ms,
                cpu_ms: end.usage.cpu_ms,
                peak_memory_bytes: end.usage.peak_memory_bytes,
                credits: micro_to_credits(end.usage.micro_credits),
            }),
            language: start.language.map(cloche_model::Language::name),
            thread_id: start.thread.as_ref().map(ToString::to_string),
            key_id: start.key.to_string(),
            sandbox_id: start.sandbox.to_string(),
            code_digest: start.code_digest.clone(),
            code_bytes: start.code_bytes,
            code: None,
            output_truncated: end.is_some_and(|end| end.output_truncated),
            stdout_dropped_bytes: end.map_or(0, |end| end.stdout_dropped),
            stderr_dropped_bytes: end.map_or(0, |end| end.stderr_dropped),
            decision: None,
            tool_calls_details: BTreeMap::new(),
            output_files: None,
            network: end.and_then(|end| end.network.clone()).map(NetworkRecord::from),
            mounts: None,
            phases: None,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a count of millionths, shown to people")]
pub(super) fn micro_to_credits(micro: u64) -> f64 {
    micro as f64 / 1e6
}
