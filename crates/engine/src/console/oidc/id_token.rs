//! Runs in: server (no capabilities).
//!
//! Checks an ID token: signature, issuer, audience, times and nonce.

use std::time::Duration;

use jsonwebtoken::{
    Algorithm, DecodingKey, Validation, decode, decode_header,
    jwk::{Jwk, PublicKeyUse},
};
use serde_json::{Map, Value};
use subtle::ConstantTimeEq;

use super::ring_verifier;

/// How far the clocks of the provider and of this host may differ, in seconds.
const LEEWAY: u64 = 60;
/// The most keys of a provider that are tried.
const MOST_KEYS: usize = 32;
/// The most characters of a subject, as OpenID has it.
const MAX_SUBJECT_CHARS: usize = 255;
/// What providers sign with. Neither `none` nor a shared secret is among them.
const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// What a token says about someone.
pub(super) type Claims = Map<String, Value>;

/// Why a token is not accepted.
#[derive(Debug, thiserror::Error)]
pub(super) enum IdTokenError {
    /// The provider has no key of that id; it may have a new one.
    #[error("no key of the provider fits the token")]
    UnknownKey,
    /// Everything else.
    #[error("the ID token is not valid: {0}")]
    Invalid(String),
}

fn invalid(why: impl ToString) -> IdTokenError {
    IdTokenError::Invalid(why.to_string())
}

/// What a token must be.
pub(super) struct ExpectedToken<'a> {
    pub(super) issuer: &'a str,
    pub(super) client_id: &'a str,
    pub(super) nonce: &'a str,
}

