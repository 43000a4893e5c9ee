//! Runs in: server (no capabilities).
//!
//! From what a provider says to a member: one who was made by hand and has the email, or one whom
//! a rule of the settings makes.

use cloche_model::{Member, MemberId, Team};
use cloche_store::StoreError;
use serde_json::Value;

use super::{OidcConfig, OidcError, OidcFailure, config::OidcRule, id_token::Claims};
use crate::{
    Refusal, clock,
    console::{
        Console,
        members::{MAX_NAME_CHARS, normalize_email},
    },
    secrets,
};

/// The most groups that are compared.
const MOST_GROUPS: usize = 10_000;
/// How many names are tried for a new member.
const MOST_NAMES: u32 = 9;

/// A member whom the provider names.
#[derive(Debug)]
pub struct MemberLink {
    /// The member.
    pub member: Member,
    /// The names of the fields that changed; empty if nothing did.
    pub changed: Vec<&'static str>,
}

/// Whom the provider names.
struct Person<'a> {
    subject: String,
    email: String,
    rule: Option<&'a OidcRule>,
}

impl<'a> Person<'a> {
    fn new(config: &'a OidcConfig, claims: &Claims) -> Result<Self, OidcError> {
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        let is_verified = match claims.get("email_verified") {
            Some(Value::Bool(is_verified)) => *is_verified,
            Some(Value::String(word)) => word == "true",
            _ => false,
        };
        let email = text(&config.email_claim).and_then(|email| normalize_email(email).ok());
        let email = email.filter(|_| is_verified || config.trust_email);
        let email = email.ok_or(OidcFailure::NoEmail)?;
        let subject = format!("{} {}", config.issuer, text("sub").unwrap_or_default());
        let rule = config.find_rule(&email, &named_groups(claims.get(&config.groups_claim)));
        Ok(Self { subject, email, rule })
    }
}

/// Groups are a list of names, or one name.
fn named_groups(claim: Option<&Value>) -> Vec<String> {
    match claim {
        Some(Value::Array(groups)) => {
            let names = groups.iter().filter_map(Value::as_str).take(MOST_GROUPS);
            names.map(str::to_owned).collect()
        }
        Some(Value::String(group)) => vec![group.clone()],
        _ => Vec::new(),
    }
}

impl Console {
    /// The member whom the claims name.
    pub(super) async fn link_member(
        &self,
        config: &OidcConfig,
        claims: &Claims,
    ) -> Result<MemberLink, OidcError> {
        let person = Person::new(config, claims)?;
        let _turn = self.updating.lock().await;
        let linked = self.link_person(&person).await;
        linked.map_err(|error| OidcError { email: Some(person.email), ..error })
    }

    async fn link_person(&self, person: &Person<'_>) -> Result<MemberLink, OidcError> {
        let store = &self.store;
        let by_subject = store.find_member_by_subject(&person.subject).await;
        let found = match by_subject.map_err(Refusal::from)? {
            Some(member) => Some(member),
            None => store.find_member_by_email(&person.email).await.map_err(Refusal::from)?,
        };
        match found {
            Some(member) if member.disabled => Err(OidcFailure::Disabled.into()),
            // The address was given to someone else, who must not inherit the member.
            Some(member) if member.subject.as_ref().is_some_and(|it| *it != person.subject) => {
                Err(OidcFailure::Taken.into())
            }
            Some(member) => self.refresh_member(member, person).await,
            None => self.make_member(person).await,
        }
    }

    /// A member that exists. What a rule gave, the rules decide again.
    async fn refresh_member(
        &self,
        member: Member,
        person: &Person<'_>,
    ) -> Result<MemberLink, OidcError> {
        let mut next = Member { subject: Some(person.subject.clone()), ..member.clone() };
        if member.by_rule {
            let rule = person.rule.ok_or(OidcFailure::Unknown)?;
            next.team = self.find_rule_team(rule).await?.map(|team| team.id);
            next.role = rule.role;
            next.email = Some(person.email.clone());
        }
        let changed = [
            ("subject", next.subject != member.subject),
            ("team", next.team != member.team),
            ("role", next.role != member.role),
            ("email", next.email != member.email),
        ];
        let changed = changed.into_iter().filter(|(_, is_changed)| *is_changed);
        let changed: Vec<&str> = changed.map(|(name, _)| name).collect();
        if changed.is_empty() {
            return Ok(MemberLink { member, changed });
        }
        self.store.update_member(&next).await.map_err(taken_or_internal)?;
        if changed.contains(&"team") || changed.contains(&"role") {
            let ended = self.store.delete_member_sessions(&next.id, None).await;
            ended.map_err(Refusal::from)?;
        }
        Ok(MemberLink { member: next, changed })
    }

    async fn make_member(&self, person: &Person<'_>) -> Result<MemberLink, OidcError> {
        let rule = person.rule.ok_or(OidcFailure::Unknown)?;
        let team = self.find_rule_team(rule).await?;
        let mut member = Member {
            id: MemberId::from_random(secrets::random_bytes()?),
            team: team.map(|team| team.id),
            name: String::new(),
            email: Some(person.email.clone()),
            role: rule.role,
            password_hash: None,
            totp: None,
            disabled: false,
            subject: Some(person.subject.clone()),
            by_rule: true,
            created_at: clock::now(),
            last_sign_in_at: None,
        };
        for place in 1..=MOST_NAMES {
            member.name = name_from_email(&person.email, place);
            let taken = self.store.find_member_by_name(&member.name).await;
            if taken.map_err(Refusal::from)?.is_some() {
                continue;
            }
            self.store.create_member(&member).await.map_err(taken_or_internal)?;
            return Ok(MemberLink { member, changed: vec!["email", "name", "role", "team"] });
        }
        Err(OidcFailure::Taken.into())
    }

    async fn find_rule_team(&self, rule: &OidcRule) -> Result<Option<Team>, OidcError> {
        let Some(name) = &rule.team else { return Ok(None) };
        let team = self.store.find_team(name).await.map_err(Refusal::from)?;
        if team.is_none() {
            tracing::error!(team = name, "a rule of console.oidc names a team that does not exist");
        }
        team.map(Some).ok_or_else(|| OidcFailure::NoTeam.into())
    }
}

fn taken_or_internal(error: StoreError) -> OidcError {
    match error {
        StoreError::Conflict(_) => OidcFailure::Taken.into(),
        error => Refusal::from(error).into(),
    }
}

/// A name for a new member: the email, with other characters than names have replaced.
fn name_from_email(email: &str, place: u32) -> String {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._@+-".contains(c);
    let name: String = email.chars().map(|c| if plain(c) { c } else { '-' }).collect();
    let name = name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    let ending = if place == 1 { String::new() } else { format!("-{place}") };
    let name: String = name.chars().take(MAX_NAME_CHARS - ending.len()).collect();
    if name.is_empty() { format!("member{ending}") } else { name + &ending }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_made_of_the_email() {
        assert_eq!(name_from_email("ada@example.com", 1), "ada@example.com");
        assert_eq!(name_from_email("ada@example.com", 2), "ada@example.com-2");
        assert_eq!(name_from_email("_o'neil@example.com", 1), "o-neil@example.com");
        let long = name_from_email(&format!("{}@example.com", "a".repeat(100)), 3);
        assert!(long.len() == 63 && long.ends_with("-3"), "{long}");
    }
}
