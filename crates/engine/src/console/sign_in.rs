//! Runs in: server (no capabilities).
//!
//! Sign-ins: with the admin token, with a password and a code, or by an OpenID provider. The
//! browser holds a random token; the store has its digest.

use std::net::IpAddr;

use cloche_model::{
    ActorKind, AuditActor, ConsoleSession, ConsoleSessionId, ErrorCode, Member, MemberRole, Moment,
    Secret, Team,
};
use subtle::ConstantTimeEq;

use super::{Console, one_time_codes};
use crate::{Refusal, clock, secrets, tenancy::ADMIN_TOKEN};

/// The prefix of the tokens in cookies.
const TOKEN_PREFIX: &str = "cs-";
/// How much of the name of a browser is kept.
const MAX_AGENT_CHARS: usize = 200;
/// A last request is recorded again after this many microseconds.
const TOUCH_AFTER: i64 = 60_000_000;
/// The name under which attempts with the admin token are counted; no member can have it.
const TOKEN_SUBJECT: &str = "admin token";

/// Where a sign-in comes from.
#[derive(Clone, Debug, Default)]
pub struct SignInOrigin {
    /// The address of the client.
    pub address: Option<IpAddr>,
    /// The browser, in its own words.
    pub user_agent: String,
}

/// Why a sign-in was refused.
#[derive(Debug)]
pub enum SignInError {
    /// The password is right, and a one-time code is missing.
    CodeRequired,
    /// Everything else.
    Refused(Refusal),
}

impl From<Refusal> for SignInError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<cloche_store::StoreError> for SignInError {
    fn from(error: cloche_store::StoreError) -> Self {
        Self::Refused(error.into())
    }
}

/// A sign-in that was just made, with the token of its cookie.
#[derive(Debug)]
pub struct NewConsoleSession {
    /// The sign-in.
    pub signed_in: SignedIn,
    /// The token.
    pub token: Secret,
}

/// Someone who is signed in.
#[derive(Clone, Debug)]
pub struct SignedIn {
    /// The sign-in.
    pub session: ConsoleSession,
    /// The member; `None` for the holder of the admin token.
    pub member: Option<Member>,
    /// The team of the member; `None` for operators.
    pub team: Option<Team>,
    /// What every request that changes something has to repeat. A page of another site cannot read
    /// it.
    pub csrf_token: String,
    /// What the session is found by.
    digest: String,
}

impl SignedIn {
    /// The role.
    #[must_use]
    pub fn role(&self) -> MemberRole {
        self.member.as_ref().map_or(MemberRole::Operator, |member| member.role)
    }

    /// The name to be shown.
    #[must_use]
    pub fn name(&self) -> &str {
        self.member.as_ref().map_or("admin", |member| &member.name)
    }

    /// The address that the sign-in came from.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        self.session.address.as_deref().and_then(|text| text.parse().ok())
    }

    /// The same person for the audit log.
    #[must_use]
    pub fn actor(&self) -> AuditActor {
        match &self.member {
            Some(member) => AuditActor {
                kind: ActorKind::Member,
                id: Some(member.id.to_string()),
                name: member.name.clone(),
            },
            None => AuditActor { kind: ActorKind::Operator, id: None, name: "admin".to_owned() },
        }
    }

    /// Whether a request repeats the token.
    #[must_use]
    pub fn has_csrf_token(&self, sent: &[u8]) -> bool {
        self.csrf_token.as_bytes().ct_eq(sent).into()
    }
}

fn refused() -> Refusal {
    Refusal::new(ErrorCode::Unauthorized, "the name, the password or the code is wrong")
}

impl Console {
    /// Signs in with the admin token.
    ///
    /// # Errors
    /// When it is not the one, or there were too many attempts.
    pub async fn sign_in_with_token(
        &self,
        token: &Secret,
        origin: SignInOrigin,
    ) -> Result<NewConsoleSession, Refusal> {
        self.attempts.begin(TOKEN_SUBJECT, origin.address)?;
        let known = self.store.read_setting(ADMIN_TOKEN).await?.unwrap_or_default();
        let digest = secrets::digest_secret(token.reveal());
        if !bool::from(known.as_bytes().ct_eq(digest.as_bytes())) {
            return Err(Refusal::new(ErrorCode::Unauthorized, "this is not the admin token"));
        }
        self.attempts.succeed(TOKEN_SUBJECT, origin.address);
        self.create_session(None, Some(digest), origin).await
    }

    /// Signs in with a name, a password and, where the member has a second factor, a code.
    ///
    /// # Errors
    /// When one of them is wrong, the code is missing, or there were too many attempts.
    pub async fn sign_in_with_password(
        &self,
        (name, password, code): (&str, Secret, Option<&str>),
        origin: SignInOrigin,
    ) -> Result<NewConsoleSession, SignInError> {
        self.attempts.begin(name, origin.address)?;
        let member = self.store.find_member_by_name(name).await?;
        let hash = member.as_ref().and_then(|member| member.password_hash.clone());
        let is_right = self.passwords.verify(password, hash).await?;
        let member = member.filter(|member| is_right && !member.disabled).ok_or_else(refused)?;
        if let Some(totp) = member.totp.as_ref().filter(|totp| totp.confirmed) {
            let Some(code) = code.map(str::trim).filter(|code| !code.is_empty()) else {
                // The password was right, so this was no guess.
                self.attempts.succeed(name, origin.address);
                return Err(SignInError::CodeRequired);
            };
            let step = one_time_codes::matching_step(&totp.secret, code, clock::now())?;
            let used = match step {
                Some(step) => self.store.use_totp_step(&member.id, step).await?,
                None => false,
            };
            if !used {
                return Err(refused().into());
            }
        }
        self.attempts.succeed(name, origin.address);
        Ok(self.create_session(Some(member), None, origin).await?)
    }

