//! Runs in: server (no capabilities).
//!
//! Talks to the OpenID provider: its description, its keys, the exchange of a code, and what it
//! knows about someone. Answers and times are bounded, and no redirect is followed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use cloche_model::{Secret, error_chain};
use jsonwebtoken::jwk::Jwk;
use reqwest::{Client, RequestBuilder, header::ACCEPT};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;
use url::{Url, form_urlencoded};

use super::{
    config::OidcConfig,
    id_token::{Claims, ExpectedToken, IdTokenError},
    pending_sign_ins::PendingSignIn,
};
use crate::outgoing_http::{self, OutgoingHttpError};

/// The most bytes of an answer.
const MAX_ANSWER: usize = 1 << 20;
/// How long the description and the keys of the provider are used before they are read again.
const KEPT_FOR: Duration = Duration::from_mins(10);

/// Why the provider is of no help.
#[derive(Debug, thiserror::Error)]
pub(super) enum SignOnFault {
    /// It does not answer, or not as it should.
    #[error("{0}")]
    Unavailable(String),
    /// It does not take the code, or what it says is not true.
    #[error("{0}")]
    Untrusted(String),
}

fn unavailable(what: &str, why: impl std::fmt::Display) -> SignOnFault {
    SignOnFault::Unavailable(format!("{what}: {why}"))
}

/// An address of the provider.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
struct Endpoint(Url);

impl TryFrom<String> for Endpoint {
    type Error = url::ParseError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Url::parse(&text).map(Self)
    }
}

/// What a provider says about itself.
#[derive(Debug, Deserialize)]
struct ProviderDescription {
    issuer: String,
    authorization_endpoint: Endpoint,
    token_endpoint: Endpoint,
    jwks_uri: Endpoint,
    userinfo_endpoint: Option<Endpoint>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

/// The answer to a code.
#[derive(Deserialize)]
struct TokenAnswer {
    id_token: String,
    access_token: Option<Secret>,
}

/// A value that is read again when it is old.
type Kept<T> = Mutex<Option<(Instant, Arc<T>)>>;

/// A client of the provider.
pub(super) struct Provider {
    client: Client,
    config: OidcConfig,
    description: Kept<ProviderDescription>,
    keys: Kept<Vec<Jwk>>,
}

impl Provider {
    pub(super) fn new(config: OidcConfig) -> Result<Self, OutgoingHttpError> {
        let client = outgoing_http::builder_trusting(config.extra_ca.as_deref())?;
        let client = client.timeout(config.timeout).build()?;
        Ok(Self { client, config, description: Mutex::default(), keys: Mutex::default() })
    }

    pub(super) fn config(&self) -> &OidcConfig {
        &self.config
    }

    /// The address that the browser is sent to.
    pub(super) async fn authorization_url(
        &self,
        pending: &PendingSignIn,
    ) -> Result<Url, SignOnFault> {
        let description = self.describe().await?;
        let Endpoint(mut url) = description.authorization_endpoint.clone();
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(pending.verifier.as_bytes()));
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", self.config.client_id.as_str())
            .append_pair("redirect_uri", self.config.redirect_uri.as_str())
            .append_pair("scope", &self.config.scopes.join(" "))
            .append_pair("state", pending.state())
            .append_pair("nonce", &pending.nonce)
            .append_pair("code_challenge", &challenge)
            .append_pair("code_challenge_method", "S256");
        Ok(url)
    }

