//! Endpoints for operators and clients of the sidecar: health and metrics.

use axum::{
    Json,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use cloche_engine::{JobRefusal, Refusal};
use cloche_model::ErrorCode;
use serde::Serialize;

use super::{SidecarAppState, key::OptionalServiceKey};
use crate::error::ApiError;

/// The health of the sidecar.
#[derive(Debug, Serialize)]
pub(super) struct SidecarHealthBody {
    status: &'static str,
    running: usize,
    capacity: usize,
}

/// Whether the sidecar accepts jobs. Needs no key. A key that is sent must be valid, so that a
/// client learns about a wrong key before it sends a job.
pub(super) async fn report_health(
    State(state): State<SidecarAppState>,
    _: OptionalServiceKey,
) -> Result<Json<SidecarHealthBody>, ApiError> {
    if state.sidecar.is_draining() {
        let message = JobRefusal::Draining.to_string();
        return Err(Refusal::new(ErrorCode::Unavailable, message).into());
    }
    let (running, capacity) = state.sidecar.load();
    Ok(Json(SidecarHealthBody { status: "ok", running, capacity }))
}

/// The metrics in the OpenMetrics format.
pub(super) async fn report_metrics(State(state): State<SidecarAppState>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], state.sidecar.metrics_text()).into_response()
}
