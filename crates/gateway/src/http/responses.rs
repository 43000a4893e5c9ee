//! `/v1/agent` and `/v1/responses`: responses of a model that can run code.

use std::{convert::Infallible, time::Duration};

use axum::{
    Json,
    body::{Body, Bytes},
    extract::{Path, RawQuery, State},
    http::{HeaderMap, HeaderName, header},
    response::{IntoResponse, Response},
};
use cloche_agent::{NewResponse, ResponseEventReader, ResponseEvents};
use cloche_engine::{Caller, Refusal};
use cloche_model::{Invalid, Moment, ResponseId};
use futures::{StreamExt, stream};
use url::form_urlencoded;

use super::{executions::parse_limit, signed_files::send_file, threads::query_parameter};
use crate::{
    api_types::{
        Cancelling, CreateResponse, ErrorBody, ErrorResponses, ResponseFiles, ResponseList,
        ResponseRecord, encode_sse,
    },
    auth::{ApiKeyAuth, PathId, TeamAuth},
    body::HeldJson,
    error::ApiError,
    router::AppState,
};

/// The page size of lists.
const LISTED: u32 = 50;
/// The longest silence of a stream before a keepalive.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Create a response of a model that can run code.
///
/// Returns when the response has ended. With `stream`, returns events as they happen. With
/// `background`, returns immediately, and the caller polls.
#[utoipa::path(
    post,
    path = "/v1/responses",
    operation_id = "create_response",
    tag = "agent",
    request_body = CreateResponse,
    responses(
        (status = 200, description = "The response", content(
            (ResponseRecord = "application/json"),
            (String = "text/event-stream"),
        )),
        ErrorResponses
    ),
    security(("api_key" = []), ("session" = []))
)]
pub(crate) async fn create_response(
    State(state): State<AppState>,
    ApiKeyAuth(caller): ApiKeyAuth,
    HeldJson(body, _memory): HeldJson<CreateResponse>,
) -> Result<Response, ApiError> {
    create_and_answer(&state, &caller, body).await
}

/// Create a response of a model that can run code. The same as `POST /v1/responses`.
#[utoipa::path(
    post,
    path = "/v1/agent",
    operation_id = "create_agent_response",
    tag = "agent",
    request_body = CreateResponse,
    responses(
        (status = 200, description = "The response", content(
            (ResponseRecord = "application/json"),
            (String = "text/event-stream"),
        )),
        ErrorResponses
    ),
    security(("api_key" = []), ("session" = []))
)]
pub(crate) async fn create_agent_response(
    State(state): State<AppState>,
    ApiKeyAuth(caller): ApiKeyAuth,
    HeldJson(body, _memory): HeldJson<CreateResponse>,
) -> Result<Response, ApiError> {
    create_and_answer(&state, &caller, body).await
}

async fn create_and_answer(
    state: &AppState,
    caller: &Caller,
    body: CreateResponse,
) -> Result<Response, ApiError> {
    let (stream, background) = (body.wants_stream(), body.is_background());
    let begun = state.agent.create_response(caller, NewResponse::try_from(body)?).await?;
    if stream {
        return Ok(stream_events(ResponseEvents::Live(begun.events())));
    }
    let response = if background { begun.response() } else { begun.wait_settled().await };
    Ok(Json(ResponseRecord::from(&response)).into_response())
}

/// Streams events as they happen.
fn stream_events(follow: ResponseEvents) -> Response {
    let body = match follow {
        ResponseEvents::Over(events) => Body::from(encode_sse(&events)),
        ResponseEvents::Live(reader) => {
            let batches = stream::unfold(reader, next_event_batch);
            Body::from_stream(batches.map(Ok::<_, Infallible>))
        }
    };
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        // Tells proxies not to buffer events.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, body).into_response()
}

async fn next_event_batch(mut reader: ResponseEventReader) -> Option<(Bytes, ResponseEventReader)> {
    match tokio::time::timeout(KEEPALIVE, reader.next()).await {
        Ok(events) => Some((Bytes::from(encode_sse(&events?)), reader)),
        Err(_) => Some((Bytes::from_static(b": keepalive\n\n"), reader)),
    }
}

/// A malformed id gives 404.
fn parse_response_id(id: &str) -> Result<ResponseId, ApiError> {
    id.parse().map_err(|_| Refusal::not_found("response").into())
}

/// List the responses of a team, newest first.
#[utoipa::path(
    get,
    path = "/v1/responses",
    operation_id = "list_responses",
    tag = "agent",
    params(
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200,
            description = "The page size; 50 if absent"),
        ("cursor" = Option<String>, Query, pattern = "^[0-9]{1,18}\\.resp_[A-Za-z0-9_-]{1,20}$",
            description = "The `next_cursor` of the previous page"),
        ("team" = Option<String>, Query, description = "The team, for operators only")
    ),
    responses((status = 200, description = "A page", body = ResponseList), ErrorResponses),
    security(("api_key" = []), ("admin_token" = []), ("session" = []))
)]
pub(crate) async fn list_responses(
    State(state): State<AppState>,
    member: TeamAuth,
    RawQuery(query): RawQuery,
) -> Result<Json<ResponseList>, ApiError> {
    let query = query.as_deref();
    let limit = query_parameter(query, "limit").map(|text| parse_limit(&text)).transpose()?;
    let limit = limit.unwrap_or(LISTED);
    let after =
        query_parameter(query, "cursor").map(|text| parse_list_cursor(&text)).transpose()?;
    let responses = state.engine.responses();
    let found = responses.list_responses(&member.team.id, after, limit + 1).await?;
    Ok(Json(ResponseList::new(found, limit as usize)))
}

