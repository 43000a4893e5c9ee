//! Runs in: server (no capabilities).
//!
//! `/v1/usage` and `/v1/admin/usage`: what teams and keys used.

use axum::{
    Json,
    extract::{RawQuery, State},
};
use cloche_engine::{UsageQuery, parse_first_day, parse_last_day};
use cloche_model::Invalid;
use url::form_urlencoded;

use crate::{
    api_types::{ErrorResponses, UsageReply},
    auth::{DeveloperAuth, TeamAuth},
    error::ApiError,
    router::AppState,
};

/// Get the usage of the key's team.
#[utoipa::path(
    get,
    path = "/v1/usage",
    operation_id = "get_usage",
    tag = "usage",
    params(
        ("from" = Option<String>, Query,
            description = "The first day: a date, or a time in RFC 3339 whose day in UTC counts; \
            the first of this month if absent"),
        ("to" = Option<String>, Query,
            description = "The last day: a date, or a time in RFC 3339; today if absent"),
        ("by" = Option<String>, Query, pattern = "^(day)?$",
            description = "`day` adds each day with any usage; for at most 366 days")
    ),
    responses((status = 200, description = "The usage", body = UsageReply), ErrorResponses),
    security(("api_key" = []), ("session" = []))
)]
pub(crate) async fn get_usage(
    State(state): State<AppState>,
    member: TeamAuth,
    RawQuery(query): RawQuery,
) -> Result<Json<UsageReply>, ApiError> {
    let UsageParameters { query, .. } = parse_parameters(query.as_deref().unwrap_or_default())?;
    let summary = state.engine.usage().summarize(Some(&member.team), query).await?;
    Ok(Json(UsageReply::new(Some(member.team.id.clone()), None, summary)))
}

/// Get the usage of a team, of a key, or of all teams.
#[utoipa::path(
    get,
    path = "/v1/admin/usage",
    operation_id = "get_team_usage",
    tag = "admin",
    params(
        ("team" = Option<String>, Query, description = "The id or name of a team; all if absent"),
        ("key" = Option<String>, Query, description = "The id of a key; all if absent"),
        ("from" = Option<String>, Query,
            description = "The first day: a date, or a time in RFC 3339 whose day in UTC counts; \
            the first of this month if absent"),
        ("to" = Option<String>, Query,
            description = "The last day: a date, or a time in RFC 3339; today if absent"),
        ("by" = Option<String>, Query, pattern = "^(day)?$",
            description = "`day` adds each day with any usage; for at most 366 days")
    ),
    responses((status = 200, description = "The usage", body = UsageReply), ErrorResponses),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn get_team_usage(
    State(state): State<AppState>,
    DeveloperAuth(scope): DeveloperAuth,
    RawQuery(query): RawQuery,
) -> Result<Json<UsageReply>, ApiError> {
    let parameters = parse_parameters(query.as_deref().unwrap_or_default())?;
    let tenancy = state.engine.tenancy();
    let team = match &scope.listed_team(parameters.team)? {
        Some(team) => Some(tenancy.find_team(team).await?),
        None => None,
    };
    let key = match &parameters.key {
        Some(key) => {
            let key = tenancy.find_key(key).await?;
            scope.check_row(&key.team, "key")?;
            Some(key.id)
        }
        None => None,
    };
    let query = UsageQuery { key: key.clone(), ..parameters.query };
    let summary = state.engine.usage().summarize(team.as_ref(), query).await?;
    Ok(Json(UsageReply::new(team.map(|team| team.id), key, summary)))
}

#[derive(Default)]
pub(super) struct UsageParameters {
    pub(super) team: Option<String>,
    pub(super) key: Option<String>,
    pub(super) query: UsageQuery,
}

/// Reads the query. An empty value is the same as an absent one.
pub(super) fn parse_parameters(query: &str) -> Result<UsageParameters, Invalid> {
    let mut parameters = UsageParameters::default();
    let given = form_urlencoded::parse(query.as_bytes()).filter(|(_, value)| !value.is_empty());
    for (name, value) in given {
        match &*name {
            "team" => parameters.team = Some(value.into_owned()),
            "key" => parameters.key = Some(value.into_owned()),
            "from" => parameters.query.first_day = Some(parse_day(&name, &value, parse_first_day)?),
            "to" => parameters.query.last_day = Some(parse_day(&name, &value, parse_last_day)?),
            "by" if value == "day" => parameters.query.by_day = true,
            "by" => return Err(Invalid::new("by must be day")),
            _ => {}
        }
    }
    Ok(parameters)
}

fn parse_day(name: &str, text: &str, parse: fn(&str) -> Option<i64>) -> Result<i64, Invalid> {
    parse(text).ok_or_else(|| {
        Invalid::new(format!(
            "{name} must be a date such as 2026-03-16 or a time such as 2026-03-16T12:00:00Z"
        ))
    })
}
