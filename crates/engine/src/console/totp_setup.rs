//! Runs in: server (no capabilities).
//!
//! What signed-in members change about themselves: the password and the second factor. A second
//! factor counts once its first code was shown.

use cloche_model::{ErrorCode, Invalid, Member, Secret, TotpFactor};

use super::{Console, SignedIn, one_time_codes, passwords::check_password};
use crate::{Refusal, clock};

/// A second factor that is not confirmed yet.
#[derive(Debug)]
pub struct TotpSetup {
    /// The secret in base 32.
    pub secret: Secret,
    /// The same as an address that authenticator apps read.
    pub uri: String,
}

fn no_member_refusal() -> Refusal {
    let message = "you signed in with the admin token, which has no password and no second \
                   factor; create a member with the role operator and sign in as that";
    Refusal::new(ErrorCode::Validation, message)
}

impl Console {
    /// Changes the password of a signed-in member. Their other sign-ins end.
    ///
    /// # Errors
    /// When the current password is wrong or the new one breaks the rule.
    pub async fn change_password(
        &self,
        who: &SignedIn,
        current: Secret,
        new: Secret,
    ) -> Result<(), Refusal> {
        let _turn = self.updating.lock().await;
        let member = self.read_self(who).await?;
        check_password("new", &new)?;
        self.attempts.begin(&member.name, who.address())?;
        if !self.passwords.verify(current, member.password_hash.clone()).await? {
            return Err(Invalid::new("current is not your password").into());
        }
        self.attempts.succeed(&member.name, who.address());
        let password_hash = Some(self.passwords.hash(new).await?);
        self.store.update_member(&Member { password_hash, ..member.clone() }).await?;
        self.store.delete_member_sessions(&member.id, Some(&who.session.id)).await?;
        Ok(())
    }

    /// Begins to set up a second factor. It replaces one that was not confirmed.
    ///
    /// # Errors
    /// When the member has one already.
    pub async fn begin_totp(&self, who: &SignedIn) -> Result<TotpSetup, Refusal> {
        let _turn = self.updating.lock().await;
        let member = self.read_self(who).await?;
        if member.needs_code() {
            let message = "you have a second factor already; remove it first";
            return Err(Refusal::new(ErrorCode::Conflict, message));
        }
        let secret = one_time_codes::generate_totp_secret()?;
        let uri = one_time_codes::describe_totp(&secret, &member.name);
        let last_step = member.totp.as_ref().map_or(0, |totp| totp.last_step);
        let totp = Some(TotpFactor { secret: secret.clone(), confirmed: false, last_step });
        self.store.update_member(&Member { totp, ..member }).await?;
        Ok(TotpSetup { secret, uri })
    }

    /// Confirms a second factor with its first code.
    ///
    /// # Errors
    /// When the code is wrong, or none is being set up.
    pub async fn confirm_totp(&self, who: &SignedIn, code: &str) -> Result<(), Refusal> {
        let _turn = self.updating.lock().await;
        let member = self.read_self(who).await?;
        let totp = member.totp.clone().filter(|totp| !totp.confirmed);
        let totp = totp
            .ok_or_else(|| Refusal::new(ErrorCode::Conflict, "no second factor is being set up"))?;
        self.check_own_code(who, &member, &totp, code).await?;
        let totp = Some(TotpFactor { confirmed: true, ..totp });
        self.store.update_member(&Member { totp, ..member }).await?;
        Ok(())
    }

    /// Removes the second factor of a signed-in member.
    ///
    /// # Errors
    /// When the code is wrong, or there is no second factor.
    pub async fn remove_totp(&self, who: &SignedIn, code: &str) -> Result<(), Refusal> {
        let _turn = self.updating.lock().await;
        let member = self.read_self(who).await?;
        let totp = member.totp.clone().filter(|totp| totp.confirmed);
        let totp =
            totp.ok_or_else(|| Refusal::new(ErrorCode::Conflict, "you have no second factor"))?;
        self.check_own_code(who, &member, &totp, code).await?;
        self.store.update_member(&Member { totp: None, ..member }).await?;
        Ok(())
    }

    async fn check_own_code(
        &self,
        who: &SignedIn,
        member: &Member,
        totp: &TotpFactor,
        code: &str,
    ) -> Result<(), Refusal> {
        self.attempts.begin(&member.name, who.address())?;
        let step = one_time_codes::matching_step(&totp.secret, code.trim(), clock::now())?;
        let used = match step {
            Some(step) => self.store.use_totp_step(&member.id, step).await?,
            None => false,
        };
        if !used {
            return Err(Invalid::new("code is wrong or was used before; wait for the next").into());
        }
        self.attempts.succeed(&member.name, who.address());
        Ok(())
    }

    async fn read_self(&self, who: &SignedIn) -> Result<Member, Refusal> {
        let id = who.member.as_ref().map(|member| &member.id).ok_or_else(no_member_refusal)?;
        self.store.find_member(id).await?.ok_or_else(|| Refusal::not_found("member"))
    }
}
