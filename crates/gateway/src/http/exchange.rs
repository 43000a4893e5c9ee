//! Threads that leave and come in: a tar of an OCI image layout, streamed both ways.

use axum::{
    Json,
    body::Body,
    extract::{RawQuery, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use tokio_util::io::ReaderStream;

use super::threads::{point, thread_id};
use crate::{
    auth::{Member, PathId},
    error::ApiError,
    incoming::Incoming,
    router::Doors,
    wire::{Errors, ThreadRecord},
};

/// Read a thread as an OCI image.
#[utoipa::path(
    get,
    path = "/v1/threads/{thread_id}/export",
    operation_id = "export_thread",
    tag = "threads",
    params(
        ("thread_id" = String, Path, description = "Its id"),
        ("at" = Option<String>, Query, pattern = "^(trc_[A-Za-z0-9_-]{1,20}|[0-9]{1,18})$",
            description = "The point, by number or trace_id; the newest if absent"),
        ("team" = Option<String>, Query, description = "With the admin token: whose it is")
    ),
    responses(
        (status = 200, description = "A tar of an OCI image layout", body = Vec<u8>,
            content_type = "application/x-tar"),
        Errors
    ),
    security(("api_key" = []), ("admin_token" = []))
)]
pub(crate) async fn export(
    State(doors): State<Doors>,
    member: Member,
    PathId(id): PathId,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let at = point(query.as_deref(), "at")?;
    let tar = doors.engine.export_thread(&member.team, &thread_id(&id)?, at.as_ref()).await?;
    let body = Body::from_stream(ReaderStream::new(tar));
    Ok(([(header::CONTENT_TYPE, "application/x-tar")], body).into_response())
}

/// Make a thread from an OCI image.
#[utoipa::path(
    post,
    path = "/v1/threads/{thread_id}/import",
    operation_id = "import_thread",
    tag = "threads",
    params(
        ("thread_id" = String, Path, description = "The new thread"),
        ("team" = Option<String>, Query, description = "With the admin token: whose it is")
    ),
    request_body(content = Vec<u8>, content_type = "application/x-tar",
        description = "A tar of an OCI image layout"),
    responses((status = 201, description = "The new thread", body = ThreadRecord), Errors),
    security(("api_key" = []), ("admin_token" = []))
)]
pub(crate) async fn import(
    State(doors): State<Doors>,
    member: Member,
    PathId(id): PathId,
    body: Body,
) -> Result<(StatusCode, Json<ThreadRecord>), ApiError> {
    let id = thread_id(&id)?;
    let (incoming, fate) = Incoming::new(body, &doors.config);
    let made = doors.engine.import_thread(&member.team, &id, incoming).await;
    Ok((StatusCode::CREATED, Json(fate.judge(made)?.into())))
}
