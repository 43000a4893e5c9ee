//! Runs in: network broker (no capabilities).
//!
//! The certificate authority of one run. Its key is never written anywhere, its certificate is
//! valid for the bound hosts only, and a host has one certificate with one name.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints, SanType,
};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
};
use time::{Duration, OffsetDateTime};

use crate::InterceptionError;

/// Clocks of cells differ from ours, and images check the beginning of validity.
const BACKDATED: Duration = Duration::hours(1);
/// Longer than any run; shorter than the limit that clients set for certificates.
const VALIDITY: Duration = Duration::days(30);
/// How often a run can resume a TLS session with one host.
const SESSIONS: usize = 64;

/// What the cell and we agreed to speak. It is what upstream chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ChosenProtocol {
    /// HTTP/1.1, by ALPN or without it.
    Http1,
    /// HTTP/2, by ALPN.
    Http2,
}

impl ChosenProtocol {
    /// The name in ALPN.
    pub(crate) const fn alpn(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
        }
    }
}

pub(crate) struct SessionAuthority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    /// One entry for each bound host and protocol, so a hostile name cannot fill it.
    configs: Mutex<HashMap<(String, ChosenProtocol), Arc<ServerConfig>>>,
}

impl SessionAuthority {
    /// An authority for these names and no other.
    pub(crate) fn generate(names: Vec<String>) -> Result<Self, InterceptionError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name("Cloche, for one run");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let permitted_subtrees = names.into_iter().map(GeneralSubtree::DnsName).collect();
        params.name_constraints =
            Some(NameConstraints { permitted_subtrees, excluded_subtrees: Vec::new() });
        set_validity(&mut params);
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem, configs: Mutex::default() })
    }

    pub(crate) fn certificate_pem(&self) -> &str {
        &self.pem
    }

    /// The TLS settings to answer a cell as `host`, which is bound.
    pub(crate) fn server_config(
        &self,
        host: &str,
        protocol: ChosenProtocol,
    ) -> Result<Arc<ServerConfig>, InterceptionError> {
        let mut configs = self.configs.lock();
        let key = (host.to_owned(), protocol);
        if let Some(config) = configs.get(&key) {
            return Ok(Arc::clone(config));
        }
        let config = Arc::new(self.make_config(host, protocol)?);
        configs.insert(key, Arc::clone(&config));
        Ok(config)
    }

    fn make_config(
        &self,
        host: &str,
        protocol: ChosenProtocol,
    ) -> Result<ServerConfig, InterceptionError> {
        let (certificate, key) = self.make_leaf(host)?;
        let provider = Arc::new(ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)?;
        config.alpn_protocols = vec![protocol.alpn().to_vec()];
        config.session_storage = rustls::server::ServerSessionMemoryCache::new(SESSIONS);
        Ok(config)
    }

    /// A certificate with one name, and a key of its own.
    fn make_leaf(
        &self,
        host: &str,
    ) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), InterceptionError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name("Cloche");
        params.subject_alt_names = vec![SanType::DnsName(host.try_into()?)];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        set_validity(&mut params);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Ok((certificate.der().clone(), key))
    }
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn set_validity(params: &mut CertificateParams) {
    params.not_before = OffsetDateTime::now_utc() - BACKDATED;
    params.not_after = params.not_before + VALIDITY;
}
