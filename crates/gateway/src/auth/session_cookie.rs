//! Runs in: server (no capabilities).
//!
//! The cookie of the console, and the token that requests repeat which change something.

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, StatusCode, header, request::Parts},
};
use cloche_engine::{Refusal, SignedIn};
use cloche_model::{ErrorCode, Secret};

use crate::{GatewayConfig, audit, error::ApiError, router::AppState};

const COOKIE: &str = "cloche_session";
/// The header with the token of the session.
const CSRF_HEADER: &str = "x-cloche-csrf";

/// Someone who is signed in, with any role.
pub(crate) struct SessionAuth(pub(crate) SignedIn);

impl FromRequestParts<AppState> for SessionAuth {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let token = find_session_token(&parts.headers).ok_or_else(|| {
            Refusal::new(ErrorCode::Unauthorized, "sign in first: this needs a session")
        })?;
        let who = state.engine.console().find_signed_in(token).await?;
        check_csrf_token(parts, &who)?;
        let team = who.team.as_ref().map(|team| &team.id);
        audit::note_actor(&parts.extensions, who.actor(), team);
        Ok(Self(who))
    }
}

/// The token in the cookie. Two cookies of this name mean that another site set one, so neither
/// counts.
pub(super) fn find_session_token(headers: &HeaderMap) -> Option<&str> {
    find_cookie(headers, COOKIE)
}

/// The value of a cookie that is there once.
pub(crate) fn find_cookie<'a>(headers: &'a HeaderMap, wanted: &str) -> Option<&'a str> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut tokens = lines.flat_map(|line| line.split(';')).filter_map(|pair| {
        let (name, value) = pair.trim().split_once('=')?;
        (name == wanted).then_some(value)
    });
    let token = tokens.next()?;
    tokens.next().is_none().then_some(token)
}

/// Refuses a request that changes something and does not repeat the token, or that a browser says
/// comes from another site.
pub(super) fn check_csrf_token(parts: &Parts, who: &SignedIn) -> Result<(), ApiError> {
    let site = parts.headers.get("sec-fetch-site").map(|site| site.as_bytes());
    let is_foreign = matches!(site, Some(b"cross-site" | b"same-site"));
    let sent = parts.headers.get(CSRF_HEADER).map(|sent| sent.as_bytes());
    let repeats = sent.is_some_and(|sent| who.has_csrf_token(sent));
    if parts.method.is_safe() || (repeats && !is_foreign) {
        return Ok(());
    }
    let message = format!("send the csrf_token of the session as the header {CSRF_HEADER}");
    Err(ApiError::Http(StatusCode::FORBIDDEN, "csrf", message))
}

/// The header that sets the cookie.
pub(crate) fn session_cookie(
    config: &GatewayConfig,
    headers: &HeaderMap,
    token: &Secret,
) -> String {
    let secure = if is_https(config, headers) { "; Secure" } else { "" };
    format!("{COOKIE}={}; Path=/; HttpOnly; SameSite=Strict{secure}", token.reveal())
}

/// The header that removes the cookie.
pub(crate) fn expired_cookie(config: &GatewayConfig, headers: &HeaderMap) -> String {
    let secure = if is_https(config, headers) { "; Secure" } else { "" };
    format!("{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0{secure}")
}

/// Whether the browser speaks TLS, with this server or with a proxy before it.
fn is_https(config: &GatewayConfig, headers: &HeaderMap) -> bool {
    let forwarded = headers.get("x-forwarded-proto").map(|proto| proto.as_bytes());
    config.tls.is_some() || forwarded == Some(b"https")
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_cookie_counts_only_if_there_is_one() {
        let token = |lines: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(header::COOKIE, HeaderValue::from_static(line));
            }
            find_session_token(&headers).map(str::to_owned)
        };
        assert_eq!(token(&["a=b; cloche_session=cs-x; c=d"]).as_deref(), Some("cs-x"));
        assert_eq!(token(&["a=b", "cloche_session=cs-x"]).as_deref(), Some("cs-x"));
        assert_eq!(token(&["cloche_session=cs-x; cloche_session=cs-y"]), None);
        assert_eq!(token(&["cloche_session=cs-x", "cloche_session=cs-y"]), None);
        assert_eq!(token(&["xcloche_session=cs-x"]), None);
        assert_eq!(token(&[]), None);
    }

    #[test]
    fn a_cookie_is_secure_where_the_browser_speaks_tls() {
        let (config, token) = (GatewayConfig::default(), Secret::new("cs-x".to_owned()));
        let plain = session_cookie(&config, &HeaderMap::new(), &token);
        assert_eq!(plain, "cloche_session=cs-x; Path=/; HttpOnly; SameSite=Strict");
        let proxied = HeaderMap::from_iter([(
            header::HeaderName::from_static("x-forwarded-proto"),
            HeaderValue::from_static("https"),
        )]);
        assert!(session_cookie(&config, &proxied, &token).ends_with("; Secure"));
        assert!(expired_cookie(&config, &proxied).contains("Max-Age=0; Secure"));
    }
}
