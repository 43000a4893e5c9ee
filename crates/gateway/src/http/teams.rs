//! `/v1/admin/teams`.

use axum::{Json, extract::State, http::StatusCode};

use crate::{
    api_types::{CreateTeam, ErrorResponses, StorageList, TeamList, TeamRecord, UpdateTeam},
    auth::{AdminAuth, DeveloperAuth, PathId},
    body::JsonBody,
    error::ApiError,
    router::AppState,
};

/// List teams.
#[utoipa::path(
    get,
    path = "/v1/admin/teams",
    operation_id = "list_teams",
    tag = "admin",
    responses((status = 200, description = "The teams", body = TeamList), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn list_teams(
    State(state): State<AppState>,
    DeveloperAuth(scope): DeveloperAuth,
) -> Result<Json<TeamList>, ApiError> {
    let teams = match scope.own_team() {
        Some(own) => vec![own.clone()],
        None => state.engine.tenancy().list_teams().await?,
    };
    Ok(Json(TeamList { teams: teams.into_iter().map(TeamRecord::from).collect() }))
}

/// Create a team.
#[utoipa::path(
    post,
    path = "/v1/admin/teams",
    operation_id = "create_team",
    tag = "admin",
    request_body = CreateTeam,
    responses((status = 201, description = "The new team", body = TeamRecord), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn create_team(
    State(state): State<AppState>,
    _: AdminAuth,
    JsonBody(body): JsonBody<CreateTeam>,
) -> Result<(StatusCode, Json<TeamRecord>), ApiError> {
    let made = state.engine.tenancy().create_team(body.into()).await?;
    Ok((StatusCode::CREATED, Json(made.into())))
}

/// Get a team.
#[utoipa::path(
    get,
    path = "/v1/admin/teams/{id}",
    operation_id = "get_team",
    tag = "admin",
    params(("id" = String, Path, description = "The id or name of the team")),
    responses((status = 200, description = "The team", body = TeamRecord), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn get_team(
    State(state): State<AppState>,
    DeveloperAuth(scope): DeveloperAuth,
    PathId(id): PathId,
) -> Result<Json<TeamRecord>, ApiError> {
    scope.check_team_name(&id)?;
    let team = state.engine.tenancy().find_team(&id).await?;
    let storage = state.engine.storage().team_storage(&team).await?;
    Ok(Json(TeamRecord::from(team).with_storage(storage)))
}

/// Recount the stored bytes of every team.
#[utoipa::path(
    post,
    path = "/v1/admin/storage/recount",
    operation_id = "recount_storage",
    tag = "admin",
    responses(
        (status = 200, description = "The storage usage of each team", body = StorageList),
        ErrorResponses
    ),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn recount_storage(
    State(state): State<AppState>,
    _: AdminAuth,
) -> Result<Json<StorageList>, ApiError> {
    state.engine.storage().recount_storage().await?;
    let usages = state.engine.storage().storage_usages().await?;
    Ok(Json(StorageList { teams: usages.into_iter().map(Into::into).collect() }))
}

/// Change a team.
#[utoipa::path(
    patch,
    path = "/v1/admin/teams/{id}",
    operation_id = "update_team",
    tag = "admin",
    params(("id" = String, Path, description = "The id or name of the team")),
    request_body = UpdateTeam,
    responses((status = 200, description = "The updated team", body = TeamRecord), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn update_team(
    State(state): State<AppState>,
    _: AdminAuth,
    PathId(id): PathId,
    JsonBody(body): JsonBody<UpdateTeam>,
) -> Result<Json<TeamRecord>, ApiError> {
    Ok(Json(state.engine.tenancy().update_team(&id, body.into()).await?.into()))
}

/// Delete a team.
#[utoipa::path(
    delete,
    path = "/v1/admin/teams/{id}",
    operation_id = "delete_team",
    tag = "admin",
    params(("id" = String, Path, description = "The id or name of the team")),
    responses((status = 204, description = "The team was deleted"), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn delete_team(
    State(state): State<AppState>,
    _: AdminAuth,
    PathId(id): PathId,
) -> Result<StatusCode, ApiError> {
    state.engine.tenancy().delete_team(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}
