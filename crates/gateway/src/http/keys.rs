//! `/v1/admin/keys`.

use axum::{
    Json,
    extract::{RawQuery, State},
    http::StatusCode,
};
use cloche_engine::KeyDraft;
use cloche_model::ApiKey;

use super::sandboxes::team_parameter;
use crate::{
    api_types::{CreateKey, CreatedKey, ErrorResponses, KeyList, KeyRecord, UpdateKey},
    auth::{AdminScope, DeveloperAuth, PathId},
    body::JsonBody,
    error::ApiError,
    router::AppState,
};

/// The key with this id, if the caller may see it.
async fn find_visible_key(
    state: &AppState,
    scope: &AdminScope,
    id: &str,
) -> Result<ApiKey, ApiError> {
    let key = state.engine.tenancy().find_key(id).await?;
    scope.check_row(&key.team, "key")?;
    Ok(key)
}

/// List keys.
#[utoipa::path(
    get,
    path = "/v1/admin/keys",
    operation_id = "list_keys",
    tag = "admin",
    params(
        ("team" = Option<String>, Query, description = "Only entries of this team, by id or name")
    ),
    responses((status = 200, description = "The keys", body = KeyList), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn list_keys(
    State(state): State<AppState>,
    DeveloperAuth(scope): DeveloperAuth,
    RawQuery(query): RawQuery,
) -> Result<Json<KeyList>, ApiError> {
    let team = scope.listed_team(team_parameter(query.as_deref().unwrap_or_default()))?;
    let keys = state.engine.tenancy().list_keys(team.as_deref()).await?;
    Ok(Json(KeyList { keys: keys.into_iter().map(KeyRecord::from).collect() }))
}

/// Create a key.
#[utoipa::path(
    post,
    path = "/v1/admin/keys",
    operation_id = "create_key",
    tag = "admin",
    request_body = CreateKey,
    responses((status = 201, description = "The new key", body = CreatedKey), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn create_key(
    State(state): State<AppState>,
    DeveloperAuth(scope): DeveloperAuth,
    JsonBody(body): JsonBody<CreateKey>,
) -> Result<(StatusCode, Json<CreatedKey>), ApiError> {
    let draft = KeyDraft::from(body);
    scope.check_team_name(&draft.team)?;
    let made = state.engine.tenancy().create_key(draft).await?;
    scope.note_team(&made.key.team);
    Ok((StatusCode::CREATED, Json(made.into())))
}

/// Get a key.
#[utoipa::path(
    get,
    path = "/v1/admin/keys/{id}",
    operation_id = "get_key",
    tag = "admin",
    params(("id" = String, Path, description = "The id of the key")),
    responses((status = 200, description = "The key", body = KeyRecord), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn get_key(
    State(state): State<AppState>,
    DeveloperAuth(scope): DeveloperAuth,
    PathId(id): PathId,
) -> Result<Json<KeyRecord>, ApiError> {
    Ok(Json(find_visible_key(&state, &scope, &id).await?.into()))
}

/// Change a key.
#[utoipa::path(
    patch,
    path = "/v1/admin/keys/{id}",
    operation_id = "update_key",
    tag = "admin",
    params(("id" = String, Path, description = "The id of the key")),
    request_body = UpdateKey,
    responses((status = 200, description = "The updated key", body = KeyRecord), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn update_key(
    State(state): State<AppState>,
    DeveloperAuth(scope): DeveloperAuth,
    PathId(id): PathId,
    JsonBody(body): JsonBody<UpdateKey>,
) -> Result<Json<KeyRecord>, ApiError> {
    find_visible_key(&state, &scope, &id).await?;
    Ok(Json(state.engine.tenancy().update_key(&id, body.into()).await?.into()))
}

/// Revoke a key, immediately and permanently.
#[utoipa::path(
    delete,
    path = "/v1/admin/keys/{id}",
    operation_id = "revoke_key",
    tag = "admin",
    params(("id" = String, Path, description = "The id of the key")),
    responses((status = 200, description = "The key, revoked", body = KeyRecord), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn revoke_key(
    State(state): State<AppState>,
    DeveloperAuth(scope): DeveloperAuth,
    PathId(id): PathId,
) -> Result<Json<KeyRecord>, ApiError> {
    find_visible_key(&state, &scope, &id).await?;
    Ok(Json(state.engine.tenancy().revoke_key(&id).await?.into()))
}
