//! The OpenAPI description, for machines and for people.

use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};

use crate::router::AppState;

/// Allows only what is in the page itself, and the description from this server.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                      connect-src 'self'; frame-ancestors 'none'; base-uri 'none'";

/// Get the OpenAPI description.
#[utoipa::path(get, path = "/openapi.json", tag = "health",
    responses((status = 200, description = "OpenAPI 3.1",
        content((serde_json::Value = "application/json")))))]
pub(crate) async fn description(State(state): State<AppState>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], state.description.to_string()).into_response()
}

/// Get the OpenAPI description as a web page.
#[utoipa::path(get, path = "/docs", tag = "health",
    responses((status = 200, description = "A web page", content((String = "text/html")))))]
pub(crate) async fn page() -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, include_str!("docs.html")).into_response()
}
