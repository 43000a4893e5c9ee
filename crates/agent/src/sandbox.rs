//! The sandbox tool: its definition for the model, and one call of it. The call goes through the
//! engine exactly as one of the REST API does.

use std::{collections::BTreeMap, time::Duration};

use cloche_engine::{CallPermit, Caller, Engine, Refusal};
use cloche_model::{
    DeliveryMode, ErrorCode, ExecuteRequest, Execution, ExecutionEnd, ExecutionStatus, Language,
    OutputFile, TraceId,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{OutputTruncation, ResponseFailure, RunResult, RunStatus, ToolDefinition};

/// The tool's name.
pub(crate) const NAME: &str = "sandbox";
/// The limit on bytes of a stream in a response; the execution's record has all of it.
const SHOWN: usize = 256 << 10;
/// How many bytes of the beginning of a stream the model gets.
const MODEL_HEAD: usize = 24 << 10;
/// How many bytes of the end of a stream the model gets.
const MODEL_TAIL: usize = 8 << 10;
/// How many file names the model gets.
const MODEL_FILES: usize = 50;
/// The timeout in seconds if the model sets none.
const DEFAULT_TIMEOUT: u64 = 60;
/// The longest timeout in seconds that the model can set. The team's own limit may be shorter.
const MAX_TIMEOUT: u64 = 600;

/// The definition of the tool for the model.
pub(crate) fn tool_definition() -> ToolDefinition {
    let description = "Runs a program in an isolated Linux container and returns its \
                       output. Its home directory, which is the working directory, is kept \
                       between calls; processes and variables are not. Files written there are \
                       handed to the user.";
    ToolDefinition {
        name: NAME.to_owned(),
        description: description.to_owned(),
        parameters: json!({
            "type": "object",
            "properties": {
                "language": {
                    "type": "string", "enum": ["python", "bash"],
                    "description": "The language of the program",
                },
                "code": {"type": "string", "description": "The program. Print what you want to see."},
                "timeout_seconds": {
                    "type": "integer", "minimum": 1, "maximum": MAX_TIMEOUT,
                    "description": "How long it may run; 60 if absent",
                },
            },
            "required": ["code"],
            "additionalProperties": false,
        }),
    }
}

/// A program that a model wants to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SandboxProgram {
    pub(crate) language: Language,
    pub(crate) code: String,
    pub(crate) timeout: Duration,
}

#[derive(Deserialize)]
struct SandboxToolArguments {
    code: String,
    language: Option<String>,
    timeout_seconds: Option<f64>,
}

/// Parses the arguments of a call. The error is the result for the model.
pub(crate) fn parse_program(arguments: &str, caller: &Caller) -> Result<SandboxProgram, String> {
    let read: SandboxToolArguments = serde_json::from_str(arguments)
        .map_err(|error| format!("the arguments do not match the tool's schema: {error}"))?;
    let language = match read.language.as_deref() {
        None | Some("python") => Language::Python,
        Some("bash") => Language::Bash,
        Some(_) => return Err("language must be one of: python, bash".to_owned()),
    };
    let asked = read.timeout_seconds.unwrap_or(f64::from(u32::MAX)).max(1.0);
    let asked = Duration::try_from_secs_f64(asked.floor()).unwrap_or(Duration::MAX);
    let usual = if read.timeout_seconds.is_some() { MAX_TIMEOUT } else { DEFAULT_TIMEOUT };
    let most = caller.team.effective_limits().timeout.unwrap_or(Duration::MAX);
    let timeout = asked.min(Duration::from_secs(usual)).min(most);
    Ok(SandboxProgram { language, code: read.code, timeout })
}

/// The language and the code of a call as the model wrote them, valid or not. Arguments that are
/// not JSON are returned whole as code.
pub(crate) fn as_given(arguments: &str) -> (String, String) {
    let given: Value = serde_json::from_str(arguments).unwrap_or_default();
    let text = |name: &str| given[name].as_str().map(ToOwned::to_owned);
    let language = text("language").unwrap_or_else(|| Language::Python.name().to_owned());
    (language, text("code").unwrap_or_else(|| arguments.to_owned()))
}

