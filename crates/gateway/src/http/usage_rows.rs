//! Runs in: server (no capabilities).
//!
//! `/v1/admin/usage/days`: what each key used on each day, as JSON or as a table.

use std::collections::HashMap;

use axum::{
    Json,
    extract::{RawQuery, State},
    http::header,
    response::{IntoResponse, Response},
};
use cloche_engine::UsageQuery;
use cloche_model::Invalid;

use super::{threads::query_parameter, usage::parse_parameters};
use crate::{
    api_types::{ErrorResponses, UsageRow, UsageRows},
    auth::DeveloperAuth,
    error::ApiError,
    router::AppState,
};

/// Get what each key used on each day.
#[utoipa::path(
    get,
    path = "/v1/admin/usage/days",
    operation_id = "list_usage_rows",
    tag = "admin",
    params(
        ("team" = Option<String>, Query, description = "The id or name of a team; all if absent"),
        ("key" = Option<String>, Query, description = "The id of a key; all if absent"),
        ("from" = Option<String>, Query,
            description = "The first day: a date, or a time in RFC 3339 whose day in UTC counts; \
            the first of this month if absent"),
        ("to" = Option<String>, Query,
            description = "The last day: a date, or a time in RFC 3339; today if absent"),
        ("format" = Option<String>, Query, pattern = "^(json|csv)?$",
            description = "`csv` for a table to download")
    ),
    responses(
        (status = 200, description = "The rows, oldest first",
            content((UsageRows = "application/json"), (String = "text/csv"))),
        ErrorResponses
    ),
    security(("admin_token" = []), ("session" = []))
)]
pub(crate) async fn list_usage_rows(
    State(state): State<AppState>,
    DeveloperAuth(scope): DeveloperAuth,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let parameters = parse_parameters(query.as_deref().unwrap_or_default())?;
    let tenancy = state.engine.tenancy();
    let team = match scope.listed_team(parameters.team)? {
        Some(team) => Some(tenancy.find_team(&team).await?),
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
    let days = UsageQuery { key, ..parameters.query };
    let days = state.engine.usage().list_days(team.as_ref(), days).await?;
    let keys = tenancy.list_keys(team.as_ref().map(|team| team.id.as_str())).await?;
    let names: HashMap<_, _> = keys.into_iter().map(|key| (key.id, key.name)).collect();
    let rows = days.into_iter().map(|(day, key, totals)| {
        let name = key.as_ref().and_then(|key| names.get(key)).cloned();
        UsageRow::new(day, key, name, &totals)
    });
    let rows = UsageRows { rows: rows.collect() };
    match query_parameter(query.as_deref(), "format").as_deref() {
        None | Some("" | "json") => Ok(Json(rows).into_response()),
        Some("csv") => {
            let headers = [
                (header::CONTENT_TYPE, "text/csv; charset=utf-8"),
                (header::CONTENT_DISPOSITION, "attachment; filename=\"usage.csv\""),
                (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            ];
            Ok((headers, rows.to_csv()).into_response())
        }
        Some(_) => Err(Invalid::new("format must be json or csv").into()),
    }
}
