//! Runs in: server (no capabilities).
//!
//! What of the admin API someone may use: operators everything, members what belongs to their team.
//! Rows of another team are answered as if they did not exist.

use axum::{
    extract::FromRequestParts,
    http::{Extensions, request::Parts},
};
use cloche_engine::Refusal;
use cloche_model::{MemberRole, Team, TeamId};

use super::{body_owner_of, check_role, identify_admin, is_visible};
use crate::{audit, body::BodyOwner, error::ApiError, router::AppState};

/// A caller of the admin API for something that developers of a team may change.
pub(crate) struct DeveloperAuth(pub(crate) AdminScope);

/// A caller of the admin API for something that only owners of a team may change.
pub(crate) struct OwnerAuth(pub(crate) AdminScope);

/// The part of the admin API that a caller may use.
pub(crate) struct AdminScope {
    /// The team of a member; `None` for operators.
    team: Option<Team>,
    role: MemberRole,
    /// The name of someone who is signed in.
    name: Option<String>,
    extensions: Extensions,
}

impl FromRequestParts<AppState> for DeveloperAuth {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        find_scope(parts, state, MemberRole::Developer).await.map(Self)
    }
}

impl FromRequestParts<AppState> for OwnerAuth {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        find_scope(parts, state, MemberRole::Owner).await.map(Self)
    }
}

/// The scope of a caller. Changes need the role; reading is for everyone.
async fn find_scope(
    parts: &mut Parts,
    state: &AppState,
    to_change: MemberRole,
) -> Result<AdminScope, ApiError> {
    let who = identify_admin(parts, state).await?;
    let needed = if parts.method.is_safe() { MemberRole::Viewer } else { to_change };
    if let Some(who) = &who {
        check_role(who, needed)?;
    }
    parts.extensions.insert(BodyOwner(body_owner_of(who.as_deref())));
    Ok(AdminScope {
        role: who.as_ref().map_or(MemberRole::Operator, |who| who.role()),
        name: who.as_ref().map(|who| who.name().to_owned()),
        team: who.and_then(|who| who.team),
        extensions: parts.extensions.clone(),
    })
}

impl AdminScope {
    /// The role of the caller.
    pub(crate) fn role(&self) -> MemberRole {
        self.role
    }

    /// The team of a member.
    pub(crate) fn own_team(&self) -> Option<&Team> {
        self.team.as_ref()
    }

    /// The name of someone who is signed in.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The team of a list: what was asked for, and for a member always their own.
    pub(crate) fn listed_team(&self, asked: Option<String>) -> Result<Option<String>, ApiError> {
        let Some(own) = &self.team else { return Ok(asked) };
        if let Some(asked) = &asked {
            self.check_team_name(asked)?;
        }
        Ok(Some(own.id.to_string()))
    }

    /// Refuses a team, by id or name, that is not the member's own.
    pub(crate) fn check_team_name(&self, named: &str) -> Result<(), ApiError> {
        match &self.team {
            Some(own) if own.id.as_str() != named && own.name != named => {
                Err(Refusal::not_found("team").into())
            }
            _ => Ok(()),
        }
    }

    /// Refuses a row of another team as if there was none. The team is noted for the audit log.
    pub(crate) fn check_row(&self, team: &TeamId, what: &'static str) -> Result<(), ApiError> {
        if !is_visible(self.team.as_ref(), Some(team)) {
            return Err(Refusal::not_found(what).into());
        }
        self.note_team(team);
        Ok(())
    }

    /// The same for a row that need not have a team; those without are for operators.
    pub(crate) fn check_row_or_none(
        &self,
        team: Option<&TeamId>,
        what: &'static str,
    ) -> Result<(), ApiError> {
        match team {
            Some(team) => self.check_row(team, what),
            None if self.team.is_none() => Ok(()),
            None => Err(Refusal::not_found(what).into()),
        }
    }

    /// Notes the team that a change is about.
    pub(crate) fn note_team(&self, team: &TeamId) {
        audit::note_team(&self.extensions, Some(team));
    }
}
