//! Runs in: server (no capabilities).
//!
//! `/console/api/session`: sign in, look, sign out; and the list of sign-ins.

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use cloche_engine::{NewConsoleSession, SignInError, SignInOrigin};
use cloche_model::{ConsoleSession, Invalid, Member};

use crate::{
    api_types::{
        ErrorBody, ErrorResponses, ProviderRecord, SessionList, SessionListItem, SessionRecord,
        SignInBody, SignInWays,
    },
    audit::{self, RequestNotes},
    auth::{PathId, SessionAuth, expired_cookie, session_cookie},
    body::JsonBody,
    client_address::client_address,
    error::ApiError,
    router::AppState,
};

/// Sign in to the console.
///
/// With the admin token, or with the name and the password of a member. If a one-time code is
/// missing, the answer is 401 with the error `code_required`.
#[utoipa::path(
    post,
    path = "/console/api/session",
    operation_id = "sign_in",
    tag = "console",
    request_body = SignInBody,
    responses(
        (status = 200, description = "Signed in", body = SessionRecord,
            headers(("set-cookie" = String, description = "The cookie of the session"))),
        ErrorResponses
    )
)]
pub(crate) async fn sign_in(
    State(state): State<AppState>,
    notes: RequestNotes,
    headers: HeaderMap,
    JsonBody(body): JsonBody<SignInBody>,
) -> Result<Response, ApiError> {
    let origin = sign_in_origin(&notes, &headers);
    let console = state.engine.console();
    let tried = body.name.clone().unwrap_or_else(|| "admin token".to_owned());
    notes.note_actor(audit::unknown_actor(&tried), None);
    let made = match (body.admin_token, body.name, body.password) {
        (Some(token), None, None) => {
            console.sign_in_with_token(&token, origin).await.map_err(SignInError::from)
        }
        (None, Some(name), Some(password)) => {
            let with = (name.as_str(), password, body.code.as_deref());
            console.sign_in_with_password(with, origin).await
        }
        _ => {
            let message = "send either admin_token, or name and password";
            return Err(Invalid::new(message).into());
        }
    };
    match made {
        Ok(made) => Ok(signed_in_response(&state, &notes, &headers, made)),
        Err(SignInError::Refused(refusal)) => Err(refusal.into()),
        Err(SignInError::CodeRequired) => {
            let message = "enter the code of your authenticator app".to_owned();
            let body = ErrorBody { error: "code_required".to_owned(), message };
            Ok((StatusCode::UNAUTHORIZED, Json(body)).into_response())
        }
    }
}

fn signed_in_response(
    state: &AppState,
    notes: &RequestNotes,
    headers: &HeaderMap,
    made: NewConsoleSession,
) -> Response {
    let cookie = session_cookie(&state.config, headers, &made.token);
    let team = made.signed_in.team.as_ref().map(|team| &team.id);
    notes.note_actor(made.signed_in.actor(), team);
    let headers = [(header::SET_COOKIE, cookie), (header::CACHE_CONTROL, "no-store".to_owned())];
    (headers, Json(SessionRecord::from(made.signed_in))).into_response()
}

/// Where a sign-in comes from.
pub(super) fn sign_in_origin(notes: &RequestNotes, headers: &HeaderMap) -> SignInOrigin {
    let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    SignInOrigin {
        address: client_address(headers, notes.extensions()),
        user_agent: agent.unwrap_or_default().to_owned(),
    }
}

/// Get the sign-in of this browser.
#[utoipa::path(
    get,
    path = "/console/api/session",
    operation_id = "get_session",
    tag = "console",
    responses((status = 200, description = "Signed in", body = SessionRecord), ErrorResponses),
    security(("session" = []))
)]
pub(crate) async fn get_session(SessionAuth(who): SessionAuth) -> Response {
    ([(header::CACHE_CONTROL, "no-store")], Json(SessionRecord::from(who))).into_response()
}

/// Sign out.
#[utoipa::path(
    delete,
    path = "/console/api/session",
    operation_id = "sign_out",
    tag = "console",
    responses((status = 204, description = "Signed out"), ErrorResponses),
    security(("session" = []))
)]
pub(crate) async fn sign_out(
    State(state): State<AppState>,
    SessionAuth(who): SessionAuth,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    state.engine.console().sign_out(&who).await?;
    let cookie = expired_cookie(&state.config, &headers);
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}

/// List sign-ins: one's own, and for an operator those of everyone.
#[utoipa::path(
    get,
    path = "/console/api/sessions",
    operation_id = "list_sessions",
    tag = "console",
    responses((status = 200, description = "Newest first", body = SessionList), ErrorResponses),
    security(("session" = []))
)]
pub(crate) async fn list_sessions(
    State(state): State<AppState>,
    SessionAuth(who): SessionAuth,
) -> Result<Json<SessionList>, ApiError> {
    let console = state.engine.console();
    let sessions = console.list_sessions(&who).await?;
    let members = console.list_members(who.team.as_ref()).await?;
    let member_of = |session: &ConsoleSession| -> Option<&Member> {
        members.iter().find(|member| session.member.as_ref() == Some(&member.id))
    };
    let items = sessions.into_iter().map(|session| {
        let member = member_of(&session);
        SessionListItem::new(session, member, &who.session)
    });
    Ok(Json(SessionList { sessions: items.collect() }))
}

/// End a sign-in.
#[utoipa::path(
    delete,
    path = "/console/api/sessions/{id}",
    operation_id = "revoke_session",
    tag = "console",
    params(("id" = String, Path, description = "The id of the sign-in")),
    responses((status = 204, description = "It has ended"), ErrorResponses),
    security(("session" = []))
)]
pub(crate) async fn revoke_session(
    State(state): State<AppState>,
    SessionAuth(who): SessionAuth,
    PathId(id): PathId,
) -> Result<StatusCode, ApiError> {
    state.engine.console().revoke_session(&who, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List the ways to sign in. Needs no session.
#[utoipa::path(
    get,
    path = "/console/api/sign-in",
    operation_id = "list_sign_in_ways",
    tag = "console",
    responses((status = 200, description = "The ways", body = SignInWays), ErrorResponses)
)]
pub(crate) async fn list_sign_in_ways(State(state): State<AppState>) -> Json<SignInWays> {
    let name = state.engine.console().oidc_name();
    let oidc = name.map(|name| ProviderRecord { name: name.to_owned() });
    Json(SignInWays { oidc, version: env!("CARGO_PKG_VERSION").to_owned() })
}