    pub(super) async fn create_session(
        &self,
        member: Option<Member>,
        admin_digest: Option<String>,
        origin: SignInOrigin,
    ) -> Result<NewConsoleSession, Refusal> {
        let now = clock::now();
        let team = self.find_member_team(member.as_ref()).await?;
        let token = secrets::generate_secret(TOKEN_PREFIX)?;
        let session = ConsoleSession {
            id: ConsoleSessionId::from_random(secrets::random_bytes()?),
            member: member.as_ref().map(|member| member.id.clone()),
            admin_digest,
            address: origin.address.map(|address| address.to_canonical().to_string()),
            user_agent: origin.user_agent.chars().take(MAX_AGENT_CHARS).collect(),
            created_at: now,
            last_seen_at: now,
            expires_at: now.saturating_add(self.config.session),
        };
        let digest = secrets::digest_secret(token.reveal());
        self.store.create_console_session(&session, &digest).await?;
        if let Some(member) = &member {
            self.note_sign_in(member, now).await?;
        }
        let csrf_token = csrf_token_of(token.reveal());
        let signed_in = SignedIn { session, member, team, csrf_token, digest };
        Ok(NewConsoleSession { signed_in, token })
    }

    async fn note_sign_in(&self, member: &Member, at: Moment) -> Result<(), Refusal> {
        let _turn = self.updating.lock().await;
        if let Some(member) = self.store.find_member(&member.id).await? {
            let last_sign_in_at = Some(at);
            self.store.update_member(&Member { last_sign_in_at, ..member }).await?;
        }
        Ok(())
    }

    async fn find_member_team(&self, member: Option<&Member>) -> Result<Option<Team>, Refusal> {
        let Some(id) = member.and_then(|member| member.team.as_ref()) else { return Ok(None) };
        let team = self.store.find_team(id.as_str()).await?;
        team.map(Some).ok_or_else(signed_out_refusal)
    }

    /// Who holds the token of a cookie.
    ///
    /// # Errors
    /// When the sign-in has ended: it expired, was revoked, its member was disabled, or the admin
    /// token was replaced.
    pub async fn find_signed_in(&self, token: &str) -> Result<SignedIn, Refusal> {
        let digest = secrets::digest_secret(token);
        self.find_by_digest(digest, csrf_token_of(token)).await
    }

    /// The same person as they are now.
    ///
    /// # Errors
    /// When the sign-in has ended.
    pub async fn refresh_signed_in(&self, who: &SignedIn) -> Result<SignedIn, Refusal> {
        self.find_by_digest(who.digest.clone(), who.csrf_token.clone()).await
    }

    async fn find_by_digest(
        &self,
        digest: String,
        csrf_token: String,
    ) -> Result<SignedIn, Refusal> {
        let now = clock::now();
        let found = self.store.find_console_session(&digest, now).await?;
        let (session, member) = found.ok_or_else(signed_out_refusal)?;
        if member.as_ref().is_some_and(|member| member.disabled) {
            return Err(signed_out_refusal());
        }
        if member.is_none() {
            let known = self.store.read_setting(ADMIN_TOKEN).await?;
            if known.is_none() || known != session.admin_digest {
                return Err(signed_out_refusal());
            }
        }
        let team = self.find_member_team(member.as_ref()).await?;
        if now.0 - session.last_seen_at.0 > TOUCH_AFTER {
            self.store.touch_console_session(&session.id, now).await?;
        }
        Ok(SignedIn { session, member, team, csrf_token, digest })
    }

    /// The sign-ins that someone may see: their own, and for an operator those of everyone.
    ///
    /// # Errors
    /// When they cannot be read.
    pub async fn list_sessions(&self, who: &SignedIn) -> Result<Vec<ConsoleSession>, Refusal> {
        let all = self.store.list_console_sessions(clock::now()).await?;
        let is_own = |session: &ConsoleSession| session.member == who.session.member;
        let may_see = |session: &ConsoleSession| {
            who.role() == MemberRole::Operator || (who.member.is_some() && is_own(session))
        };
        Ok(all.into_iter().filter(may_see).collect())
    }

    /// Ends a sign-in that someone may see.
    ///
    /// # Errors
    /// When there is none.
    pub async fn revoke_session(&self, who: &SignedIn, id: &str) -> Result<(), Refusal> {
        let missing = || Refusal::not_found("session");
        let sessions = self.list_sessions(who).await?;
        let session = sessions.iter().find(|session| session.id.as_str() == id);
        let session = session.ok_or_else(missing)?;
        match self.store.delete_console_session(&session.id).await? {
            true => Ok(()),
            false => Err(missing()),
        }
    }

    /// Ends the sign-in itself.
    ///
    /// # Errors
    /// When it cannot be written.
    pub async fn sign_out(&self, who: &SignedIn) -> Result<(), Refusal> {
        self.store.delete_console_session(&who.session.id).await?;
        Ok(())
    }
}

fn csrf_token_of(token: &str) -> String {
    secrets::digest_secret(&format!("csrf {token}"))
}

fn signed_out_refusal() -> Refusal {
    Refusal::new(ErrorCode::Unauthorized, "sign in again: this session has ended")
}
