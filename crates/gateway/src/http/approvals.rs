//! `/v1/approvals`: pending tool calls of a team's agents, for keys that may answer.

use axum::{
    Json,
    extract::{RawQuery, State},
};
use cloche_engine::{ApprovalFilter, Approver};
use cloche_model::Invalid;
use url::form_urlencoded;

use super::executions::parse_limit;
use crate::{
    api_types::{ApprovalList, ApprovalRecord, ErrorResponses, ReasonBody},
    auth::{ApiKeyAuth, PathId},
    body::JsonBody,
    error::ApiError,
    router::AppState,
};

/// The default page size of lists.
pub(super) const DEFAULT_LIMIT: u32 = 50;

/// List the approvals of the key's team.
#[utoipa::path(
    get,
    path = "/v1/approvals",
    operation_id = "list_own_approvals",
    tag = "approvals",
    params(
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
    security(("api_key" = []))
)]
pub(crate) async fn list_own_approvals(
    State(state): State<AppState>,
    ApiKeyAuth(caller): ApiKeyAuth,
    RawQuery(query): RawQuery,
) -> Result<Json<ApprovalList>, ApiError> {
    let filter = parse_approval_filter(query.as_deref().unwrap_or_default())?;
    let filter = ApprovalFilter { team: Some(caller.team.id.clone()), ..filter };
    Ok(Json(state.engine.approvals().list_approvals(&filter).await?.into()))
}

/// Parses the filter of a list of approvals, except for the team.
pub(super) fn parse_approval_filter(query: &str) -> Result<ApprovalFilter, Invalid> {
    let mut filter = ApprovalFilter { limit: DEFAULT_LIMIT, ..ApprovalFilter::default() };
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "state" => filter.state = Some(value.parse()?),
            "before" => filter.before = Some(value.parse()?),
            "limit" => filter.limit = parse_limit(&value)?,
            _ => {}
        }
    }
    Ok(filter)
}

/// Get an approval of the key's team.
#[utoipa::path(
    get,
    path = "/v1/approvals/{id}",
    operation_id = "get_own_approval",
    tag = "approvals",
    params(("id" = String, Path, description = "The id of the approval")),
    responses((status = 200, description = "The approval", body = ApprovalRecord), ErrorResponses),
    security(("api_key" = []))
)]
pub(crate) async fn get_own_approval(
    State(state): State<AppState>,
    ApiKeyAuth(caller): ApiKeyAuth,
    PathId(id): PathId,
) -> Result<Json<ApprovalRecord>, ApiError> {
    Ok(Json(state.engine.approvals().approval_for(&Approver::Key(caller), &id).await?.into()))
}

/// Approve a call, with a key that may approve and that is not the key of the call.
#[utoipa::path(
    post,
    path = "/v1/approvals/{id}/approve",
    operation_id = "approve_own",
    tag = "approvals",
    params(("id" = String, Path, description = "The id of the approval")),
    responses(
        (status = 200, description = "The updated approval", body = ApprovalRecord),
        ErrorResponses
    ),
    security(("api_key" = []))
)]
pub(crate) async fn approve_own_call(
    State(state): State<AppState>,
    ApiKeyAuth(caller): ApiKeyAuth,
    PathId(id): PathId,
) -> Result<Json<ApprovalRecord>, ApiError> {
    Ok(Json(state.engine.approvals().approve_call(&id, &Approver::Key(caller)).await?.into()))
}

/// Deny a call, with a key that may approve and that is not the key of the call.
#[utoipa::path(
    post,
    path = "/v1/approvals/{id}/deny",
    operation_id = "deny_own",
    tag = "approvals",
    params(("id" = String, Path, description = "The id of the approval")),
    request_body = ReasonBody,
    responses(
        (status = 200, description = "The updated approval", body = ApprovalRecord),
        ErrorResponses
    ),
    security(("api_key" = []))
)]
pub(crate) async fn deny_own_call(
    State(state): State<AppState>,
    ApiKeyAuth(caller): ApiKeyAuth,
    PathId(id): PathId,
    JsonBody(body): JsonBody<ReasonBody>,
) -> Result<Json<ApprovalRecord>, ApiError> {
    let denied =
        state.engine.approvals().deny_call(&id, &Approver::Key(caller), body.reason).await?;
    Ok(Json(denied.into()))
}
