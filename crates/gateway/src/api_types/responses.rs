//! The wire format of the Agent API: requests, responses, stream events and files.

mod create;
mod list;
mod stream_events;
mod web_results;

use std::collections::BTreeMap;

use cloche_agent::{
    PendingAction, Response, ResponseBill, ResponseFailure, ResponseFile, ResponseItem, RunResult,
    SandboxCall,
};
use cloche_model::{Moment, ResponseStatus, WebTool};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

pub(crate) use create::CreateResponse;
pub(crate) use list::ResponseList;
pub(crate) use stream_events::encode_sse;
use web_results::{FetchedContent, SearchResultRecord, fetched_contents, search_records};

/// A response in its current state.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ResponseRecord {
    /// Its id.
    id: String,
    /// Always `response`.
    object: &'static str,
    /// When it was accepted, in seconds since 1970.
    created_at: i64,
    /// Its status.
    #[schema(value_type = ResponseStatusName)]
    status: &'static str,
    /// The model that answered.
    model: String,
    /// Messages, calls of the sandbox and of web tools, and function calls, in order.
    output: Vec<OutputItem>,
    /// Whether it was created in the background.
    background: bool,
    /// Whether it can be retrieved later.
    store: bool,
    /// The response it continues.
    previous_response_id: Option<String>,
    /// Why it failed.
    error: Option<ErrorInfo>,
    /// The action that a person must take before it continues.
    #[serde(skip_serializing_if = "Option::is_none")]
    required_action: Option<RequiredAction>,
    /// Its usage and cost.
    usage: UsageInfo,
}

/// The status of a response.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its description is used")]
pub(crate) enum ResponseStatusName {
    Queued,
    InProgress,
    RequiresAction,
    Completed,
    Failed,
    Cancelled,
}

/// One output item of a response.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum OutputItem {
    /// A message from the model.
    Message { id: String, role: &'static str, status: &'static str, content: Vec<ContentPart> },
    /// One sandbox call.
    SandboxResults {
        call_id: String,
        container_id: String,
        language: String,
        code: String,
        status: &'static str,
        results: Vec<SandboxResult>,
    },
    /// The results of a search by the model.
    SearchResults {
        queries: Vec<String>,
        results: Vec<SearchResultRecord>,
        /// Why the search failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// Pages that the model read.
    FetchUrlResults {
        contents: Vec<FetchedContent>,
        /// Why no page could be read.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// A function call for the caller to run.
    FunctionCall {
        id: String,
        call_id: String,
        name: String,
        arguments: String,
        status: &'static str,
    },
}

/// A part of a message.
#[derive(Debug, Serialize, ToSchema)]
struct ContentPart {
    r#type: &'static str,
    text: String,
    annotations: Vec<Value>,
}

/// One execution in a container. The fields about truncation are present only if output is left
/// out.
#[derive(Debug, Serialize, ToSchema)]
struct SandboxResult {
    /// Standard output as the program wrote it; its beginning if `truncated`.
    stdout: String,
    stderr: String,
    exit_code: i32,
    duration_ms: u64,
    status: &'static str,
    /// Whether `stdout` or `stderr` is only the beginning of a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<bool>,
    /// How many bytes follow those in `stdout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_dropped_bytes: Option<u64>,
    /// How many bytes follow those in `stderr`.
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_dropped_bytes: Option<u64>,
    /// The execution, whose record has more of the output.
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
}

/// Why a response failed.
#[derive(Debug, Serialize, ToSchema)]
struct ErrorInfo {
    code: String,
    message: String,
    r#type: &'static str,
}

/// The action that a person must take.
#[derive(Debug, Serialize, ToSchema)]
struct RequiredAction {
    /// Always `approval`.
    r#type: &'static str,
    approval_id: String,
    message: String,
}

/// The usage of a response.
#[derive(Debug, Serialize, ToSchema)]
struct UsageInfo {
    input_tokens: u64,
    output_tokens: u64,
    total_tokens: u64,
    input_tokens_details: InputTokens,
    /// Usage by tool; tools that were not used are absent.
    tool_calls_details: BTreeMap<&'static str, ToolUse>,
    cost: Cost,
}

#[derive(Debug, Serialize, ToSchema)]
struct InputTokens {
    cache_read_input_tokens: u64,
    cache_creation_input_tokens: u64,
}

/// The usage of a tool.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ToolUse {
    pub(super) invocation: u64,
    pub(super) cost_usd: f64,
}

/// The cost of a response.
#[derive(Debug, Serialize, ToSchema)]
struct Cost {
    /// Always `USD`.
    currency: &'static str,
    input_cost: f64,
    output_cost: f64,
    tool_calls_cost: f64,
    total_cost: f64,
}

/// A response that is being cancelled.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Cancelling {
    response_id: String,
    /// `cancelling`, or the final status of a response that has already ended.
    status: &'static str,
}

/// The files of a response.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ResponseFiles {
    /// Always `list`.
    object: &'static str,
    data: Vec<ResponseFileRecord>,
}

/// A file that the code of a response wrote.
#[derive(Debug, Serialize, ToSchema)]
struct ResponseFileRecord {
    id: String,
    /// Always `file`.
    object: &'static str,
    /// Its path below the container's home.
    filename: String,
    bytes: u64,
    created_at: i64,
}

fn unix_seconds(moment: Moment) -> i64 {
    moment.0.div_euclid(1_000_000)
}

