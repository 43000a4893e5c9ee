//! Runs in: server (no capabilities).
//!
//! `/v1/admin/token`: replaces the admin token.

use axum::{Json, extract::State, http::StatusCode};

use crate::{
    api_types::{ErrorResponses, NewAdminToken},
    auth::AdminAuth,
    error::ApiError,
    router::AppState,
};

/// Replace the admin token.
///
/// The old token is refused from now on.
#[utoipa::path(
    post,
    path = "/v1/admin/token",
    operation_id = "rotate_admin_token",
    tag = "admin",
    responses((status = 201, description = "The new token", body = NewAdminToken), ErrorResponses),
    security(("admin_token" = []))
)]
pub(crate) async fn rotate_admin_token(
    State(state): State<AppState>,
    _: AdminAuth,
) -> Result<(StatusCode, Json<NewAdminToken>), ApiError> {
    let token = state.engine.rotate_admin_token().await?;
    Ok((StatusCode::CREATED, Json(NewAdminToken::new(&token))))
}
