//! `/v1/files`: the files of a thread's home, and signed URLs for transfers.

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, Uri, header},
};
use cloche_engine::{FileFilter, Refusal, UrlSigner};
use cloche_model::{HomePath, Invalid, ThreadId};

use crate::{
    GatewayConfig,
    api_types::{
        DownloadUrl, ErrorResponses, FileList, ListFiles, SignedUrl, SourceName, UploadUrl,
    },
    auth::TeamAuth,
    body::JsonBody,
    error::ApiError,
    router::AppState,
};

const MAX_LIMIT: u32 = 10_000;

/// The thread of a request. Volumes do not exist yet.
fn parse_thread_source(source: SourceName, id: &str) -> Result<ThreadId, ApiError> {
    match source {
        SourceName::Thread => Ok(id.parse::<ThreadId>().map_err(|why| {
            // The field is called `id` here.
            Invalid::new(why.to_string().replacen("thread_id", "id", 1))
        })?),
        SourceName::Volume => Err(Refusal::not_found("volume").into()),
    }
}

/// List the files of a thread.
#[utoipa::path(
    post,
    path = "/v1/files/list",
    operation_id = "list_files",
    tag = "files",
    request_body = ListFiles,
    responses((status = 200, description = "The files", body = FileList), ErrorResponses),
    security(("api_key" = []), ("admin_token" = []))
)]
pub(crate) async fn list_files(
    State(state): State<AppState>,
    member: TeamAuth,
    JsonBody(body): JsonBody<ListFiles>,
) -> Result<Json<FileList>, ApiError> {
    let thread = parse_thread_source(body.source, &body.id)?;
    let below = body.path.as_deref().map(HomePath::parse_directory).transpose()?.flatten();
    let limit = body.limit.unwrap_or(MAX_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(Invalid::new(format!("limit must be from 1 to {MAX_LIMIT}")).into());
    }
    if body.after.as_ref().is_some_and(|after| after.chars().count() > HomePath::MAX_BYTES) {
        return Err(Invalid::new("after must be a path from an earlier page").into());
    }
    let filter = FileFilter { below, after: body.after, limit: limit as usize };
    Ok(Json(state.engine.files().list_files(&member.team, &thread, &filter).await?.into()))
}

/// Get a URL for uploading a file.
#[utoipa::path(
    post,
    path = "/v1/files/upload_url",
    operation_id = "upload_url",
    tag = "files",
    request_body = UploadUrl,
    responses((status = 200, description = "A signed URL", body = SignedUrl), ErrorResponses),
    security(("api_key" = []), ("admin_token" = []))
)]
pub(crate) async fn sign_upload_url(
    State(state): State<AppState>,
    member: TeamAuth,
    headers: HeaderMap,
    uri: Uri,
    JsonBody(body): JsonBody<UploadUrl>,
) -> Result<Json<SignedUrl>, ApiError> {
    let thread = parse_thread_source(body.source, &body.id)?;
    let content_type = check_media_type(body.content_type)?;
    let path = body.path.parse::<HomePath>()?;
    let signer = UrlSigner { team: &member.team, key: member.key.as_ref() };
    let signed =
        state.engine.files().upload_url(&signer, &thread, path, body.content_length).await?;
    let base = request_base_url(&state.config, &headers, &uri);
    Ok(Json(SignedUrl::for_upload(&base, &signed, content_type)))
}

/// Get a URL for downloading a file.
#[utoipa::path(
    post,
    path = "/v1/files/download_url",
    operation_id = "download_url",
    tag = "files",
    request_body = DownloadUrl,
    responses((status = 200, description = "A signed URL", body = SignedUrl), ErrorResponses),
    security(("api_key" = []), ("admin_token" = []))
)]
pub(crate) async fn sign_download_url(
    State(state): State<AppState>,
    member: TeamAuth,
    headers: HeaderMap,
    uri: Uri,
    JsonBody(body): JsonBody<DownloadUrl>,
) -> Result<Json<SignedUrl>, ApiError> {
    let thread = parse_thread_source(body.source, &body.id)?;
    let path = body.path.parse::<HomePath>()?;
    let signer = UrlSigner { team: &member.team, key: member.key.as_ref() };
    let signed = state.engine.files().download_url(&signer, &thread, path).await?;
    let base = request_base_url(&state.config, &headers, &uri);
    Ok(Json(SignedUrl::for_download(&base, &signed)))
}

/// Checks a media type. It becomes a header value, so it must be a valid one.
fn check_media_type(asked: Option<String>) -> Result<String, Invalid> {
    let asked = asked.unwrap_or_else(|| "application/octet-stream".to_owned());
    let plain = asked.chars().all(|c| c.is_ascii_graphic() || c == ' ');
    let parts =
        asked.split_once('/').is_some_and(|(kind, rest)| !kind.is_empty() && !rest.is_empty());
    if asked.len() > 255 || !plain || !parts {
        return Err(Invalid::new("content_type must be a media type such as text/csv"));
    }
    Ok(asked)
}

/// The base URL under which the caller knows this server. A forged one gives only a useless URL.
fn request_base_url(config: &GatewayConfig, headers: &HeaderMap, uri: &Uri) -> String {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(header::HOST).or_else(|| uri.authority().map(|host| host.as_str()));
    let forwarded = text(header::HeaderName::from_static("x-forwarded-proto"));
    let is_https = config.tls.is_some() || forwarded == Some("https");
    let scheme = if is_https { "https" } else { "http" };
    format!("{scheme}://{}", host.unwrap_or("localhost"))
}
