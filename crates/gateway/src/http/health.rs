//! Endpoints for operators: liveness, readiness and metrics.

use axum::{
    Json,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use cloche_engine::Refusal;
use cloche_model::ErrorCode;

use crate::{
    api_types::{ErrorBody, ErrorResponses, Health},
    auth::MetricsAuth,
    error::ApiError,
    router::AppState,
};

/// Check whether the server is alive.
#[utoipa::path(get, path = "/healthz", tag = "health",
    responses((status = 200, description = "The server is alive", body = Health)))]
pub(crate) async fn live() -> Json<Health> {
    Json(Health { status: "ok".to_owned() })
}

/// Check whether the server accepts executions.
#[utoipa::path(get, path = "/readyz", tag = "health",
    responses(
        (status = 200, description = "The server accepts executions", body = Health),
        (status = 503, description = "The server does not accept executions", body = ErrorBody,
            headers(("retry-after" = u64, description = "Seconds")))
    ))]
pub(crate) async fn ready(State(state): State<AppState>) -> Result<Json<Health>, ApiError> {
    match state.engine.check_ready().await {
        Ok(()) => Ok(Json(Health { status: "ready".to_owned() })),
        Err(reason) => Err(Refusal::new(ErrorCode::Unavailable, reason).into()),
    }
}

/// Get metrics in the OpenMetrics format.
///
/// Metrics that name teams need the admin token or the metrics token.
#[utoipa::path(get, path = "/metrics", tag = "health",
    responses(
        (status = 200, description = "Counters and histograms",
            content((String = "application/openmetrics-text"))),
        ErrorResponses
    ),
    security((), ("admin_token" = [])))]
pub(crate) async fn metrics(State(state): State<AppState>, reader: MetricsAuth) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let text = state.engine.metrics_text(reader.with_teams).await;
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}
