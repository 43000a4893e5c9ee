//! `/v1/executions`: past and running executions.

use axum::{
    Json,
    extract::{RawQuery, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use cloche_engine::{ExecutionCursor, ExecutionFilter, Refusal, parse_rfc3339};
use cloche_model::{Invalid, Moment, TraceId, request::check_metadata_key};
use url::form_urlencoded;

use super::execute::with_trace_id;
use crate::{
    api_types::{Accepted, ErrorResponses, ExecutionPage, ExecutionRecord},
    auth::{LedgerAuth, PathId},
    error::ApiError,
    reply,
    router::AppState,
};

const DEFAULT_LIMIT: u32 = 50;
const MAX_LIMIT: u32 = 200;
const MAX_SEARCH_CHARS: usize = 200;

/// List executions, newest first, without their output.
#[utoipa::path(
    get,
    path = "/v1/executions",
    tag = "executions",
    params(
        ("status" = Option<crate::api_types::StatusName>, Query,
            description = "Only executions with this status"),
        ("language" = Option<crate::api_types::LanguageName>, Query,
            description = "Only executions in this language"),
        ("thread_id" = Option<String>, Query, max_length = 128, pattern = "^[A-Za-z0-9][A-Za-z0-9_-]*$",
            description = "Only executions in this thread"),
        ("sandbox" = Option<String>, Query, pattern = "^sbx_[A-Za-z0-9_-]{1,20}$",
            description = "Only executions in this sandbox, by id"),
        ("key" = Option<String>, Query, pattern = "^key_[A-Za-z0-9_-]{1,20}$",
            description = "Only executions of this key, by id"),
        ("q" = Option<String>, Query, max_length = 200,
            description = "Only executions that are over and whose code or output has all of these \
            words; `\"two words\"` is a phrase"),
        ("team" = Option<String>, Query,
            description = "For operators: only executions of this team; all if absent"),
        ("since" = Option<String>, Query, format = DateTime,
            description = "Only executions accepted at or after this time, RFC 3339"),
        ("until" = Option<String>, Query, format = DateTime,
            description = "Only executions accepted before this time, RFC 3339"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200,
            description = "The page size; 50 if absent"),
        ("cursor" = Option<String>, Query, pattern = "^[0-9]{1,18}\\.trc_[A-Za-z0-9_-]{1,20}$",
            description = "The `next_cursor` of the previous page; \
            `metadata.KEY=VALUE` filters by metadata")
    ),
    responses((status = 200, description = "A page", body = ExecutionPage), ErrorResponses),
    security(("api_key" = []), ("admin_token" = []), ("session" = []))
)]
pub(crate) async fn list(
    State(state): State<AppState>,
    LedgerAuth { reader }: LedgerAuth,
    RawQuery(query): RawQuery,
) -> Result<Json<ExecutionPage>, ApiError> {
    let filter = parse_execution_filter(query.as_deref().unwrap_or_default())?;
    let page = state.engine.executions().list_executions(reader, filter).await?;
    Ok(Json(ExecutionPage {
        executions: page.executions.iter().map(ExecutionRecord::without_output).collect(),
        next_cursor: page.next.map(|cursor| cursor.to_string()),
    }))
}

fn parse_execution_filter(query: &str) -> Result<ExecutionFilter, Invalid> {
    let mut filter = ExecutionFilter { limit: DEFAULT_LIMIT, ..ExecutionFilter::default() };
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "status" => filter.status = Some(value.parse()?),
            "language" => filter.language = Some(parse_language(&value)?),
            "thread_id" => filter.thread = Some(value.parse()?),
            "sandbox" => filter.sandbox = Some(value.parse()?),
            "key" => filter.key = Some(value.parse()?),
            "q" => filter.text = parse_search_text(&value)?,
            "since" => filter.since = Some(parse_time("since", &value)?),
            "until" => filter.until = Some(parse_time("until", &value)?),
            "limit" => filter.limit = parse_limit(&value)?,
            "cursor" => filter.after = Some(value.parse::<ExecutionCursor>()?),
            other => {
                if let Some(key) = other.strip_prefix("metadata.") {
                    check_metadata_key(key)?;
                    filter.metadata.insert(key.to_owned(), value.into_owned());
                }
            }
        }
    }
    Ok(filter)
}

/// Splits a search into words and quoted phrases. Something to look for has a letter or a digit.
fn parse_search_text(text: &str) -> Result<Vec<String>, Invalid> {
    if text.chars().count() > MAX_SEARCH_CHARS {
        return Err(Invalid::new(format!("q must be at most {MAX_SEARCH_CHARS} characters")));
    }
    let mut phrases = Vec::new();
    for (place, part) in text.split('"').enumerate() {
        match place % 2 {
            1 => phrases.push(part.to_owned()),
            _ => phrases.extend(part.split_whitespace().map(str::to_owned)),
        }
    }
    phrases.retain(|phrase| phrase.chars().any(char::is_alphanumeric));
    if phrases.is_empty() && !text.trim().is_empty() {
        return Err(Invalid::new("q must have a letter or a digit"));
    }
    Ok(phrases)
}

