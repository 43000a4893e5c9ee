//! Runs in: server (no capabilities).
//!
//! The console: `[console]` of the file. The secret of the OpenID client is named by an environment
//! variable or a file, so the file has none.

use std::{collections::BTreeMap, fs, path::PathBuf, time::Duration};

use cloche_engine::{ConsoleConfig, OidcConfig, OidcRule, OidcRuleMatch};
use cloche_model::{MemberRole, Secret};
use schemars::JsonSchema;
use serde::Deserialize;
use url::Url;

/// A setting of the console that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("console.{name} in the configuration: {why}")]
pub(crate) struct ConsoleSettingsError {
    name: String,
    why: String,
}

fn wrong(name: impl Into<String>, why: impl Into<String>) -> ConsoleSettingsError {
    ConsoleSettingsError { name: name.into(), why: why.into() }
}

/// The longest sign-in, in hours: a month.
const MAX_SESSION_HOURS: f64 = 744.0;
/// The longest that the audit log is kept, in days.
const MAX_AUDIT_DAYS: u32 = 36_500;
/// The longest that the provider may take, in seconds.
const MAX_TIMEOUT: f64 = 60.0;
/// The path that a provider sends browsers back to.
const CALLBACK: &str = "/console/api/oidc/callback";

/// The section as written.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ConsoleSection {
    /// The address of this server in browsers, e.g. `https://cloche.example.com`. Sign-on by an
    /// OpenID provider needs it.
    #[schemars(extend("x-default" = "none"))]
    public_url: Option<String>,
    /// Hours that a sign-in lasts, 744 at most.
    #[schemars(extend("default" = 12.0))]
    session_hours: Option<f64>,
    /// Days that entries of the audit log are kept.
    #[schemars(extend("default" = 365))]
    audit_days: Option<u32>,
    /// Sign-on by an OpenID provider.
    oidc: Option<OidcFile>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OidcFile {
    /// The issuer, exactly as the provider writes it.
    #[schemars(extend("x-default" = "required"))]
    issuer: String,
    /// The id that the provider gave to this server.
    #[schemars(extend("x-default" = "required"))]
    client_id: String,
    /// The environment variable with the secret of that id.
    #[schemars(extend("x-default" = "none"))]
    client_secret_env: Option<String>,
    /// The file with the secret of that id.
    #[schemars(extend("x-default" = "none"))]
    client_secret_file: Option<PathBuf>,
    /// What is asked for; `openid` is required.
    #[schemars(extend("default" = ["openid", "email", "profile"]))]
    scopes: Option<Vec<String>>,
    /// The claim with the email. Another one than `email` needs `trust_email`.
    #[schemars(extend("default" = "email"))]
    email_claim: Option<String>,
    /// The claim with the groups of rules.
    #[schemars(extend("default" = "groups"))]
    groups_claim: Option<String>,
    /// Whether an email counts that the provider does not call verified. Only for a provider where
    /// nobody can choose an address.
    #[schemars(extend("default" = false))]
    #[serde(default)]
    trust_email: bool,
    /// What the button says after "Sign in with".
    #[schemars(extend("default" = "single sign-on"))]
    name: Option<String>,
    /// A PEM file with authorities to trust besides those of the host.
    #[schemars(extend("x-default" = "none"))]
    extra_ca: Option<PathBuf>,
    /// Seconds that the provider may take to answer.
    #[schemars(extend("default" = 10.0))]
    timeout_seconds: Option<f64>,
    /// Who is let in without having been made a member by hand: the first rule that matches, in the
    /// alphabetical order of their names.
    #[serde(default)]
    rules: BTreeMap<String, RuleFile>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    /// The email of one person. A rule has one of `email`, `domain` and `group`.
    #[schemars(extend("x-default" = "none"))]
    email: Option<String>,
    /// The domain of emails, e.g. `example.com`.
    #[schemars(extend("x-default" = "none"))]
    domain: Option<String>,
    /// A group of the provider.
    #[schemars(extend("x-default" = "none"))]
    group: Option<String>,
    /// The team; operators have none, everyone else needs one.
    #[schemars(extend("x-default" = "none"))]
    team: Option<String>,
    /// The role: `viewer`, `developer`, `owner` or `operator`.
    #[schemars(extend("x-default" = "required"))]
    role: String,
}