impl From<&Response> for ResponseRecord {
    fn from(response: &Response) -> Self {
        let item = |item: &ResponseItem| OutputItem::from_item(item, response.status);
        Self {
            id: response.id.to_string(),
            object: "response",
            created_at: unix_seconds(response.created_at),
            status: response.status.name(),
            model: response.model.clone(),
            output: response.output.iter().map(item).collect(),
            background: response.background,
            store: response.store,
            previous_response_id: response.previous.as_ref().map(ToString::to_string),
            error: response.error.as_ref().map(ErrorInfo::from),
            required_action: response.action.as_ref().map(RequiredAction::from),
            usage: (&response.bill).into(),
        }
    }
}

impl OutputItem {
    /// Converts an item. An unfinished message has the status of its response.
    fn from_item(item: &ResponseItem, response: ResponseStatus) -> Self {
        match item {
            ResponseItem::Message { id, text, done } => Self::Message {
                id: id.clone(),
                role: "assistant",
                status: if *done { "completed" } else { response.name() },
                content: vec![ContentPart {
                    r#type: "output_text",
                    text: text.clone(),
                    annotations: Vec::new(),
                }],
            },
            ResponseItem::Sandbox(SandboxCall {
                call_id,
                container_id,
                language,
                code,
                status,
                results,
            }) => Self::SandboxResults {
                call_id: call_id.clone(),
                container_id: container_id.clone(),
                language: language.clone(),
                code: code.clone(),
                status: status.name(),
                results: results.iter().map(SandboxResult::from).collect(),
            },
            ResponseItem::Search { queries, results, error, .. } => Self::SearchResults {
                queries: queries.clone(),
                results: search_records(results),
                error: error.clone(),
            },
            ResponseItem::Fetch { pages, error } => {
                Self::FetchUrlResults { contents: fetched_contents(pages), error: error.clone() }
            }
            ResponseItem::Function { id, call_id, name, arguments } => Self::FunctionCall {
                id: id.clone(),
                call_id: call_id.clone(),
                name: name.clone(),
                arguments: arguments.clone(),
                status: "completed",
            },
        }
    }
}

impl From<&RunResult> for SandboxResult {
    fn from(run: &RunResult) -> Self {
        let left_out = run.truncation.as_ref();
        Self {
            stdout: run.stdout.clone(),
            stderr: run.stderr.clone(),
            exit_code: run.exit_code,
            duration_ms: run.duration_ms,
            status: run.status.name(),
            truncated: left_out.map(|_| true),
            stdout_dropped_bytes: left_out.map(|left_out| left_out.stdout_dropped),
            stderr_dropped_bytes: left_out.map(|left_out| left_out.stderr_dropped),
            trace_id: left_out.map(|left_out| left_out.trace_id.to_string()),
        }
    }
}

impl From<&ResponseFailure> for ErrorInfo {
    fn from(failure: &ResponseFailure) -> Self {
        let kind = match failure.code.as_str() {
            "rate_limited" | "model_rate_limited" => "rate_limit_error",
            code if code.starts_with("model_") => "model_error",
            "max_steps" | "max_output_tokens" | "response_too_large" => "limit_error",
            _ => "server_error",
        };
        Self { code: failure.code.clone(), message: failure.message.clone(), r#type: kind }
    }
}

impl From<&PendingAction> for RequiredAction {
    fn from(action: &PendingAction) -> Self {
        let PendingAction { approval_id, message } = action.clone();
        Self { r#type: "approval", approval_id, message }
    }
}

impl From<&ResponseBill> for UsageInfo {
    fn from(bill: &ResponseBill) -> Self {
        let tokens = &bill.tokens;
        let sandbox = ToolUse { invocation: bill.sandbox_invocations, cost_usd: bill.sandbox_cost };
        let sandbox = (bill.sandbox_invocations > 0).then_some(("sandbox", sandbox));
        let web_tools = WebTool::ALL.iter().zip(bill.web_tools).filter(|(_, bill)| bill.calls > 0);
        let web_tools = web_tools.map(|(tool, bill)| {
            (tool.name(), ToolUse { invocation: bill.calls, cost_usd: bill.dollars() })
        });
        Self {
            input_tokens: tokens.input,
            output_tokens: tokens.output,
            total_tokens: tokens.input.saturating_add(tokens.output),
            input_tokens_details: InputTokens {
                cache_read_input_tokens: tokens.cache_read,
                cache_creation_input_tokens: tokens.cache_creation,
            },
            tool_calls_details: sandbox.into_iter().chain(web_tools).collect(),
            cost: Cost {
                currency: "USD",
                input_cost: bill.input_cost,
                output_cost: bill.output_cost,
                tool_calls_cost: bill.tool_cost(),
                total_cost: bill.total(),
            },
        }
    }
}

impl Cancelling {
    pub(crate) fn new(id: String, over: Option<ResponseStatus>) -> Self {
        Self { response_id: id, status: over.map_or("cancelling", ResponseStatus::name) }
    }
}

impl ResponseFiles {
    pub(crate) fn from_files(files: Vec<ResponseFile>) -> Self {
        let record = |file: ResponseFile| ResponseFileRecord {
            id: file.id,
            object: "file",
            filename: file.filename,
            bytes: file.size,
            created_at: unix_seconds(file.created_at),
        };
        Self { object: "list", data: files.into_iter().map(record).collect() }
    }
}
