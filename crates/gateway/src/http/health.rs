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
    api_types::{ErrorBody, Health},
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
#[utoipa::path(get, path = "/metrics", tag = "health",
    responses((status = 200, description = "Counters and histograms",
        content((String = "application/openmetrics-text")))))]
pub(crate) async fn metrics(State(state): State<AppState>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], state.engine.metrics_text().await).into_response()
}
