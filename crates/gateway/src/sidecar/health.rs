//! For whoever operates the sidecar or sends it work: is it well, what does it count.

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

/// How the sidecar is.
#[derive(Debug, Serialize)]
pub(super) struct SidecarHealthBody {
    status: &'static str,
    running: usize,
    capacity: usize,
}

/// Whether it takes work. Needs no key; one that is shown has to be right, so that a client learns that
/// its key is wrong before it has work.
pub(super) async fn report_health(
    State(doors): State<SidecarAppState>,
    _: OptionalServiceKey,
) -> Result<Json<SidecarHealthBody>, ApiError> {
    if doors.sidecar.is_draining() {
        let message = JobRefusal::Draining.to_string();
        return Err(Refusal::new(ErrorCode::Unavailable, message).into());
    }
    let (running, capacity) = doors.sidecar.load();
    Ok(Json(SidecarHealthBody { status: "ok", running, capacity }))
}

/// What is counted, for Prometheus.
pub(super) async fn report_metrics(State(doors): State<SidecarAppState>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], doors.sidecar.metrics_text()).into_response()
}
