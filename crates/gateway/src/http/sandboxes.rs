//! `/v1/admin/sandboxes`.

use axum::{
    Json,
    extract::{RawQuery, State},
    http::StatusCode,
};
use cloche_model::Sandbox;
use url::form_urlencoded;

use crate::{
    api_types::{CreateSandbox, ErrorResponses, SandboxList, SandboxRecord, UpdateSandbox},
    auth::{DeveloperAuth, PathId},
    body::JsonBody,
    error::ApiError,
    router::AppState,
};

/// The record of a sandbox, with the storage that it is bound to.
async fn sandbox_record(state: &AppState, sandbox: Sandbox) -> Result<SandboxRecord, ApiError> {
    let storage = state.engine.tenancy().sandbox_storage(&sandbox.id).await?;
    Ok(SandboxRecord::from(sandbox).with_storage(storage))
}

/// List sandboxes.
#[utoipa::path(
    get,
    path = "/v1/admin/sandboxes",
    operation_id = "list_sandboxes",
    tag = "admin",
    params(
        ("team" = Option<String>, Query, description = "Only entries of this team, by id or name")
    ),
    responses((status = 200, description = "The sandboxes", body = SandboxList), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn list_sandboxes(
    State(state): State<AppState>,
    DeveloperAuth(scope): DeveloperAuth,
    RawQuery(query): RawQuery,
) -> Result<Json<SandboxList>, ApiError> {
    let team = scope.listed_team(team_parameter(query.as_deref().unwrap_or_default()))?;
    let sandboxes = state.engine.tenancy().list_sandboxes(team.as_deref()).await?;
    let mut records = Vec::with_capacity(sandboxes.len());
    for sandbox in sandboxes {
        records.push(sandbox_record(&state, sandbox).await?);
    }
    Ok(Json(SandboxList { sandboxes: records }))
}

/// Create a sandbox.
#[utoipa::path(
    post,
    path = "/v1/admin/sandboxes",
    operation_id = "create_sandbox",
    tag = "admin",
    request_body = CreateSandbox,
    responses(
        (status = 201, description = "The new sandbox", body = SandboxRecord),
        ErrorResponses
    ),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn create_sandbox(
    State(state): State<AppState>,
    DeveloperAuth(scope): DeveloperAuth,
    JsonBody(body): JsonBody<CreateSandbox>,
) -> Result<(StatusCode, Json<SandboxRecord>), ApiError> {
    let draft = body.into_draft()?;
    scope.check_team_name(&draft.team)?;
    let made = state.engine.tenancy().create_sandbox(draft).await?;
    scope.note_team(&made.team);
    Ok((StatusCode::CREATED, Json(sandbox_record(&state, made).await?)))
}

/// Get a sandbox.
#[utoipa::path(
    get,
    path = "/v1/admin/sandboxes/{id}",
    operation_id = "get_sandbox",
    tag = "admin",
    params(("id" = String, Path, description = "The id of the sandbox")),
    responses((status = 200, description = "The sandbox", body = SandboxRecord), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn get_sandbox(
    State(state): State<AppState>,
    DeveloperAuth(scope): DeveloperAuth,
    PathId(id): PathId,
) -> Result<Json<SandboxRecord>, ApiError> {
    let sandbox = state.engine.tenancy().find_sandbox(&id).await?;
    scope.check_row(&sandbox.team, "sandbox")?;
    Ok(Json(sandbox_record(&state, sandbox).await?))
}

/// Change a sandbox.
#[utoipa::path(
    patch,
    path = "/v1/admin/sandboxes/{id}",
    operation_id = "update_sandbox",
    tag = "admin",
    params(("id" = String, Path, description = "The id of the sandbox")),
    request_body = UpdateSandbox,
    responses(
        (status = 200, description = "The updated sandbox", body = SandboxRecord),
        ErrorResponses
    ),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn update_sandbox(
    State(state): State<AppState>,
    DeveloperAuth(scope): DeveloperAuth,
    PathId(id): PathId,
    JsonBody(body): JsonBody<UpdateSandbox>,
) -> Result<Json<SandboxRecord>, ApiError> {
    let found = state.engine.tenancy().find_sandbox(&id).await?;
    scope.check_row(&found.team, "sandbox")?;
    let sandbox = state.engine.tenancy().update_sandbox(&id, body.into_change()?).await?;
    Ok(Json(sandbox_record(&state, sandbox).await?))
}

/// Delete a sandbox.
#[utoipa::path(
    delete,
    path = "/v1/admin/sandboxes/{id}",
    operation_id = "delete_sandbox",
    tag = "admin",
    params(("id" = String, Path, description = "The id of the sandbox")),
    responses((status = 204, description = "The sandbox was deleted"), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn delete_sandbox(
    State(state): State<AppState>,
    DeveloperAuth(scope): DeveloperAuth,
    PathId(id): PathId,
) -> Result<StatusCode, ApiError> {
    let found = state.engine.tenancy().find_sandbox(&id).await?;
    scope.check_row(&found.team, "sandbox")?;
    state.engine.tenancy().delete_sandbox(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The value of `team` in a query.
pub(super) fn team_parameter(query: &str) -> Option<String> {
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    pairs.find(|(name, _)| name == "team").map(|(_, team)| team.into_owned())
}
