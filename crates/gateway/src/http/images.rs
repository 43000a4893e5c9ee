//! Runs in: server (no capabilities).
//!
//! `/v1/admin/images`.

use std::{convert::Infallible, time::Duration};

use axum::{
    Json,
    body::{Body, Bytes},
    extract::{RawQuery, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use cloche_engine::{ImageImportChoice, ImageWork};
use cloche_model::Invalid;
use futures::stream;
use url::form_urlencoded;

use crate::{
    api_types::{
        ErrorResponses, ImageDetail, ImageEvent, ImageList, ImageRemovalRecord, ImageSummary,
        PullImage,
    },
    auth::{AdminAuth, DeveloperAuth, PathId},
    body::JsonBody,
    error::{ApiError, log_server_fault},
    router::AppState,
    streamed_body::{BodyStatus, StreamedBody},
};

/// How often a client that asked for it learns how far the work is.
const REPORT_EVERY: Duration = Duration::from_millis(200);

/// List images.
#[utoipa::path(
    get,
    path = "/v1/admin/images",
    operation_id = "list_images",
    tag = "admin",
    responses((status = 200, description = "The images", body = ImageList), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn list_images(
    State(state): State<AppState>,
    _: DeveloperAuth,
) -> Result<Json<ImageList>, ApiError> {
    let images = state.engine.images().list_images().await?;
    Ok(Json(ImageList { images: images.into_iter().map(ImageSummary::from).collect() }))
}

/// Pull an image from a registry.
#[utoipa::path(
    post,
    path = "/v1/admin/images/pull",
    operation_id = "pull_image",
    tag = "admin",
    request_body = PullImage,
    responses(
        (status = 201, description = "The image. With `Accept: application/x-ndjson`: 200, and one \
            JSON object per line, the progress first and the image or an error last",
            body = ImageDetail),
        ErrorResponses
    ),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn pull_image(
    State(state): State<AppState>,
    _: AdminAuth,
    headers: HeaderMap,
    JsonBody(body): JsonBody<PullImage>,
) -> Result<Response, ApiError> {
    let work = state.engine.images().start_pull(body.into_pull()?)?;
    finish_work(work, &headers, None).await
}

/// Import an image from an archive.
#[utoipa::path(
    post,
    path = "/v1/admin/images/import",
    operation_id = "import_image",
    tag = "admin",
    params(
        ("name" = Option<String>, Query, description = "The name that the image gets"),
        ("ref" = Option<String>, Query, description = "Which image, if the archive has several")
    ),
    request_body(content = Vec<u8>, content_type = "application/x-tar",
        description = "A tar of an OCI image layout, or the output of docker save"),
    responses(
        (status = 201, description = "The image. With `Accept: application/x-ndjson`: 200, and one \
            JSON object per line, the progress first and the image or an error last",
            body = ImageDetail),
        ErrorResponses
    ),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn import_image(
    State(state): State<AppState>,
    _: AdminAuth,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
    body: Body,
) -> Result<Response, ApiError> {
    let choice = parse_choice(query.as_deref().unwrap_or_default())?;
    let (incoming, status) = StreamedBody::new(body, &state.config);
    let work = state.engine.images().start_import(incoming, choice)?;
    finish_work(work, &headers, Some(status)).await
}

/// Get an image.
#[utoipa::path(
    get,
    path = "/v1/admin/images/{id}",
    operation_id = "get_image",
    tag = "admin",
    params(("id" = String, Path, description = "Its name, digest, or the first digits of that")),
    responses((status = 200, description = "The image", body = ImageDetail), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn get_image(
    State(state): State<AppState>,
    _: DeveloperAuth,
    PathId(id): PathId,
) -> Result<Json<ImageDetail>, ApiError> {
    Ok(Json(state.engine.images().find_image(&id).await?.into()))
}

/// Remove an image that no sandbox uses.
#[utoipa::path(
    delete,
    path = "/v1/admin/images/{id}",
    operation_id = "remove_image",
    tag = "admin",
    params(("id" = String, Path, description = "Its name, digest, or the first digits of that")),
    responses(
        (status = 200, description = "The image was removed", body = ImageRemovalRecord),
        ErrorResponses
    ),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn remove_image(
    State(state): State<AppState>,
    _: AdminAuth,
    PathId(id): PathId,
) -> Result<Json<ImageRemovalRecord>, ApiError> {
    Ok(Json(state.engine.images().remove_image(&id).await?.into()))
}

/// Remove every image that no sandbox uses, and every unfinished download.
#[utoipa::path(
    post,
    path = "/v1/admin/images/prune",
    operation_id = "prune_images",
    tag = "admin",
    responses(
        (status = 200, description = "The images that were removed", body = ImageRemovalRecord),
        ErrorResponses
    ),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn prune_images(
    State(state): State<AppState>,
    _: AdminAuth,
) -> Result<Json<ImageRemovalRecord>, ApiError> {
    Ok(Json(state.engine.images().prune_images().await?.into()))
}

fn parse_choice(query: &str) -> Result<ImageImportChoice, Invalid> {
    let mut choice = ImageImportChoice::default();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &name[..] {
            "name" if !value.is_empty() => choice.name = Some(value.parse()?),
            "ref" if !value.is_empty() => choice.reference = Some(value.into_owned()),
            _ => {}
        }
    }
    Ok(choice)
}

/// The image, or a stream of the progress if the client asked for one. A client that goes away
/// cancels the work.
async fn finish_work(
    mut work: ImageWork,
    headers: &HeaderMap,
    status: Option<BodyStatus>,
) -> Result<Response, ApiError> {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    if accept.is_some_and(|accept| accept.contains("application/x-ndjson")) {
        return Ok(stream_events(work));
    }
    let result = work.finish().await;
    let listed = match &status {
        Some(status) => status.or_client_error(result)?,
        None => result?,
    };
    Ok((StatusCode::CREATED, Json(ImageDetail::from(listed))).into_response())
}

fn stream_events(work: ImageWork) -> Response {
    let lines = stream::unfold(Some(work), |work| async move {
        let mut work = work?;
        let report = ImageEvent::from_report(work.report());
        match tokio::time::timeout(REPORT_EVERY, work.finish()).await {
            Err(_) => Some((encode_line(&report), Some(work))),
            Ok(result) => {
                if let Err(refusal) = &result {
                    log_server_fault(refusal);
                }
                Some((encode_line(&ImageEvent::from_result(result)), None))
            }
        }
    });
    let headers = [
        (header::CONTENT_TYPE, "application/x-ndjson"),
        (header::CACHE_CONTROL, "no-cache"),
        // Tells proxies not to buffer lines.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(lines)).into_response()
}

fn encode_line(event: &ImageEvent) -> Result<Bytes, Infallible> {
    let mut line = serde_json::to_vec(event).unwrap_or_default();
    line.push(b'\n');
    Ok(line.into())
}
