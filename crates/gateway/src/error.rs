//! Error responses: one format, one mapping to the status, one log line.

use std::error::Error;

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use cloche_engine::Refusal;
use cloche_model::{ErrorCode, Invalid};

use crate::api_types::ErrorBody;

/// The header that names an execution.
pub(crate) const TRACE_ID: &str = "x-trace-id";

/// An error response.
#[derive(Debug)]
pub(crate) enum ApiError {
    /// The engine refused the request.
    Refused(Refusal),
    /// The request failed before it reached the engine.
    Http(StatusCode, &'static str, String),
}

impl ApiError {
    pub(crate) fn not_found() -> Self {
        Self::Http(StatusCode::NOT_FOUND, "not_found", "no such resource".to_owned())
    }

    fn response_parts(&self) -> (StatusCode, &'static str, &str) {
        match self {
            Self::Http(status, code, message) => (*status, code, message),
            Self::Refused(refusal) => {
                (http_status(refusal.code), refusal.code.name(), &refusal.message)
            }
        }
    }
}

/// The HTTP status of each kind of refusal.
fn http_status(code: ErrorCode) -> StatusCode {
    match code {
        ErrorCode::Validation => StatusCode::BAD_REQUEST,
        ErrorCode::Unauthorized => StatusCode::UNAUTHORIZED,
        ErrorCode::Forbidden => StatusCode::FORBIDDEN,
        ErrorCode::NotFound => StatusCode::NOT_FOUND,
        ErrorCode::Conflict => StatusCode::CONFLICT,
        ErrorCode::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        ErrorCode::QuotaExceeded => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorCode::InsufficientStorage => StatusCode::INSUFFICIENT_STORAGE,
        ErrorCode::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorCode::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Invalid> for ApiError {
    fn from(invalid: Invalid) -> Self {
        Self::Refused(invalid.into())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, code, message) = self.response_parts();
        let body = ErrorBody { error: code.to_owned(), message: message.to_owned() };
        let mut response = (status, Json(body)).into_response();
        let headers = response.headers_mut();
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        let Self::Refused(refusal) = self else { return response };
        if let Some(after) = refusal.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
        }
        if let Some(trace_id) = &refusal.trace_id
            && let Ok(value) = HeaderValue::from_str(trace_id.as_str())
        {
            headers.insert(TRACE_ID, value);
        }
        log_server_fault(&refusal);
        response
    }
}

/// Logs the chain of causes once, if the fault is the server's.
pub(crate) fn log_server_fault(refusal: &Refusal) {
    if !http_status(refusal.code).is_server_error() {
        return;
    }
    let mut causes = Vec::new();
    let mut cause = refusal.source();
    while let Some(error) = cause {
        causes.push(error.to_string());
        cause = error.source();
    }
    let trace_id = refusal.trace_id.as_ref().map(ToString::to_string);
    tracing::error!(error = %refusal, causes = causes.join(": "), trace_id, "a request failed");
}