/// The outcome of a sandbox call.
pub(crate) struct SandboxCallOutcome {
    /// The result for the response.
    pub(crate) result: RunResult,
    /// The result for the model.
    pub(crate) for_model: String,
    /// The execution, if one was started.
    pub(crate) trace_id: Option<TraceId>,
    /// The files that the program wrote.
    pub(crate) files: Vec<OutputFile>,
    /// Whether the program ran. Only then is the call billed.
    pub(crate) began: bool,
    /// Whether the call was stopped before it ended by itself.
    pub(crate) interrupted: bool,
}

impl SandboxCallOutcome {
    /// The outcome of a call that did not run. No program used standard error, so it holds the
    /// reason.
    pub(crate) fn not_run(why: &str) -> Self {
        let result = RunResult {
            stdout: String::new(),
            stderr: why.to_owned(),
            exit_code: -1,
            duration_ms: 0,
            status: RunStatus::Failed,
            truncation: None,
        };
        let for_model = json!({"status": "failed", "error": why}).to_string();
        let (trace_id, files) = (None, Vec::new());
        Self { result, for_model, trace_id, files, began: false, interrupted: false }
    }

    fn from_execution(execution: &Execution) -> Self {
        let nothing = ExecutionEnd::default();
        let end = execution.end.as_ref().unwrap_or(&nothing);
        let trace_id = &execution.start.trace_id;
        let (status, trouble) = judge_execution(execution.status, end);
        if !has_begun(execution.status, end) {
            let why = trouble.unwrap_or_default();
            return Self { trace_id: Some(trace_id.clone()), ..Self::not_run(&why) };
        }
        let files = end.written.files.clone();
        let names: Vec<_> = files.iter().take(MODEL_FILES).map(|file| &file.name).collect();
        let for_model = json!({
            "status": status.name(),
            "exit_code": end.exit_code,
            "stdout": output_for_model(&end.stdout, (end.stdout_dropped, &end.stdout_tail)),
            "stderr": output_for_model(&end.stderr, (end.stderr_dropped, &end.stderr_tail)),
            "error": trouble,
            "files": names,
        });
        let result = shown_result(end, status, trace_id);
        let (for_model, trace_id) = (for_model.to_string(), Some(trace_id.clone()));
        let interrupted = execution.status == ExecutionStatus::Cancelled;
        Self { result, for_model, trace_id, files, began: true, interrupted }
    }
}

/// Whether the program started. Without a cell the execution has no outcome at all.
fn has_begun(status: ExecutionStatus, end: &ExecutionEnd) -> bool {
    let nothing = end.exit_code == -1 && end.usage.wall_ms == 0 && end.stdout.is_empty();
    !(matches!(status, ExecutionStatus::Failed | ExecutionStatus::Blocked)
        && nothing
        && end.stderr.is_empty())
}

/// Converts the status of an execution to the status of the call, with an error message if it
/// failed.
fn judge_execution(status: ExecutionStatus, end: &ExecutionEnd) -> (RunStatus, Option<String>) {
    let error = end.error.clone();
    match status {
        ExecutionStatus::Success => (RunStatus::Completed, None),
        ExecutionStatus::Failed if error.is_none() => (RunStatus::Completed, None),
        ExecutionStatus::Timeout => (
            RunStatus::TimedOut,
            Some(error.unwrap_or_else(|| "the time limit was reached".into())),
        ),
        ExecutionStatus::Oom => (
            RunStatus::Failed,
            Some(error.unwrap_or_else(|| "the program was killed: out of memory".into())),
        ),
        _ => (RunStatus::Failed, Some(error.unwrap_or_else(|| "the program was stopped".into()))),
    }
}

