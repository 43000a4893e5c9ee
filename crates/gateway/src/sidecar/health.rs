//! Endpoints for operators and clients of the sidecar: health and metrics.

use axum::{
    Json,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use cloche_engine::{JobRefusal, Refusal, sidecar::SidecarHealthReport};
use cloche_model::ErrorCode;

use super::{SidecarAppState, execute::job_refusal_to_api_error, key::OptionalServiceKey};
use crate::error::ApiError;

/// Whether the sidecar accepts jobs. Needs no key. A key that is sent must be valid, so that a
/// client learns about a wrong key before it sends a job.
pub(super) async fn report_health(
    State(state): State<SidecarAppState>,
    key: OptionalServiceKey,
) -> Result<Json<SidecarHealthReport>, ApiError> {
    if state.sidecar.is_draining() {
        let message = JobRefusal::Draining.to_string();
        return Err(Refusal::new(ErrorCode::Unavailable, message).into());
    }
    state.sidecar.check_sandbox().map_err(job_refusal_to_api_error)?;
    Ok(Json(state.sidecar.report_health(key.is_held).await))
}

/// The metrics in the OpenMetrics format.
pub(super) async fn report_metrics(State(state): State<SidecarAppState>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], state.sidecar.metrics_text()).into_response()
}