impl ConsoleSection {
    /// Checks the section. `env` looks up an environment variable.
    pub(super) fn to_config(
        &self,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<ConsoleConfig, ConsoleSettingsError> {
        let usual = ConsoleConfig::default();
        let public_url = self.public_url.as_deref().map(check_public_url).transpose()?;
        let session = self.session_hours.map(check_session).transpose()?;
        let keep_audit = self.audit_days.map(check_audit_days).transpose()?;
        let oidc = match (&self.oidc, public_url) {
            (Some(_), None) => {
                return Err(wrong("public_url", "console.oidc needs it, for the way back"));
            }
            (Some(oidc), Some(public_url)) => Some(oidc.to_config(&public_url, env)?),
            (None, _) => None,
        };
        Ok(ConsoleConfig {
            session: session.unwrap_or(usual.session),
            keep_audit: keep_audit.unwrap_or(usual.keep_audit),
            oidc,
        })
    }
}

fn check_session(hours: f64) -> Result<Duration, ConsoleSettingsError> {
    if !(0.1..=MAX_SESSION_HOURS).contains(&hours) {
        return Err(wrong("session_hours", format!("{hours} is not from 0.1 to 744")));
    }
    Ok(Duration::from_secs_f64(hours * 3600.0))
}

fn check_audit_days(days: u32) -> Result<Duration, ConsoleSettingsError> {
    if !(1..=MAX_AUDIT_DAYS).contains(&days) {
        return Err(wrong("audit_days", format!("{days} is not from 1 to {MAX_AUDIT_DAYS}")));
    }
    Ok(Duration::from_hours(u64::from(days) * 24))
}

/// An address that codes and cookies may go to: TLS, or this host.
fn check_address(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("{text:?} is not a URL: {error}"))?;
    let host = url.host_str().unwrap_or_default();
    let is_here = matches!(host, "127.0.0.1" | "[::1]" | "localhost");
    if url.scheme() != "https" && !(url.scheme() == "http" && is_here) {
        return Err(format!("{text:?} must be an https URL; http is for this host only"));
    }
    let has_more = url.query().is_some() || url.fragment().is_some();
    if has_more || !url.username().is_empty() || url.password().is_some() {
        return Err("it must have neither a query, nor a fragment, nor a password".to_owned());
    }
    Ok(url)
}

