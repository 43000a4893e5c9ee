//! `/v1/executions/{trace_id}/files`: the files that an execution wrote, while its record is kept.

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, Uri},
    response::Response,
};
use cloche_engine::Refusal;
use cloche_model::{HomePath, TraceId};
use percent_encoding::percent_decode_str;

use super::{execute::with_trace_id, signed_files::send_file};
use crate::{
    api_types::{ErrorBody, ErrorResponses, OutputFiles},
    auth::{LedgerAuth, PathId},
    error::ApiError,
    router::AppState,
};

/// List the files that an execution wrote.
#[utoipa::path(
    get,
    path = "/v1/executions/{trace_id}/files",
    operation_id = "list_execution_files",
    tag = "executions",
    params(("trace_id" = String, Path, description = "The id of the execution")),
    responses(
        (status = 200, description = "The files, sorted by name", body = OutputFiles),
        ErrorResponses
    ),
    security(("api_key" = []), ("admin_token" = []), ("session" = []))
)]
pub(crate) async fn list_execution_files(
    State(state): State<AppState>,
    LedgerAuth { reader }: LedgerAuth,
    PathId(id): PathId,
) -> Result<Json<OutputFiles>, ApiError> {
    let execution = state.engine.executions().find_execution(reader, &parse_trace_id(&id)?).await?;
    let written = execution.end.unwrap_or_default().written;
    let files = written.files.into_iter().map(Into::into).collect();
    Ok(Json(OutputFiles { files, omitted: written.files_omitted }))
}

/// Download a file that an execution wrote.
#[utoipa::path(
    get,
    path = "/v1/executions/{trace_id}/files/{path}",
    operation_id = "read_execution_file",
    tag = "executions",
    params(
        ("trace_id" = String, Path, description = "The id of the execution"),
        ("path" = String, Path,
            description = "The file's path below the home, as listed; it may contain slashes"),
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
pub(crate) async fn read_execution_file(
    State(state): State<AppState>,
    LedgerAuth { reader }: LedgerAuth,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let missing = || Refusal::not_found("file");
    // Not taken from the router's parameter, because a name need not be UTF-8.
    let rest = uri.path().strip_prefix("/v1/executions/").ok_or_else(missing)?;
    let (id, path) = rest.split_once("/files/").ok_or_else(missing)?;
    let id = percent_decode_str(id).decode_utf8().map_err(|_| missing())?;
    let trace_id = parse_trace_id(&id)?;
    // A malformed path gives 404, like one that does not exist.
    let path: Vec<u8> = percent_decode_str(path).collect();
    let path = HomePath::from_url(&path).map_err(|_| missing())?;
    let file = state.engine.files().execution_file(reader, &trace_id, &path).await?;
    Ok(with_trace_id(send_file(file, &headers).await?, &trace_id))
}

fn parse_trace_id(id: &str) -> Result<TraceId, ApiError> {
    id.parse().map_err(|_| Refusal::not_found("execution").into())
}
