//! Runs in: network broker (no capabilities).
//!
//! The credentials of a run by host and port, and which of them a request gets.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use cloche_model::{BrokeredCredential, CredentialForm};
use hyper::{
    HeaderMap, Method,
    header::{AUTHORIZATION, HeaderName, HeaderValue},
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::{
    InterceptionError,
    path::{canonical_path, is_below},
    redaction::SecretForms,
    refusal::RequestRefusal,
};

/// The credentials of a run.
pub(crate) struct SessionRules {
    hosts: Vec<BoundHost>,
    /// The forms of all secrets of the run: each of them is removed from every reply.
    pub(crate) forms: Arc<SecretForms>,
}

/// A host and port with credentials.
#[derive(Clone)]
pub(crate) struct BoundHost {
    pub(crate) name: String,
    pub(crate) port: u16,
    credentials: Vec<Arc<BoundCredential>>,
}

/// A credential, ready to be added to requests.
pub(crate) struct BoundCredential {
    placeholder: String,
    methods: Vec<String>,
    paths: Vec<String>,
    pub(crate) addition: Addition,
}

/// What is added to a request.
pub(crate) enum Addition {
    /// A header, in place of every one of this name.
    Header(HeaderName, HeaderValue),
    /// A parameter of the query, in place of every one of this name, with its value escaped.
    Query(String, String),
}

impl SessionRules {
    pub(crate) fn new(credentials: &[BrokeredCredential]) -> Result<Self, InterceptionError> {
        let mut hosts: Vec<BoundHost> = Vec::new();
        for credential in credentials {
            // A value that is no header is never stored; without its addition it is never sent.
            let Some(addition) = Addition::of(credential) else { continue };
            let bound = Arc::new(BoundCredential {
                placeholder: credential.placeholder(),
                methods: credential.rule.methods.clone(),
                paths: credential.rule.paths.clone(),
                addition,
            });
            for host in &credential.rule.hosts {
                let known = |known: &&mut BoundHost| {
                    known.name == host.name.as_str() && known.port == host.port
                };
                match hosts.iter_mut().find(known) {
                    Some(known) => known.credentials.push(Arc::clone(&bound)),
                    None => hosts.push(BoundHost {
                        name: host.name.as_str().to_owned(),
                        port: host.port,
                        credentials: vec![Arc::clone(&bound)],
                    }),
                }
            }
        }
        let secrets = credentials.iter().flat_map(list_secrets);
        Ok(Self { hosts, forms: Arc::new(SecretForms::new(secrets)?) })
    }

    pub(crate) fn find_host(&self, name: &str, port: u16) -> Option<&BoundHost> {
        self.hosts.iter().find(|host| host.name == name && host.port == port)
    }

    /// The names of all bound hosts, each once.
    pub(crate) fn host_names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.hosts.iter().map(|host| host.name.clone()).collect();
        names.sort();
        names.dedup();
        names
    }
}

/// What must not be in a reply: the value, and the password alone.
fn list_secrets(credential: &BrokeredCredential) -> Vec<&str> {
    let value = credential.value.reveal();
    match (&credential.rule.form, value.split_once(':')) {
        (CredentialForm::Basic, Some((_, password))) => vec![value, password],
        _ => vec![value],
    }
}

impl Addition {
    fn of(credential: &BrokeredCredential) -> Option<Self> {
        let value = credential.value.reveal();
        let header = |name: HeaderName, text: &str| {
            let mut value = HeaderValue::from_str(text).ok()?;
            // HTTP/2 then never puts it into a table that other requests refer to.
            value.set_sensitive(true);
            Some(Self::Header(name, value))
        };
        match &credential.rule.form {
            CredentialForm::Bearer => header(AUTHORIZATION, &format!("Bearer {value}")),
            CredentialForm::Basic => {
                header(AUTHORIZATION, &format!("Basic {}", STANDARD.encode(value)))
            }
            CredentialForm::Header(name) => header(name.parse().ok()?, value),
            CredentialForm::Query(name) => {
                let escaped = utf8_percent_encode(value, NON_ALPHANUMERIC).to_string();
                Some(Self::Query(name.clone(), escaped))
            }
        }
    }

    fn has_same_place(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Header(one, _), Self::Header(two, _)) => one == two,
            (Self::Query(one, _), Self::Query(two, _)) => one == two,
            _ => false,
        }
    }
}

impl BoundHost {
    /// The additions to a request. One for each place: where several credentials fit, the one whose
    /// placeholder the program put there.
    pub(crate) fn choose_additions(
        &self,
        method: &Method,
        (path, query): (&str, Option<&str>),
        headers: &HeaderMap,
    ) -> Result<Vec<&Addition>, RequestRefusal> {
        let has_paths = self.credentials.iter().any(|credential| !credential.paths.is_empty());
        let canonical = canonical_path(path);
        if has_paths && canonical.is_none() {
            return Err(RequestRefusal::AmbiguousPath);
        }
        let path = canonical.as_deref().unwrap_or_default();
        let fits = |credential: &&Arc<BoundCredential>| credential.fits(method, path);
        let fitting: Vec<_> = self.credentials.iter().filter(fits).collect();
        let mut chosen: Vec<&Addition> = Vec::new();
        for credential in &fitting {
            let addition = &credential.addition;
            if chosen.iter().any(|chosen| chosen.has_same_place(addition)) {
                continue;
            }
            let rivals: Vec<_> =
                fitting.iter().filter(|rival| rival.addition.has_same_place(addition)).collect();
            let named = || rivals.iter().filter(|rival| rival.is_named(headers, query));
            match (rivals.as_slice(), named().count()) {
                ([_], _) => chosen.push(addition),
                (_, 1) => chosen.extend(named().map(|rival| &rival.addition)),
                _ => return Err(RequestRefusal::AmbiguousCredential),
            }
        }
        Ok(chosen)
    }
}

impl BoundCredential {
    fn fits(&self, method: &Method, path: &str) -> bool {
        let method_fits =
            self.methods.is_empty() || self.methods.iter().any(|one| one == method.as_str());
        method_fits
            && (self.paths.is_empty() || self.paths.iter().any(|prefix| is_below(path, prefix)))
    }

    /// Whether the program put the placeholder where the credential goes.
    fn is_named(&self, headers: &HeaderMap, query: Option<&str>) -> bool {
        let is_placeholder =
            |text: &str| text.split([' ', ':', '=', '&']).any(|word| word == self.placeholder);
        match &self.addition {
            Addition::Header(name, _) => headers.get_all(name).iter().any(|value| {
                let Ok(text) = value.to_str() else { return false };
                let basic = text.strip_prefix("Basic ").and_then(|text| STANDARD.decode(text).ok());
                is_placeholder(text)
                    || basic.is_some_and(|text| is_placeholder(&String::from_utf8_lossy(&text)))
            }),
            Addition::Query(name, _) => query.is_some_and(|query| {
                query.split('&').any(|pair| pair == format!("{name}={}", self.placeholder))
            }),
        }
    }
}