/// The result for the response: the beginning of each stream, and beside it how much is left out.
fn shown_result(end: &ExecutionEnd, status: RunStatus, trace_id: &TraceId) -> RunResult {
    let (stdout, stdout_dropped) = shown_output(&end.stdout, end.stdout_dropped);
    let (stderr, stderr_dropped) = shown_output(&end.stderr, end.stderr_dropped);
    let truncated = stdout_dropped > 0 || stderr_dropped > 0;
    RunResult {
        stdout,
        stderr,
        exit_code: end.exit_code,
        duration_ms: end.usage.wall_ms,
        status,
        truncation: truncated.then(|| OutputTruncation {
            stdout_dropped,
            stderr_dropped,
            trace_id: trace_id.clone(),
        }),
    }
}

/// The beginning of a stream, which ends with a whole character, and how many bytes follow it.
fn shown_output(bytes: &[u8], dropped: u64) -> (String, u64) {
    let is_continuation = |byte: u8| byte & 0b1100_0000 == 0b1000_0000;
    let mut length = bytes.len().min(SHOWN);
    let mut steps = 0;
    while steps < 3 && length > 0 && bytes.get(length).is_some_and(|byte| is_continuation(*byte)) {
        (length, steps) = (length - 1, steps + 1);
    }
    let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
    (text, (bytes.len() - length) as u64 + dropped)
}

/// The beginning and the end of a stream. `dropped` bytes were not captured; `last` is their end.
fn output_for_model(bytes: &[u8], (dropped, last): (u64, &[u8])) -> String {
    if bytes.len() <= MODEL_HEAD + MODEL_TAIL && dropped == 0 {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let head = &bytes[..bytes.len().min(MODEL_HEAD)];
    let end = if dropped == 0 { bytes } else { last };
    let tail = &end[end.len().saturating_sub(MODEL_TAIL)..];
    let left_out = bytes.len() as u64 + dropped - (head.len() + tail.len()) as u64;
    let (head, tail) = (String::from_utf8_lossy(head), String::from_utf8_lossy(tail));
    format!("{head}\n[{left_out} bytes left out]\n{tail}")
}

/// The context in which a program runs.
pub(crate) struct ProgramContext<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) caller: &'a Caller,
    /// The thread whose home is the container.
    pub(crate) container: &'a str,
    /// The permit for this call.
    pub(crate) permit: &'a CallPermit,
    /// Labels for finding the execution.
    pub(crate) metadata: BTreeMap<String, String>,
    /// Cancelled when the response is to stop.
    pub(crate) stopped: &'a CancellationToken,
}

/// Runs a program to its end. A team limit or a missing executor fails the response; anything else
/// is a result for the model.
pub(crate) async fn run_in_sandbox(
    context: ProgramContext<'_>,
    program: &SandboxProgram,
) -> Result<SandboxCallOutcome, ResponseFailure> {
    let request = ExecuteRequest {
        code: program.code.clone(),
        language: Some(program.language.name().to_owned()),
        timeout: i64::try_from(program.timeout.as_secs()).ok(),
        // Executors without homes run each program in a home of its own.
        thread_id: context.engine.keeps_homes().then(|| context.container.to_owned()),
        metadata: Some(context.metadata),
        ..ExecuteRequest::default()
    };
    let started = context
        .engine
        .executions()
        .start_permitted_execution(context.caller, request, DeliveryMode::Inline, context.permit)
        .await;
    let started = match started {
        Ok(started) => started,
        Err(refusal) => return refused_outcome(refusal),
    };
    let trace_id = started.trace_id.clone();
    let mut over = std::pin::pin!(started.wait_until_over());
    let ended = tokio::select! {
        ended = &mut over => ended,
        () = context.stopped.cancelled() => {
            // The end is awaited anyway: the container must be free for the next call.
            let _ = context.engine.executions().cancel_execution(context.caller, &trace_id).await;
            over.await
        }
    };
    match ended {
        Ok(execution) => Ok(SandboxCallOutcome::from_execution(&execution)),
        Err(refusal) => refused_outcome(refusal),
    }
}

