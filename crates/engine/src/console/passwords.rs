//! Runs in: server (no capabilities).
//!
//! Passwords: their rule, their hash (argon2id) and how they are compared. A hash takes 19 MiB and
//! tens of milliseconds by design, so few are computed at once, away from the other tasks.

use argon2::{
    Argon2,
    password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString},
};
use cloche_model::{ErrorCode, Invalid, Secret};
use tokio::sync::Semaphore;

use crate::{Refusal, secrets};

const SHORTEST: usize = 12;
const LONGEST: usize = 256;
/// How many hashes are computed at once.
const AT_ONCE: usize = 2;

/// A hash that no password has. It is compared where there is no member of a name, so that the time
/// of a refusal does not say whether there is one.
const NO_ONE: &str = "$argon2id$v=19$m=19456,t=2,p=1$\
    Y2xvY2hlLW5vLW9uZS1oZXJl$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// Computes hashes.
pub(super) struct PasswordHashes {
    places: Semaphore,
}

impl Default for PasswordHashes {
    fn default() -> Self {
        Self { places: Semaphore::new(AT_ONCE) }
    }
}

/// Checks the rule for new passwords.
pub(super) fn check_password(field: &str, password: &Secret) -> Result<(), Invalid> {
    let chars = password.reveal().chars().count();
    if !(SHORTEST..=LONGEST).contains(&chars) {
        let range = format!("{SHORTEST} to {LONGEST}");
        return Err(Invalid::new(format!("{field} must be {range} characters, got {chars}")));
    }
    Ok(())
}

impl PasswordHashes {
    /// The hash of a new password.
    pub(super) async fn hash(&self, password: Secret) -> Result<String, Refusal> {
        let salt = secrets::random_bytes::<16>()?;
        self.compute(move || {
            let salt = SaltString::encode_b64(&salt)?;
            Ok(Argon2::default().hash_password(password.reveal().as_bytes(), &salt)?.to_string())
        })
        .await
    }

    /// Whether this is the password. Takes as long without a hash.
    pub(super) async fn verify(
        &self,
        password: Secret,
        hash: Option<String>,
    ) -> Result<bool, Refusal> {
        self.compute(move || {
            let known = hash.as_deref().unwrap_or(NO_ONE);
            let parsed = PasswordHash::new(known)?;
            let is_same = Argon2::default().verify_password(password.reveal().as_bytes(), &parsed);
            Ok(is_same.is_ok() && hash.is_some())
        })
        .await
    }

    async fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, argon2::password_hash::Error> + Send + 'static,
    ) -> Result<T, Refusal> {
        let failed = |why: String| Refusal {
            source: Some(why.into()),
            ..Refusal::new(ErrorCode::Internal, "the password could not be checked; try again")
        };
        let _place = self.places.acquire().await.map_err(|error| failed(error.to_string()))?;
        let computed = tokio::task::spawn_blocking(work).await;
        let computed = computed.map_err(|error| failed(error.to_string()))?;
        computed.map_err(|error| failed(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_password_is_accepted_only_with_its_own_hash() {
        let hashes = PasswordHashes::default();
        let hash = hashes.hash(Secret::new("correct horse".to_owned())).await.unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        let verify = async |text: &str, hash: Option<&str>| {
            hashes.verify(Secret::new(text.to_owned()), hash.map(str::to_owned)).await.unwrap()
        };
        assert!(verify("correct horse", Some(&hash)).await);
        assert!(!verify("correct hors", Some(&hash)).await);
        assert!(!verify("", None).await);
        assert!(!verify("", Some(NO_ONE)).await);
    }

    #[test]
    fn short_and_very_long_passwords_are_refused() {
        let check = |chars: usize| check_password("new", &Secret::new("ä".repeat(chars)));
        assert!(check(11).is_err() && check(257).is_err());
        assert!(check(12).is_ok() && check(256).is_ok());
    }
}