    /// Whether an answer can be from this provider: one that names its issuer must name this one.
    pub(super) async fn check_issuer(&self, named: Option<&str>) -> Result<(), SignOnFault> {
        let must_name = self.describe().await?.authorization_response_iss_parameter_supported;
        match named {
            Some(named) if named != self.config.issuer => {
                Err(SignOnFault::Untrusted("the answer is of another issuer".to_owned()))
            }
            None if must_name => {
                Err(SignOnFault::Untrusted("the answer names no issuer".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// What the provider says about whoever got a code.
    pub(super) async fn redeem_code(
        &self,
        code: &str,
        pending: &PendingSignIn,
    ) -> Result<Claims, SignOnFault> {
        let answer = self.exchange_code(code, &pending.verifier).await?;
        let claims = self.verify(&answer.id_token, &pending.nonce).await?;
        match (&self.describe().await?.userinfo_endpoint, answer.access_token) {
            (Some(endpoint), Some(token)) if self.lacks_claims(&claims) => {
                self.add_user_info(endpoint, &token, claims).await
            }
            _ => Ok(claims),
        }
    }

    async fn exchange_code(&self, code: &str, verifier: &str) -> Result<TokenAnswer, SignOnFault> {
        let description = self.describe().await?;
        let mut form = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", self.config.redirect_uri.as_str()),
            ("code_verifier", verifier),
        ];
        let request = self.client.post(description.token_endpoint.0.clone());
        let methods = description.token_endpoint_auth_methods_supported.as_deref();
        let offers =
            |method: &str| methods.is_some_and(|methods| methods.iter().any(|m| m == method));
        let by_form = offers("client_secret_post") && !offers("client_secret_basic");
        let request = match &self.config.client_secret {
            Some(secret) if by_form => {
                form.push(("client_id", self.config.client_id.as_str()));
                form.push(("client_secret", secret.reveal()));
                request
            }
            Some(secret) => {
                let encode = |text: &str| {
                    form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>()
                };
                request.basic_auth(encode(&self.config.client_id), Some(encode(secret.reveal())))
            }
            None => {
                form.push(("client_id", self.config.client_id.as_str()));
                request
            }
        };
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish();
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        self.read_json("the token endpoint", request.body(body)).await
    }

    /// Checks a token, with new keys if none of the known ones fits.
    async fn verify(&self, token: &str, nonce: &str) -> Result<Claims, SignOnFault> {
        let expected =
            ExpectedToken { issuer: &self.config.issuer, client_id: &self.config.client_id, nonce };
        let verified = match expected.verify(token, &self.read_keys(false).await?) {
            Err(IdTokenError::UnknownKey) => expected.verify(token, &self.read_keys(true).await?),
            verified => verified,
        };
        verified.map_err(|error| SignOnFault::Untrusted(error.to_string()))
    }

    /// Whether the token leaves something out that the rules need.
    fn lacks_claims(&self, claims: &Claims) -> bool {
        let lacks_email = !claims.contains_key(&self.config.email_claim)
            || (!self.config.trust_email && !claims.contains_key("email_verified"));
        let lacks_groups =
            self.config.has_group_rules() && !claims.contains_key(&self.config.groups_claim);
        lacks_email || lacks_groups
    }

    async fn add_user_info(
        &self,
        Endpoint(endpoint): &Endpoint,
        token: &Secret,
        mut claims: Claims,
    ) -> Result<Claims, SignOnFault> {
        let request = self.client.get(endpoint.clone()).bearer_auth(token.reveal());
        let info: Claims = self.read_json("the userinfo endpoint", request).await?;
        // Otherwise it may be about someone else.
        if info.get("sub") != claims.get("sub") {
            let why = "the userinfo endpoint answered about another subject";
            return Err(SignOnFault::Untrusted(why.to_owned()));
        }
        claims.extend(info);
        Ok(claims)
    }

    async fn describe(&self) -> Result<Arc<ProviderDescription>, SignOnFault> {
        let mut kept = self.description.lock().await;
        if let Some((at, description)) = &*kept
            && at.elapsed() < KEPT_FOR
        {
            return Ok(Arc::clone(description));
        }
        let issuer = &self.config.issuer;
        let url = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let read: ProviderDescription =
            self.read_json("the description of the provider", self.client.get(url)).await?;
        if read.issuer != *issuer {
            let why = "the description of the provider is of another issuer";
            return Err(SignOnFault::Untrusted(why.to_owned()));
        }
        let needs_tls = issuer.starts_with("https:");
        let endpoints = [&read.authorization_endpoint, &read.token_endpoint, &read.jwks_uri];
        let is_good = |Endpoint(url): &Endpoint| {
            url.scheme() == "https" || (url.scheme() == "http" && !needs_tls)
        };
        if !endpoints.into_iter().chain(&read.userinfo_endpoint).all(is_good) {
            let why = "the description of the provider has an endpoint without https";
            return Err(SignOnFault::Untrusted(why.to_owned()));
        }
        let description = Arc::new(read);
        *kept = Some((Instant::now(), Arc::clone(&description)));
        Ok(description)
    }

    async fn read_keys(&self, anew: bool) -> Result<Arc<Vec<Jwk>>, SignOnFault> {
        let mut kept = self.keys.lock().await;
        if let Some((at, keys)) = &*kept
            && !anew
            && at.elapsed() < KEPT_FOR
        {
            return Ok(Arc::clone(keys));
        }
        let request = self.client.get(self.describe().await?.jwks_uri.0.clone());
        let set: KeySet = self.read_json("the keys of the provider", request).await?;
        // A key of a kind that is not known here must not hide the others.
        let keys = set.keys.into_iter().filter_map(|key| serde_json::from_value(key).ok());
        let keys = Arc::new(keys.collect::<Vec<Jwk>>());
        *kept = Some((Instant::now(), Arc::clone(&keys)));
        Ok(keys)
    }

    /// Sends a request and reads a bounded answer. An error names neither a code nor a token.
    async fn read_json<T: DeserializeOwned>(
        &self,
        what: &str,
        request: RequestBuilder,
    ) -> Result<T, SignOnFault> {
        let failed = |error: reqwest::Error| unavailable(what, error_chain(&error.without_url()));
        let sent = request.header(ACCEPT, "application/json").send().await;
        let mut answer = sent.map_err(failed)?;
        let status = answer.status();
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > MAX_ANSWER {
                return Err(unavailable(what, "its answer is too large"));
            }
            body.extend_from_slice(&chunk);
        }
        if status.is_client_error() {
            let why = format!("{what} answered {status}{}", named_error(&body));
            return Err(SignOnFault::Untrusted(why));
        }
        if !status.is_success() {
            return Err(unavailable(what, format!("it answered {status}")));
        }
        serde_json::from_slice(&body).map_err(|_| unavailable(what, "its answer makes no sense"))
    }
}

/// The name of an error in an answer, e.g. `invalid_grant`.
fn named_error(body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let name = body["error"].as_str().unwrap_or_default();
    let is_name = name.len() <= 64 && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    if name.is_empty() || !is_name { String::new() } else { format!(" ({name})") }
}
