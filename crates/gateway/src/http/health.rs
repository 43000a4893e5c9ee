//! For whoever operates the server: is it alive, can it take work, what does it count.

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

/// Whether the server is alive.
#[utoipa::path(get, path = "/healthz", tag = "health",
    responses((status = 200, description = "It is", body = Health)))]
pub(crate) async fn live() -> Json<Health> {
    Json(Health { status: "ok".to_owned() })
}

/// Whether the server can take executions.
#[utoipa::path(get, path = "/readyz", tag = "health",
    responses(
        (status = 200, description = "It can", body = Health),
        (status = 503, description = "It cannot", body = ErrorBody,
            headers(("retry-after" = u64, description = "Seconds")))
    ))]
pub(crate) async fn ready(State(doors): State<AppState>) -> Result<Json<Health>, ApiError> {
    match doors.engine.check_ready().await {
        Ok(()) => Ok(Json(Health { status: "ready".to_owned() })),
        Err(reason) => Err(Refusal::new(ErrorCode::Unavailable, reason).into()),
    }
}

/// What is counted, for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "health",
    responses((status = 200, description = "Counters and histograms",
        content((String = "application/openmetrics-text")))))]
pub(crate) async fn metrics(State(doors): State<AppState>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], doors.engine.metrics_text().await).into_response()
}
