//! Tool results: the five fields of the tool's contract, the four of the sidecar's that it lacks,
//! an error if there is one, and the output that is left out.

use cloche_engine::Refusal;
use cloche_model::{
    ErrorCode, Execution, ExecutionStatus, HomeWrites, OutputFile, TraceId, display::reveal_hidden,
};
use rmcp::model::{CallToolResponse, CallToolResult, ContentBlock, MetaObject};
use serde::Serialize;

use super::{
    arguments::ToolArgumentsError,
    shown_output::{StreamExcerpt, show_output},
};

/// The metadata key for the trace id.
const TRACE_ID: &str = "cloche/trace_id";

/// The limit on files that a result lists.
const MAX_OUTPUT_FILES: usize = 100;

/// The fields of the output schema, then those of the sidecar's contract. The others are present
/// only if they are set.
#[derive(Debug, Default, Serialize)]
struct ExecuteCodeOutput {
    stdout: String,
    stderr: String,
    exit_code: i32,
    status: &'static str,
    duration_ms: u64,
    /// Whether the time limit was reached.
    killed: bool,
    /// Whether the memory limit was reached.
    oom: bool,
    /// Whether `stdout` or `stderr` is only the beginning of a stream.
    truncated: bool,
    output_files: Vec<OutputFile>,
    #[serde(skip_serializing_if = "is_zero")]
    output_files_omitted: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ExecuteCodeError>,
    /// How many bytes follow those in `stdout`, and the last of them.
    #[serde(skip_serializing_if = "is_zero")]
    stdout_left_out_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_tail: Option<String>,
    #[serde(skip_serializing_if = "is_zero")]
    stderr_left_out_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_tail: Option<String>,
}

