//! Runs in: server (no capabilities).
//!
//! Sign-on by an OpenID provider: the authorization code flow with a proof key. Nobody gets in whom
//! neither a member's email nor a rule of the settings names.

mod config;
mod id_token;
mod member_link;
mod pending_sign_ins;
mod provider;
mod ring_verifier;

use std::net::IpAddr;

use cloche_model::Secret;

pub use config::{OidcConfig, OidcRule, OidcRuleMatch};
pub use member_link::MemberLink;
use pending_sign_ins::{LIFETIME, PendingSignIn, PendingSignIns};
use provider::{Provider, SignOnFault};

use super::{Console, NewConsoleSession, SignInOrigin};
use crate::{Refusal, outgoing_http::OutgoingHttpError, secrets};

/// The prefix of the tokens that bind a sign-in to a browser.
const BROWSER_PREFIX: &str = "co-";
/// Where someone goes who came from nowhere.
const START_PAGE: &str = "/console/";
/// The most characters of the address of a page.
const MAX_PAGE_CHARS: usize = 2_000;

/// Why a sign-on failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OidcFailure {
    /// There is no provider in the settings.
    NotSetUp,
    /// Too many attempts failed.
    Limited,
    /// It took too long, was answered before, or began in another browser.
    Stale,
    /// The person or the provider ended it.
    Cancelled,
    /// The provider does not answer.
    Unavailable,
    /// What the provider says cannot be trusted.
    Untrusted,
    /// The provider names no email, or does not call it verified.
    NoEmail,
    /// No member has the email, and no rule matches.
    Unknown,
    /// The member is disabled.
    Disabled,
    /// Another account of the provider, or another member, has the email.
    Taken,
    /// The rule names a team that does not exist.
    NoTeam,
    /// The server cannot do its part.
    Internal,
}

impl OidcFailure {
    /// Its name in the address of the sign-in page, which has a sentence for each.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::NotSetUp => "not_set_up",
            Self::Limited => "limited",
            Self::Stale => "stale",
            Self::Cancelled => "cancelled",
            Self::Unavailable => "unavailable",
            Self::Untrusted => "untrusted",
            Self::NoEmail => "no_email",
            Self::Unknown => "unknown",
            Self::Disabled => "disabled",
            Self::Taken => "taken",
            Self::NoTeam => "no_team",
            Self::Internal => "internal",
        }
    }
}

/// A sign-on that failed.
#[derive(Debug)]
pub struct OidcError {
    /// Why.
    pub failure: OidcFailure,
    /// Who it was, if the provider said so and can be trusted.
    pub email: Option<String>,
}

impl From<OidcFailure> for OidcError {
    fn from(failure: OidcFailure) -> Self {
        Self { failure, email: None }
    }
}

impl From<Refusal> for OidcError {
    fn from(refusal: Refusal) -> Self {
        tracing::error!(error = %refusal, source = ?refusal.source, "a sign-on failed");
        OidcFailure::Internal.into()
    }
}

impl From<SignOnFault> for OidcError {
    fn from(error: SignOnFault) -> Self {
        tracing::warn!(%error, "the OpenID provider is of no help");
        match error {
            SignOnFault::Unavailable(_) => OidcFailure::Unavailable.into(),
            SignOnFault::Untrusted(_) => OidcFailure::Untrusted.into(),
        }
    }
}

/// A sign-on that has begun.
#[derive(Debug)]
pub struct OidcStart {
    /// Where the browser has to go.
    pub url: String,
    /// What the browser keeps until it comes back.
    pub browser: Secret,
}

/// How the browser came back.
#[derive(Clone, Debug, Default)]
pub struct OidcAnswer {
    /// The code.
    pub code: Option<String>,
    /// The state of the sign-on.
    pub state: Option<String>,
    /// Why there is no code.
    pub error: Option<String>,
    /// The issuer.
    pub issuer: Option<String>,
}

/// A sign-on that succeeded.
#[derive(Debug)]
pub struct OidcSignIn {
    /// The sign-in.
    pub session: NewConsoleSession,
    /// The page to go to.
    pub return_to: String,
    /// What changed of the member.
    pub link: MemberLink,
}

/// Sign-on by one provider.
pub(super) struct SignOn {
    provider: Provider,
    pending: PendingSignIns,
}

impl SignOn {
    pub(super) fn new(config: OidcConfig) -> Result<Self, OutgoingHttpError> {
        Ok(Self { provider: Provider::new(config)?, pending: PendingSignIns::default() })
    }
}

