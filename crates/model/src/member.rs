//! People who sign in to the console, their sign-ins, and the log of what was changed.

use std::{fmt, str::FromStr};

use crate::{ConsoleSessionId, Invalid, MemberId, Moment, Secret, TeamId};

/// What a member may do. Each role may do what the ones below it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemberRole {
    /// Reads what belongs to the team.
    Viewer,
    /// Runs code, and changes threads, sandboxes and keys.
    Developer,
    /// Changes members, credentials, storage and approvals of the team.
    Owner,
    /// Changes everything of every team.
    Operator,
}

impl MemberRole {
    /// Every role.
    pub const ALL: [Self; 4] = [Self::Viewer, Self::Developer, Self::Owner, Self::Operator];

    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Developer => "developer",
            Self::Owner => "owner",
            Self::Operator => "operator",
        }
    }
}

impl fmt::Display for MemberRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for MemberRole {
    type Err = Invalid;

    fn from_str(name: &str) -> Result<Self, Invalid> {
        Self::ALL
            .into_iter()
            .find(|role| role.name() == name)
            .ok_or_else(|| Invalid::new("role must be one of: operator, owner, developer, viewer"))
    }
}

/// A person who can sign in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub id: MemberId,
    /// The team; `None` for an operator.
    pub team: Option<TeamId>,
    /// The name at the sign-in; unique on the server.
    pub name: String,
    /// The address by which an OpenID provider names the member; unique on the server.
    pub email: Option<String>,
    /// The role.
    pub role: MemberRole,
    /// The hash of the password in the PHC format; `None` if there is no password.
    pub password_hash: Option<String>,
    /// The second factor.
    pub totp: Option<TotpFactor>,
    /// Whether sign-ins are refused.
    pub disabled: bool,
    /// The issuer and the subject of an OpenID provider that the member is linked to.
    pub subject: Option<String>,
    /// Whether a rule of the settings made the member, so that the rules decide about team and role.
    pub by_rule: bool,
    /// When it was created.
    pub created_at: Moment,
    /// The last sign-in.
    pub last_sign_in_at: Option<Moment>,
}

impl Member {
    /// Whether a sign-in with a password needs a one-time code.
    #[must_use]
    pub fn needs_code(&self) -> bool {
        self.totp.as_ref().is_some_and(|totp| totp.confirmed)
    }
}

/// One-time codes as a second factor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TotpFactor {
    /// The secret, in base 32.
    pub secret: Secret,
    /// Whether the member has shown that they have the secret.
    pub confirmed: bool,
    /// The last time step whose code was used.
    pub last_step: i64,
}

/// A sign-in to the console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsoleSession {
    /// Its id; not the token of the cookie.
    pub id: ConsoleSessionId,
    /// The member; `None` for a sign-in with the admin token.
    pub member: Option<MemberId>,
    /// The digest of the admin token of the sign-in.
    pub admin_digest: Option<String>,
    /// The address that it came from.
    pub address: Option<String>,
    /// The browser, in its own words.
    pub user_agent: String,
    /// When it began.
    pub created_at: Moment,
    /// The last request, to the minute.
    pub last_seen_at: Moment,
    /// When it ends.
    pub expires_at: Moment,
}

/// What kind of caller made a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActorKind {
    /// The holder of the admin token.
    Operator,
    /// A member.
    Member,
    /// The holder of an API key.
    Key,
    /// Someone who is not signed in.
    Anonymous,
}

impl ActorKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Operator, Self::Member, Self::Key, Self::Anonymous];

    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Member => "member",
            Self::Key => "key",
            Self::Anonymous => "anonymous",
        }
    }
}

impl FromStr for ActorKind {
    type Err = Invalid;

    fn from_str(name: &str) -> Result<Self, Invalid> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| Invalid::new("actor kind must be operator, member, key or anonymous"))
    }
}

/// Who made a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditActor {
    /// The kind.
    pub kind: ActorKind,
    /// The id of the member or key.
    pub id: Option<String>,
    /// The name.
    pub name: String,
}

/// One line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// Its place in the log; 0 before it is written.
    pub seq: i64,
    /// When it happened.
    pub at: Moment,
    /// Who did it.
    pub actor: AuditActor,
    /// The team that it concerns, if it is one.
    pub team: Option<TeamId>,
    /// The address that the request came from.
    pub address: Option<String>,
    /// The method and the route.
    pub action: String,
    /// What was changed.
    pub target: Option<String>,
    /// The names of the fields of the request, never their values.
    pub fields: Vec<String>,
    /// The status of the answer.
    pub status: u16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_may_do_what_the_ones_below_it_may() {
        assert!(MemberRole::Operator > MemberRole::Owner);
        assert!(MemberRole::Owner > MemberRole::Developer);
        assert!(MemberRole::Developer > MemberRole::Viewer);
        for role in MemberRole::ALL {
            assert_eq!(role.name().parse(), Ok(role));
        }
        assert!("admin".parse::<MemberRole>().is_err());
    }
}
