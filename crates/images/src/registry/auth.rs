//! Runs in: server (no capabilities).
//!
//! How a registry asks who pulls, and what it is answered.

use base64::{Engine, engine::general_purpose::STANDARD};
use reqwest::{
    RequestBuilder, Response,
    header::{HeaderValue, WWW_AUTHENTICATE},
};
use serde::Deserialize;
use url::{Url, form_urlencoded};

use super::{RegistryClient, RegistryCredentials, requests::read_bounded};
use crate::ImageError;

/// The largest reply of a token server.
const TOKEN_BYTES: u64 = 1 << 20;

/// What a registry wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AuthChallenge {
    Basic,
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

#[derive(Deserialize)]
struct TokenReply {
    #[serde(default)]
    token: Option<String>,
    #[serde(default)]
    access_token: Option<String>,
}

impl AuthChallenge {
    /// Reads the header of a refusal.
    pub(super) fn parse(header: &str) -> Option<Self> {
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service, mut scope) = (None, None, None);
        for (name, value) in parse_parameters(rest) {
            match &name[..] {
                "realm" => realm = Some(value),
                "service" => service = Some(value),
                "scope" => scope = Some(value),
                _ => {}
            }
        }
        Some(Self::Bearer { realm: realm?, service, scope })
    }
}

/// `name="value"` pairs, separated by commas that may also occur in values.
fn parse_parameters(mut text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    while let Some((name, rest)) = text.split_once('=') {
        let name = name.trim_matches([',', ' ', '\t']).to_ascii_lowercase();
        let (value, rest) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => rest.split_once(',').unwrap_or((rest, "")),
        };
        found.push((name, value.trim().to_owned()));
        text = rest;
    }
    found
}

impl RegistryClient {
    /// Gets what the registry wants. Fails if it wants an account and there is none.
    pub(super) async fn authorize(&self, refused: &Response) -> Result<(), ImageError> {
        let header = refused.headers().get(WWW_AUTHENTICATE).and_then(|value| value.to_str().ok());
        let challenge = header.and_then(AuthChallenge::parse);
        // Some registries refuse an expired token without saying what they want.
        let challenge = challenge.or_else(|| self.challenge.lock().clone());
        let Some(challenge) = challenge else { return Err(self.denied()) };
        *self.challenge.lock() = Some(challenge.clone());
        let value = match challenge {
            AuthChallenge::Basic => self.basic_header()?,
            AuthChallenge::Bearer { realm, service, scope } => {
                let token = self.request_token(&realm, service.as_deref(), scope).await?;
                HeaderValue::try_from(format!("Bearer {token}"))
                    .map_err(|_| ImageError::Registry("the registry's token is malformed".into()))?
            }
        };
        let mut value = value;
        value.set_sensitive(true);
        *self.authorization.lock() = Some(value);
        Ok(())
    }

    /// The error for a registry that refuses.
    pub(super) fn denied(&self) -> ImageError {
        let host = self.host();
        ImageError::Denied(match self.access.credentials {
            Some(_) => format!("the registry {host} does not accept these credentials"),
            None => format!(
                "the registry {host} wants credentials, or it has no such image: log in, or give \
                 a user name and password"
            ),
        })
    }

    fn basic_header(&self) -> Result<HeaderValue, ImageError> {
        match &self.access.credentials {
            Some(RegistryCredentials::Password { username, password }) => {
                let pair = STANDARD.encode(format!("{username}:{}", password.reveal()));
                HeaderValue::try_from(format!("Basic {pair}")).map_err(|_| self.denied())
            }
            _ => Err(self.denied()),
        }
    }

