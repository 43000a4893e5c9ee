//! `/v1/admin/credentials`.

use axum::{
    Json,
    extract::{RawQuery, State},
    http::StatusCode,
};
use cloche_engine::{CredentialDraft, Refusal};
use cloche_model::Credential;

use super::sandboxes::team_parameter;
use crate::{
    api_types::{
        CreateCredential, CredentialList, CredentialRecord, CredentialTarget, ErrorResponses,
        UpdateCredential,
    },
    auth::{AdminScope, OwnerAuth, PathId},
    body::JsonBody,
    error::ApiError,
    router::AppState,
};

/// The credential with this id, if the caller may see it.
async fn find_visible_credential(
    state: &AppState,
    scope: &AdminScope,
    id: &str,
) -> Result<Credential, ApiError> {
    let credential = state.engine.tenancy().find_credential(id).await?;
    scope.check_row(&credential.team, "credential")?;
    Ok(credential)
}

/// List credentials, without their values.
#[utoipa::path(
    get,
    path = "/v1/admin/credentials",
    operation_id = "list_credentials",
    tag = "admin",
    params(
        ("team" = Option<String>, Query, description = "Only entries of this team, by id or name")
    ),
    responses(
        (status = 200, description = "The credentials", body = CredentialList),
        ErrorResponses
    ),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn list_credentials(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    RawQuery(query): RawQuery,
) -> Result<Json<CredentialList>, ApiError> {
    let team = scope.listed_team(team_parameter(query.as_deref().unwrap_or_default()))?;
    let credentials = state.engine.tenancy().list_credentials(team.as_deref()).await?;
    let credentials = credentials.into_iter().map(CredentialRecord::from).collect();
    Ok(Json(CredentialList { credentials }))
}

/// Create a credential. Its value is never shown again.
#[utoipa::path(
    post,
    path = "/v1/admin/credentials",
    operation_id = "create_credential",
    tag = "admin",
    request_body = CreateCredential,
    responses(
        (status = 201, description = "The new credential", body = CredentialRecord),
        ErrorResponses
    ),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn create_credential(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    JsonBody(body): JsonBody<CreateCredential>,
) -> Result<(StatusCode, Json<CredentialRecord>), ApiError> {
    let draft = CredentialDraft::from(body);
    scope.check_team_name(&draft.team)?;
    let made = state.engine.tenancy().create_credential(draft).await?;
    scope.note_team(&made.team);
    Ok((StatusCode::CREATED, Json(made.into())))
}

/// Get a credential, without its value.
#[utoipa::path(
    get,
    path = "/v1/admin/credentials/{id}",
    operation_id = "get_credential",
    tag = "admin",
    params(("id" = String, Path, description = "The id of the credential")),
    responses(
        (status = 200, description = "The credential", body = CredentialRecord),
        ErrorResponses
    ),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn get_credential(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    PathId(id): PathId,
) -> Result<Json<CredentialRecord>, ApiError> {
    Ok(Json(find_visible_credential(&state, &scope, &id).await?.into()))
}

/// Change a credential, with effect from the next execution.
#[utoipa::path(
    patch,
    path = "/v1/admin/credentials/{id}",
    operation_id = "update_credential",
    tag = "admin",
    params(("id" = String, Path, description = "The id of the credential")),
    request_body = UpdateCredential,
    responses(
        (status = 200, description = "The updated credential", body = CredentialRecord),
        ErrorResponses
    ),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn update_credential(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    PathId(id): PathId,
    JsonBody(body): JsonBody<UpdateCredential>,
) -> Result<Json<CredentialRecord>, ApiError> {
    find_visible_credential(&state, &scope, &id).await?;
    Ok(Json(state.engine.tenancy().update_credential(&id, body.into()).await?.into()))
}

/// Remove a credential and its bindings.
#[utoipa::path(
    delete,
    path = "/v1/admin/credentials/{id}",
    operation_id = "remove_credential",
    tag = "admin",
    params(("id" = String, Path, description = "The id of the credential")),
    responses((status = 204, description = "It is gone"), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn remove_credential(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    PathId(id): PathId,
) -> Result<StatusCode, ApiError> {
    find_visible_credential(&state, &scope, &id).await?;
    state.engine.tenancy().remove_credential(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Give a credential to the executions of a sandbox or a key.
#[utoipa::path(
    post,
    path = "/v1/admin/credentials/{id}/bind",
    operation_id = "bind_credential",
    tag = "admin",
    params(("id" = String, Path, description = "The id of the credential")),
    request_body = CredentialTarget,
    responses(
        (status = 200, description = "The credential", body = CredentialRecord),
        ErrorResponses
    ),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn bind_credential(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    PathId(id): PathId,
    JsonBody(body): JsonBody<CredentialTarget>,
) -> Result<Json<CredentialRecord>, ApiError> {
    find_visible_credential(&state, &scope, &id).await?;
    let target = body.try_into().map_err(Refusal::from)?;
    Ok(Json(state.engine.tenancy().bind_credential(&id, target).await?.into()))
}

/// Take a credential from the executions of a sandbox or a key.
#[utoipa::path(
    post,
    path = "/v1/admin/credentials/{id}/unbind",
    operation_id = "unbind_credential",
    tag = "admin",
    params(("id" = String, Path, description = "The id of the credential")),
    request_body = CredentialTarget,
    responses(
        (status = 200, description = "The credential", body = CredentialRecord),
        ErrorResponses
    ),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn unbind_credential(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    PathId(id): PathId,
    JsonBody(body): JsonBody<CredentialTarget>,
) -> Result<Json<CredentialRecord>, ApiError> {
    find_visible_credential(&state, &scope, &id).await?;
    let target = body.try_into().map_err(Refusal::from)?;
    Ok(Json(state.engine.tenancy().unbind_credential(&id, target).await?.into()))
}
