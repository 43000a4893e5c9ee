//! `/v1/admin/storage`: connections and bindings. A binding of a volume is made here, too.

use axum::{
    Json,
    extract::{RawQuery, State},
    http::StatusCode,
};
use cloche_engine::Refusal;
use cloche_model::StorageSource;

use super::sandboxes::team_parameter;
use crate::{
    api_types::{
        BindStorage, BindingList, CheckRecord, ConnectionList, ConnectionRecord, CreateConnection,
        ErrorResponses, UpdateConnection,
    },
    auth::{AdminScope, OwnerAuth, PathId},
    body::JsonBody,
    error::ApiError,
    router::AppState,
};

/// What is missing where there is no connection or volume.
const SOURCE: &str = "storage connection or volume";

/// The connection or volume that a path names: by id, or by name with `?team=`.
pub(super) async fn find_source(
    state: &AppState,
    scope: &AdminScope,
    id: &str,
    query: Option<&str>,
) -> Result<StorageSource, ApiError> {
    let team = scope.listed_team(team_parameter(query.unwrap_or_default()))?;
    let team = team.as_deref().unwrap_or("default");
    let source = state.engine.storage_sources().find(id, team).await?;
    scope.check_row(&source.team, SOURCE)?;
    Ok(source)
}

fn connection_record(source: StorageSource) -> Result<ConnectionRecord, ApiError> {
    let missing = || Refusal::not_found("storage connection").into();
    ConnectionRecord::new(source).ok_or_else(missing)
}

