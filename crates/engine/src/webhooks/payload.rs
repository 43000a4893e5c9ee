//! Runs in: server (no capabilities).
//!
//! The body of a webhook, made from the record, so that every attempt sends the same bytes.

use bytes::Bytes;
use cloche_model::{DeniedAttempt, Execution, ExecutionStatus, NetworkReport};
use serde::Serialize;

use crate::{JsonPieces, clock, serialize_text};

#[derive(Serialize)]
struct WebhookPayload<'a> {
    event: &'static str,
    trace_id: &'a str,
    timestamp: String,
    status: &'static str,
    result: WebhookResult<'a>,
    output_truncated: bool,
    metadata: &'a std::collections::BTreeMap<String, String>,
}

#[derive(Serialize)]
struct WebhookResult<'a> {
    success: bool,
    #[serde(serialize_with = "serialize_text")]
    stdout: Bytes,
    #[serde(serialize_with = "serialize_text")]
    stderr: Bytes,
    exit_code: i32,
    duration_ms: u64,
    error: Option<&'a str>,
    /// As in replies: absent if the sandbox has no network.
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<WebhookNetwork<'a>>,
}

#[derive(Serialize)]
struct WebhookNetwork<'a> {
    bytes_in: u64,
    bytes_out: u64,
    connections: u64,
    denied: &'a [DeniedAttempt],
    denied_more: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<&'a str>,
}

impl<'a> From<&'a NetworkReport> for WebhookNetwork<'a> {
    fn from(report: &'a NetworkReport) -> Self {
        Self {
            bytes_in: report.bytes_in,
            bytes_out: report.bytes_out,
            connections: report.connections,
            denied: &report.denied,
            denied_more: report.denied_more,
            lost: report.lost.as_deref(),
        }
    }
}

/// What to send for an execution that is over.
pub(super) fn encode_payload(execution: &Execution) -> JsonPieces {
    let end = execution.end.clone().unwrap_or_default();
    let cancelled = execution.status == ExecutionStatus::Cancelled;
    let payload = WebhookPayload {
        event: if cancelled { "execution.cancelled" } else { "execution.completed" },
        trace_id: execution.start.trace_id.as_str(),
        timestamp: clock::format_rfc3339(end.completed_at),
        status: execution.status.name(),
        result: WebhookResult {
            success: execution.status == ExecutionStatus::Success,
            stdout: end.stdout.clone(),
            stderr: end.stderr.clone(),
            exit_code: end.exit_code,
            duration_ms: end.usage.wall_ms,
            error: end.error.as_deref(),
            network: end.network.as_ref().map(WebhookNetwork::from),
        },
        output_truncated: end.output_truncated,
        metadata: &execution.start.metadata,
    };
    JsonPieces::from_value(&payload, &[end.stdout.clone(), end.stderr.clone()])
}
