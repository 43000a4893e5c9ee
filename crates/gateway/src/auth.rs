//! Authority enters a handler only through these extractors: an API key, the admin token, or a
//! sign-in to the console with a role.

mod admin_scope;
mod request_identity;
mod session_cookie;

use axum::{
    extract::{FromRequestParts, Path},
    http::{Method, header, request::Parts},
};
use cloche_engine::{Caller, ExecutionReader, SignedIn, is_same_secret};
use cloche_model::{Invalid, KeyId, MemberRole, Team, TeamId};
use url::form_urlencoded;

use crate::{
    audit,
    body::BodyOwner,
    error::ApiError,
    router::AppState,
    transfer_counter::{set_admin_owner, set_transfer_owner},
};

pub(crate) use admin_scope::{AdminScope, DeveloperAuth, OwnerAuth};
pub(crate) use request_identity::bearer_token;
use request_identity::{
    AcceptedToken, RequestIdentity, check_role, identify_admin, identify_request,
};
pub(crate) use session_cookie::{SessionAuth, expired_cookie, find_cookie, session_cookie};

/// A caller with a valid API key; or someone who is signed in and chose a key or a sandbox.
pub(crate) struct ApiKeyAuth(pub(crate) Caller);

/// A caller with the admin token, or an operator who is signed in.
pub(crate) struct AdminAuth;

/// A caller who may act for a team: with a key of the team, with the admin token and `?team=`, or
/// signed in.
pub(crate) struct TeamAuth {
    pub(crate) team: Team,
    pub(crate) key: Option<KeyId>,
    /// Everything about the key, unless it is the admin token or a sign-in.
    pub(crate) caller: Option<Caller>,
}

/// Like [`TeamAuth`], for a request that only reads although its method is not GET.
pub(crate) struct TeamReadAuth(pub(crate) TeamAuth);

/// A caller who may see executions: those of a team, or for operators without `?team=` all.
pub(crate) struct LedgerAuth {
    pub(crate) reader: ExecutionReader,
}

/// Which metrics a caller may see.
pub(crate) struct MetricsAuth {
    /// Whether families that name teams are included.
    pub(crate) with_teams: bool,
}

/// The team if the query names none.
const DEFAULT_TEAM: &str = "default";

/// The one variable segment of the path. A segment that cannot be decoded gives 404.
pub(crate) struct PathId(pub(crate) String);

impl ApiKeyAuth {
    /// The same for entry points that no browser uses.
    pub(crate) async fn from_key(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let caller = state.engine.tenancy().find_caller(bearer_token(parts)?).await?;
        Ok(Self::owning(parts, caller))
    }

    fn owning(parts: &mut Parts, caller: Caller) -> Self {
        parts.extensions.insert(BodyOwner(caller.key.id.to_string()));
        set_transfer_owner(&parts.extensions, &caller.team.id, Some(&caller.key.id));
        Self(caller)
    }
}

impl FromRequestParts<AppState> for ApiKeyAuth {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let who = match identify_request(parts, state, AcceptedToken::Key).await? {
            RequestIdentity::Session(who) => who,
            RequestIdentity::Key(caller) => return Ok(Self::owning(parts, caller)),
            RequestIdentity::AdminToken => return Self::from_key(parts, state).await,
        };
        check_role(&who, role_for_method(&parts.method))?;
        let (tenancy, team) = (state.engine.tenancy(), who.team.as_ref().map(|team| &team.id));
        let caller = if let Some(key) = query_value(parts, "key") {
            tenancy.key_caller(team, &key).await?
        } else if let Some(sandbox) = query_value(parts, "sandbox") {
            tenancy.console_caller(team, &sandbox).await?
        } else {
            let message = "choose a key with ?key=ID or a sandbox with ?sandbox=ID";
            return Err(Invalid::new(message).into());
        };
        Ok(Self::owning(parts, caller))
    }
}

impl FromRequestParts<AppState> for AdminAuth {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        if let Some(who) = identify_admin(parts, state).await? {
            check_role(&who, MemberRole::Operator)?;
        }
        parts.extensions.insert(BodyOwner("admin".to_owned()));
        Ok(Self)
    }
}

impl FromRequestParts<AppState> for TeamAuth {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let role = role_for_method(&parts.method);
        find_team_member(parts, state, role).await
    }
}

impl FromRequestParts<AppState> for TeamReadAuth {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        find_team_member(parts, state, MemberRole::Viewer).await.map(Self)
    }
}

impl FromRequestParts<AppState> for LedgerAuth {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let who = match identify_request(parts, state, AcceptedToken::Either).await? {
            RequestIdentity::Key(caller) => {
                let ApiKeyAuth(caller) = ApiKeyAuth::owning(parts, caller);
                return Ok(Self { reader: ExecutionReader::from(&caller) });
            }
            RequestIdentity::AdminToken => None,
            RequestIdentity::Session(who) => {
                check_role(&who, role_for_method(&parts.method))?;
                Some(who)
            }
        };
        let holder = body_owner_of(who.as_deref());
        parts.extensions.insert(BodyOwner(holder.clone()));
        let team = match who.and_then(|who| who.team) {
            Some(team) => Some(team.id),
            None => find_named_team(parts, state).await?.map(|team| team.id),
        };
        audit::note_team(&parts.extensions, team.as_ref());
        Ok(Self { reader: ExecutionReader { team, holder } })
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

async fn find_team_member(
    parts: &mut Parts,
    state: &AppState,
    role: MemberRole,
) -> Result<TeamAuth, ApiError> {
    let who = match identify_request(parts, state, AcceptedToken::Either).await? {
        RequestIdentity::Key(caller) => {
            let ApiKeyAuth(caller) = ApiKeyAuth::owning(parts, caller);
            let (team, key) = (caller.team.clone(), Some(caller.key.id.clone()));
            return Ok(TeamAuth { team, key, caller: Some(caller) });
        }
        RequestIdentity::AdminToken => None,
        RequestIdentity::Session(who) => {
            check_role(&who, role)?;
            Some(who)
        }
    };
    parts.extensions.insert(BodyOwner(body_owner_of(who.as_deref())));
    let team = match who.and_then(|who| who.team) {
        Some(team) => team,
        None => match find_named_team(parts, state).await? {
            Some(team) => team,
            None => state.engine.tenancy().find_team(DEFAULT_TEAM).await?,
        },
    };
    audit::note_team(&parts.extensions, Some(&team.id));
    Ok(TeamAuth { team, key: None, caller: None })
}

/// The team that an operator names in the query.
async fn find_named_team(parts: &Parts, state: &AppState) -> Result<Option<Team>, ApiError> {
    match query_value(parts, "team") {
        Some(team) => Ok(Some(state.engine.tenancy().find_team(&team).await?)),
        None => Ok(None),
    }
}

/// Who takes the memory of a body.
fn body_owner_of(who: Option<&SignedIn>) -> String {
    who.map_or_else(|| "admin".to_owned(), |who| who.session.id.to_string())
}

/// The role that a request needs by its method: reading is for everyone.
fn role_for_method(method: &Method) -> MemberRole {
    if method.is_safe() { MemberRole::Viewer } else { MemberRole::Developer }
}

/// A value of the query.
fn query_value(parts: &Parts, name: &str) -> Option<String> {
    let query = parts.uri.query().unwrap_or_default();
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    pairs.find(|(found, _)| found == name).map(|(_, value)| value.into_owned())
}

/// Whether a row belongs to the team of a member. Operators have no team and see every row.
fn is_visible(of: Option<&Team>, team: Option<&TeamId>) -> bool {
    of.is_none_or(|of| team == Some(&of.id))
}
