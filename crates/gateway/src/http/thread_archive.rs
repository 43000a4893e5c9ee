//! Export and import of threads: a tar of an OCI image layout, streamed in both directions.

use axum::{
    Json,
    body::Body,
    extract::{RawQuery, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use tokio_util::io::ReaderStream;

use super::threads::{parse_snapshot_parameter, parse_thread_id};
use crate::{
    api_types::{ErrorResponses, ThreadRecord},
    auth::{PathId, TeamAuth},
    error::ApiError,
    router::AppState,
    streamed_body::StreamedBody,
};

/// Export a thread as an OCI image.
#[utoipa::path(
    get,
    path = "/v1/threads/{thread_id}/export",
    operation_id = "export_thread",
    tag = "threads",
    params(
        ("thread_id" = String, Path, description = "The id of the thread"),
        ("at" = Option<String>, Query, pattern = "^(trc_[A-Za-z0-9_-]{1,20}|[0-9]{1,18})$",
            description = "The snapshot, by number or trace_id; the latest if absent"),
        ("team" = Option<String>, Query, description = "The team, for the admin token only")
    ),
    responses(
        (status = 200, description = "A tar of an OCI image layout", body = Vec<u8>,
            content_type = "application/x-tar"),
        ErrorResponses
    ),
    security(("api_key" = []), ("admin_token" = []), ("session" = []))
)]
pub(crate) async fn export_thread(
    State(state): State<AppState>,
    member: TeamAuth,
    PathId(id): PathId,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let at = parse_snapshot_parameter(query.as_deref(), "at")?;
    let tar = state
        .engine
        .threads()
        .export_thread(&member.team, &parse_thread_id(&id)?, at.as_ref())
        .await?;
    let body = Body::from_stream(ReaderStream::new(tar));
    Ok(([(header::CONTENT_TYPE, "application/x-tar")], body).into_response())
}

/// Create a thread from an OCI image.
#[utoipa::path(
    post,
    path = "/v1/threads/{thread_id}/import",
    operation_id = "import_thread",
    tag = "threads",
    params(
        ("thread_id" = String, Path, description = "The new thread"),
        ("team" = Option<String>, Query, description = "The team, for the admin token only")
    ),
    request_body(content = Vec<u8>, content_type = "application/x-tar",
        description = "A tar of an OCI image layout"),
    responses((status = 201, description = "The new thread", body = ThreadRecord), ErrorResponses),
    security(("api_key" = []), ("admin_token" = []), ("session" = []))
)]
pub(crate) async fn import_thread(
    State(state): State<AppState>,
    member: TeamAuth,
    PathId(id): PathId,
    body: Body,
) -> Result<(StatusCode, Json<ThreadRecord>), ApiError> {
    let id = parse_thread_id(&id)?;
    let (incoming, status) = StreamedBody::new(body, &state.config);
    let made = state.engine.threads().import_thread(&member.team, &id, incoming).await;
    Ok((StatusCode::CREATED, Json(status.or_client_error(made)?.into())))
}
