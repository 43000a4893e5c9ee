//! Authentication of the sidecar: one service key, in one of three forms.

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, header, request::Parts},
};
use cloche_engine::Refusal;
use cloche_model::ErrorCode;

use super::SidecarAppState;
use crate::error::ApiError;

const SERVICE_KEY: &str = "x-service-api-key";

/// A caller with the service key.
pub(super) struct ServiceKey;

/// A caller with the service key, or without any key.
pub(super) struct OptionalServiceKey {
    /// Whether the key was sent, or the sidecar has none.
    pub(super) is_held: bool,
}

impl FromRequestParts<SidecarAppState> for ServiceKey {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &SidecarAppState,
    ) -> Result<Self, ApiError> {
        if state.sidecar.is_opened_by(presented_key(&parts.headers)) {
            return Ok(Self);
        }
        Err(refuse_key(state))
    }
}

impl FromRequestParts<SidecarAppState> for OptionalServiceKey {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &SidecarAppState,
    ) -> Result<Self, ApiError> {
        let key = presented_key(&parts.headers);
        let is_held = state.sidecar.is_opened_by(key);
        if key.is_none() || is_held {
            return Ok(Self { is_held });
        }
        Err(refuse_key(state))
    }
}

fn refuse_key(state: &SidecarAppState) -> ApiError {
    state.sidecar.note_refused("unauthorized");
    let message = "missing or invalid service key; send it as: X-Service-API-Key: KEY";
    Refusal::new(ErrorCode::Unauthorized, message).into()
}

/// The key of `X-Service-API-Key: KEY`, `X-Service-API-Key: Bearer KEY` or `Authorization: Bearer
/// KEY`. The first header takes precedence.
fn presented_key(headers: &HeaderMap) -> Option<&str> {
    if let Some(value) = headers.get(SERVICE_KEY) {
        let value = value.to_str().unwrap_or_default().trim();
        return Some(strip_bearer(value).unwrap_or(value));
    }
    let value = headers.get(header::AUTHORIZATION)?;
    // Another scheme counts as a wrong key.
    Some(strip_bearer(value.to_str().unwrap_or_default()).unwrap_or_default())
}

fn strip_bearer(value: &str) -> Option<&str> {
    let (scheme, key) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_accepted_in_three_forms() {
        let with = |name: &'static str, value: &'static str| {
            let headers = HeaderMap::from_iter([(
                header::HeaderName::from_static(name),
                header::HeaderValue::from_static(value),
            )]);
            presented_key(&headers).map(ToOwned::to_owned)
        };
        for (name, value) in [
            (SERVICE_KEY, "hunter2"),
            (SERVICE_KEY, "Bearer hunter2"),
            (SERVICE_KEY, "bearer  hunter2"),
            ("authorization", "Bearer hunter2"),
        ] {
            assert_eq!(with(name, value).as_deref(), Some("hunter2"), "{name}: {value}");
        }
        for value in ["hunter2", "Basic hunter2", "Bearer"] {
            assert_eq!(with("authorization", value).as_deref(), Some(""), "{value}");
        }
        assert_eq!(presented_key(&HeaderMap::new()), None);
    }
}
