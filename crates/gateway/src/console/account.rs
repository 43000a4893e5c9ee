//! Runs in: server (no capabilities).
//!
//! What people change about themselves: `/console/api/password` and `/console/api/totp`.

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};

use crate::{
    api_types::{ChangePassword, ErrorResponses, OneTimeCode, TotpRecord},
    auth::SessionAuth,
    body::JsonBody,
    error::ApiError,
    router::AppState,
};

/// Change one's own password. The other sign-ins end.
#[utoipa::path(
    post,
    path = "/console/api/password",
    operation_id = "change_password",
    tag = "console",
    request_body = ChangePassword,
    responses((status = 204, description = "It is changed"), ErrorResponses),
    security(("session" = []))
)]
pub(crate) async fn change_password(
    State(state): State<AppState>,
    SessionAuth(who): SessionAuth,
    JsonBody(body): JsonBody<ChangePassword>,
) -> Result<StatusCode, ApiError> {
    state.engine.console().change_password(&who, body.current, body.new).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Begin to set up a second factor.
#[utoipa::path(
    post,
    path = "/console/api/totp",
    operation_id = "begin_totp",
    tag = "console",
    responses(
        (status = 200, description = "The secret, to be confirmed by a code", body = TotpRecord),
        ErrorResponses
    ),
    security(("session" = []))
)]
pub(crate) async fn begin_totp(
    State(state): State<AppState>,
    SessionAuth(who): SessionAuth,
) -> Result<Response, ApiError> {
    let setup = state.engine.console().begin_totp(&who).await?;
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(TotpRecord::from(setup))).into_response())
}

/// Confirm a second factor with its first code.
#[utoipa::path(
    post,
    path = "/console/api/totp/confirm",
    operation_id = "confirm_totp",
    tag = "console",
    request_body = OneTimeCode,
    responses((status = 204, description = "The next sign-in needs a code"), ErrorResponses),
    security(("session" = []))
)]
pub(crate) async fn confirm_totp(
    State(state): State<AppState>,
    SessionAuth(who): SessionAuth,
    JsonBody(body): JsonBody<OneTimeCode>,
) -> Result<StatusCode, ApiError> {
    state.engine.console().confirm_totp(&who, &body.code).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Remove one's second factor.
#[utoipa::path(
    post,
    path = "/console/api/totp/remove",
    operation_id = "remove_totp",
    tag = "console",
    request_body = OneTimeCode,
    responses((status = 204, description = "It is removed"), ErrorResponses),
    security(("session" = []))
)]
pub(crate) async fn remove_totp(
    State(state): State<AppState>,
    SessionAuth(who): SessionAuth,
    JsonBody(body): JsonBody<OneTimeCode>,
) -> Result<StatusCode, ApiError> {
    state.engine.console().remove_totp(&who, &body.code).await?;
    Ok(StatusCode::NO_CONTENT)
}