fn parse_list_cursor(text: &str) -> Result<(Moment, ResponseId), Invalid> {
    let parts = text
        .split_once('.')
        .and_then(|(at, id)| Some((Moment(at.parse().ok()?), id.parse::<ResponseId>().ok()?)));
    parts.ok_or_else(|| Invalid::new("cursor must be a next_cursor of an earlier page"))
}

/// Get a response in its current state.
#[utoipa::path(
    get,
    path = "/v1/responses/{id}",
    operation_id = "get_response",
    tag = "agent",
    params(
        ("id" = String, Path, description = "The id of the response"),
        ("stream" = Option<bool>, Query, description = "Return its past and future events instead"),
        ("starting_after" = Option<u64>, Query,
            description = "Only events after this sequence number")
    ),
    responses(
        (status = 200, description = "The response", content(
            (ResponseRecord = "application/json"),
            (String = "text/event-stream"),
        )),
        ErrorResponses
    ),
    security(("api_key" = []), ("session" = []))
)]
pub(crate) async fn get_response(
    State(state): State<AppState>,
    member: TeamAuth,
    PathId(name): PathId,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let (stream, after) = parse_stream_query(query.as_deref().unwrap_or_default())?;
    let id = parse_response_id(&name)?;
    if stream {
        return Ok(stream_events(state.agent.follow_response(&member.team.id, &id, after).await?));
    }
    let response = state.agent.retrieve_response(&member.team.id, &id).await?;
    Ok(Json(ResponseRecord::from(&response)).into_response())
}

fn parse_stream_query(query: &str) -> Result<(bool, Option<u64>), Invalid> {
    let (mut stream, mut after) = (false, None);
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "stream" => {
                let read = value.to_ascii_lowercase().parse();
                stream = read.map_err(|_| Invalid::new("stream must be true or false"))?;
            }
            "starting_after" => {
                let wrong = |_| Invalid::new("starting_after must be the number of an event");
                after = Some(value.parse().map_err(wrong)?);
            }
            _ => {}
        }
    }
    Ok((stream, after))
}

/// Cancel a response. One that has ended is left unchanged.
#[utoipa::path(
    post,
    path = "/v1/responses/{id}/cancel",
    operation_id = "cancel_response",
    tag = "agent",
    params(("id" = String, Path, description = "The id of the response")),
    responses(
        (status = 200, description = "It is being cancelled, or has already ended", body = Cancelling),
        ErrorResponses
    ),
    security(("api_key" = []), ("session" = []))
)]
pub(crate) async fn cancel_response(
    State(state): State<AppState>,
    member: TeamAuth,
    PathId(name): PathId,
) -> Result<Json<Cancelling>, ApiError> {
    let over = state.agent.cancel_response(&member.team.id, &parse_response_id(&name)?).await?;
    Ok(Json(Cancelling::new(name, over)))
}

/// List the files that the code of a response wrote.
#[utoipa::path(
    get,
    path = "/v1/responses/{id}/files",
    operation_id = "list_response_files",
    tag = "agent",
    params(("id" = String, Path, description = "The response's id")),
    responses((status = 200, description = "The files", body = ResponseFiles), ErrorResponses),
    security(("api_key" = []), ("session" = []))
)]
pub(crate) async fn list_response_files(
    State(state): State<AppState>,
    ApiKeyAuth(caller): ApiKeyAuth,
    PathId(name): PathId,
) -> Result<Json<ResponseFiles>, ApiError> {
    Ok(Json(ResponseFiles::from_files(
        state.agent.list_files(&caller, &parse_response_id(&name)?).await?,
    )))
}

/// Download a file of a response.
#[utoipa::path(
    get,
    path = "/v1/responses/{id}/files/{file_id}/content",
    operation_id = "get_response_file",
    tag = "agent",
    params(
        ("id" = String, Path, description = "The response's id"),
        ("file_id" = String, Path, description = "The file's id"),
        ("Range" = Option<String>, Header, description = "`bytes=FROM-TO` for a part of the file")
    ),
    responses(
        (status = 200, description = "The file", content((Vec<u8> = "application/octet-stream"))),
        (status = 206,
            description = "The requested range", content((Vec<u8> = "application/octet-stream"))),
        (status = 416, description = "The range is beyond the end of the file", body = ErrorBody),
        ErrorResponses
    ),
    security(("api_key" = []), ("session" = []))
)]
pub(crate) async fn get_response_file(
    State(state): State<AppState>,
    ApiKeyAuth(caller): ApiKeyAuth,
    path: Result<Path<(String, String)>, axum::extract::rejection::PathRejection>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let Ok(Path((name, file))) = path else { return Err(ApiError::not_found()) };
    let file = state.agent.open_file(&caller, &parse_response_id(&name)?, &file).await?;
    send_file(file, &headers).await
}