fn check_public_url(text: &str) -> Result<String, ConsoleSettingsError> {
    let url = check_address(text).map_err(|why| wrong("public_url", why))?;
    if url.path() != "/" {
        return Err(wrong("public_url", "it must not have a path: the console is at /console"));
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

impl OidcFile {
    fn to_config(
        &self,
        public_url: &str,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<OidcConfig, ConsoleSettingsError> {
        let named = |name: &str| format!("oidc.{name}");
        check_address(&self.issuer).map_err(|why| wrong(named("issuer"), why))?;
        if self.client_id.trim().is_empty() {
            return Err(wrong(named("client_id"), "it is empty"));
        }
        let usual_scopes = || ["openid", "email", "profile"].map(str::to_owned).to_vec();
        let scopes = self.scopes.clone().unwrap_or_else(usual_scopes);
        let is_scope = |scope: &String| {
            !scope.is_empty() && scope.chars().all(|c| c.is_ascii_graphic() && c != '"')
        };
        if !scopes.iter().any(|scope| scope == "openid") || !scopes.iter().all(is_scope) {
            return Err(wrong(named("scopes"), "they must be words, with openid among them"));
        }
        let email_claim = self.email_claim.clone().unwrap_or_else(|| "email".to_owned());
        if email_claim != "email" && !self.trust_email {
            let why = "email_verified is about the claim email; another one needs trust_email";
            return Err(wrong(named("email_claim"), why));
        }
        let seconds = self.timeout_seconds.unwrap_or(10.0);
        if !(0.1..=MAX_TIMEOUT).contains(&seconds) {
            return Err(wrong(
                named("timeout_seconds"),
                format!("{seconds} is not from 0.1 to 60"),
            ));
        }
        let rules = self.rules.iter().map(|(name, rule)| {
            rule.to_rule().map_err(|why| wrong(named(&format!("rules.{name}")), why))
        });
        Ok(OidcConfig {
            name: self.name.clone().unwrap_or_else(|| "single sign-on".to_owned()),
            issuer: self.issuer.clone(),
            client_id: self.client_id.clone(),
            client_secret: self.read_secret(env)?,
            redirect_uri: format!("{public_url}{CALLBACK}"),
            scopes,
            email_claim,
            groups_claim: self.groups_claim.clone().unwrap_or_else(|| "groups".to_owned()),
            trust_email: self.trust_email,
            rules: rules.collect::<Result<_, _>>()?,
            extra_ca: self.read_authorities()?,
            timeout: Duration::from_secs_f64(seconds),
        })
    }

    fn read_secret(
        &self,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Secret>, ConsoleSettingsError> {
        let failed = |why: String| wrong("oidc.client_secret_env or client_secret_file", why);
        let secret = match (&self.client_secret_env, &self.client_secret_file) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => return Err(failed("set one of them, not both".to_owned())),
            (Some(name), None) => env(name)
                .ok_or_else(|| failed(format!("the environment has no variable {name}")))?,
            (None, Some(path)) => fs::read_to_string(path)
                .map_err(|error| failed(format!("cannot read {}: {error}", path.display())))?,
        };
        match secret.trim() {
            "" => Err(failed("the secret is empty".to_owned())),
            secret => Ok(Some(Secret::new(secret))),
        }
    }

    fn read_authorities(&self) -> Result<Option<Vec<u8>>, ConsoleSettingsError> {
        let Some(path) = &self.extra_ca else { return Ok(None) };
        let read = fs::read(path);
        let why =
            |error| wrong("oidc.extra_ca", format!("cannot read {}: {error}", path.display()));
        read.map(Some).map_err(why)
    }
}

impl RuleFile {
    fn to_rule(&self) -> Result<OidcRule, String> {
        let matches = match (&self.email, &self.domain, &self.group) {
            (Some(email), None, None) if email.contains('@') => {
                OidcRuleMatch::Email(email.to_lowercase())
            }
            (Some(_), None, None) => return Err("email must be an address".to_owned()),
            (None, Some(domain), None) if !domain.is_empty() && !domain.contains('@') => {
                OidcRuleMatch::Domain(domain.to_lowercase())
            }
            (None, Some(_), None) => {
                return Err("domain must be a name such as example.com".to_owned());
            }
            (None, None, Some(group)) if !group.is_empty() => OidcRuleMatch::Group(group.clone()),
            _ => return Err("it must have exactly one of email, domain and group".to_owned()),
        };
        let role = self.role.parse::<MemberRole>().map_err(|error| error.to_string())?;
        match (role, &self.team) {
            (MemberRole::Operator, Some(_)) => Err("operators have no team".to_owned()),
            (MemberRole::Operator, None) => Ok(OidcRule { matches, team: None, role }),
            (_, None) => Err("team is required for every role but operator".to_owned()),
            (_, Some(team)) => Ok(OidcRule { matches, team: Some(team.clone()), role }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "public_url = \"https://cloche.example.com/\"\n[oidc]\n\
        issuer = \"https://login.example.com/\"\nclient_id = \"cloche\"\n";

    fn read(text: &str) -> Result<ConsoleConfig, String> {
        let file: ConsoleSection = toml::from_str(text).map_err(|error| error.to_string())?;
        let env = |name: &str| (name == "SECRET").then(|| "hidden\n".to_owned());
        file.to_config(env).map_err(|error| error.to_string())
    }

    #[test]
    fn a_provider_is_read_with_its_rules_in_order() {
        let text = format!(
            "session_hours = 1\naudit_days = 30\n{BASE}client_secret_env = \"SECRET\"\n\
             [oidc.rules.b]\ndomain = \"Example.com\"\nteam = \"default\"\nrole = \"viewer\"\n\
             [oidc.rules.a]\ngroup = \"Admins\"\nrole = \"operator\"\n"
        );
        let config = read(&text).unwrap();
        assert_eq!(config.session, Duration::from_hours(1));
        assert_eq!(config.keep_audit, Duration::from_hours(720));
        let oidc = config.oidc.unwrap();
        assert_eq!(oidc.redirect_uri, "https://cloche.example.com/console/api/oidc/callback");
        assert_eq!(oidc.client_secret.as_ref().unwrap().reveal(), "hidden");
        assert!(!format!("{oidc:?}").contains("hidden"));
        let matches: Vec<_> = oidc.rules.iter().map(|rule| &rule.matches).collect();
        let (admins, example) = ("Admins".to_owned(), "example.com".to_owned());
        assert_eq!(matches, [&OidcRuleMatch::Group(admins), &OidcRuleMatch::Domain(example)]);
    }

    #[test]
    fn what_would_be_unsafe_or_meaningless_is_refused() {
        let rule = |rule: &str| format!("{BASE}[oidc.rules.a]\n{rule}\n");
        for (text, said) in [
            (BASE.replace("public_url", "#"), "public_url"),
            (BASE.replace("https://cloche", "http://cloche"), "https URL"),
            (BASE.replace("com/\"", "com/path\""), "path"),
            (BASE.replace("https://login", "http://login"), "oidc.issuer"),
            (BASE.replace("https://login", "https://a:b@login"), "password"),
            (format!("{BASE}scopes = [\"email\"]"), "openid"),
            (format!("{BASE}email_claim = \"upn\""), "trust_email"),
            (format!("{BASE}client_secret_env = \"OTHER\""), "no variable OTHER"),
            (format!("{BASE}client_secret_file = \"/nowhere\""), "cannot read /nowhere"),
            (format!("{BASE}timeout_seconds = 0"), "timeout_seconds"),
            (rule("role = \"viewer\"\nteam = \"a\""), "exactly one"),
            (
                rule("domain = \"a.b\"\ngroup = \"c\"\nrole = \"viewer\"\nteam = \"a\""),
                "exactly one",
            ),
            (rule("domain = \"a.b\"\nrole = \"viewer\""), "team is required"),
            (rule("domain = \"a.b\"\nrole = \"root\"\nteam = \"a\""), "role must be"),
            (rule("domain = \"a.b\"\nrole = \"operator\"\nteam = \"a\""), "no team"),
            ("session_hours = 0".to_owned(), "session_hours"),
            ("audit_days = 0".to_owned(), "audit_days"),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
