//! Runs in: server (no capabilities).
//!
//! Members: create, read, change, remove.

use cloche_model::{Invalid, Member, MemberId, MemberRole, Secret, Team};

use super::{Console, passwords::check_password};
use crate::{Refusal, clock, secrets};

pub(super) const MAX_NAME_CHARS: usize = 63;
const MAX_EMAIL_CHARS: usize = 254;

/// A member to be made.
#[derive(Clone, Debug)]
pub struct MemberDraft {
    /// The name at the sign-in.
    pub name: String,
    /// The role.
    pub role: MemberRole,
    /// The team; `None` for an operator.
    pub team: Option<Team>,
    /// The email that an OpenID provider knows the member by.
    pub email: Option<String>,
    /// The password, if the member has one.
    pub password: Option<Secret>,
}

/// What to change of a member; `None` leaves it, `Some(None)` clears it.
#[derive(Clone, Debug, Default)]
pub struct MemberChange {
    /// The role.
    pub role: Option<MemberRole>,
    /// The email.
    pub email: Option<Option<String>>,
    /// The password.
    pub password: Option<Secret>,
    /// Whether sign-ins are refused.
    pub disabled: Option<bool>,
    /// Whether the second factor is removed.
    pub remove_totp: bool,
}

fn check_member_name(name: &str) -> Result<(), Invalid> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._@+-".contains(c);
    let chars = name.chars().count();
    let starts = name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    if chars > MAX_NAME_CHARS || !starts || !name.chars().all(plain) {
        return Err(Invalid::new(format!(
            "name must be 1 to {MAX_NAME_CHARS} lower-case letters, digits, dots, hyphens, \
             underscores, plus or at signs, and begin with a letter or digit"
        )));
    }
    Ok(())
}

/// Emails are compared in lower case.
pub(super) fn normalize_email(email: &str) -> Result<String, Invalid> {
    let has_parts = email
        .split_once('@')
        .is_some_and(|(user, host)| !user.is_empty() && !host.is_empty() && !host.contains('@'));
    let plain = email.chars().all(|c| !c.is_control() && !c.is_whitespace());
    if !has_parts || !plain || email.chars().count() > MAX_EMAIL_CHARS {
        return Err(Invalid::new("email must be an address such as ada@example.com"));
    }
    Ok(email.to_lowercase())
}

/// An operator belongs to no team, everyone else to one.
fn check_role(role: MemberRole, has_team: bool) -> Result<(), Invalid> {
    match (role, has_team) {
        (MemberRole::Operator, true) => {
            Err(Invalid::new("role operator is for members without a team"))
        }
        (MemberRole::Operator, false) | (_, true) => Ok(()),
        (_, false) => Err(Invalid::new("team is required for every role but operator")),
    }
}

impl Console {
    /// Makes a member.
    ///
    /// # Errors
    /// When a field breaks a rule, or the name or email is taken.
    pub async fn create_member(&self, draft: MemberDraft) -> Result<Member, Refusal> {
        check_member_name(&draft.name)?;
        check_role(draft.role, draft.team.is_some())?;
        let email = draft.email.as_deref().map(normalize_email).transpose()?;
        let password_hash = match draft.password {
            Some(password) => {
                check_password("password", &password)?;
                Some(self.passwords.hash(password).await?)
            }
            None => None,
        };
        let member = Member {
            id: MemberId::from_random(secrets::random_bytes()?),
            team: draft.team.map(|team| team.id),
            name: draft.name,
            email,
            role: draft.role,
            password_hash,
            totp: None,
            disabled: false,
            subject: None,
            by_rule: false,
            created_at: clock::now(),
            last_sign_in_at: None,
        };
        self.store.create_member(&member).await?;
        Ok(member)
    }

    /// The members of a team; of all teams, with the operators, if there is none.
    ///
    /// # Errors
    /// When they cannot be read.
    pub async fn list_members(&self, team: Option<&Team>) -> Result<Vec<Member>, Refusal> {
        Ok(self.store.list_members(team.map(|team| &team.id)).await?)
    }

    /// The member with this id or name.
    ///
    /// # Errors
    /// When there is none.
    pub async fn find_member(&self, id_or_name: &str) -> Result<Member, Refusal> {
        let found = match id_or_name.parse::<MemberId>() {
            Ok(id) => self.store.find_member(&id).await?,
            Err(_) => self.store.find_member_by_name(id_or_name).await?,
        };
        found.ok_or_else(|| Refusal::not_found("member"))
    }

    /// Changes a member. A change of the password, of the role, or of whether it is disabled ends
    /// all sign-ins of the member.
    ///
    /// # Errors
    /// When there is none, or a field breaks a rule.
    pub async fn update_member(
        &self,
        id: &MemberId,
        change: MemberChange,
    ) -> Result<Member, Refusal> {
        let _turn = self.updating.lock().await;
        let missing = || Refusal::not_found("member");
        let mut member = self.store.find_member(id).await?.ok_or_else(missing)?;
        let ends_sessions = change.password.is_some()
            || change.disabled == Some(true)
            || change.role.is_some_and(|role| role != member.role);
        if let Some(role) = change.role {
            check_role(role, member.team.is_some())?;
            member.role = role;
        }
        if let Some(email) = change.email {
            let email = email.as_deref().map(normalize_email).transpose()?;
            // Another address may be of another person.
            if email != member.email {
                member.subject = None;
            }
            member.email = email;
        }
        if let Some(password) = change.password {
            check_password("password", &password)?;
            member.password_hash = Some(self.passwords.hash(password).await?);
        }
        member.disabled = change.disabled.unwrap_or(member.disabled);
        if change.remove_totp {
            member.totp = None;
        }
        if !self.store.update_member(&member).await? {
            return Err(missing());
        }
        if ends_sessions {
            self.store.delete_member_sessions(id, None).await?;
        }
        Ok(member)
    }

    /// Removes a member; all sign-ins end.
    ///
    /// # Errors
    /// When there is none.
    pub async fn remove_member(&self, id: &MemberId) -> Result<(), Refusal> {
        match self.store.delete_member(id).await? {
            true => Ok(()),
            false => Err(Refusal::not_found("member")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_emails_and_roles_follow_their_rules() {
        for name in ["ada", "ada.lovelace", "ada@example.com", "7of9", "a_b+c-d"] {
            assert!(check_member_name(name).is_ok(), "{name}");
        }
        for name in ["", "Ada", "-ada", "ada lovelace", "ädä", "admin token", &"a".repeat(64)] {
            assert!(check_member_name(name).is_err(), "{name}");
        }
        assert_eq!(normalize_email("Ada@Example.com").unwrap(), "ada@example.com");
        for email in ["ada", "@example.com", "ada@", "a@b@c", "a b@c"] {
            assert!(normalize_email(email).is_err(), "{email}");
        }
        assert!(check_role(MemberRole::Operator, true).is_err());
        assert!(check_role(MemberRole::Viewer, false).is_err());
    }
}
