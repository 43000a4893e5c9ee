//! The wire format of sign-ins to the console.

use cloche_engine::{SignedIn, TotpSetup, format_rfc3339};
use cloche_model::{ConsoleSession, Member, Secret};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::admin::RoleName;

/// A sign-in: with the admin token, or with a name, a password and, where the member has a second
/// factor, a code.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SignInBody {
    #[schema(value_type = Option<String>)]
    pub(crate) admin_token: Option<Secret>,
    pub(crate) name: Option<String>,
    #[schema(value_type = Option<String>)]
    pub(crate) password: Option<Secret>,
    /// The one-time code.
    pub(crate) code: Option<String>,
}

/// The team of a member.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionTeam {
    id: String,
    name: String,
}

/// A sign-in.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionRecord {
    id: String,
    /// The name of the member; `admin` for the admin token.
    name: String,
    role: RoleName,
    member_id: Option<String>,
    /// The team; null for operators.
    team: Option<SessionTeam>,
    /// What requests that change something repeat in the header `X-Cloche-CSRF`.
    csrf_token: String,
    /// Whether the member has a second factor.
    totp: bool,
    has_password: bool,
    #[schema(format = DateTime)]
    created_at: String,
    #[schema(format = DateTime)]
    expires_at: String,
}

impl From<SignedIn> for SessionRecord {
    fn from(who: SignedIn) -> Self {
        let member = who.member.as_ref();
        Self {
            name: who.name().to_owned(),
            role: who.role().into(),
            totp: member.is_some_and(Member::needs_code),
            has_password: member.is_some_and(|member| member.password_hash.is_some()),
            member_id: member.map(|member| member.id.to_string()),
            id: who.session.id.into(),
            team: who.team.map(|team| SessionTeam { id: team.id.into(), name: team.name }),
            csrf_token: who.csrf_token,
            created_at: format_rfc3339(who.session.created_at),
            expires_at: format_rfc3339(who.session.expires_at),
        }
    }
}

/// One of several sign-ins.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionListItem {
    id: String,
    /// The id of the member; null for the admin token.
    member_id: Option<String>,
    /// The name of the member; `admin` for the admin token.
    name: String,
    role: RoleName,
    address: Option<String>,
    user_agent: String,
    #[schema(format = DateTime)]
    created_at: String,
    #[schema(format = DateTime)]
    last_seen_at: String,
    #[schema(format = DateTime)]
    expires_at: String,
    /// Whether it is the one of this request.
    current: bool,
}

impl SessionListItem {
    pub(crate) fn new(
        session: ConsoleSession,
        member: Option<&Member>,
        current: &ConsoleSession,
    ) -> Self {
        Self {
            current: session.id == current.id,
            id: session.id.into(),
            member_id: session.member.map(Into::into),
            name: member.map_or_else(|| "admin".to_owned(), |member| member.name.clone()),
            role: member.map_or(RoleName::Operator, |member| member.role.into()),
            address: session.address,
            user_agent: session.user_agent,
            created_at: format_rfc3339(session.created_at),
            last_seen_at: format_rfc3339(session.last_seen_at),
            expires_at: format_rfc3339(session.expires_at),
        }
    }
}

/// A list of sign-ins.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionList {
    pub(crate) sessions: Vec<SessionListItem>,
}

/// An OpenID provider.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ProviderRecord {
    /// The name on its button.
    pub(crate) name: String,
}

/// The ways to sign in.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SignInWays {
    /// Single sign-on; null if it is not set up.
    pub(crate) oidc: Option<ProviderRecord>,
    /// The version of the server.
    pub(crate) version: String,
}

/// A change of one's own password.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChangePassword {
    #[schema(value_type = String)]
    pub(crate) current: Secret,
    #[schema(value_type = String, min_length = 12, max_length = 256)]
    pub(crate) new: Secret,
}

/// A one-time code.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OneTimeCode {
    #[schema(pattern = "^[0-9]{6}$")]
    pub(crate) code: String,
}

/// A second factor that has to be confirmed with its first code.
#[derive(Serialize, ToSchema)]
pub(crate) struct TotpRecord {
    /// The secret in base 32.
    secret: String,
    /// The same as an address that authenticator apps read.
    uri: String,
}

impl From<TotpSetup> for TotpRecord {
    fn from(setup: TotpSetup) -> Self {
        Self { secret: setup.secret.reveal().to_owned(), uri: setup.uri }
    }
}