impl ExpectedToken<'_> {
    /// The claims of a token that is good.
    pub(super) fn verify(&self, token: &str, keys: &[Jwk]) -> Result<Claims, IdTokenError> {
        ring_verifier::install();
        let header = decode_header(token).map_err(invalid)?;
        if !ALGORITHMS.contains(&header.alg) {
            return Err(invalid("its algorithm is not accepted"));
        }
        let fits = |key: &&Jwk| {
            let named = header.kid.as_ref();
            let is_named = named.is_none() || key.common.key_id.as_ref() == named;
            let signs = !matches!(key.common.public_key_use, Some(PublicKeyUse::Encryption));
            is_named && signs
        };
        let keys = keys.iter().filter(fits).take(MOST_KEYS);
        let keys = keys.filter_map(|key| DecodingKey::from_jwk(key).ok());
        let keys: Vec<_> = keys.filter(|key| key.family() == header.alg.family()).collect();
        let validation = self.validation(header.alg);
        let mut failed = IdTokenError::UnknownKey;
        for key in keys {
            match decode::<Claims>(token, &key, &validation) {
                Ok(token) => return self.check_claims(token.claims),
                Err(error) => failed = invalid(error),
            }
        }
        Err(failed)
    }

    fn validation(&self, algorithm: Algorithm) -> Validation {
        let mut validation = Validation::new(algorithm);
        validation.leeway = LEEWAY;
        validation.validate_nbf = true;
        validation.set_issuer(&[self.issuer]);
        validation.set_audience(&[self.client_id]);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        validation
    }

    /// What the library does not check.
    fn check_claims(&self, claims: Claims) -> Result<Claims, IdTokenError> {
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        if text("iss") != Some(self.issuer) {
            return Err(invalid("it is of another issuer"));
        }
        let has_others =
            claims.get("aud").and_then(Value::as_array).is_some_and(|aud| aud.len() > 1);
        let party = text("azp");
        if party.is_some_and(|party| party != self.client_id) || (has_others && party.is_none()) {
            return Err(invalid("it was made for another client"));
        }
        let nonce = text("nonce").unwrap_or_default();
        if !bool::from(nonce.as_bytes().ct_eq(self.nonce.as_bytes())) {
            return Err(invalid("its nonce is not the one of this sign-in"));
        }
        let issued = claims.get("iat").and_then(Value::as_f64);
        let issued = issued.and_then(|at| Duration::try_from_secs_f64(at).ok());
        let issued = issued.ok_or_else(|| invalid("it has no iat"))?;
        if issued.as_secs() > jsonwebtoken::get_current_timestamp() + LEEWAY {
            return Err(invalid("it is from the future"));
        }
        let subject = text("sub").unwrap_or_default();
        if subject.is_empty() || subject.chars().count() > MAX_SUBJECT_CHARS {
            return Err(invalid("its subject is empty or too long"));
        }
        Ok(claims)
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
    use ring::{
        rand::SystemRandom,
        signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
    };
    use serde_json::json;

    use super::*;

    struct Signer(EcdsaKeyPair);

    impl Signer {
        fn new() -> Self {
            let (algorithm, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
            let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
            Self(EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap())
        }

        fn jwk(&self, kid: &str) -> Jwk {
            let point = self.0.public_key().as_ref();
            let (x, y) =
                (URL_SAFE_NO_PAD.encode(&point[1..33]), URL_SAFE_NO_PAD.encode(&point[33..]));
            let jwk = json!({"kty": "EC", "crv": "P-256", "kid": kid, "x": x, "y": y});
            serde_json::from_value(jwk).unwrap()
        }

        fn token(&self, header: Value, claims: &Value) -> String {
            let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
            let message = format!("{}.{}", part(&header), part(claims));
            let signed = self.0.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
            format!("{message}.{}", URL_SAFE_NO_PAD.encode(signed))
        }
    }

    const EXPECTED: ExpectedToken<'_> =
        ExpectedToken { issuer: "https://login.example", client_id: "cloche", nonce: "n-1" };

    fn claims(change: Value) -> Value {
        let now = jsonwebtoken::get_current_timestamp();
        let mut claims = json!({"iss": "https://login.example", "aud": "cloche", "sub": "7",
            "exp": now + 600, "iat": now, "nonce": "n-1", "email": "ada@example.com"});
        for (name, value) in change.as_object().unwrap() {
            match value {
                Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
                value => claims[name] = value.clone(),
            }
        }
        claims
    }

    #[test]
    fn only_a_token_of_this_issuer_for_this_client_and_this_sign_in_is_accepted() {
        let (signer, other) = (Signer::new(), Signer::new());
        let keys = [other.jwk("old"), signer.jwk("new")];
        let header = json!({"alg": "ES256", "kid": "new"});
        let verify =
            |change: Value| EXPECTED.verify(&signer.token(header.clone(), &claims(change)), &keys);
        assert_eq!(verify(json!({})).unwrap()["email"], "ada@example.com");
        assert!(verify(json!({"aud": ["cloche"]})).is_ok());
        assert!(verify(json!({"aud": ["cloche", "b"], "azp": "cloche"})).is_ok());
        let past = jsonwebtoken::get_current_timestamp() - 120;
        let future = jsonwebtoken::get_current_timestamp() + 120;
        for change in [
            json!({"iss": "https://other.example"}),
            json!({"iss": ["https://login.example"]}),
            json!({"aud": "other"}),
            json!({"aud": ["cloche", "b"]}),
            json!({"aud": ["cloche", "b"], "azp": "b"}),
            json!({"azp": "b"}),
            json!({"exp": past}),
            json!({"exp": "tomorrow"}),
            json!({"nbf": future}),
            json!({"nbf": "soon"}),
            json!({"iat": future}),
            json!({"nonce": "n-2"}),
            json!({"sub": ""}),
            json!({"exp": null}),
            json!({"iat": null}),
            json!({"nonce": null}),
            json!({"aud": null}),
            json!({"iss": null}),
            json!({"sub": null}),
        ] {
            let said = verify(change.clone());
            assert!(matches!(said, Err(IdTokenError::Invalid(_))), "{change} {said:?}");
        }
    }

    #[test]
    fn no_algorithm_a_shared_secret_and_a_foreign_key_are_refused() {
        let (signer, other) = (Signer::new(), Signer::new());
        let keys = [signer.jwk("k")];
        let verify = |signer: &Signer, header: Value| {
            EXPECTED.verify(&signer.token(header, &claims(json!({}))), &keys)
        };
        assert!(verify(&signer, json!({"alg": "ES256"})).is_ok());
        for header in [
            json!({"alg": "none"}),
            json!({"alg": "HS256", "kid": "k"}),
            json!({"alg": "ES384", "kid": "k"}),
            json!({"kid": "k"}),
        ] {
            let said = verify(&signer, header.clone());
            assert!(matches!(said, Err(IdTokenError::Invalid(_))), "{header} {said:?}");
        }
        let forged = verify(&other, json!({"alg": "ES256", "kid": "k"}));
        assert!(matches!(forged, Err(IdTokenError::Invalid(_))), "{forged:?}");
        let rotated = verify(&other, json!({"alg": "ES256", "kid": "next"}));
        assert!(matches!(rotated, Err(IdTokenError::UnknownKey)), "{rotated:?}");
        let unsigned = signer.token(json!({"alg": "ES256"}), &claims(json!({})));
        let unsigned = unsigned.rsplit_once('.').unwrap().0.to_owned() + ".";
        assert!(EXPECTED.verify(&unsigned, &keys).is_err());
        assert!(EXPECTED.verify("nonsense", &keys).is_err());
    }
}
