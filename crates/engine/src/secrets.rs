//! Runs in: server (no capabilities), sidecar (no capabilities).
//!
//! Random ids and secrets, and the digests that secrets are kept as.
//!
//! A secret has 200 random bits, so a plain SHA-256 is enough: there is nothing to guess.

use cloche_model::{ErrorCode, Secret};
use sha2::{Digest, Sha256};

use crate::Refusal;

const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
/// What every API key begins with.
pub(crate) const KEY_PREFIX: &str = "sk-us-";
/// What the admin token begins with.
pub(crate) const ADMIN_PREFIX: &str = "ck-admin-";
/// How much of a key is kept for people to tell keys apart.
const SHOWN: usize = KEY_PREFIX.len() + 6;

/// Bytes from the system's generator.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], Refusal> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| Refusal {
        source: Some(error.to_string().into()),
        ..Refusal::new(ErrorCode::Internal, "no random numbers can be had")
    })?;
    Ok(bytes)
}

/// A new secret with this prefix.
pub(crate) fn generate_secret(prefix: &str) -> Result<Secret, Refusal> {
    let letters = random_bytes::<40>()?.map(|byte| char::from(ALPHABET[usize::from(byte % 32)]));
    Ok(Secret::new(format!("{prefix}{}", String::from_iter(letters))))
}

/// What a secret is kept as.
pub(crate) fn digest_secret(secret: &str) -> String {
    hex::encode(Sha256::digest(secret.as_bytes()))
}

/// Whether a text is this secret. Digests are compared, so the time says nothing about the secret.
#[must_use]
pub fn is_same_secret(known: &Secret, given: &str) -> bool {
    digest_secret(known.reveal()) == digest_secret(given)
}

/// The part of a secret that may be shown.
pub(crate) fn visible_prefix(secret: &Secret) -> String {
    secret.reveal().chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_secrets_differ_and_only_their_head_is_shown() {
        let (one, two) =
            (generate_secret(KEY_PREFIX).unwrap(), generate_secret(KEY_PREFIX).unwrap());
        assert_ne!(one.reveal(), two.reveal());
        assert_eq!(one.reveal().len(), 46);
        assert_eq!(visible_prefix(&one).len(), 12);
        assert_eq!(digest_secret("abc").len(), 64);
        assert!(is_same_secret(&one, one.reveal()) && !is_same_secret(&one, two.reveal()));
    }
}