fn parse_language(name: &str) -> Result<cloche_model::Language, Invalid> {
    name.parse().map_err(|_| Invalid::new("language must be one of: python, node, bash"))
}

pub(super) fn parse_time(field: &str, text: &str) -> Result<Moment, Invalid> {
    let malformed = || Invalid::new(format!("{field} must be a time such as 2026-03-16T12:00:00Z"));
    parse_rfc3339(text).ok_or_else(malformed)
}

pub(super) fn parse_limit(text: &str) -> Result<u32, Invalid> {
    let limit = text.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
    limit.ok_or_else(|| Invalid::new(format!("limit must be between 1 and {MAX_LIMIT}")))
}

/// Get an execution.
#[utoipa::path(
    get,
    path = "/v1/executions/{trace_id}",
    tag = "executions",
    params(("trace_id" = String, Path, description = "The id of the execution")),
    responses(
        (status = 200, description = "The record", body = ExecutionRecord,
            headers(("x-trace-id" = String, description = "The trace id of the execution"))),
        ErrorResponses
    ),
    security(("api_key" = []), ("admin_token" = []), ("session" = []))
)]
pub(crate) async fn get(
    State(state): State<AppState>,
    LedgerAuth { reader }: LedgerAuth,
    PathId(id): PathId,
) -> Result<Response, ApiError> {
    let trace_id = parse_trace_id(&id)?;
    let execution = state.engine.executions().find_execution(reader, &trace_id).await?;
    let decision = state.engine.approvals().decision_of(&execution.start.team, &trace_id).await?;
    let used = state.engine.web_tools().usage_of(&trace_id).await;
    let record = ExecutionRecord::with_output(&execution, decision).with_tool_usage(&used);
    Ok(with_trace_id(reply::json_response(StatusCode::OK, record.to_json_pieces()), &trace_id))
}

/// Cancel an execution.
#[utoipa::path(
    post,
    path = "/v1/executions/{trace_id}/cancel",
    tag = "executions",
    params(("trace_id" = String, Path, description = "The id of the execution")),
    responses(
        (status = 200, description = "It is being cancelled, or has already ended", body = Accepted,
            headers(("x-trace-id" = String, description = "The trace id of the execution"))),
        ErrorResponses
    ),
    security(("api_key" = []), ("admin_token" = []), ("session" = []))
)]
pub(crate) async fn cancel(
    State(state): State<AppState>,
    LedgerAuth { reader }: LedgerAuth,
    PathId(id): PathId,
) -> Result<Response, ApiError> {
    let trace_id = parse_trace_id(&id)?;
    let over = state.engine.executions().cancel_execution(reader, &trace_id).await?;
    let answer = Accepted::cancelling(&trace_id, over);
    Ok(with_trace_id(Json(answer).into_response(), &trace_id))
}

/// Follow the events of an execution, or replay them.
#[utoipa::path(
    get,
    path = "/v1/executions/{trace_id}/output",
    tag = "executions",
    params(
        ("trace_id" = String, Path, description = "The id of the execution"),
        ("after_seq" = Option<u64>, Query, description = "Only events after this sequence number")
    ),
    responses(
        (status = 200, description = "One JSON object per line",
            content((String = "application/x-ndjson")),
            headers(("x-trace-id" = String, description = "The trace id of the execution"))),
        ErrorResponses
    ),
    security(("api_key" = []), ("admin_token" = []), ("session" = []))
)]
pub(crate) async fn output(
    State(state): State<AppState>,
    LedgerAuth { reader }: LedgerAuth,
    PathId(id): PathId,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let trace_id = parse_trace_id(&id)?;
    let after = parse_after_seq(query.as_deref().unwrap_or_default())?;
    let output = state.engine.executions().execution_events(reader, &trace_id, after).await?;
    Ok(with_trace_id(reply::ndjson_response(trace_id.clone(), output), &trace_id))
}

fn parse_after_seq(query: &str) -> Result<u64, Invalid> {
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    let Some((_, value)) = pairs.find(|(name, _)| name == "after_seq") else { return Ok(0) };
    let number = value.parse::<i64>().ok().and_then(|number| u64::try_from(number).ok());
    number.ok_or_else(|| Invalid::new("after_seq must be a whole number, 0 or more"))
}

/// A malformed id gives 404, like one that does not exist.
fn parse_trace_id(id: &str) -> Result<TraceId, ApiError> {
    id.parse().map_err(|_| Refusal::not_found("execution").into())
}
