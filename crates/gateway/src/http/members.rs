//! Runs in: server (no capabilities).
//!
//! `/v1/admin/members`: people who can sign in to the console.

use axum::{
    Json,
    extract::{RawQuery, State},
    http::StatusCode,
};
use cloche_engine::{MemberChange, MemberDraft, Refusal};
use cloche_model::{ErrorCode, Member, MemberRole};

use super::sandboxes::team_parameter;
use crate::{
    api_types::{CreateMember, ErrorResponses, MemberList, MemberRecord, UpdateMember},
    auth::{AdminScope, OwnerAuth, PathId},
    body::JsonBody,
    error::ApiError,
    router::AppState,
};

/// List members.
#[utoipa::path(
    get,
    path = "/v1/admin/members",
    operation_id = "list_members",
    tag = "admin",
    params(
        ("team" = Option<String>, Query, description = "Only entries of this team, by id or name")
    ),
    responses((status = 200, description = "The members", body = MemberList), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn list_members(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    RawQuery(query): RawQuery,
) -> Result<Json<MemberList>, ApiError> {
    let team = scope.listed_team(team_parameter(query.as_deref().unwrap_or_default()))?;
    let team = match team {
        Some(team) => Some(state.engine.tenancy().find_team(&team).await?),
        None => None,
    };
    let members = state.engine.console().list_members(team.as_ref()).await?;
    Ok(Json(MemberList { members: members.into_iter().map(MemberRecord::from).collect() }))
}

/// Create a member.
#[utoipa::path(
    post,
    path = "/v1/admin/members",
    operation_id = "create_member",
    tag = "admin",
    request_body = CreateMember,
    responses((status = 201, description = "The new member", body = MemberRecord), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn create_member(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    JsonBody(body): JsonBody<CreateMember>,
) -> Result<(StatusCode, Json<MemberRecord>), ApiError> {
    let role = MemberRole::from(body.role);
    check_grant(&scope, role)?;
    let team = match scope.listed_team(body.team)? {
        Some(team) => Some(state.engine.tenancy().find_team(&team).await?),
        None => None,
    };
    let draft =
        MemberDraft { name: body.name, role, team, email: body.email, password: body.password };
    let made = state.engine.console().create_member(draft).await?;
    if let Some(team) = &made.team {
        scope.note_team(team);
    }
    Ok((StatusCode::CREATED, Json(made.into())))
}

/// Get a member.
#[utoipa::path(
    get,
    path = "/v1/admin/members/{id}",
    operation_id = "get_member",
    tag = "admin",
    params(("id" = String, Path, description = "The id or name of the member")),
    responses((status = 200, description = "The member", body = MemberRecord), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn get_member(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    PathId(id): PathId,
) -> Result<Json<MemberRecord>, ApiError> {
    Ok(Json(find_visible_member(&state, &scope, &id).await?.into()))
}

/// Change a member. A change of the password or the role ends all sign-ins of the member.
#[utoipa::path(
    patch,
    path = "/v1/admin/members/{id}",
    operation_id = "update_member",
    tag = "admin",
    params(("id" = String, Path, description = "The id or name of the member")),
    request_body = UpdateMember,
    responses(
        (status = 200, description = "The updated member", body = MemberRecord),
        ErrorResponses
    ),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn update_member(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    PathId(id): PathId,
    JsonBody(body): JsonBody<UpdateMember>,
) -> Result<Json<MemberRecord>, ApiError> {
    let member = find_visible_member(&state, &scope, &id).await?;
    let change = MemberChange::from(body);
    if let Some(role) = change.role {
        check_grant(&scope, role)?;
    }
    Ok(Json(state.engine.console().update_member(&member.id, change).await?.into()))
}

/// Remove a member. All sign-ins end.
#[utoipa::path(
    delete,
    path = "/v1/admin/members/{id}",
    operation_id = "remove_member",
    tag = "admin",
    params(("id" = String, Path, description = "The id or name of the member")),
    responses((status = 204, description = "The member was removed"), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn remove_member(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    PathId(id): PathId,
) -> Result<StatusCode, ApiError> {
    let member = find_visible_member(&state, &scope, &id).await?;
    state.engine.console().remove_member(&member.id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The member with this id or name, if the caller may see it.
async fn find_visible_member(
    state: &AppState,
    scope: &AdminScope,
    id: &str,
) -> Result<Member, ApiError> {
    let member = state.engine.console().find_member(id).await?;
    scope.check_row_or_none(member.team.as_ref(), "member")?;
    Ok(member)
}

/// Nobody gives a role above their own.
fn check_grant(scope: &AdminScope, role: MemberRole) -> Result<(), ApiError> {
    if role <= scope.role() {
        return Ok(());
    }
    let message = format!("your role is {}, so you cannot give the role {role}", scope.role());
    Err(Refusal::new(ErrorCode::Forbidden, message).into())
}
