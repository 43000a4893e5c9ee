//! Runs in: server (no capabilities).
//!
//! `/v1/threads/{thread_id}/files`: the files of a thread at any of its snapshots, and uploads to
//! it.

use axum::{
    Json,
    body::Body,
    extract::{RawQuery, State},
    http::{HeaderMap, StatusCode, Uri},
    response::Response,
};
use cloche_engine::{FileFilter, FileUpload, Refusal};
use cloche_model::{HomePath, Invalid, ThreadId};
use percent_encoding::percent_decode_str;

use super::{
    signed_files::send_file,
    threads::{parse_snapshot_parameter, parse_thread_id, query_parameter},
};
use crate::{
    api_types::{ErrorBody, ErrorResponses, FileList, Uploaded},
    auth::{PathId, TeamAuth},
    body::declared_length,
    error::ApiError,
    router::AppState,
    streamed_body::StreamedBody,
};

const MAX_LIMIT: u32 = 10_000;

/// List the files of a thread at a snapshot.
#[utoipa::path(
    get,
    path = "/v1/threads/{thread_id}/files",
    operation_id = "list_thread_files",
    tag = "threads",
    params(
        ("thread_id" = String, Path, description = "The id of the thread"),
        ("at" = Option<String>, Query, pattern = "^(trc_[A-Za-z0-9_-]{1,20}|[0-9]{1,18})$",
            description = "The snapshot, by number or trace_id; the latest if absent"),
        ("path" = Option<String>, Query, description = "Only files below this directory"),
        ("after" = Option<String>, Query, description = "The `next` of the previous page"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 10000,
            description = "The page size; 10000 if absent"),
        ("team" = Option<String>, Query, description = "The team, for operators only")
    ),
    responses((status = 200, description = "The files", body = FileList), ErrorResponses),
    security(("api_key" = []), ("admin_token" = []), ("session" = []))
)]
pub(crate) async fn list_thread_files(
    State(state): State<AppState>,
    member: TeamAuth,
    PathId(id): PathId,
    RawQuery(query): RawQuery,
) -> Result<Json<FileList>, ApiError> {
    let query = query.as_deref();
    let at = parse_snapshot_parameter(query, "at")?;
    let below = query_parameter(query, "path");
    let below = below.as_deref().map(HomePath::parse_directory).transpose()?.flatten();
    let limit = match query_parameter(query, "limit") {
        Some(text) => text.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit)),
        None => Some(MAX_LIMIT),
    };
    let limit =
        limit.ok_or_else(|| Invalid::new(format!("limit must be from 1 to {MAX_LIMIT}")))?;
    let filter =
        FileFilter { below, after: query_parameter(query, "after"), limit: limit as usize };
    let (id, files) = (parse_thread_id(&id)?, state.engine.files());
    Ok(Json(files.list_files_at(&member.team, &id, at.as_ref(), &filter).await?.into()))
}

/// Download a file of a thread at a snapshot.
#[utoipa::path(
    get,
    path = "/v1/threads/{thread_id}/files/{path}",
    operation_id = "read_thread_file",
    tag = "threads",
    params(
        ("thread_id" = String, Path, description = "The id of the thread"),
        ("path" = String, Path,
            description = "The file's path below the home, as listed; it may contain slashes"),
        ("at" = Option<String>, Query, pattern = "^(trc_[A-Za-z0-9_-]{1,20}|[0-9]{1,18})$",
            description = "The snapshot, by number or trace_id; the latest if absent"),
        ("team" = Option<String>, Query, description = "The team, for operators only"),
        ("Range" = Option<String>, Header, description = "`bytes=FROM-TO` for a part of the file")
    ),
    responses(
        (status = 200,
            description = "The file", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 206,
            description = "The requested range",
            body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 416, description = "The range is beyond the end of the file", body = ErrorBody),
        ErrorResponses
    ),
    security(("api_key" = []), ("admin_token" = []), ("session" = []))
)]
pub(crate) async fn read_thread_file(
    State(state): State<AppState>,
    member: TeamAuth,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let at = parse_snapshot_parameter(uri.query(), "at")?;
    let (id, path) = parse_file_path(&uri)?;
    let files = state.engine.files();
    let file = files.find_file_at(&member.team, &id, at.as_ref(), &path).await?;
    send_file(file, &headers).await
}

/// Upload a file to a thread. It makes a new snapshot.
#[utoipa::path(
    put,
    path = "/v1/threads/{thread_id}/files/{path}",
    operation_id = "write_thread_file",
    tag = "threads",
    params(
        ("thread_id" = String, Path, description = "The id of the thread; it is made if missing"),
        ("path" = String, Path,
            description = "The file's path below the home; it may contain slashes"),
        ("team" = Option<String>, Query, description = "The team, for operators only")
    ),
    request_body(content = Vec<u8>, content_type = "application/octet-stream",
        description = "The file; its length must be declared"),
    responses(
        (status = 200, description = "The file is stored durably", body = Uploaded),
        (status = 411, description = "Content-Length is missing", body = ErrorBody),
        ErrorResponses
    ),
    security(("api_key" = []), ("admin_token" = []), ("session" = []))
)]
pub(crate) async fn write_thread_file(
    State(state): State<AppState>,
    member: TeamAuth,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Uploaded>, ApiError> {
    let (id, path) = parse_file_path(&uri)?;
    let length = declared_length(&headers).ok_or_else(|| {
        let message = "send the length of the file as Content-Length".to_owned();
        ApiError::Http(StatusCode::LENGTH_REQUIRED, "length_required", message)
    })?;
    let (incoming, status) = StreamedBody::new(body, &state.config);
    let file = FileUpload { thread: &id, path: &path, length, allowed_at: None, approved: None };
    let put = state.engine.files().upload_file(&member.team, file, incoming).await;
    status.or_client_error(put)?;
    Ok(Json(Uploaded { path: path.to_string(), size: length }))
}

/// The thread and the path. They are not taken from the router, because a name need not be UTF-8.
fn parse_file_path(uri: &Uri) -> Result<(ThreadId, HomePath), ApiError> {
    let missing = || Refusal::not_found("file");
    let rest = uri.path().strip_prefix("/v1/threads/").ok_or_else(missing)?;
    let (id, path) = rest.split_once("/files/").ok_or_else(missing)?;
    let id = percent_decode_str(id).decode_utf8().map_err(|_| missing())?;
    let path: Vec<u8> = percent_decode_str(path).collect();
    let path = HomePath::from_url(&path).map_err(|_| missing())?;
    Ok((parse_thread_id(&id)?, path))
}
