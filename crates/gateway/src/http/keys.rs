//! `/v1/admin/keys`.

use axum::{
    Json,
    extract::{RawQuery, State},
    http::StatusCode,
};

use super::sandboxes::team;
use crate::{
    auth::{Admin, PathId},
    body::JsonBody,
    error::ApiError,
    router::Doors,
    wire::{CreateKey, CreatedKey, Errors, KeyList, KeyRecord, UpdateKey},
};

/// List keys.
#[utoipa::path(
    get,
    path = "/v1/admin/keys",
    operation_id = "list_keys",
    tag = "admin",
    params(("team" = Option<String>, Query, description = "Only those of this team, by id or name")),
    responses((status = 200, description = "All of them", body = KeyList), Errors),
    security(("admin_token" = []))
)]
pub(crate) async fn list(
    State(doors): State<Doors>,
    _: Admin,
    RawQuery(query): RawQuery,
) -> Result<Json<KeyList>, ApiError> {
    let team = team(query.as_deref().unwrap_or_default());
    let keys = doors.engine.keys(team.as_deref()).await?;
    Ok(Json(KeyList { keys: keys.into_iter().map(KeyRecord::from).collect() }))
}

/// Make a key.
#[utoipa::path(
    post,
    path = "/v1/admin/keys",
    operation_id = "create_key",
    tag = "admin",
    request_body = CreateKey,
    responses((status = 201, description = "It was made", body = CreatedKey), Errors),
    security(("admin_token" = []))
)]
pub(crate) async fn create(
    State(doors): State<Doors>,
    _: Admin,
    JsonBody(body): JsonBody<CreateKey>,
) -> Result<(StatusCode, Json<CreatedKey>), ApiError> {
    let made = doors.engine.create_key(body.into()).await?;
    Ok((StatusCode::CREATED, Json(made.into())))
}

/// One key.
#[utoipa::path(
    get,
    path = "/v1/admin/keys/{id}",
    operation_id = "get_key",
    tag = "admin",
    params(("id" = String, Path, description = "Its id")),
    responses((status = 200, description = "The key", body = KeyRecord), Errors),
    security(("admin_token" = []))
)]
pub(crate) async fn get(
    State(doors): State<Doors>,
    _: Admin,
    PathId(id): PathId,
) -> Result<Json<KeyRecord>, ApiError> {
    Ok(Json(doors.engine.key(&id).await?.into()))
}

/// Change a key.
#[utoipa::path(
    patch,
    path = "/v1/admin/keys/{id}",
    operation_id = "update_key",
    tag = "admin",
    params(("id" = String, Path, description = "Its id")),
    request_body = UpdateKey,
    responses((status = 200, description = "As it is now", body = KeyRecord), Errors),
    security(("admin_token" = []))
)]
pub(crate) async fn update(
    State(doors): State<Doors>,
    _: Admin,
    PathId(id): PathId,
    JsonBody(body): JsonBody<UpdateKey>,
) -> Result<Json<KeyRecord>, ApiError> {
    Ok(Json(doors.engine.update_key(&id, body.into()).await?.into()))
}

/// Revoke a key, at once and for good.
#[utoipa::path(
    delete,
    path = "/v1/admin/keys/{id}",
    operation_id = "revoke_key",
    tag = "admin",
    params(("id" = String, Path, description = "Its id")),
    responses((status = 200, description = "The key, revoked", body = KeyRecord), Errors),
    security(("admin_token" = []))
)]
pub(crate) async fn revoke(
    State(doors): State<Doors>,
    _: Admin,
    PathId(id): PathId,
) -> Result<Json<KeyRecord>, ApiError> {
    Ok(Json(doors.engine.revoke_key(&id).await?.into()))
}