/// An error name of the contract, and a message.
#[derive(Debug, Serialize)]
struct ExecuteCodeError {
    code: &'static str,
    message: String,
    /// The error code of the REST API, for a refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

impl ExecuteCodeError {
    fn new(code: &'static str, message: impl Into<String>) -> Option<Self> {
        Some(Self { code, message: message.into(), reason: None })
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires this signature")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The result of an execution that has ended.
pub(super) fn from_execution(execution: &Execution, limit: usize, inert: bool) -> CallToolResult {
    let end = execution.end.clone().unwrap_or_default();
    let stdout =
        StreamExcerpt { head: &end.stdout, dropped: end.stdout_dropped, tail: &end.stdout_tail };
    let stderr =
        StreamExcerpt { head: &end.stderr, dropped: end.stderr_dropped, tail: &end.stderr_tail };
    let (stdout, stderr) = (show_output(stdout, limit, inert), show_output(stderr, limit, inert));
    let (status, error) = judge_end(execution.status, end.exit_code, end.error);
    let (output_files, output_files_omitted) = list_output_files(end.written, inert);
    let output = ExecuteCodeOutput {
        exit_code: end.exit_code,
        status,
        duration_ms: end.usage.wall_ms,
        killed: execution.status == ExecutionStatus::Timeout,
        oom: execution.status == ExecutionStatus::Oom,
        truncated: stdout.left_out > 0 || stderr.left_out > 0,
        output_files,
        output_files_omitted,
        error,
        stdout: stdout.text,
        stdout_left_out_bytes: stdout.left_out,
        stdout_tail: stdout.tail,
        stderr: stderr.text,
        stderr_left_out_bytes: stderr.left_out,
        stderr_tail: stderr.tail,
    };
    to_tool_result(&output, Some(&execution.start.trace_id))
}

/// The contract's status of an execution, and its error.
fn judge_end(
    status: ExecutionStatus,
    exit_code: i32,
    message: Option<String>,
) -> (&'static str, Option<ExecuteCodeError>) {
    match (status, message) {
        (ExecutionStatus::Success, _) => ("completed", None),
        (ExecutionStatus::Timeout, message) => {
            ("timeout", ExecuteCodeError::new("EXECUTION_TIMEOUT", message.unwrap_or_default()))
        }
        (ExecutionStatus::Failed | ExecutionStatus::Blocked, Some(message)) => {
            ("error_setup", ExecuteCodeError::new("SANDBOX_SETUP_FAILED", message))
        }
        (_, Some(message)) => ("error_runtime", ExecuteCodeError::new("RUNTIME_ERROR", message)),
        (_, None) => {
            let message = format!("the code exited with {exit_code}");
            ("error_runtime", ExecuteCodeError::new("RUNTIME_ERROR", message))
        }
    }
}

/// The files that an execution wrote, and how many are not listed.
fn list_output_files(written: HomeWrites, inert: bool) -> (Vec<OutputFile>, u64) {
    let omitted = written.files.len().saturating_sub(MAX_OUTPUT_FILES) as u64;
    let name = |name: String| if inert { reveal_hidden(&name) } else { name };
    let files = written.files.into_iter().take(MAX_OUTPUT_FILES);
    let files = files.map(|file| OutputFile { name: name(file.name), ..file });
    (files.collect(), written.files_omitted.saturating_add(omitted))
}

/// The result for invalid arguments.
pub(super) fn from_arguments_error(unusable: ToolArgumentsError) -> CallToolResult {
    let error = match unusable {
        ToolArgumentsError::Language(message) => {
            ExecuteCodeError::new("UNSUPPORTED_LANGUAGE", message)
        }
        ToolArgumentsError::Other(message) => Some(ExecuteCodeError {
            code: "SANDBOX_SETUP_FAILED",
            message,
            reason: Some(ErrorCode::Validation.name()),
        }),
    };
    setup_failed(error, None)
}

/// The result for a refusal of the engine.
pub(super) fn from_refusal(refusal: &Refusal) -> CallToolResult {
    let error = ExecuteCodeError {
        code: "SANDBOX_SETUP_FAILED",
        message: refusal.message.to_string(),
        reason: Some(refusal.code.name()),
    };
    setup_failed(Some(error), refusal.trace_id.as_ref())
}

/// The result for a call that the gate refused.
pub(super) fn not_allowed(code: ErrorCode, message: String) -> CallToolResult {
    let reason = Some(code.name());
    setup_failed(Some(ExecuteCodeError { code: "SANDBOX_SETUP_FAILED", message, reason }), None)
}

fn setup_failed(error: Option<ExecuteCodeError>, trace_id: Option<&TraceId>) -> CallToolResult {
    let output = ExecuteCodeOutput {
        exit_code: -1,
        status: "error_setup",
        error,
        ..ExecuteCodeOutput::default()
    };
    to_tool_result(&output, trace_id)
}

/// The output both as structured content and as text, for clients that support only text.
fn to_tool_result(output: &ExecuteCodeOutput, trace_id: Option<&TraceId>) -> CallToolResult {
    // Strings and numbers always serialize.
    let value = serde_json::to_value(output).unwrap_or_default();
    let mut content = vec![ContentBlock::text(value.to_string())];
    if let Some(error) = &output.error {
        content.push(ContentBlock::text(format!("{}: {}", error.code, error.message)));
    }
    let left_out = output.stdout_left_out_bytes + output.stderr_left_out_bytes;
    if left_out > 0 {
        let note = format!(
            "output is truncated: stdout and stderr leave out {left_out} bytes; stdout_tail and \
             stderr_tail are the end of it; print less to see it all"
        );
        content.push(ContentBlock::text(note));
    }
    let mut result = match output.error {
        Some(_) => CallToolResult::error(content),
        None => CallToolResult::success(content),
    };
    result.structured_content = Some(value);
    if let Some(trace_id) = trace_id {
        let mut meta = MetaObject::new();
        meta.insert(TRACE_ID.to_owned(), trace_id.as_str().into());
        result.meta = Some(meta);
    }
    result
}

/// The result of a tool that does not run code: an error message.
pub(super) fn tool_error(message: impl Into<String>) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(message)])
}

/// The status of a call, for metrics.
pub(super) fn status_label(answer: &CallToolResponse) -> &'static str {
    let CallToolResponse::Complete(result) = answer else { return "asked" };
    let status = result.structured_content.as_ref().and_then(|output| output["status"].as_str());
    match status {
        Some("completed") => "completed",
        Some("timeout") => "timeout",
        Some("error_runtime") => "error_runtime",
        Some("error_setup") => "error_setup",
        _ if result.is_error == Some(true) => "error",
        _ => "completed",
    }
}
