//! Runs in: server (no capabilities).
//!
//! TLS of the port: `--tls-cert`, `--tls-key` and `--require-tls`, and `[tls]` of the file.

use std::path::PathBuf;

use clap::{Args, builder::BoolishValueParser};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{SettingsError, absolute_path};

/// TLS as flags.
#[derive(Args, Default)]
pub(in crate::serve) struct TlsArguments {
    /// A PEM file with the certificate of this server and its chain; the port then speaks TLS.
    #[arg(long, env = "CLOCHE_TLS_CERT", value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// A PEM file with the private key of the certificate.
    #[arg(long, env = "CLOCHE_TLS_KEY", value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Refuse to start without a certificate, on any address.
    #[arg(long, env = "CLOCHE_REQUIRE_TLS", value_parser = BoolishValueParser::new())]
    require_tls: bool,
}

/// The section of the file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TlsFile {
    /// A PEM file with the certificate of this server and its chain; the port then speaks TLS.
    #[schemars(extend("x-default" = "none", "x-argument" = "tls_cert"))]
    cert: Option<PathBuf>,
    /// A PEM file with the private key of the certificate.
    #[schemars(extend("x-default" = "none", "x-argument" = "tls_key"))]
    key: Option<PathBuf>,
    /// Refuse to start without a certificate.
    #[schemars(extend("default" = false, "x-argument" = "require_tls"))]
    required: bool,
}

/// The files of the certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) struct TlsPaths {
    pub(in crate::serve) cert: PathBuf,
    pub(in crate::serve) key: PathBuf,
}

pub(super) fn tls_paths(
    arguments: TlsArguments,
    file: TlsFile,
) -> Result<Option<TlsPaths>, SettingsError> {
    let cert = arguments.tls_cert.or(file.cert).map(absolute_path);
    let key = arguments.tls_key.or(file.key).map(absolute_path);
    match (cert, key) {
        (Some(cert), Some(key)) => Ok(Some(TlsPaths { cert, key })),
        (Some(_), None) => Err(SettingsError::TlsPair("--tls-cert", "--tls-key")),
        (None, Some(_)) => Err(SettingsError::TlsPair("--tls-key", "--tls-cert")),
        (None, None) if arguments.require_tls || file.required => Err(SettingsError::TlsRequired),
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_needs_its_key_and_may_be_required() {
        let read = |text| toml::from_str::<TlsFile>(text).unwrap();
        let paths = |text| tls_paths(TlsArguments::default(), read(text));
        assert_eq!(paths("").unwrap(), None);
        let both = paths("cert = \"/c\"\nkey = \"/k\"\nrequired = true").unwrap().unwrap();
        assert_eq!((both.cert, both.key), ("/c".into(), "/k".into()));
        assert!(matches!(paths("cert = \"/c\""), Err(SettingsError::TlsPair(..))));
        assert!(matches!(paths("required = true"), Err(SettingsError::TlsRequired)));
        let flags = TlsArguments { tls_key: Some("/other".into()), ..TlsArguments::default() };
        let flagged = tls_paths(flags, read("cert = \"/c\"\nkey = \"/k\"")).unwrap().unwrap();
        assert_eq!(flagged.key, PathBuf::from("/other"));
    }
}
