//! Endpoints for operators: liveness, readiness and metrics.

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use cloche_model::ErrorCode;
use parking_lot::Mutex;

use crate::{
    api_types::{ErrorBody, ErrorResponses, Health},
    auth::MetricsAuth,
    router::AppState,
};

/// What `/readyz` said last. It is asked again and again, so only a change is logged.
#[derive(Default)]
pub(crate) struct Readiness(Mutex<KnownReadiness>);

#[derive(Default)]
struct KnownReadiness {
    was_ready: bool,
    /// Why it is not ready; `None` before the first question, and while it is ready.
    reason: Option<String>,
}

impl Readiness {
    /// Logs a change.
    fn note(&self, checked: &Result<(), String>) {
        let mut known = self.0.lock();
        match checked {
            Ok(()) if known.reason.take().is_some() => tracing::info!("the server is ready"),
            Ok(()) => {}
            Err(reason) if known.reason.is_some() => known.reason = Some(reason.clone()),
            Err(reason) => {
                match known.was_ready {
                    true => tracing::warn!(reason, "the server is not ready any more"),
                    false => tracing::info!(reason, "the server is not ready yet"),
                }
                known.reason = Some(reason.clone());
            }
        }
        known.was_ready |= checked.is_ok();
    }
}

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
pub(crate) async fn ready(State(state): State<AppState>) -> Response {
    let checked = state.engine.check_ready().await;
    state.readiness.note(&checked);
    match checked {
        Ok(()) => Json(Health { status: "ready".to_owned() }).into_response(),
        Err(message) => {
            let error = ErrorCode::Unavailable.name().to_owned();
            let after = [(header::RETRY_AFTER, "1")];
            let body = Json(ErrorBody { error, message });
            (StatusCode::SERVICE_UNAVAILABLE, after, body).into_response()
        }
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
