//! `/v1/threads`: homes that outlive executions, and their history.

use axum::{
    Json,
    extract::{RawQuery, State},
    http::StatusCode,
};
use cloche_engine::Refusal;
use cloche_model::{Invalid, SnapshotRef, ThreadId};
use url::form_urlencoded;

use crate::{
    api_types::{
        DiffRecord, ErrorResponses, ForkBody, HistoryPage, PruneBody, PruneRecord, RollbackBody,
        ThreadPageRecord, ThreadRecord,
    },
    auth::{PathId, TeamAuth},
    body::JsonBody,
    error::ApiError,
    router::AppState,
};

const DEFAULT_LIMIT: u32 = 50;
const MAX_LIMIT: u32 = 200;

/// A malformed id gives 404, like one that does not exist.
pub(crate) fn parse_thread_id(id: &str) -> Result<ThreadId, ApiError> {
    id.parse().map_err(|_| Refusal::not_found("thread").into())
}

/// The value of a query parameter, if present.
pub(crate) fn query_parameter(query: Option<&str>, name: &str) -> Option<String> {
    let mut pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    pairs.find(|(found, _)| found == name).map(|(_, value)| value.into_owned())
}

fn parse_limit_parameter(query: Option<&str>) -> Result<u32, Invalid> {
    let Some(text) = query_parameter(query, "limit") else { return Ok(DEFAULT_LIMIT) };
    let limit = text.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
    limit.ok_or_else(|| Invalid::new(format!("limit must be from 1 to {MAX_LIMIT}")))
}

pub(crate) fn parse_snapshot_parameter(
    query: Option<&str>,
    name: &str,
) -> Result<Option<SnapshotRef>, Invalid> {
    query_parameter(query, name).map(|text| text.parse()).transpose()
}

/// List threads, sorted by name.
#[utoipa::path(
    get,
    path = "/v1/threads",
    operation_id = "list_threads",
    tag = "threads",
    params(
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200,
            description = "The page size; 50 if absent"),
        ("cursor" = Option<String>, Query, max_length = 128, pattern = "^[A-Za-z0-9][A-Za-z0-9_-]*$",
            description = "The `next_cursor` of the previous page"),
        ("team" = Option<String>, Query,
            description = "The team, for the admin token only; `default` if absent")
    ),
    responses((status = 200, description = "A page", body = ThreadPageRecord), ErrorResponses),
    security(("api_key" = []), ("admin_token" = []), ("session" = []))
)]
pub(crate) async fn list_threads(
    State(state): State<AppState>,
    member: TeamAuth,
    RawQuery(query): RawQuery,
) -> Result<Json<ThreadPageRecord>, ApiError> {
    let query = query.as_deref();
    let after = query_parameter(query, "cursor").map(|text| text.parse::<ThreadId>()).transpose();
    let after =
        after.map_err(|_| Invalid::new("cursor must be a next_cursor of an earlier page"))?;
    let page = state
        .engine
        .threads()
        .list_threads(&member.team, after.as_ref(), parse_limit_parameter(query)?)
        .await?;
    Ok(Json(page.into()))
}

/// Get a thread.
#[utoipa::path(
    get,
    path = "/v1/threads/{thread_id}",
    operation_id = "get_thread",
    tag = "threads",
    params(
        ("thread_id" = String, Path, description = "The id of the thread"),
        ("team" = Option<String>, Query, description = "The team, for the admin token only")
    ),
    responses((status = 200, description = "The thread", body = ThreadRecord), ErrorResponses),
    security(("api_key" = []), ("admin_token" = []), ("session" = []))
)]
pub(crate) async fn get_thread(
    State(state): State<AppState>,
    member: TeamAuth,
    PathId(id): PathId,
) -> Result<Json<ThreadRecord>, ApiError> {
    Ok(Json(
        state
            .engine
            .threads()
            .thread_with_usage(&member.team, &parse_thread_id(&id)?)
            .await?
            .into(),
    ))
}

/// Delete a thread with all its snapshots.
#[utoipa::path(
    delete,
    path = "/v1/threads/{thread_id}",
    operation_id = "delete_thread",
    tag = "threads",
    params(
        ("thread_id" = String, Path, description = "The id of the thread"),
        ("team" = Option<String>, Query, description = "The team, for the admin token only")
    ),
    responses((status = 204, description = "The thread was deleted"), ErrorResponses),
    security(("api_key" = []), ("admin_token" = []), ("session" = []))
)]
pub(crate) async fn delete_thread(
    State(state): State<AppState>,
    member: TeamAuth,
    PathId(id): PathId,
) -> Result<StatusCode, ApiError> {
    state.engine.threads().delete_thread(&member.team, &parse_thread_id(&id)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List the snapshots of a thread, newest first.
#[utoipa::path(
    get,
    path = "/v1/threads/{thread_id}/history",
    operation_id = "thread_history",
    tag = "threads",
    params(
        ("thread_id" = String, Path, description = "The id of the thread"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200,
            description = "The page size; 50 if absent"),
        ("cursor" = Option<String>, Query, pattern = "^[0-9]{1,18}$",
            description = "The `next_cursor` of the previous page"),
        ("team" = Option<String>, Query, description = "The team, for the admin token only")
    ),
    responses((status = 200, description = "A page", body = HistoryPage), ErrorResponses),
    security(("api_key" = []), ("admin_token" = []), ("session" = []))
)]
pub(crate) async fn list_thread_history(
    State(state): State<AppState>,
    member: TeamAuth,
    PathId(id): PathId,
    RawQuery(query): RawQuery,
) -> Result<Json<HistoryPage>, ApiError> {
    let query = query.as_deref();
    let before = match parse_snapshot_parameter(query, "cursor") {
        Ok(Some(SnapshotRef::Seq(seq))) => Some(seq),
        Ok(None) => None,
        _ => return Err(Invalid::new("cursor must be a next_cursor of an earlier page").into()),
    };
    let limit = parse_limit_parameter(query)?;
    let history = state
        .engine
        .threads()
        .thread_history(&member.team, &parse_thread_id(&id)?, before, limit)
        .await?;
    Ok(Json(history.into()))
}