impl Console {
    /// What the button of the sign-in page says; `None` without a provider.
    #[must_use]
    pub fn oidc_name(&self) -> Option<&str> {
        self.sign_on.as_ref().map(|sign_on| sign_on.provider.config().name.as_str())
    }

    /// Whether browsers come back by TLS.
    #[must_use]
    pub fn oidc_is_https(&self) -> bool {
        let config = self.sign_on.as_ref().map(|sign_on| sign_on.provider.config());
        config.is_some_and(|config| config.redirect_uri.starts_with("https:"))
    }

    /// How many seconds a browser keeps its token.
    #[must_use]
    pub fn oidc_lifetime_seconds(&self) -> u64 {
        LIFETIME.as_secs()
    }

    fn sign_on(&self) -> Result<&SignOn, OidcError> {
        self.sign_on.as_ref().ok_or_else(|| OidcFailure::NotSetUp.into())
    }

    /// Begins a sign-on. `return_to` is the page of the console to show afterwards.
    ///
    /// # Errors
    /// When there is no provider, or it does not answer.
    pub async fn begin_oidc(
        &self,
        return_to: Option<&str>,
        address: Option<IpAddr>,
    ) -> Result<OidcStart, OidcError> {
        let sign_on = self.sign_on()?;
        let browser = secrets::generate_secret(BROWSER_PREFIX)?;
        let return_to = return_to.filter(|page| is_own_page(page)).unwrap_or(START_PAGE);
        let pending = PendingSignIn::new(browser.reveal(), address, return_to.to_owned())?;
        let url = sign_on.provider.authorization_url(&pending).await?;
        sign_on.pending.add(pending);
        Ok(OidcStart { url: url.into(), browser })
    }

    /// Ends a sign-on with what the browser brings back.
    ///
    /// # Errors
    /// When it is not the answer to a question of this server, cannot be trusted, or the person may
    /// not come in.
    pub async fn finish_oidc(
        &self,
        answer: OidcAnswer,
        browser: Option<&str>,
        origin: SignInOrigin,
    ) -> Result<OidcSignIn, OidcError> {
        let sign_on = self.sign_on()?;
        // With the address in the name, nobody can lock out others.
        let subject = format!("OpenID provider {:?}", origin.address);
        let limited = self.attempts.begin(&subject, origin.address);
        limited.map_err(|_| OidcError::from(OidcFailure::Limited))?;
        // Some providers leave the state out when the person said no.
        if answer.state.is_none() && answer.error.is_some() {
            return Err(OidcFailure::Cancelled.into());
        }
        let state = answer.state.as_deref().unwrap_or_default();
        let pending = sign_on.pending.take(state, browser).ok_or(OidcFailure::Stale)?;
        sign_on.provider.check_issuer(answer.issuer.as_deref()).await?;
        let code = match (answer.code, answer.error) {
            (Some(code), None) if !code.is_empty() => code,
            _ => return Err(OidcFailure::Cancelled.into()),
        };
        let claims = sign_on.provider.redeem_code(&code, &pending).await?;
        let link = self.link_member(sign_on.provider.config(), &claims).await?;
        let address = origin.address;
        let session = self.create_session(Some(link.member.clone()), None, origin).await?;
        self.attempts.succeed(&subject, address);
        Ok(OidcSignIn { session, return_to: pending.return_to, link })
    }
}

/// Whether this is the address of a page of the console, and cannot lead elsewhere.
fn is_own_page(page: &str) -> bool {
    let plain = page.chars().all(|c| c.is_ascii_graphic() && c != '\\');
    let rest = page.strip_prefix(START_PAGE);
    let is_page = rest.is_some_and(|rest| !rest.starts_with('/') && !rest.starts_with("api/"));
    is_page && plain && !page.contains("/..") && page.len() <= MAX_PAGE_CHARS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_the_console_are_returned_to() {
        for page in ["/console/", "/console/executions?status=failed&q=a%20b", "/console/#x"] {
            assert!(is_own_page(page), "{page}");
        }
        for page in [
            "",
            "/",
            "//evil.test",
            "https://evil.test/console/",
            "/console",
            "/console//evil.test",
            "/console/../v1/admin",
            "/console/api/session",
            "/console/\\evil.test",
            "/console/\r\nset-cookie: a=b",
            "\\/evil.test",
        ] {
            assert!(!is_own_page(page), "{page}");
        }
    }
}
