//! `/v1/admin/defaults`, `/v1/admin/approvals` and `/v1/admin/decisions`: the gates in front of
//! agent tools, for operators.

use axum::{
    Json,
    extract::{RawQuery, State},
};
use cloche_engine::{ApprovalFilter, Approver, DecisionFilter, Engine};
use cloche_model::{Approval, Invalid, TeamId};
use url::form_urlencoded;

use super::{
    approvals::{self, DEFAULT_LIMIT},
    executions::parse_limit,
    sandboxes::team_parameter,
};
use crate::{
    api_types::{
        ApprovalList, ApprovalRecord, ApproveBody, DecisionList, DenyBody, ErrorResponses,
        GateRecord, UpdateDefaults,
    },
    auth::{AdminAuth, AdminScope, OwnerAuth, PathId},
    body::JsonBody,
    error::ApiError,
    router::AppState,
};

/// Get the gate settings for teams without their own.
#[utoipa::path(
    get,
    path = "/v1/admin/defaults",
    operation_id = "get_defaults",
    tag = "admin",
    responses((status = 200, description = "The fleet's gates", body = GateRecord), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn get_defaults(
    State(state): State<AppState>,
    _: AdminAuth,
) -> Result<Json<GateRecord>, ApiError> {
    Ok(Json(state.engine.tenancy().fleet_gates().await?.into()))
}

/// Change the gate settings for teams without their own.
#[utoipa::path(
    patch,
    path = "/v1/admin/defaults",
    operation_id = "update_defaults",
    tag = "admin",
    request_body = UpdateDefaults,
    responses(
        (status = 200, description = "The updated settings", body = GateRecord),
        ErrorResponses
    ),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn update_defaults(
    State(state): State<AppState>,
    _: AdminAuth,
    JsonBody(body): JsonBody<UpdateDefaults>,
) -> Result<Json<GateRecord>, ApiError> {
    Ok(Json(state.engine.tenancy().change_fleet_gates(body.into()).await?.into()))
}

/// List approvals.
#[utoipa::path(
    get,
    path = "/v1/admin/approvals",
    operation_id = "list_approvals",
    tag = "admin",
    params(
        ("team" = Option<String>, Query, description = "Only entries of this team, by id or name"),
        ("state" = Option<crate::api_types::ApprovalStateName>, Query,
            description = "Only approvals with this state"),
        ("before" = Option<String>, Query, pattern = "^apr_[A-Za-z0-9_-]{1,20}$",
            description = "Only entries older than this one"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200,
            description = "The page size; 50 if absent")
    ),
    responses(
        (status = 200, description = "A page, newest first", body = ApprovalList),
        ErrorResponses
    ),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn list_approvals(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    RawQuery(query): RawQuery,
) -> Result<Json<ApprovalList>, ApiError> {
    let query = query.as_deref().unwrap_or_default();
    let team = resolve_team_parameter(&state.engine, &scope, query).await?;
    let filter = ApprovalFilter { team, ..approvals::parse_approval_filter(query)? };
    Ok(Json(state.engine.approvals().list_approvals(&filter).await?.into()))
}

async fn resolve_team_parameter(
    engine: &Engine,
    scope: &AdminScope,
    query: &str,
) -> Result<Option<TeamId>, ApiError> {
    match scope.listed_team(team_parameter(query))? {
        Some(team) => Ok(Some(engine.tenancy().find_team(&team).await?.id)),
        None => Ok(None),
    }
}

/// The approval with this id, if the caller may see it.
async fn find_visible_approval(
    state: &AppState,
    scope: &AdminScope,
    id: &str,
) -> Result<Approval, ApiError> {
    let approval = state.engine.approvals().approval_for(&Approver::Admin(None), id).await?;
    scope.check_row(&approval.team, "approval")?;
    Ok(approval)
}

/// The name of who answers. Someone who is signed in cannot answer in another name.
fn approver_name(scope: &AdminScope, given: Option<String>) -> Option<String> {
    scope.name().map(str::to_owned).or(given)
}

/// Get an approval, with the arguments of the call.
#[utoipa::path(
    get,
    path = "/v1/admin/approvals/{id}",
    operation_id = "get_approval",
    tag = "admin",
    params(("id" = String, Path, description = "The id of the approval")),
    responses((status = 200, description = "The approval", body = ApprovalRecord), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn get_approval(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    PathId(id): PathId,
) -> Result<Json<ApprovalRecord>, ApiError> {
    Ok(Json(find_visible_approval(&state, &scope, &id).await?.into()))
}

/// Approve a call. It may then be made once.
#[utoipa::path(
    post,
    path = "/v1/admin/approvals/{id}/approve",
    operation_id = "approve",
    tag = "admin",
    params(("id" = String, Path, description = "The id of the approval")),
    request_body = ApproveBody,
    responses(
        (status = 200, description = "The updated approval", body = ApprovalRecord),
        ErrorResponses
    ),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn approve_call(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    PathId(id): PathId,
    JsonBody(body): JsonBody<ApproveBody>,
) -> Result<Json<ApprovalRecord>, ApiError> {
    find_visible_approval(&state, &scope, &id).await?;
    let by = Approver::Admin(approver_name(&scope, body.by));
    Ok(Json(state.engine.approvals().approve_call(&id, &by).await?.into()))
}

/// Deny a call.
#[utoipa::path(
    post,
    path = "/v1/admin/approvals/{id}/deny",
    operation_id = "deny",
    tag = "admin",
    params(("id" = String, Path, description = "The id of the approval")),
    request_body = DenyBody,
    responses(
        (status = 200, description = "The updated approval", body = ApprovalRecord),
        ErrorResponses
    ),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn deny_call(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    PathId(id): PathId,
    JsonBody(body): JsonBody<DenyBody>,
) -> Result<Json<ApprovalRecord>, ApiError> {
    find_visible_approval(&state, &scope, &id).await?;
    let by = Approver::Admin(approver_name(&scope, body.by));
    let denied = state.engine.approvals().deny_call(&id, &by, body.reason).await?;
    Ok(Json(denied.into()))
}

/// List the decisions about agent tools, with their authors and times.
#[utoipa::path(
    get,
    path = "/v1/admin/decisions",
    operation_id = "list_decisions",
    tag = "admin",
    params(
        ("team" = Option<String>, Query,
            description = "Only decisions about this team, by id or name"),
        ("approval" = Option<String>, Query, pattern = "^apr_[A-Za-z0-9_-]{1,20}$",
            description = "Only decisions about this approval"),
        ("before" = Option<String>, Query, pattern = "^dec_[A-Za-z0-9_-]{1,20}$",
            description = "Only entries older than this one"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200,
            description = "The page size; 50 if absent")
    ),
    responses(
        (status = 200, description = "A page, newest first", body = DecisionList),
        ErrorResponses
    ),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn list_decisions(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    RawQuery(query): RawQuery,
) -> Result<Json<DecisionList>, ApiError> {
    let query = query.as_deref().unwrap_or_default();
    let team = resolve_team_parameter(&state.engine, &scope, query).await?;
    let filter = DecisionFilter { team, ..parse_decision_filter(query)? };
    let decisions = state.engine.approvals().list_decisions(&filter).await?;
    Ok(Json(DecisionList { decisions: decisions.into_iter().map(Into::into).collect() }))
}

fn parse_decision_filter(query: &str) -> Result<DecisionFilter, Invalid> {
    let mut filter = DecisionFilter { limit: DEFAULT_LIMIT, ..DecisionFilter::default() };
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "approval" => filter.approval = Some(value.parse()?),
            "before" => filter.before = Some(value.parse()?),
            "limit" => filter.limit = parse_limit(&value)?,
            _ => {}
        }
    }
    Ok(filter)
}