/// Get the difference between two snapshots.
#[utoipa::path(
    get,
    path = "/v1/threads/{thread_id}/diff",
    operation_id = "thread_diff",
    tag = "threads",
    params(
        ("thread_id" = String, Path, description = "The id of the thread"),
        ("from" = Option<String>, Query, pattern = "^(trc_[A-Za-z0-9_-]{1,20}|[0-9]{1,18})$",
            description = "The older snapshot, by number or trace_id; the one before `to` if absent, 0 is the empty home"),
        ("to" = Option<String>, Query, pattern = "^(trc_[A-Za-z0-9_-]{1,20}|[0-9]{1,18})$",
            description = "The newer snapshot; the latest if absent"),
        ("team" = Option<String>, Query, description = "The team, for the admin token only")
    ),
    responses(
        (status = 200, description = "The paths that differ", body = DiffRecord),
        ErrorResponses
    ),
    security(("api_key" = []), ("admin_token" = []), ("session" = []))
)]
pub(crate) async fn diff_thread(
    State(state): State<AppState>,
    member: TeamAuth,
    PathId(id): PathId,
    RawQuery(query): RawQuery,
) -> Result<Json<DiffRecord>, ApiError> {
    let (from, to) = (
        parse_snapshot_parameter(query.as_deref(), "from")?,
        parse_snapshot_parameter(query.as_deref(), "to")?,
    );
    let (id, team) = (parse_thread_id(&id)?, &member.team);
    let diff = state.engine.threads().thread_diff(team, &id, from.as_ref(), to.as_ref()).await?;
    Ok(Json(diff.into()))
}

/// Create a thread from a snapshot of another thread.
#[utoipa::path(
    post,
    path = "/v1/threads/{thread_id}/fork",
    operation_id = "fork_thread",
    tag = "threads",
    params(
        ("thread_id" = String, Path, description = "The id of the thread"),
        ("team" = Option<String>, Query, description = "The team, for the admin token only")
    ),
    request_body = ForkBody,
    responses((status = 201, description = "The new thread", body = ThreadRecord), ErrorResponses),
    security(("api_key" = []), ("admin_token" = []), ("session" = []))
)]
pub(crate) async fn fork_thread(
    State(state): State<AppState>,
    member: TeamAuth,
    PathId(id): PathId,
    JsonBody(body): JsonBody<ForkBody>,
) -> Result<(StatusCode, Json<ThreadRecord>), ApiError> {
    let new: ThreadId = body.thread_id.parse::<ThreadId>()?;
    let at = body.at.map(SnapshotRef::try_from).transpose()?;
    let (id, team) = (parse_thread_id(&id)?, &member.team);
    let made = state.engine.threads().fork_thread(team, &id, at.as_ref(), &new).await?;
    Ok((StatusCode::CREATED, Json(made.into())))
}

/// Return to a snapshot. This creates a new snapshot, so nothing is lost.
#[utoipa::path(
    post,
    path = "/v1/threads/{thread_id}/rollback",
    operation_id = "rollback_thread",
    tag = "threads",
    params(
        ("thread_id" = String, Path, description = "The id of the thread"),
        ("team" = Option<String>, Query, description = "The team, for the admin token only")
    ),
    request_body = RollbackBody,
    responses(
        (status = 200, description = "The updated thread", body = ThreadRecord),
        ErrorResponses
    ),
    security(("api_key" = []), ("admin_token" = []), ("session" = []))
)]
pub(crate) async fn rollback_thread(
    State(state): State<AppState>,
    member: TeamAuth,
    PathId(id): PathId,
    JsonBody(body): JsonBody<RollbackBody>,
) -> Result<Json<ThreadRecord>, ApiError> {
    let to = SnapshotRef::try_from(body.to)?;
    let thread =
        state.engine.threads().rollback_thread(&member.team, &parse_thread_id(&id)?, &to).await?;
    Ok(Json(thread.into()))
}

/// Drop a part of a thread's history.
#[utoipa::path(
    post,
    path = "/v1/threads/{thread_id}/prune",
    operation_id = "prune_thread",
    tag = "threads",
    params(
        ("thread_id" = String, Path, description = "The id of the thread"),
        ("team" = Option<String>, Query, description = "The team, for the admin token only")
    ),
    request_body = PruneBody,
    responses(
        (status = 200, description = "The result of pruning", body = PruneRecord),
        ErrorResponses
    ),
    security(("api_key" = []), ("admin_token" = []), ("session" = []))
)]
pub(crate) async fn prune_thread(
    State(state): State<AppState>,
    member: TeamAuth,
    PathId(id): PathId,
    JsonBody(body): JsonBody<PruneBody>,
) -> Result<Json<PruneRecord>, ApiError> {
    let pruned = state
        .engine
        .storage()
        .prune_history(&member.team, &parse_thread_id(&id)?, body.into())
        .await?;
    Ok(Json(pruned.into()))
}
