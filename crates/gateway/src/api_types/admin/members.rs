//! The wire format of members.

use cloche_engine::{MemberChange, format_rfc3339};
use cloche_model::{Member, MemberRole, Secret};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::present;

/// What a member may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RoleName {
    /// Reads what belongs to the team.
    Viewer,
    /// Runs code, and changes threads, sandboxes and keys.
    Developer,
    /// Changes members, credentials, storage and approvals of the team.
    Owner,
    /// Changes everything of every team.
    Operator,
}

impl From<RoleName> for MemberRole {
    fn from(role: RoleName) -> Self {
        match role {
            RoleName::Viewer => Self::Viewer,
            RoleName::Developer => Self::Developer,
            RoleName::Owner => Self::Owner,
            RoleName::Operator => Self::Operator,
        }
    }
}

impl From<MemberRole> for RoleName {
    fn from(role: MemberRole) -> Self {
        match role {
            MemberRole::Viewer => Self::Viewer,
            MemberRole::Developer => Self::Developer,
            MemberRole::Owner => Self::Owner,
            MemberRole::Operator => Self::Operator,
        }
    }
}

/// A request to create a member.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateMember {
    /// The name at the sign-in; unique on the server.
    #[schema(min_length = 1, max_length = 63, pattern = "^[a-z0-9][a-z0-9._@+-]*$")]
    pub(crate) name: String,
    pub(crate) role: RoleName,
    /// The id or name of the team; absent for an operator, and for a member who is signed in it is
    /// their own.
    pub(crate) team: Option<String>,
    /// The address by which an OpenID provider names the member.
    #[schema(max_length = 254)]
    pub(crate) email: Option<String>,
    /// The password; without one the member signs in by an OpenID provider only.
    #[schema(value_type = Option<String>, min_length = 12, max_length = 256)]
    pub(crate) password: Option<Secret>,
}

/// Changes to a member.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpdateMember {
    pub(crate) role: Option<RoleName>,
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>, max_length = 254)]
    pub(crate) email: Option<Option<String>>,
    /// A new password. All sign-ins of the member end.
    #[schema(value_type = Option<String>, min_length = 12, max_length = 256)]
    pub(crate) password: Option<Secret>,
    /// Whether sign-ins are refused. Those that are open end.
    pub(crate) disabled: Option<bool>,
    /// Removes the second factor, for someone who lost it.
    pub(crate) remove_totp: Option<bool>,
}

impl From<UpdateMember> for MemberChange {
    fn from(body: UpdateMember) -> Self {
        Self {
            role: body.role.map(Into::into),
            email: body.email,
            password: body.password,
            disabled: body.disabled,
            remove_totp: body.remove_totp.unwrap_or(false),
        }
    }
}

/// A member.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MemberRecord {
    id: String,
    name: String,
    role: RoleName,
    /// The id of the team; null for an operator.
    team: Option<String>,
    email: Option<String>,
    has_password: bool,
    /// Whether a sign-in with the password needs a one-time code.
    totp: bool,
    disabled: bool,
    #[schema(format = DateTime)]
    created_at: String,
    #[schema(format = DateTime)]
    last_sign_in_at: Option<String>,
}

impl From<Member> for MemberRecord {
    fn from(member: Member) -> Self {
        Self {
            totp: member.needs_code(),
            id: member.id.into(),
            name: member.name,
            role: member.role.into(),
            team: member.team.map(Into::into),
            email: member.email,
            has_password: member.password_hash.is_some(),
            disabled: member.disabled,
            created_at: format_rfc3339(member.created_at),
            last_sign_in_at: member.last_sign_in_at.map(format_rfc3339),
        }
    }
}

/// A list of members.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MemberList {
    pub(crate) members: Vec<MemberRecord>,
}
