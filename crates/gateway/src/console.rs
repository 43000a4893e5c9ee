//! Runs in: server (no capabilities).
//!
//! The console: its sign-ins, its live figures, and its pages. What it shows of executions, threads
//! and settings it gets from the API that everyone uses.

mod account;
mod assets;
mod overview;
mod sessions;
mod sign_on;

use axum::{Router, routing::get};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::router::AppState;

/// The routes that are in the OpenAPI description.
pub(crate) fn api_routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(sessions::sign_in, sessions::get_session, sessions::sign_out))
        .routes(routes!(sessions::list_sessions))
        .routes(routes!(sessions::revoke_session))
        .routes(routes!(sessions::list_sign_in_ways))
        .routes(routes!(sign_on::begin_sign_on))
        .routes(routes!(sign_on::finish_sign_on))
        .routes(routes!(overview::get_overview))
        .routes(routes!(overview::follow_console))
        .routes(routes!(account::change_password))
        .routes(routes!(account::begin_totp))
        .routes(routes!(account::confirm_totp))
        .routes(routes!(account::remove_totp))
}

/// The pages.
pub(crate) fn page_routes() -> Router<AppState> {
    Router::new()
        .route("/console", get(assets::redirect_to_console))
        .route("/console/", get(assets::serve_page))
        .route("/console/{*path}", get(assets::serve_page))
}
