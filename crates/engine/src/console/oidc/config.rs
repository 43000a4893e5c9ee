//! Runs in: server (no capabilities).
//!
//! The settings of sign-on by an OpenID provider, and the rules that give a team and a role.

use std::time::Duration;

use cloche_model::{MemberRole, Secret};

/// Settings of the provider.
#[derive(Clone, Debug)]
pub struct OidcConfig {
    /// What the button of the sign-in page says after "Sign in with".
    pub name: String,
    /// The issuer, exactly as the provider writes it.
    pub issuer: String,
    /// The id that the provider gave to this server.
    pub client_id: String,
    /// The secret of that id; a public client has none.
    pub client_secret: Option<Secret>,
    /// Where the provider sends browsers back to.
    pub redirect_uri: String,
    /// What is asked for.
    pub scopes: Vec<String>,
    /// The claim with the email.
    pub email_claim: String,
    /// The claim with the groups.
    pub groups_claim: String,
    /// Whether an email counts that the provider does not call verified.
    pub trust_email: bool,
    /// Who is let in; the first rule that matches counts.
    pub rules: Vec<OidcRule>,
    /// PEM certificates to trust besides those of the host.
    pub extra_ca: Option<Vec<u8>>,
    /// How long the provider may take to answer.
    pub timeout: Duration,
}

/// People who get a team and a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcRule {
    /// Who.
    pub matches: OidcRuleMatch,
    /// The name or id of the team; `None` for operators.
    pub team: Option<String>,
    /// The role.
    pub role: MemberRole,
}

/// Whom a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OidcRuleMatch {
    /// Whoever has this email, in lower case.
    Email(String),
    /// Everyone whose email is in this domain, in lower case.
    Domain(String),
    /// Everyone in this group of the provider.
    Group(String),
}

impl OidcConfig {
    /// Whether groups matter.
    pub(super) fn has_group_rules(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule.matches, OidcRuleMatch::Group(_)))
    }

    /// The rule for someone.
    pub(super) fn find_rule(&self, email: &str, groups: &[String]) -> Option<&OidcRule> {
        // The last at sign ends the user: a quoted one may have others.
        let domain = email.rsplit_once('@').map(|(_, domain)| domain);
        self.rules.iter().find(|rule| match &rule.matches {
            OidcRuleMatch::Email(wanted) => wanted == email,
            OidcRuleMatch::Domain(wanted) => domain == Some(wanted.as_str()),
            OidcRuleMatch::Group(wanted) => groups.contains(wanted),
        })
    }
}

#[cfg(test)]
impl OidcConfig {
    /// Settings for tests.
    pub(super) fn sample(rules: Vec<OidcRule>) -> Self {
        Self {
            name: "Example".to_owned(),
            issuer: "https://login.example".to_owned(),
            client_id: "cloche".to_owned(),
            client_secret: None,
            redirect_uri: "https://cloche.example/console/api/oidc/callback".to_owned(),
            scopes: vec!["openid".to_owned(), "email".to_owned()],
            email_claim: "email".to_owned(),
            groups_claim: "groups".to_owned(),
            trust_email: false,
            rules,
            extra_ca: None,
            timeout: Duration::from_secs(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_matches_counts_and_without_one_there_is_none() {
        let rule = |matches, role| OidcRule { matches, team: Some("default".to_owned()), role };
        let config = OidcConfig::sample(vec![
            rule(OidcRuleMatch::Email("ada@example.com".to_owned()), MemberRole::Owner),
            rule(OidcRuleMatch::Group("builders".to_owned()), MemberRole::Developer),
            rule(OidcRuleMatch::Domain("example.com".to_owned()), MemberRole::Viewer),
        ]);
        let role = |email: &str, groups: &[&str]| {
            let groups: Vec<String> = groups.iter().map(ToString::to_string).collect();
            config.find_rule(email, &groups).map(|rule| rule.role)
        };
        assert_eq!(role("ada@example.com", &["builders"]), Some(MemberRole::Owner));
        assert_eq!(role("bob@example.com", &["other", "builders"]), Some(MemberRole::Developer));
        assert_eq!(role("bob@example.com", &[]), Some(MemberRole::Viewer));
        assert_eq!(role("eve@example.com.evil.test", &[]), None);
        assert_eq!(role("eve@notexample.com", &[]), None);
        assert_eq!(role("\"a@example.com\"@evil.test", &[]), None);
    }
}
