//! The body and the results of the execute endpoint, and the events of a stream.

use std::collections::BTreeMap;

use axum::body::Bytes;
use cloche_engine::{ExecutionEvent, ExecutionEventKind, JsonPieces, serialize_text};
use cloche_model::{
    ExecuteRequest, Execution, ExecutionStatus, Invalid, RequestFile, StreamName, TraceId,
};
use serde::{Deserialize, Serialize};
use utoipa::{
    ToSchema,
    openapi::schema::{ArrayBuilder, ObjectBuilder, Schema, SchemaType, Type},
};

use super::{
    files::{InputFileBody, OutputFileRecord, input_files_schema},
    network::NetworkRecord,
    number::whole,
};

/// Code to execute, with its parameters. Unknown fields are ignored.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ExecuteBody {
    /// The program, 1 byte to 1 MB.
    #[schema(min_length = 1, max_length = 1_048_576, example = "print('hello')")]
    code: String,
    /// `python` if absent. A sandbox on an image takes the languages that its image has, of all that
    /// records name.
    #[schema(value_type = Option<CoreLanguageName>)]
    language: Option<String>,
    /// The timeout in seconds; 60 if absent. The plan has a maximum.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 31_536_000, default = 60)]
    timeout: Option<i64>,
    /// Keeps `/home/baponi` between executions with the same thread.
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9][A-Za-z0-9_-]*$")]
    thread_id: Option<String>,
    /// Labels for finding the execution. The program never sees them.
    #[schema(schema_with = metadata_schema)]
    metadata: Option<BTreeMap<String, String>>,
    /// The URL for the result in webhook mode; overrides the key's own URL. HTTPS only.
    #[schema(schema_with = webhook_url_schema)]
    webhook_url: Option<String>,
    /// Environment variables for this execution.
    #[schema(schema_with = env_schema)]
    env_vars: Option<BTreeMap<String, String>>,
    /// Narrows storage mounts: up to 10 of `/data/{slug}/{path}`, one for each mount. The path
    /// counts from the root of the bucket or volume, and is within what the key may use.
    #[schema(schema_with = sub_paths_schema)]
    sub_paths: Option<Vec<String>>,
    /// The standard input of the program; at most 1 MB.
    #[schema(max_length = 1_048_576)]
    stdin: Option<String>,
    /// Files written to the home before the program starts: at most 32, and 8 MB in total.
    #[schema(schema_with = input_files_schema)]
    files: Option<Vec<InputFileBody>>,
}

/// The languages of a sandbox on the image `host`.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "only its description is used")]
enum CoreLanguageName {
    Python,
    Node,
    Bash,
}

/// All languages. The image of the sandbox decides which of them it accepts.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "only its description is used")]
pub(crate) enum LanguageName {
    Python,
    Node,
    Bash,
    Sh,
    Ruby,
    Perl,
    Php,
    Deno,
    Bun,
    R,
    Lua,
    Go,
    Java,
    Julia,
    Tcl,
}

/// The status of an execution.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "only its description is used")]
pub(crate) enum StatusName {
    Running,
    Success,
    Failed,
    Timeout,
    Cancelled,
    Oom,
    Blocked,
}

fn map_schema(value: ObjectBuilder, name: &str, names: (usize, usize), most: usize) -> Schema {
    let names = ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some(name))
        .min_length(Some(names.0))
        .max_length(Some(names.1));
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::Object, Type::Null]))
        .property_names(Some(Schema::from(names)))
        .additional_properties(Some(Schema::from(value)))
        .max_properties(Some(most))
        .into()
}

fn metadata_schema() -> Schema {
    let value = ObjectBuilder::new().schema_type(Type::String).max_length(Some(256));
    map_schema(value, "^[A-Za-z0-9][A-Za-z0-9_.-]*$", (1, 40), 10)
}

/// The schema of environment variables. Reserved names are not listed here or elsewhere.
pub(in crate::api_types) fn env_schema() -> Schema {
    let value = ObjectBuilder::new()
        .schema_type(Type::String)
        .max_length(Some(4096))
        .pattern(Some("^[^\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f]*$"));
    map_schema(value, "^[A-Z][A-Z0-9_]*$", (1, 128), 50)
}

