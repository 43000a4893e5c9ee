//! `/v1/approvals`: calls of a team's agents that wait, for its own keys that may answer.

use axum::{
    Json,
    extract::{RawQuery, State},
};
use cloche_engine::{ApprovalFilter, Approver};
use cloche_model::Invalid;
use url::form_urlencoded;

use super::executions::limit;
use crate::{
    auth::{Key, PathId},
    body::JsonBody,
    error::ApiError,
    router::Doors,
    wire::{ApprovalList, ApprovalRecord, Errors, ReasonBody},
};

/// Rows of a list where the request names no number.
pub(super) const DEFAULT_LIMIT: u32 = 50;

/// List the approvals of the key's team.
#[utoipa::path(
    get,
    path = "/v1/approvals",
    operation_id = "list_own_approvals",
    tag = "approvals",
    params(
        ("state" = Option<crate::wire::ApprovalStateName>, Query, description = "Only those that stand there"),
        ("before" = Option<String>, Query, pattern = "^apr_[A-Za-z0-9_-]{1,20}$", description = "Only those older than this one"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200, description = "At most so many; 50 if absent")
    ),
    responses((status = 200, description = "Newest first", body = ApprovalList), Errors),
    security(("api_key" = []))
)]
pub(crate) async fn list(
    State(doors): State<Doors>,
    Key(caller): Key,
    RawQuery(query): RawQuery,
) -> Result<Json<ApprovalList>, ApiError> {
    let filter = filter(query.as_deref().unwrap_or_default())?;
    let filter = ApprovalFilter { team: Some(caller.team.id.clone()), ..filter };
    Ok(Json(doors.engine.approvals(&filter).await?.into()))
}

/// What a list of approvals is narrowed by, but for the team.
pub(super) fn filter(query: &str) -> Result<ApprovalFilter, Invalid> {
    let mut filter = ApprovalFilter { limit: DEFAULT_LIMIT, ..ApprovalFilter::default() };
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "state" => filter.state = Some(value.parse()?),
            "before" => filter.before = Some(value.parse()?),
            "limit" => filter.limit = limit(&value)?,
            _ => {}
        }
    }
    Ok(filter)
}

/// One approval of the key's team.
#[utoipa::path(
    get,
    path = "/v1/approvals/{id}",
    operation_id = "get_own_approval",
    tag = "approvals",
    params(("id" = String, Path, description = "Its id")),
    responses((status = 200, description = "The approval", body = ApprovalRecord), Errors),
    security(("api_key" = []))
)]
pub(crate) async fn get(
    State(doors): State<Doors>,
    Key(caller): Key,
    PathId(id): PathId,
) -> Result<Json<ApprovalRecord>, ApiError> {
    Ok(Json(doors.engine.approval_for(&Approver::Key(caller), &id).await?.into()))
}

/// Say yes, with a key that may and that did not ask.
#[utoipa::path(
    post,
    path = "/v1/approvals/{id}/approve",
    operation_id = "approve_own",
    tag = "approvals",
    params(("id" = String, Path, description = "Its id")),
    responses((status = 200, description = "As it is now", body = ApprovalRecord), Errors),
    security(("api_key" = []))
)]
pub(crate) async fn approve(
    State(doors): State<Doors>,
    Key(caller): Key,
    PathId(id): PathId,
) -> Result<Json<ApprovalRecord>, ApiError> {
    Ok(Json(doors.engine.approve(&id, &Approver::Key(caller)).await?.into()))
}

/// Say no, with a key that may and that did not ask.
#[utoipa::path(
    post,
    path = "/v1/approvals/{id}/deny",
    operation_id = "deny_own",
    tag = "approvals",
    params(("id" = String, Path, description = "Its id")),
    request_body = ReasonBody,
    responses((status = 200, description = "As it is now", body = ApprovalRecord), Errors),
    security(("api_key" = []))
)]
pub(crate) async fn deny(
    State(doors): State<Doors>,
    Key(caller): Key,
    PathId(id): PathId,
    JsonBody(body): JsonBody<ReasonBody>,
) -> Result<Json<ApprovalRecord>, ApiError> {
    let denied = doors.engine.deny(&id, &Approver::Key(caller), body.reason).await?;
    Ok(Json(denied.into()))
}
