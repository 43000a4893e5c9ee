//! Runs in: server (no capabilities).
//!
//! `/v1/admin/backups`: a backup is begun, its parts are read, and it is ended. The parts are
//! streams; what is stored where is for the client.

use axum::{
    Json,
    body::Body,
    extract::{FromRequestParts, Path, State},
    http::{StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use cloche_engine::BackupReader;
use futures::{Stream, StreamExt};
use hyper::body::Bytes;
use tokio_util::io::ReaderStream;

use crate::{
    api_types::{BackupRecord, ErrorResponses},
    auth::{AdminAuth, PathId},
    error::ApiError,
    router::AppState,
};

/// How much of the database is read at once.
const PIECE: usize = 256 << 10;

/// The id of a backup and the name of a part. What cannot be decoded gives 404.
pub(crate) struct BackupPart {
    backup: String,
    part: String,
}

impl FromRequestParts<AppState> for BackupPart {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let path = Path::<(String, String)>::from_request_parts(parts, state).await;
        let Path((backup, part)) = path.map_err(|_| ApiError::not_found())?;
        Ok(Self { backup, part })
    }
}

/// Begin a backup.
///
/// Until it is ended no layer is deleted. One that is not read for ten minutes ends by itself.
#[utoipa::path(
    post,
    path = "/v1/admin/backups",
    operation_id = "begin_backup",
    tag = "admin",
    responses((status = 201, description = "The backup", body = BackupRecord), ErrorResponses),
    security(("admin_token" = []))
)]
pub(crate) async fn begin_backup(
    State(state): State<AppState>,
    _: AdminAuth,
) -> Result<(StatusCode, Json<BackupRecord>), ApiError> {
    let begun = state.engine.backups().begin_backup().await?;
    Ok((StatusCode::CREATED, Json(begun.into())))
}

/// Read the database of a backup.
#[utoipa::path(
    get,
    path = "/v1/admin/backups/{id}/database",
    operation_id = "read_backup_database",
    tag = "admin",
    params(("id" = String, Path, description = "The id of the backup")),
    responses(
        (status = 200, description = "A SQLite database; its secrets are sealed", body = Vec<u8>,
            content_type = "application/octet-stream"),
        ErrorResponses
    ),
    security(("admin_token" = []))
)]
pub(crate) async fn read_backup_database(
    State(state): State<AppState>,
    _: AdminAuth,
    PathId(id): PathId,
) -> Result<Response, ApiError> {
    let (file, size, reader) = state.engine.backups().open_database(&id).await?;
    Ok(stream_part(ReaderStream::with_capacity(file, PIECE), Some(size), reader))
}

/// Read a layer of a backup.
#[utoipa::path(
    get,
    path = "/v1/admin/backups/{id}/layers/{digest}",
    operation_id = "read_backup_layer",
    tag = "admin",
    params(
        ("id" = String, Path, description = "The id of the backup"),
        ("digest" = String, Path, description = "The digest of the layer")
    ),
    responses(
        (status = 200, description = "The layer as it is stored", body = Vec<u8>,
            content_type = "application/octet-stream"),
        ErrorResponses
    ),
    security(("admin_token" = []))
)]
pub(crate) async fn read_backup_layer(
    State(state): State<AppState>,
    _: AdminAuth,
    name: BackupPart,
) -> Result<Response, ApiError> {
    let digest = name.part.parse().map_err(|_| ApiError::not_found())?;
    let (bytes, size, reader) = state.engine.backups().read_layer(&name.backup, &digest).await?;
    Ok(stream_part(bytes, Some(size), reader))
}

/// Read the files of a volume of a backup.
#[utoipa::path(
    get,
    path = "/v1/admin/backups/{id}/volumes/{volume}",
    operation_id = "read_backup_volume",
    tag = "admin",
    params(
        ("id" = String, Path, description = "The id of the backup"),
        ("volume" = String, Path, description = "The id of the volume")
    ),
    responses(
        (status = 200, description = "A tar archive whose last entry is a report",
            body = Vec<u8>, content_type = "application/octet-stream"),
        ErrorResponses
    ),
    security(("admin_token" = []))
)]
pub(crate) async fn read_backup_volume(
    State(state): State<AppState>,
    _: AdminAuth,
    name: BackupPart,
) -> Result<Response, ApiError> {
    let volume = name.part.parse().map_err(|_| ApiError::not_found())?;
    let (archive, reader) = state.engine.backups().archive_volume(&name.backup, &volume)?;
    Ok(stream_part(ReaderStream::with_capacity(archive, PIECE), None, reader))
}

/// End a backup.
#[utoipa::path(
    delete,
    path = "/v1/admin/backups/{id}",
    operation_id = "end_backup",
    tag = "admin",
    params(("id" = String, Path, description = "The id of the backup")),
    responses((status = 204, description = "The backup has ended"), ErrorResponses),
    security(("admin_token" = []))
)]
pub(crate) async fn end_backup(
    State(state): State<AppState>,
    _: AdminAuth,
    PathId(id): PathId,
) -> Result<StatusCode, ApiError> {
    state.engine.backups().end_backup(&id)?;
    Ok(StatusCode::NO_CONTENT)
}

/// A response that keeps its backup open while it is read.
fn stream_part(
    pieces: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    size: Option<u64>,
    reader: BackupReader,
) -> Response {
    let pieces = pieces.map(move |piece| {
        let _open = &reader;
        piece
    });
    let kind = [(header::CONTENT_TYPE, "application/octet-stream")];
    let mut response = (kind, Body::from_stream(pieces)).into_response();
    if let Some(size) = size {
        response.headers_mut().insert(header::CONTENT_LENGTH, size.into());
    }
    response
}