/// An HTTPS URL with a host name.
pub(in crate::api_types) fn webhook_url_schema() -> Schema {
    const PORT: &str =
        "[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]";
    let pattern =
        format!("^https://([a-z][a-z0-9]*\\.)+[a-z]{{2,}}(:({PORT}))?(/[A-Za-z0-9._~/?=&-]*)?$");
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
        .max_length(Some(2048))
        .pattern(Some(pattern))
        .examples(["https://hooks.example.com/cloche"])
        .into()
}

/// The schema of `sub_paths`.
fn sub_paths_schema() -> Schema {
    let entry = ObjectBuilder::new()
        .schema_type(Type::String)
        .max_length(Some(512))
        .pattern(Some("^/data/[a-z0-9_-]{1,63}/[^/%\\\\]+(/[^/%\\\\]+)*/?$"));
    let mut array = ArrayBuilder::new().items(entry).max_items(Some(10)).build();
    array.schema_type = SchemaType::from_iter([Type::Array, Type::Null]);
    Schema::Array(array)
}

impl TryFrom<ExecuteBody> for ExecuteRequest {
    type Error = Invalid;

    fn try_from(body: ExecuteBody) -> Result<Self, Invalid> {
        let files = body.files.map(|files| files.into_iter().map(RequestFile::try_from).collect());
        Ok(Self {
            code: body.code,
            language: body.language,
            timeout: body.timeout,
            timeout_ms: None,
            thread_id: body.thread_id,
            metadata: body.metadata,
            webhook_url: body.webhook_url,
            env_vars: body.env_vars,
            sub_paths: body.sub_paths,
            stdin: body.stdin,
            files: files.transpose()?,
        })
    }
}

/// The result of an execution.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ExecuteResult {
    /// Whether the exit code is 0.
    success: bool,
    /// Standard output; bytes that are not UTF-8 are shown as U+FFFD.
    #[serde(serialize_with = "serialize_text")]
    #[schema(value_type = String)]
    stdout: Bytes,
    /// Standard error; bytes that are not UTF-8 are shown as U+FFFD.
    #[serde(serialize_with = "serialize_text")]
    #[schema(value_type = String)]
    stderr: Bytes,
    /// The exit code; 128 + N for a program killed by signal N, -1 if there is none.
    exit_code: i32,
    /// The error, if the platform and not the code failed.
    error: Option<String>,
    /// The wall-clock time of the program.
    duration_ms: u64,
    /// Whether output can no longer be read: it exceeded the limit, or events left the replay.
    output_truncated: bool,
    /// Bytes of standard output that are missing here, because it exceeded the limit.
    stdout_dropped_bytes: u64,
    /// Bytes of standard error that are missing here, because it exceeded the limit.
    stderr_dropped_bytes: u64,
    /// Whether the output contained bytes that are not UTF-8.
    invalid_utf8: bool,
    /// The files written to the home.
    output_files: Vec<OutputFileRecord>,
    /// How many written files are not listed.
    output_files_omitted: u64,
    /// What the program did over the network of its sandbox; absent if that is `blocked`.
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<NetworkRecord>,
}

impl ExecuteResult {
    pub(crate) fn from_execution(execution: &Execution) -> Self {
        let end = execution.end.clone().unwrap_or_default();
        let is_text = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok();
        Self {
            success: execution.status == ExecutionStatus::Success,
            invalid_utf8: !(is_text(&end.stdout) && is_text(&end.stderr)),
            stdout: end.stdout,
            stderr: end.stderr,
            exit_code: end.exit_code,
            error: end.error,
            duration_ms: end.usage.wall_ms,
            output_truncated: end.output_truncated,
            stdout_dropped_bytes: end.stdout_dropped,
            stderr_dropped_bytes: end.stderr_dropped,
            output_files: end.written.files.into_iter().map(OutputFileRecord::from).collect(),
            output_files_omitted: end.written.files_omitted,
            network: end.network.map(NetworkRecord::from),
        }
    }

    /// The long texts of the result, which are shared and not copied.
    fn long_texts(&self) -> [Bytes; 2] {
        [self.stdout.clone(), self.stderr.clone()]
    }

