//! Authority enters a handler only through these extractors.

use axum::{
    extract::{FromRequestParts, Path},
    http::{header, request::Parts},
};
use cloche_engine::{Caller, Engine, Refusal, is_same_secret};
use cloche_model::{ErrorCode, KeyId, Team};
use url::form_urlencoded;

use crate::{
    body::BodyOwner,
    error::ApiError,
    router::AppState,
    transfer_counter::{set_admin_owner, set_transfer_owner},
};

/// A caller with a valid API key.
pub(crate) struct ApiKeyAuth(pub(crate) Caller);

/// A caller with the admin token.
pub(crate) struct AdminAuth;

/// A caller who may act for a team: with a key of the team, or with the admin token and `?team=`.
pub(crate) struct TeamAuth {
    pub(crate) team: Team,
    pub(crate) key: Option<KeyId>,
    /// Everything about the key, unless it is the admin token.
    pub(crate) caller: Option<Caller>,
}

/// Which metrics a caller may see.
pub(crate) struct MetricsAuth {
    /// Whether families that name teams are included.
    pub(crate) with_teams: bool,
}

/// The prefix of every admin token.
const ADMIN_PREFIX: &str = "ck-admin-";
/// The team if the query names none.
const DEFAULT_TEAM: &str = "default";

/// The one variable segment of the path. A segment that cannot be decoded gives 404.
pub(crate) struct PathId(pub(crate) String);

impl FromRequestParts<AppState> for ApiKeyAuth {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let engine: &Engine = &state.engine;
        let caller = engine.tenancy().find_caller(bearer_token(parts)?).await?;
        parts.extensions.insert(BodyOwner(caller.key.id.to_string()));
        set_transfer_owner(&parts.extensions, &caller.team.id, Some(&caller.key.id));
        Ok(Self(caller))
    }
}

impl FromRequestParts<AppState> for AdminAuth {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        state.engine.tenancy().check_admin_token(bearer_token(parts)?).await?;
        parts.extensions.insert(BodyOwner("admin".to_owned()));
        set_admin_owner(&parts.extensions);
        Ok(Self)
    }
}

impl FromRequestParts<AppState> for TeamAuth {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let token = bearer_token(parts)?;
        if !token.starts_with(ADMIN_PREFIX) {
            let caller = state.engine.tenancy().find_caller(token).await?;
            parts.extensions.insert(BodyOwner(caller.key.id.to_string()));
            set_transfer_owner(&parts.extensions, &caller.team.id, Some(&caller.key.id));
            let (team, key) = (caller.team.clone(), Some(caller.key.id.clone()));
            return Ok(Self { team, key, caller: Some(caller) });
        }
        state.engine.tenancy().check_admin_token(token).await?;
        parts.extensions.insert(BodyOwner("admin".to_owned()));
        set_admin_owner(&parts.extensions);
        let query = parts.uri.query().unwrap_or_default();
        let named = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "team");
        let team = named.map_or(DEFAULT_TEAM.into(), |(_, value)| value);
        let team = state.engine.tenancy().find_team(&team).await?;
        Ok(Self { team, key: None, caller: None })
    }
}

impl FromRequestParts<AppState> for MetricsAuth {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let access = &state.config.metrics;
        if !parts.headers.contains_key(header::AUTHORIZATION) && access.is_open {
            return Ok(Self { with_teams: false });
        }
        let token = bearer_token(parts)?;
        let is_known = access.token.as_ref().is_some_and(|known| is_same_secret(known, token));
        if !is_known {
            state.engine.tenancy().check_admin_token(token).await?;
        }
        set_admin_owner(&parts.extensions);
        Ok(Self { with_teams: true })
    }
}

impl FromRequestParts<AppState> for PathId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        path.map(|Path(id)| Self(id)).map_err(|_| ApiError::not_found())
    }
}

/// The token of `Authorization: Bearer TOKEN`.
fn bearer_token(parts: &Parts) -> Result<&str, ApiError> {
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