fn refused_outcome(refusal: Refusal) -> Result<SandboxCallOutcome, ResponseFailure> {
    match refusal.code {
        ErrorCode::Validation | ErrorCode::Conflict => {
            Ok(SandboxCallOutcome::not_run(&refusal.message))
        }
        code => {
            let cause = refusal.source.as_ref().map(ToString::to_string);
            tracing::warn!(error = %refusal, cause, "a sandbox call was refused");
            Err(ResponseFailure::from_refusal(code, refusal.message.into_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_gets_both_ends_of_long_output() {
        let mut bytes = vec![b'a'; 100 << 10];
        bytes.extend_from_slice(b"the end");
        let text = output_for_model(&bytes, (0, &[]));
        assert!(text.starts_with("aaa") && text.ends_with("the end"), "{text}");
        assert!(text.contains(&format!("[{} bytes left out]", bytes.len() - (32 << 10))));
        let text = output_for_model(&bytes, (90, b"the very end"));
        assert!(text.starts_with("aaa") && text.ends_with("]\nthe very end"), "{text}");
        let left_out = bytes.len() + 90 - (24 << 10) - 12;
        assert!(text.contains(&format!("[{left_out} bytes left out]")), "{text}");
    }

    #[test]
    fn truncation_is_beside_the_output_and_splits_no_character() {
        let trace_id = TraceId::from_random([1; 20]);
        let long = [vec![b'a'; SHOWN - 1], "ä!".as_bytes().to_vec()].concat();
        let end = ExecutionEnd { stdout: long.into(), stdout_dropped: 4, ..Default::default() };
        let result = shown_result(&end, RunStatus::Completed, &trace_id);
        assert_eq!(result.stdout, "a".repeat(SHOWN - 1));
        let truncation = OutputTruncation { stdout_dropped: 7, stderr_dropped: 0, trace_id };
        assert_eq!(result.truncation, Some(truncation));
        assert_eq!(shown_output(b"\xff", 0), ("\u{fffd}".to_owned(), 0));
        let odd = vec![0x80; SHOWN + 9];
        assert_eq!(shown_output(&odd, 0).1, 12, "bytes that are no text do not move the cut far");
    }

    #[test]
    fn a_call_is_shown_as_the_model_wrote_it() {
        let pair = |language: &str, code: &str| (language.to_owned(), code.to_owned());
        let given = "{\"code\": \"1\", \"language\": \"cobol\"}";
        assert_eq!(as_given(given), pair("cobol", "1"));
        assert_eq!(as_given("{\"code\": \"1\"}"), pair("python", "1"));
        for odd in ["{\"code\": ", "{\"code\": 5}", "[]"] {
            assert_eq!(as_given(odd), pair("python", odd));
        }
    }

    #[test]
    fn a_program_that_never_started_is_not_billed() {
        let error = Some("no executor is available to run the code".to_owned());
        let nothing = ExecutionEnd { exit_code: -1, error, ..ExecutionEnd::default() };
        assert!(
            !has_begun(ExecutionStatus::Failed, &nothing)
                && !has_begun(ExecutionStatus::Blocked, &nothing)
        );
        // These programs timed out, were cancelled, failed, or were lost after they had written
        // output.
        assert!(
            has_begun(ExecutionStatus::Timeout, &nothing)
                && has_begun(ExecutionStatus::Cancelled, &nothing)
        );
        assert!(has_begun(
            ExecutionStatus::Failed,
            &ExecutionEnd { exit_code: 1, ..nothing.clone() }
        ));
        assert!(has_begun(
            ExecutionStatus::Failed,
            &ExecutionEnd { stdout: b"up".to_vec().into(), ..nothing }
        ));
    }

    #[test]
    fn a_failed_program_is_completed_and_a_lost_one_is_failed() {
        let end = ExecutionEnd { exit_code: 1, ..ExecutionEnd::default() };
        assert_eq!(judge_execution(ExecutionStatus::Failed, &end), (RunStatus::Completed, None));
        let lost = ExecutionEnd { error: Some("lost".into()), ..end.clone() };
        assert_eq!(
            judge_execution(ExecutionStatus::Failed, &lost),
            (RunStatus::Failed, Some("lost".into()))
        );
        assert_eq!(judge_execution(ExecutionStatus::Timeout, &end).0, RunStatus::TimedOut);
        assert_eq!(judge_execution(ExecutionStatus::Oom, &end).0, RunStatus::Failed);
    }
}
