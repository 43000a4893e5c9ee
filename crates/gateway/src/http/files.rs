//! `/v1/files`: the files of a thread's home or of a volume, and signed URLs for transfers.

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, Uri, header},
};
use cloche_engine::{FileFilter, UrlSigner, VolumeAccess};
use cloche_model::{HomePath, Invalid, ThreadId};

use crate::{
    GatewayConfig,
    api_types::{
        DownloadUrl, ErrorResponses, FileList, ListFiles, SignedUrl, SourceName, UploadUrl,
    },
    auth::{TeamAuth, TeamReadAuth},
    body::JsonBody,
    error::ApiError,
    router::AppState,
};

const MAX_LIMIT: u32 = 10_000;

/// The thread or volume of a request. A volume is what the caller may use of it.
enum RequestedSource {
    Thread(ThreadId),
    Volume(VolumeAccess),
}

async fn find_requested_source(
    state: &AppState,
    member: &TeamAuth,
    (source, id): (SourceName, &str),
) -> Result<RequestedSource, ApiError> {
    match source {
        SourceName::Thread => {
            let thread = id.parse::<ThreadId>().map_err(|why| {
                // The field is called `id` here.
                Invalid::new(why.to_string().replacen("thread_id", "id", 1))
            })?;
            Ok(RequestedSource::Thread(thread))
        }
        SourceName::Volume => {
            let (sources, caller) = (state.engine.storage_sources(), member.caller.as_ref());
            let volume = sources.find_volume(&member.team, caller, id).await?;
            Ok(RequestedSource::Volume(volume))
        }
    }
}

/// List the files of a thread or a volume.
#[utoipa::path(
    post,
    path = "/v1/files/list",
    operation_id = "list_files",
    tag = "files",
    request_body = ListFiles,
    responses((status = 200, description = "The files", body = FileList), ErrorResponses),
    security(("api_key" = []), ("admin_token" = []), ("session" = []))
)]
pub(crate) async fn list_files(
    State(state): State<AppState>,
    TeamReadAuth(member): TeamReadAuth,
    JsonBody(body): JsonBody<ListFiles>,
) -> Result<Json<FileList>, ApiError> {
    let source = find_requested_source(&state, &member, (body.source, &body.id)).await?;
    let below = body.path.as_deref().map(HomePath::parse_directory).transpose()?.flatten();
    let limit = body.limit.unwrap_or(MAX_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(Invalid::new(format!("limit must be from 1 to {MAX_LIMIT}")).into());
    }
    if body.after.as_ref().is_some_and(|after| after.chars().count() > HomePath::MAX_BYTES) {
        return Err(Invalid::new("after must be a path from an earlier page").into());
    }
    let filter = FileFilter { below, after: body.after, limit: limit as usize };
    let page = match &source {
        RequestedSource::Thread(thread) => {
            state.engine.files().list_files(&member.team, thread, &filter).await?
        }
        RequestedSource::Volume(volume) => {
            state.engine.storage_sources().list_volume_files(volume, &filter).await?
        }
    };
    Ok(Json(page.into()))
}

/// Get a URL for uploading a file.
#[utoipa::path(
    post,
    path = "/v1/files/upload_url",
    operation_id = "upload_url",
    tag = "files",
    request_body = UploadUrl,
    responses((status = 200, description = "A signed URL", body = SignedUrl), ErrorResponses),
    security(("api_key" = []), ("admin_token" = []), ("session" = []))
)]
pub(crate) async fn sign_upload_url(
    State(state): State<AppState>,
    member: TeamAuth,
    headers: HeaderMap,
    uri: Uri,
    JsonBody(body): JsonBody<UploadUrl>,
) -> Result<Json<SignedUrl>, ApiError> {
    let source = find_requested_source(&state, &member, (body.source, &body.id)).await?;
    let content_type = check_media_type(body.content_type)?;
    let path = body.path.parse::<HomePath>()?;
    let signer = UrlSigner { team: &member.team, key: member.key.as_ref() };
    let (files, length) = (state.engine.files(), body.content_length);
    let signed = match &source {
        RequestedSource::Thread(thread) => files.upload_url(&signer, thread, path, length).await?,
        RequestedSource::Volume(volume) => {
            files.volume_upload_url(&signer, volume, path, length).await?
        }
    };
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
    security(("api_key" = []), ("admin_token" = []), ("session" = []))
)]
pub(crate) async fn sign_download_url(
    State(state): State<AppState>,
    TeamReadAuth(member): TeamReadAuth,
    headers: HeaderMap,
    uri: Uri,
    JsonBody(body): JsonBody<DownloadUrl>,
) -> Result<Json<SignedUrl>, ApiError> {
    let source = find_requested_source(&state, &member, (body.source, &body.id)).await?;
    let path = body.path.parse::<HomePath>()?;
    let signer = UrlSigner { team: &member.team, key: member.key.as_ref() };
    let files = state.engine.files();
    let signed = match &source {
        RequestedSource::Thread(thread) => files.download_url(&signer, thread, path).await?,
        RequestedSource::Volume(volume) => files.volume_download_url(&signer, volume, path).await?,
    };
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
