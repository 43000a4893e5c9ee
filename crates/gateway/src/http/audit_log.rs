//! Runs in: server (no capabilities).
//!
//! `/v1/admin/audit`: who changed what, when, from where.

use axum::{
    Json,
    extract::{RawQuery, State},
};
use cloche_engine::AuditFilter;
use cloche_model::Invalid;
use url::form_urlencoded;

use super::{
    executions::{parse_limit, parse_time},
    sandboxes::team_parameter,
};
use crate::{
    api_types::{AuditList, ErrorResponses},
    auth::OwnerAuth,
    error::ApiError,
    router::AppState,
};

const DEFAULT_LIMIT: u32 = 50;

/// List changes through the API and the console, newest first.
#[utoipa::path(
    get,
    path = "/v1/admin/audit",
    operation_id = "list_audit",
    tag = "admin",
    params(
        ("team" = Option<String>, Query, description = "Only changes about this team, by id or name"),
        ("actor" = Option<String>, Query,
            description = "Only changes by this member or key, by id or name"),
        ("since" = Option<String>, Query, format = DateTime,
            description = "Only changes at or after this time, RFC 3339"),
        ("until" = Option<String>, Query, format = DateTime,
            description = "Only changes before this time, RFC 3339"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200,
            description = "The page size; 50 if absent"),
        ("cursor" = Option<String>, Query, pattern = "^[0-9]{1,18}$",
            description = "The `next_cursor` of the previous page")
    ),
    responses((status = 200, description = "A page", body = AuditList), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn list_audit(
    State(state): State<AppState>,
    OwnerAuth(scope): OwnerAuth,
    RawQuery(query): RawQuery,
) -> Result<Json<AuditList>, ApiError> {
    let query = query.as_deref().unwrap_or_default();
    let team = match scope.listed_team(team_parameter(query))? {
        Some(team) => Some(state.engine.tenancy().find_team(&team).await?.id),
        None => None,
    };
    let filter = AuditFilter { team, ..parse_audit_filter(query)? };
    Ok(Json(state.engine.console().list_audit(filter).await?.into()))
}

fn parse_audit_filter(query: &str) -> Result<AuditFilter, Invalid> {
    let mut filter = AuditFilter { limit: DEFAULT_LIMIT, ..AuditFilter::default() };
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "actor" if !value.is_empty() => filter.actor = Some(value.into_owned()),
            "since" => filter.since = Some(parse_time("since", &value)?),
            "until" => filter.until = Some(parse_time("until", &value)?),
            "limit" => filter.limit = parse_limit(&value)?,
            "cursor" => {
                let before = value.parse::<i64>().ok().filter(|before| *before >= 0);
                let malformed = || Invalid::new("cursor must be a next_cursor of an earlier page");
                filter.before = Some(before.ok_or_else(malformed)?);
            }
            _ => {}
        }
    }
    Ok(filter)
}