/// List storage connections.
#[utoipa::path(
    get,
    path = "/v1/admin/storage",
    operation_id = "list_storage_connections",
    tag = "admin",
    params(
        ("team" = Option<String>, Query, description = "Only entries of this team, by id or name")
    ),
    responses((status = 200, description = "The connections", body = ConnectionList),
        ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn list_connections(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    RawQuery(query): RawQuery,
) -> Result<Json<ConnectionList>, ApiError> {
    let team = scope.listed_team(team_parameter(query.as_deref().unwrap_or_default()))?;
    let sources = state.engine.storage_sources().list(team.as_deref()).await?;
    let storage = sources.into_iter().filter_map(ConnectionRecord::new).collect();
    Ok(Json(ConnectionList { storage }))
}

/// Create a storage connection.
#[utoipa::path(
    post,
    path = "/v1/admin/storage",
    operation_id = "create_storage_connection",
    tag = "admin",
    request_body = CreateConnection,
    responses(
        (status = 201, description = "The new connection", body = ConnectionRecord),
        ErrorResponses
    ),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn create_connection(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    JsonBody(body): JsonBody<CreateConnection>,
) -> Result<(StatusCode, Json<ConnectionRecord>), ApiError> {
    let draft = body.into_draft()?;
    scope.check_team_name(&draft.team)?;
    let made = state.engine.storage_sources().create_connection(draft).await?;
    scope.note_team(&made.team);
    Ok((StatusCode::CREATED, Json(connection_record(made)?)))
}

/// Get a storage connection.
#[utoipa::path(
    get,
    path = "/v1/admin/storage/{id}",
    operation_id = "get_storage_connection",
    tag = "admin",
    params(
        ("id" = String, Path, description = "Its id, or its name in the team"),
        ("team" = Option<String>, Query, description = "The team of the name; `default` if absent")
    ),
    responses((status = 200, description = "The connection", body = ConnectionRecord),
        ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn get_connection(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    PathId(id): PathId,
    RawQuery(query): RawQuery,
) -> Result<Json<ConnectionRecord>, ApiError> {
    let source = find_source(&state, &scope, &id, query.as_deref()).await?;
    let bindings = state.engine.storage_sources().list_bindings(&source).await?;
    Ok(Json(connection_record(source)?.with_bindings(bindings)))
}

/// Change a storage connection, with effect from the next execution.
#[utoipa::path(
    patch,
    path = "/v1/admin/storage/{id}",
    operation_id = "update_storage_connection",
    tag = "admin",
    params(
        ("id" = String, Path, description = "Its id, or its name in the team"),
        ("team" = Option<String>, Query, description = "The team of the name; `default` if absent")
    ),
    request_body = UpdateConnection,
    responses((status = 200, description = "The connection", body = ConnectionRecord),
        ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn update_connection(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    PathId(id): PathId,
    RawQuery(query): RawQuery,
    JsonBody(body): JsonBody<UpdateConnection>,
) -> Result<Json<ConnectionRecord>, ApiError> {
    let source = find_source(&state, &scope, &id, query.as_deref()).await?;
    let sources = state.engine.storage_sources();
    let changed = sources.update_connection(source, body.into_change()?).await?;
    Ok(Json(connection_record(changed)?))
}

/// Remove a storage connection that nothing uses. Its bucket is left as it is.
#[utoipa::path(
    delete,
    path = "/v1/admin/storage/{id}",
    operation_id = "remove_storage_connection",
    tag = "admin",
    params(
        ("id" = String, Path, description = "Its id, or its name in the team"),
        ("team" = Option<String>, Query, description = "The team of the name; `default` if absent")
    ),
    responses((status = 204, description = "The connection was removed"), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn remove_connection(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    PathId(id): PathId,
    RawQuery(query): RawQuery,
) -> Result<StatusCode, ApiError> {
    let source = find_source(&state, &scope, &id, query.as_deref()).await?;
    if source.connection().is_none() {
        return Err(Refusal::not_found("storage connection").into());
    }
    state.engine.storage_sources().remove_connection(&source).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Try a storage connection: list, write, read and delete a probe object.
#[utoipa::path(
    post,
    path = "/v1/admin/storage/{id}/check",
    operation_id = "check_storage_connection",
    tag = "admin",
    params(
        ("id" = String, Path, description = "Its id, or its name in the team"),
        ("team" = Option<String>, Query, description = "The team of the name; `default` if absent")
    ),
    responses((status = 200, description = "What was found out", body = CheckRecord),
        ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn check_connection(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    PathId(id): PathId,
    RawQuery(query): RawQuery,
) -> Result<Json<CheckRecord>, ApiError> {
    let source = find_source(&state, &scope, &id, query.as_deref()).await?;
    Ok(Json(state.engine.storage_sources().check_connection(&source).await?.into()))
}

/// Let a sandbox or a key use a connection or volume.
#[utoipa::path(
    post,
    path = "/v1/admin/storage/{id}/bind",
    operation_id = "bind_storage",
    tag = "admin",
    params(
        ("id" = String, Path, description = "Its id, or its name in the team"),
        ("team" = Option<String>, Query, description = "The team of the name; `default` if absent")
    ),
    request_body = BindStorage,
    responses((status = 200, description = "Its bindings", body = BindingList), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn bind_storage(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    PathId(id): PathId,
    RawQuery(query): RawQuery,
    JsonBody(body): JsonBody<BindStorage>,
) -> Result<Json<BindingList>, ApiError> {
    let source = find_source(&state, &scope, &id, query.as_deref()).await?;
    let (target, path, read_only) = body.parse()?;
    let sources = state.engine.storage_sources();
    sources.bind(&source, target, path, read_only).await?;
    Ok(Json(sources.list_bindings(&source).await?.into()))
}

/// Take a connection or volume away from a sandbox or a key.
#[utoipa::path(
    post,
    path = "/v1/admin/storage/{id}/unbind",
    operation_id = "unbind_storage",
    tag = "admin",
    params(
        ("id" = String, Path, description = "Its id, or its name in the team"),
        ("team" = Option<String>, Query, description = "The team of the name; `default` if absent")
    ),
    request_body = BindStorage,
    responses((status = 200, description = "Its bindings", body = BindingList), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn unbind_storage(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    PathId(id): PathId,
    RawQuery(query): RawQuery,
    JsonBody(body): JsonBody<BindStorage>,
) -> Result<Json<BindingList>, ApiError> {
    let source = find_source(&state, &scope, &id, query.as_deref()).await?;
    let (target, ..) = body.parse()?;
    let sources = state.engine.storage_sources();
    sources.unbind(&source, target).await?;
    Ok(Json(sources.list_bindings(&source).await?.into()))
}
