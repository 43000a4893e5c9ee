//! Runs in: server (no capabilities).
//!
//! People who use the server through a browser: members, their sign-ins, and the log of changes.
//! This part knows who someone is. What each role may do with a request is decided where requests
//! come in.

mod activity;
mod attempts;
mod audit;
mod members;
mod oidc;
mod one_time_codes;
mod passwords;
mod sign_in;
mod totp_setup;

use std::{sync::Arc, time::Duration};

use cloche_store::Store;

use crate::{outgoing_http::OutgoingHttpError, shared_parts::SharedParts};

pub use activity::{Activity, ActivityEvent, ActivityPoint, ActivitySummary, LatencyPercentiles};
use attempts::SignInAttempts;
pub use audit::AuditPage;
pub use members::{MemberChange, MemberDraft};
use oidc::SignOn;
pub use oidc::{
    MemberLink, OidcAnswer, OidcConfig, OidcError, OidcFailure, OidcRule, OidcRuleMatch,
    OidcSignIn, OidcStart,
};
use passwords::PasswordHashes;
pub use sign_in::{NewConsoleSession, SignInError, SignInOrigin, SignedIn};
pub use totp_setup::TotpSetup;

/// Settings of the console.
#[derive(Clone, Debug)]
pub struct ConsoleConfig {
    /// How long a sign-in is good.
    pub session: Duration,
    /// How long entries of the audit log are kept.
    pub keep_audit: Duration,
    /// The OpenID provider by which people sign in.
    pub oidc: Option<OidcConfig>,
}

impl Default for ConsoleConfig {
    fn default() -> Self {
        Self {
            session: Duration::from_hours(12),
            keep_audit: Duration::from_hours(365 * 24),
            oidc: None,
        }
    }
}

/// Members, sign-ins and the audit log.
pub struct Console {
    store: Arc<dyn Store>,
    passwords: PasswordHashes,
    attempts: SignInAttempts,
    activity: Arc<Activity>,
    config: ConsoleConfig,
    sign_on: Option<SignOn>,
    /// Held while a member is read, changed and written.
    updating: tokio::sync::Mutex<()>,
}

impl Console {
    pub(crate) fn new(
        shared: &SharedParts,
        config: ConsoleConfig,
    ) -> Result<Self, OutgoingHttpError> {
        Ok(Self {
            sign_on: config.oidc.clone().map(SignOn::new).transpose()?,
            store: Arc::clone(&shared.store),
            passwords: PasswordHashes::default(),
            attempts: SignInAttempts::default(),
            activity: Arc::clone(&shared.activity),
            config,
            updating: tokio::sync::Mutex::default(),
        })
    }

    /// What happened lately, for the figures of the overview.
    #[must_use]
    pub fn activity(&self) -> &Activity {
        &self.activity
    }
}