    /// The result as JSON.
    pub(crate) fn to_json_pieces(&self) -> JsonPieces {
        JsonPieces::from_value(self, &self.long_texts())
    }
}

/// The result of an execution that timed out. The message is in `error`, as in results, and in
/// `message`, as in errors.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TimedOut {
    #[serde(flatten)]
    result: ExecuteResult,
    /// The error message.
    #[schema(example = "execution timed out after 30s")]
    message: String,
    /// The machine-readable code of the status; `error` has the message here.
    #[schema(example = "gateway_timeout")]
    code: &'static str,
}

/// The code of an execution that timed out.
const TIMED_OUT: &str = "gateway_timeout";

impl TimedOut {
    pub(crate) fn new(result: ExecuteResult) -> Self {
        let message = result.error.clone().unwrap_or_default();
        Self { result, message, code: TIMED_OUT }
    }

    /// The result as JSON.
    pub(crate) fn to_json_pieces(&self) -> JsonPieces {
        JsonPieces::from_value(self, &self.result.long_texts())
    }
}

/// An execution that continues in the background, or is being cancelled.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Accepted {
    /// Its id.
    #[schema(example = "trc_a1b2c3d4")]
    trace_id: String,
    /// `running` or `cancelling`, or the final status of an execution that has already ended.
    status: String,
}

impl Accepted {
    pub(crate) fn running(trace_id: &TraceId) -> Self {
        Self { trace_id: trace_id.to_string(), status: ExecutionStatus::Running.name().to_owned() }
    }

    pub(crate) fn cancelling(trace_id: &TraceId, over: Option<ExecutionStatus>) -> Self {
        let status = over.map_or("cancelling", ExecutionStatus::name).to_owned();
        Self { trace_id: trace_id.to_string(), status }
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum NdjsonEvent<'a> {
    Status {
        trace_id: &'a str,
        status: &'static str,
        seq: u64,
    },
    Output {
        stream: &'static str,
        #[serde(serialize_with = "serialize_text")]
        data: Bytes,
        seq: u64,
    },
    Keepalive {
        seq: u64,
    },
    Result {
        trace_id: &'a str,
        status: &'static str,
        result: Box<ExecuteResult>,
        output_truncated: bool,
        /// Bytes of each stream that a replay leaves out; absent if it is complete.
        #[serde(skip_serializing_if = "Option::is_none")]
        stdout_omitted_bytes: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        stderr_omitted_bytes: Option<u64>,
        seq: u64,
    },
}

/// Appends an event as a line of JSON. The same event always gives the same bytes.
pub(crate) fn push_event(pieces: &mut JsonPieces, trace_id: &TraceId, event: &ExecutionEvent) {
    let (trace_id, seq) = (trace_id.as_str(), event.seq);
    match &event.kind {
        ExecutionEventKind::Started => {
            pieces.push_line(
                &NdjsonEvent::Status { trace_id, status: ExecutionStatus::Running.name(), seq },
                &[],
            );
        }
        ExecutionEventKind::Output(stream, data) => {
            let stream = match stream {
                StreamName::Stdout => "stdout",
                StreamName::Stderr => "stderr",
            };
            let data = data.clone();
            pieces.push_line(&NdjsonEvent::Output { stream, data: data.clone(), seq }, &[data]);
        }
        ExecutionEventKind::Keepalive => pieces.push_line(&NdjsonEvent::Keepalive { seq }, &[]),
        ExecutionEventKind::Over(execution) => {
            let result = ExecuteResult::from_execution(execution);
            let texts = result.long_texts();
            pieces.push_line(&last_line(trace_id, execution, result, seq), &texts);
        }
    }
}

fn last_line<'a>(
    trace_id: &'a str,
    execution: &Execution,
    result: ExecuteResult,
    seq: u64,
) -> NdjsonEvent<'a> {
    let end = execution.end.as_ref();
    let omitted = |stream| end.map(|end| end.bytes_left_out(stream)).filter(|bytes| *bytes > 0);
    NdjsonEvent::Result {
        trace_id,
        status: execution.status.name(),
        output_truncated: result.output_truncated,
        result: Box::new(result),
        stdout_omitted_bytes: omitted(StreamName::Stdout),
        stderr_omitted_bytes: omitted(StreamName::Stderr),
        seq,
    }
}
