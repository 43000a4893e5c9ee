//! The targets of signed URLs: download or upload one file without a key.

use axum::{
    Json,
    body::Body,
    extract::State,
    http::{Extensions, HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use cloche_engine::{Refusal, StoredFile, UrlPurpose};
use cloche_model::ErrorCode;
use tokio::io::AsyncReadExt;
use tokio_util::io::ReaderStream;

use crate::{
    api_types::{ErrorBody, ErrorResponses, Uploaded},
    auth::PathId,
    error::ApiError,
    http_range::{RequestedRange, parse_range_headers},
    router::AppState,
    streamed_body::StreamedBody,
    transfer_counter::set_transfer_owner,
};

/// What a browser may do with a file of a tenant that it shows after all: nothing.
const INERT: &str = "sandbox; default-src 'none'";

/// How much of a file is in memory at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// Download a file with a signed URL.
#[utoipa::path(
    get,
    path = "/v1/files/transfer/{token}",
    operation_id = "download_file",
    tag = "files",
    params(
        ("token" = String, Path, description = "The token from `download_url`"),
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
    )
)]
pub(crate) async fn download_file(
    State(state): State<AppState>,
    PathId(token): PathId,
    headers: HeaderMap,
    extensions: Extensions,
) -> Result<Response, ApiError> {
    let (grant, team) = state.engine.files().verify_grant(&token).await?;
    set_transfer_owner(&extensions, &team.id, grant.key.as_ref());
    if grant.purpose != UrlPurpose::Get {
        return Err(wrong_method_error());
    }
    let file = state.engine.files().find_granted_file(&team, &grant).await?;
    send_file(file, &headers).await
}

/// Upload a file with a signed URL.
#[utoipa::path(
    put,
    path = "/v1/files/transfer/{token}",
    operation_id = "upload_file",
    tag = "files",
    params(("token" = String, Path, description = "The token from `upload_url`")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream", description = "The file"),
    responses(
        (status = 200, description = "The file is stored durably", body = Uploaded),
        ErrorResponses
    )
)]
pub(crate) async fn upload_file(
    State(state): State<AppState>,
    PathId(token): PathId,
    headers: HeaderMap,
    extensions: Extensions,
    body: Body,
) -> Result<Json<Uploaded>, ApiError> {
    let (grant, team) = state.engine.files().verify_grant(&token).await?;
    set_transfer_owner(&extensions, &team.id, grant.key.as_ref());
    let UrlPurpose::Put { length } = grant.purpose else { return Err(wrong_method_error()) };
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if declared.is_some_and(|declared| declared.parse() != Ok(length)) {
        let message = format!("this URL was signed for exactly {length} bytes");
        return Err(Refusal::new(ErrorCode::Unauthorized, message).into());
    }
    let (incoming, status) = StreamedBody::new(body, &state.config);
    let put = state.engine.files().upload_granted_file(&team, &grant, length, incoming).await;
    status.or_client_error(put)?;
    Ok(Json(Uploaded { path: grant.path.to_string(), size: length }))
}

fn wrong_method_error() -> ApiError {
    let message = "this URL was signed for another method";
    Refusal::new(ErrorCode::Unauthorized, message).into()
}

/// Sends a file, or the range that the headers request. The content is untrusted, so a browser must
/// neither guess its type nor display it.
pub(crate) async fn send_file(file: StoredFile, headers: &HeaderMap) -> Result<Response, ApiError> {
    let (size, tag) = (file.size, format!("\"{}\"", file.tag));
    let range = match parse_range_headers(headers, size, &tag) {
        RequestedRange::All => 0..size,
        RequestedRange::Part(range) => range,
        RequestedRange::Unsatisfiable => return Ok(range_not_satisfiable(size)),
    };
    let part = range.end - range.start < size;
    let content_range = format!("bytes {}-{}/{size}", range.start, range.end.saturating_sub(1));
    let length = range.end - range.start;
    let disposition = content_disposition(file.file_name());
    let reader = file.read_range(range).await?.take(length);
    let body = Body::from_stream(ReaderStream::with_capacity(reader, CHUNK_BYTES));
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(INERT));
    headers.insert(header::CONTENT_DISPOSITION, disposition);
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    if let Ok(value) = HeaderValue::from_str(&content_range)
        && part
    {
        headers.insert(header::CONTENT_RANGE, value);
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

fn range_not_satisfiable(size: u64) -> Response {
    let body = ErrorBody {
        error: "range_not_satisfiable".to_owned(),
        message: format!("the file has {size} bytes"),
    };
    let range = [(header::CONTENT_RANGE, format!("bytes */{size}"))];
    (StatusCode::RANGE_NOT_SATISFIABLE, range, Json(body)).into_response()
}

/// The `Content-Disposition` with the file's name, in the form that allows any character.
fn content_disposition(name: &[u8]) -> HeaderValue {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    let name: String = name
        .iter()
        .map(|&byte| match plain(&byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect();
    let value = HeaderValue::from_str(&format!("attachment; filename*=UTF-8''{name}"));
    value.unwrap_or(HeaderValue::from_static("attachment"))
}
