//! `/v1/admin/volumes`.

use axum::{
    Json,
    extract::{RawQuery, State},
    http::StatusCode,
};

use super::{sandboxes::team_parameter, storage::find_source};
use crate::{
    api_types::{CreateVolume, ErrorResponses, UpdateVolume, VolumeList, VolumeRecord},
    auth::{OwnerAuth, PathId},
    body::JsonBody,
    error::ApiError,
    router::AppState,
};

/// List volumes.
#[utoipa::path(
    get,
    path = "/v1/admin/volumes",
    operation_id = "list_volumes",
    tag = "admin",
    params(
        ("team" = Option<String>, Query, description = "Only entries of this team, by id or name")
    ),
    responses((status = 200, description = "The volumes", body = VolumeList), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn list_volumes(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    RawQuery(query): RawQuery,
) -> Result<Json<VolumeList>, ApiError> {
    let team = scope.listed_team(team_parameter(query.as_deref().unwrap_or_default()))?;
    let volumes = state.engine.storage_sources().list_volumes(team.as_deref()).await?;
    Ok(Json(VolumeList { volumes: volumes.into_iter().map(VolumeRecord::from).collect() }))
}

/// Create a volume.
#[utoipa::path(
    post,
    path = "/v1/admin/volumes",
    operation_id = "create_volume",
    tag = "admin",
    request_body = CreateVolume,
    responses((status = 201, description = "The new volume", body = VolumeRecord), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn create_volume(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    JsonBody(body): JsonBody<CreateVolume>,
) -> Result<(StatusCode, Json<VolumeRecord>), ApiError> {
    scope.check_team_name(&body.team)?;
    let sources = state.engine.storage_sources();
    let made = sources.create_volume(&body.team, &body.name, body.quota()).await?;
    Ok((StatusCode::CREATED, Json(made.into())))
}

/// Get a volume.
#[utoipa::path(
    get,
    path = "/v1/admin/volumes/{id}",
    operation_id = "get_volume",
    tag = "admin",
    params(
        ("id" = String, Path, description = "Its id, or its name in the team"),
        ("team" = Option<String>, Query, description = "The team of the name; `default` if absent")
    ),
    responses((status = 200, description = "The volume", body = VolumeRecord), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn get_volume(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    PathId(id): PathId,
    RawQuery(query): RawQuery,
) -> Result<Json<VolumeRecord>, ApiError> {
    let source = find_source(&state, &scope, &id, query.as_deref()).await?;
    let sources = state.engine.storage_sources();
    let bindings = sources.list_bindings(&source).await?;
    let volume = sources.volume_state(source).await?;
    Ok(Json(VolumeRecord::from(volume).with_bindings(bindings)))
}

/// Change the quota of a volume, with effect from the next execution.
#[utoipa::path(
    patch,
    path = "/v1/admin/volumes/{id}",
    operation_id = "update_volume",
    tag = "admin",
    params(
        ("id" = String, Path, description = "Its id, or its name in the team"),
        ("team" = Option<String>, Query, description = "The team of the name; `default` if absent")
    ),
    request_body = UpdateVolume,
    responses((status = 200, description = "The volume", body = VolumeRecord), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn update_volume(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    PathId(id): PathId,
    RawQuery(query): RawQuery,
    JsonBody(body): JsonBody<UpdateVolume>,
) -> Result<Json<VolumeRecord>, ApiError> {
    let source = find_source(&state, &scope, &id, query.as_deref()).await?;
    Ok(Json(state.engine.storage_sources().set_quota(source, body.quota()).await?.into()))
}

/// Remove a volume that nothing uses, with its files.
#[utoipa::path(
    delete,
    path = "/v1/admin/volumes/{id}",
    operation_id = "remove_volume",
    tag = "admin",
    params(
        ("id" = String, Path, description = "Its id, or its name in the team"),
        ("team" = Option<String>, Query, description = "The team of the name; `default` if absent")
    ),
    responses((status = 204, description = "The volume was removed"), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn remove_volume(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    PathId(id): PathId,
    RawQuery(query): RawQuery,
) -> Result<StatusCode, ApiError> {
    let source = find_source(&state, &scope, &id, query.as_deref()).await?;
    state.engine.storage_sources().remove_volume(source).await?;
    Ok(StatusCode::NO_CONTENT)
}
