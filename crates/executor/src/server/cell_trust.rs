//! Runs in: server (no capabilities). What a program has to trust and to know when its credentials
//! are added outside of the cell: a certificate authority, and placeholders.
//!
//! Most variables replace the system's authorities, so the file that they name has those of this
//! host, too.

use std::{fmt::Write as _, sync::OnceLock};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use cloche_jail::job_writer::{self, InvalidJob};
use cloche_model::BrokeredCredential;

use crate::protocol::TRUST_DIR;

/// Every authority, under the name that systems have it by in `/etc/ssl/certs`.
const BUNDLE: &str = "ca-certificates.crt";
/// The authority of the run alone.
const AUTHORITY: &str = "broker.pem";
/// Variables that name a file with every authority.
const BUNDLE_VARIABLES: [&str; 8] = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
];
/// Variables that name a file with further authorities.
const AUTHORITY_VARIABLES: [&str; 2] = ["NODE_EXTRA_CA_CERTS", "DENO_CERT"];
/// The bytes of a line of PEM.
const LINE: usize = 64;

/// The authority of a run, in PEM, and the credentials that it is for.
pub(crate) struct CellTrust<'a> {
    pub(crate) authority: &'a str,
    pub(crate) brokered: &'a [BrokeredCredential],
}

impl CellTrust<'_> {
    /// The variables of the program. Those of the sandbox, the key and the request replace them.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        let names = |names: &'static [&'static str], file: &'static str| {
            names.iter().map(move |name| ((*name).to_owned(), format!("{TRUST_DIR}/{file}")))
        };
        let placeholders = self
            .brokered
            .iter()
            .map(|credential| (credential.placeholder_variable(), credential.placeholder()));
        names(&BUNDLE_VARIABLES, BUNDLE)
            .chain(names(&AUTHORITY_VARIABLES, AUTHORITY))
            .chain(placeholders)
            .collect()
    }

    /// Adds the files to a job.
    pub(crate) fn append_files(&self, job: &mut Vec<u8>) -> Result<(), InvalidJob> {
        let bundle = format!("{}{}", self.authority, host_authorities());
        for (file, content) in [(BUNDLE, bundle.as_str()), (AUTHORITY, self.authority)] {
            let path = format!("{TRUST_DIR}/{file}");
            job_writer::append_file(job, &path, 0o444, content.as_bytes())?;
        }
        Ok(())
    }
}

/// The certificates that this host trusts, in PEM, read once.
fn host_authorities() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let mut text = String::new();
        for certificate in rustls_native_certs::load_native_certs().certs {
            let encoded = STANDARD.encode(&certificate);
            text.push_str("-----BEGIN CERTIFICATE-----\n");
            for line in encoded.as_bytes().chunks(LINE) {
                let _ = writeln!(text, "{}", String::from_utf8_lossy(line));
            }
            text.push_str("-----END CERTIFICATE-----\n");
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use cloche_model::{BrokerRule, CredentialForm, Secret};

    use super::*;

    #[test]
    fn a_program_gets_placeholders_and_files_and_never_a_value() {
        let credential = BrokeredCredential {
            name: "my-api".to_owned(),
            rule: BrokerRule {
                hosts: vec!["api.example.com".parse().unwrap()],
                methods: Vec::new(),
                paths: Vec::new(),
                form: CredentialForm::Bearer,
            },
            value: Secret::new("hunter2-hunter2"),
        };
        let authority = "-----BEGIN CERTIFICATE-----\nown\n-----END CERTIFICATE-----\n";
        let trust = CellTrust { authority, brokered: &[credential] };
        let variables = trust.variables();
        let value =
            |name: &str| variables.iter().find(|(known, _)| known == name).unwrap().1.clone();
        assert_eq!(value("CLOCHE_CREDENTIAL_MY_API"), "cloche-credential-my-api");
        assert_eq!(value("SSL_CERT_FILE"), "/run/trust/ca-certificates.crt");
        assert_eq!(value("NODE_EXTRA_CA_CERTS"), "/run/trust/broker.pem");
        let mut job = Vec::new();
        trust.append_files(&mut job).unwrap();
        let job = String::from_utf8_lossy(&job).into_owned();
        assert!(job.contains(authority) && !job.contains("hunter2"));
    }
}
