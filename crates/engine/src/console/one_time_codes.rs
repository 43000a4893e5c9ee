//! Runs in: server (no capabilities).
//!
//! One-time codes of authenticator apps (RFC 6238): six digits, 30 seconds, SHA-1, as every app
//! supports.

use cloche_model::{ErrorCode, Moment, Secret};
use subtle::ConstantTimeEq;
use totp_rs::{Algorithm, Secret as TotpSecret, TOTP};

use crate::{Refusal, secrets};

const DIGITS: usize = 6;
const STEP_SECONDS: u64 = 30;
/// A code of the step before or after is accepted, for clocks that differ.
const TOLERANCE: i64 = 1;

/// A new secret, in base 32.
pub(super) fn generate_totp_secret() -> Result<Secret, Refusal> {
    let bytes = secrets::random_bytes::<20>()?.to_vec();
    Ok(Secret::new(TotpSecret::Raw(bytes).to_encoded().to_string()))
}

/// The address that authenticator apps read, for a member of a server.
pub(super) fn describe_totp(secret: &Secret, name: &str) -> String {
    let name: String = url::form_urlencoded::byte_serialize(name.as_bytes()).collect();
    let text = secret.reveal();
    format!("otpauth://totp/Cloche:{name}?secret={text}&issuer=Cloche&digits=6&period=30")
}

/// The time step that a code belongs to, if it is one of the accepted steps.
pub(super) fn matching_step(
    secret: &Secret,
    code: &str,
    now: Moment,
) -> Result<Option<i64>, Refusal> {
    let failed = |why: String| Refusal {
        source: Some(why.into()),
        ..Refusal::new(ErrorCode::Internal, "the code could not be checked; try again")
    };
    let bytes = TotpSecret::Encoded(secret.reveal().to_owned()).to_bytes();
    let bytes = bytes.map_err(|error| failed(error.to_string()))?;
    let totp = TOTP::new(Algorithm::SHA1, DIGITS, 0, STEP_SECONDS, bytes)
        .map_err(|error| failed(error.to_string()))?;
    let current = now.0 / 1_000_000 / i64::try_from(STEP_SECONDS).unwrap_or(i64::MAX);
    let mut found = None;
    // Every step is compared, so that the time does not say which one it is.
    for step in current - TOLERANCE..=current + TOLERANCE {
        let seconds = u64::try_from(step).unwrap_or_default() * STEP_SECONDS;
        let expected = totp.generate(seconds);
        if bool::from(expected.as_bytes().ct_eq(code.as_bytes())) {
            found = Some(step);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The secret and the codes of RFC 6238, appendix B, cut to six digits.
    #[test]
    fn codes_are_those_of_the_standard_and_of_the_steps_beside() {
        let secret = TotpSecret::Raw(b"12345678901234567890".to_vec()).to_encoded().to_string();
        let secret = Secret::new(secret);
        let at = |seconds: i64| Moment(seconds * 1_000_000);
        let step = |code, seconds| matching_step(&secret, code, at(seconds)).unwrap();
        assert_eq!(step("287082", 59), Some(1));
        assert_eq!(step("081804", 1_111_111_109), Some(37_037_036));
        assert_eq!(step("081804", 1_111_111_109 + 30), Some(37_037_036));
        assert_eq!(step("081804", 1_111_111_109 + 61), None);
        for wrong in ["287083", "", "28708", "2870822", "२८७०८२"] {
            assert_eq!(step(wrong, 59), None, "{wrong}");
        }
    }
}