    async fn request_token(
        &self,
        realm: &str,
        service: Option<&str>,
        scope: Option<String>,
    ) -> Result<String, ImageError> {
        let malformed = |_| ImageError::Registry("the registry's token server is no URL".into());
        let mut realm = Url::parse(realm).map_err(malformed)?;
        if self.access.credentials.is_some() {
            self.check_realm(&realm)?;
        }
        let client = self.client_for(&realm).await?;
        let scope = scope.unwrap_or_else(|| format!("repository:{}:pull", self.repository));
        let request = match &self.access.credentials {
            Some(RegistryCredentials::IdentityToken(token)) => {
                let form = form_urlencoded::Serializer::new(String::new())
                    .append_pair("grant_type", "refresh_token")
                    .append_pair("service", service.unwrap_or_default())
                    .append_pair("scope", &scope)
                    .append_pair("client_id", "cloche")
                    .append_pair("refresh_token", token.reveal())
                    .finish();
                let kind = "application/x-www-form-urlencoded";
                client.post(realm).header(reqwest::header::CONTENT_TYPE, kind).body(form)
            }
            credentials => {
                if let Some(service) = service {
                    realm.query_pairs_mut().append_pair("service", service);
                }
                realm.query_pairs_mut().append_pair("scope", &scope);
                let request = client.get(realm);
                match credentials {
                    Some(_) => request.header(reqwest::header::AUTHORIZATION, self.basic_header()?),
                    None => request,
                }
            }
        };
        self.read_token(request).await
    }

    async fn read_token(&self, request: RequestBuilder) -> Result<String, ImageError> {
        let failed = |error: reqwest::Error| {
            let error = error.without_url();
            ImageError::Registry(format!("the registry's token server did not answer: {error}"))
        };
        let answer = request.timeout(self.access.stall).send().await.map_err(failed)?;
        if !answer.status().is_success() {
            return Err(match answer.status().as_u16() {
                401 | 403 => self.denied(),
                status => {
                    ImageError::Registry(format!("the registry's token server answered {status}"))
                }
            });
        }
        let bytes = read_bounded(answer, TOKEN_BYTES, "the token").await?;
        let reply: TokenReply = serde_json::from_slice(&bytes)
            .map_err(|_| ImageError::Registry("the registry's token cannot be read".into()))?;
        let token = reply.token.or(reply.access_token).filter(|token| !token.is_empty());
        token.ok_or_else(|| self.denied())
    }

    /// A password goes to the registry itself, to a host of the same domain, or where the operator
    /// allows it.
    fn check_realm(&self, realm: &Url) -> Result<(), ImageError> {
        let host = realm.host_str().unwrap_or_default();
        let allowed = host == self.host()
            || parent_domain(host).is_some_and(|parent| parent_domain(self.host()) == Some(parent))
            || self.access.auth_hosts.iter().any(|allowed| allowed == host);
        if allowed {
            return Ok(());
        }
        Err(ImageError::Denied(format!(
            "the registry {} wants the password to be sent to {host}: allow it with --auth-host \
             {host} if you trust that host",
            self.host()
        )))
    }
}

/// The last two names of a host: `docker.io` of `auth.docker.io`. An address has none.
fn parent_domain(host: &str) -> Option<&str> {
    if host.parse::<std::net::IpAddr>().is_ok() || host.starts_with('[') {
        return None;
    }
    let mut dots = host.rmatch_indices('.').map(|(at, _)| at);
    let last = dots.next()?;
    // `co.uk` and the like are shared by strangers.
    let second = dots.next().map_or(0, |at| at + 1);
    let names = &host[second..];
    (last - second > 3 || names.len() - (last - second) > 3).then_some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_read_with_commas_in_its_values() {
        let header = "Bearer realm=\"https://auth.example.org/token\", service=\"reg\",\
                      scope=\"repository:a/b:pull,push\"";
        let Some(AuthChallenge::Bearer { realm, service, scope }) = AuthChallenge::parse(header)
        else {
            panic!("no challenge");
        };
        assert_eq!(realm, "https://auth.example.org/token");
        assert_eq!(service.as_deref(), Some("reg"));
        assert_eq!(scope.as_deref(), Some("repository:a/b:pull,push"));
        assert_eq!(AuthChallenge::parse("Basic realm=\"x\""), Some(AuthChallenge::Basic));
        assert_eq!(AuthChallenge::parse("Negotiate"), None);
        assert_eq!(AuthChallenge::parse("Bearer service=\"x\""), None);
    }

    #[test]
    fn only_hosts_of_one_owner_share_a_domain() {
        assert_eq!(parent_domain("auth.docker.io"), Some("docker.io"));
        assert_eq!(parent_domain("registry-1.docker.io"), Some("docker.io"));
        assert_eq!(parent_domain("a.co.uk"), None);
        for host in ["localhost", "127.0.0.1", "[::1]"] {
            assert_eq!(parent_domain(host), None, "{host}");
        }
    }
}
