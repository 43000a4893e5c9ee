//! Runs in: server (no capabilities).
//!
//! `/console/api/oidc`: sign-on by an OpenID provider. A browser goes there and comes back; whatever
//! fails is told at the sign-in page, by a name that stands for a sentence.

use axum::{
    extract::{RawQuery, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use cloche_engine::{OidcAnswer, OidcError, OidcFailure, OidcSignIn};
use cloche_model::Secret;
use url::form_urlencoded;

use super::sessions::sign_in_origin;
use crate::{
    api_types::ErrorResponses,
    audit::{self, RequestNotes},
    auth::{find_cookie, session_cookie},
    client_address::client_address,
    error::ApiError,
    router::AppState,
};

/// What binds a sign-on to the browser that began it.
const COOKIE: &str = "cloche_oidc";
/// The name of attempts in the audit log whose person is not known.
const UNKNOWN_PERSON: &str = "single sign-on";

/// Sign in by the OpenID provider.
///
/// For browsers: the answer leads to the provider.
#[utoipa::path(
    get,
    path = "/console/api/oidc/start",
    operation_id = "begin_sign_on",
    tag = "console",
    params(
        ("return_to" = Option<String>, Query, description = "The page of the console to show then")
    ),
    responses(
        (status = 303, description = "To the provider, or to the sign-in page with `sso=REASON`",
            headers(("location" = String, description = "Where to go"))),
        ErrorResponses
    )
)]
pub(crate) async fn begin_sign_on(
    State(state): State<AppState>,
    notes: RequestNotes,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let console = state.engine.console();
    let address = client_address(&headers, notes.extensions());
    let return_to = find_parameter(query.as_deref(), "return_to");
    match console.begin_oidc(return_to.as_deref(), address).await {
        Ok(start) => {
            let age = console.oidc_lifetime_seconds();
            let cookie = browser_cookie(&start.browser, age, console.oidc_is_https());
            Ok(redirect(&start.url, &[cookie]))
        }
        Err(error) => to_sign_in_page(&error),
    }
}

/// Come back from the OpenID provider.
///
/// For browsers: the answer sets the cookie of the session and leads to the console.
#[utoipa::path(
    get,
    path = "/console/api/oidc/callback",
    operation_id = "finish_sign_on",
    tag = "console",
    params(
        ("code" = Option<String>, Query, description = "The code of the provider"),
        ("state" = Option<String>, Query, description = "What this server sent to the provider"),
        ("error" = Option<String>, Query, description = "Why there is no code"),
        ("iss" = Option<String>, Query, description = "The issuer")
    ),
    responses(
        (status = 303, description = "To the console, or to the sign-in page with `sso=REASON`",
            headers(
                ("location" = String, description = "Where to go"),
                ("set-cookie" = String, description = "The cookie of the session")
            )),
        ErrorResponses
    )
)]
pub(crate) async fn finish_sign_on(
    State(state): State<AppState>,
    notes: RequestNotes,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let console = state.engine.console();
    let parameter = |name: &str| find_parameter(query.as_deref(), name);
    let answer = OidcAnswer {
        code: parameter("code"),
        state: parameter("state"),
        error: parameter("error"),
        issuer: parameter("iss"),
    };
    let origin = sign_in_origin(&notes, &headers);
    match console.finish_oidc(answer, find_cookie(&headers, COOKIE), origin).await {
        Ok(done) => Ok(signed_in(&state, &notes, &headers, done)),
        Err(error) => {
            let name = error.email.as_deref().unwrap_or(UNKNOWN_PERSON);
            notes.note_actor(audit::unknown_actor(name), None);
            notes.note_status(audited_status(error.failure));
            to_sign_in_page(&error)
        }
    }
}

fn signed_in(
    state: &AppState,
    notes: &RequestNotes,
    headers: &HeaderMap,
    done: OidcSignIn,
) -> Response {
    let is_https = state.engine.console().oidc_is_https();
    let who = &done.session.signed_in;
    notes.note_actor(who.actor(), who.team.as_ref().map(|team| &team.id));
    notes.note_status(StatusCode::OK);
    if !done.link.changed.is_empty() {
        notes.note_change(done.link.member.id.as_str(), &done.link.changed);
    }
    let mut session = session_cookie(&state.config, headers, &done.session.token);
    if is_https && !session.ends_with("; Secure") {
        session.push_str("; Secure");
    }
    let ended = browser_cookie(&Secret::new(""), 0, is_https);
    redirect(&done.return_to, &[session, ended])
}

/// What the audit log says about a failure; the browser itself is always led on.
fn audited_status(failure: OidcFailure) -> StatusCode {
    match failure {
        OidcFailure::NotSetUp => StatusCode::NOT_FOUND,
        OidcFailure::Limited => StatusCode::TOO_MANY_REQUESTS,
        OidcFailure::Unavailable => StatusCode::BAD_GATEWAY,
        OidcFailure::Internal | OidcFailure::NoTeam => StatusCode::INTERNAL_SERVER_ERROR,
        OidcFailure::Stale | OidcFailure::Cancelled | OidcFailure::Untrusted => {
            StatusCode::UNAUTHORIZED
        }
        OidcFailure::NoEmail
        | OidcFailure::Unknown
        | OidcFailure::Disabled
        | OidcFailure::Taken => StatusCode::FORBIDDEN,
    }
}

fn to_sign_in_page(error: &OidcError) -> Result<Response, ApiError> {
    match error.failure {
        OidcFailure::NotSetUp => Err(ApiError::not_found()),
        failure => Ok(redirect(&format!("/console/?sso={}", failure.code()), &[])),
    }
}

fn redirect(to: &str, cookies: &[String]) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    let headers = response.headers_mut();
    let location = HeaderValue::from_str(to);
    headers.insert(header::LOCATION, location.unwrap_or(HeaderValue::from_static("/console/")));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    for cookie in cookies {
        if let Ok(cookie) = HeaderValue::from_str(cookie) {
            headers.append(header::SET_COOKIE, cookie);
        }
    }
    response
}

/// The cookie must come back from another site, so it is not strict; it is good for nothing else.
fn browser_cookie(token: &Secret, age: u64, is_https: bool) -> String {
    let secure = if is_https { "; Secure" } else { "" };
    let token = token.reveal();
    format!(
        "{COOKIE}={token}; Path=/console/api/oidc; HttpOnly; SameSite=Lax; Max-Age={age}{secure}"
    )
}

/// A parameter of the query; one that is there twice does not count.
fn find_parameter(query: Option<&str>, name: &str) -> Option<String> {
    let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let mut values = pairs.filter(|(key, _)| key == name).map(|(_, value)| value.into_owned());
    let value = values.next()?;
    values.next().is_none().then_some(value)
}
