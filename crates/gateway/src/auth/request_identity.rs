//! Runs in: server (no capabilities).
//!
//! Who a request is from: the bearer token decides, else the cookie of the console. A request that
//! is authorised by a cookie and changes something has to repeat the token of its session, which a
//! page of another site cannot know.

use axum::http::{header, request::Parts};
use cloche_engine::{Caller, Refusal, SignedIn};
use cloche_model::{ActorKind, AuditActor, ErrorCode, MemberRole};

use super::session_cookie::{check_csrf_token, find_session_token};
use crate::{audit, error::ApiError, router::AppState, transfer_counter::set_admin_owner};

/// The prefix of every admin token.
const ADMIN_PREFIX: &str = "ck-admin-";

/// Who a request is from.
pub(super) enum RequestIdentity {
    /// The holder of the admin token.
    AdminToken,
    /// The holder of an API key.
    Key(Caller),
    /// Someone who is signed in to the console.
    Session(Box<SignedIn>),
}

/// The bearer tokens that a route takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcceptedToken {
    /// API keys only.
    Key,
    /// The admin token only.
    Admin,
    /// Both.
    Either,
}

/// Finds out who a request is from, and notes it for the audit log.
pub(super) async fn identify_request(
    parts: &mut Parts,
    state: &AppState,
    accepted: AcceptedToken,
) -> Result<RequestIdentity, ApiError> {
    let identity = find_identity(parts, state, accepted).await?;
    let (actor, team) = match &identity {
        RequestIdentity::AdminToken => {
            let name = "admin token".to_owned();
            (AuditActor { kind: ActorKind::Operator, id: None, name }, None)
        }
        RequestIdentity::Key(caller) => {
            let (id, name) = (Some(caller.key.id.to_string()), caller.key.name.clone());
            (AuditActor { kind: ActorKind::Key, id, name }, Some(&caller.team.id))
        }
        RequestIdentity::Session(who) => (who.actor(), who.team.as_ref().map(|team| &team.id)),
    };
    if actor.kind == ActorKind::Operator {
        set_admin_owner(&parts.extensions);
    }
    audit::note_actor(&parts.extensions, actor, team);
    Ok(identity)
}

async fn find_identity(
    parts: &Parts,
    state: &AppState,
    accepted: AcceptedToken,
) -> Result<RequestIdentity, ApiError> {
    if !parts.headers.contains_key(header::AUTHORIZATION)
        && let Some(token) = find_session_token(&parts.headers)
    {
        let who = state.engine.console().find_signed_in(token).await?;
        check_csrf_token(parts, &who)?;
        return Ok(RequestIdentity::Session(Box::new(who)));
    }
    let token = bearer_token(parts)?;
    let is_admin = match accepted {
        AcceptedToken::Key => false,
        AcceptedToken::Admin => true,
        AcceptedToken::Either => token.starts_with(ADMIN_PREFIX),
    };
    if is_admin {
        state.engine.tenancy().check_admin_token(token).await?;
        return Ok(RequestIdentity::AdminToken);
    }
    Ok(RequestIdentity::Key(state.engine.tenancy().find_caller(token).await?))
}

/// Refuses a role that may not do this.
pub(super) fn check_role(who: &SignedIn, needed: MemberRole) -> Result<(), ApiError> {
    if who.role() >= needed {
        return Ok(());
    }
    let message = format!("your role is {}, and this needs the role {needed}", who.role());
    Err(Refusal::new(ErrorCode::Forbidden, message).into())
}

/// Someone who is signed in, or the holder of the admin token.
pub(super) async fn identify_admin(
    parts: &mut Parts,
    state: &AppState,
) -> Result<Option<Box<SignedIn>>, ApiError> {
    match identify_request(parts, state, AcceptedToken::Admin).await? {
        RequestIdentity::Session(who) => Ok(Some(who)),
        RequestIdentity::AdminToken | RequestIdentity::Key(_) => Ok(None),
    }
}

/// The token of `Authorization: Bearer TOKEN`.
pub(crate) fn bearer_token(parts: &Parts) -> Result<&str, ApiError> {
    let value = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = value.and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
    });
    token.filter(|token| !token.is_empty()).ok_or_else(|| {
        let message = "send the key as: Authorization: Bearer KEY";
        Refusal::new(ErrorCode::Unauthorized, message).into()
    })
}
