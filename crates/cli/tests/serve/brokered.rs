//! Runs in: test. Brokered credentials end to end: the real binary on a host with an internet of
//! its own, programs in cells, servers that record what they get.

use std::{fs, path::Path, process::Command, sync::Arc};

use base64::{Engine as _, engine::general_purpose::URL_SAFE};
use cloche_test_support::{
    internet::{Internet, NAME_SERVER},
    skip,
};
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    host::Host,
    support::{binary, can_sandbox, ended},
};

const SECRET: &str = "sk-live-0123456789-abcdef";
const ROTATED: &str = "sk-live-fedcba-9876543210";

/// A server on a host with an internet, and a credential for `allowed.example`.
struct BrokeredHost {
    host: Host,
    internet: Internet,
    _files: TempDir,
}

impl BrokeredHost {
    async fn start(network: Value) -> Option<Self> {
        Self::start_on(network, Internet::start, true).await
    }

    /// The same on an internet that is made so, with or without `ca_file` in the settings.
    async fn start_on(
        network: Value,
        make_internet: fn(&Path) -> Option<Internet>,
        has_ca_file: bool,
    ) -> Option<Self> {
        if !can_sandbox() {
            return None;
        }
        let files = TempDir::new().unwrap();
        let Some(internet) = make_internet(files.path()) else {
            skip("this user cannot make network namespaces");
            return None;
        };
        let config = files.path().join("cloche.toml");
        let mut text = format!("[network]\nresolvers = [\"{NAME_SERVER}\"]\n");
        if has_ca_file {
            // Longer than any packet between the server and the broker, as a whole system's file is.
            let authority = fs::read_to_string(files.path().join("ca.pem")).unwrap();
            let long = files.path().join("long.pem");
            fs::write(&long, "# an authority of ours\n".repeat(10_000) + &authority).unwrap();
            text += &format!("ca_file = \"{}\"\n", long.display());
        }
        fs::write(&config, text).unwrap();
        let arguments = vec!["--config".to_owned(), config.display().to_string()];
        let host = Host::start_on(Arc::new(TempDir::new().unwrap()), arguments).await;
        let keys = host.admin_json(Method::GET, "keys", Value::Null).await;
        let sandbox = format!("sandboxes/{}", keys["keys"][0]["sandbox_id"].as_str().unwrap());
        host.admin_json(Method::PATCH, &sandbox, network).await;
        let brokered = Self { host, internet, _files: files };
        let create = ["create", "api", "--host", "allowed.example", "--sandbox", "default"];
        let made = brokered.credential(&create, SECRET);
        assert_eq!((&made["kind"], &made["visible_to_code"]), (&json!("brokered"), &json!(false)));
        Some(brokered)
    }

    fn credential(&self, arguments: &[&str], value: &str) -> Value {
        let mut command = Command::new(binary());
        command.arg("credential").args(arguments).args(["--json", "--data-dir"]);
        command.arg(self.host.data());
        ended(command, value.as_bytes()).json()
    }

    async fn run(&self, language: &str, code: &str) -> Value {
        let (_, reply) = self.host.run(json!({"language": language, "code": code})).await;
        let shown = reply.to_string();
        assert!(!shown.contains("sk-live"), "{code}: {shown}");
        reply
    }

    /// Runs a program that has to succeed.
    async fn output(&self, language: &str, code: &str) -> String {
        let reply = self.run(language, code).await;
        assert_eq!(reply["exit_code"], 0, "{code}: {reply}");
        reply["stdout"].as_str().unwrap().to_owned()
    }

    fn last_request(&self) -> String {
        self.internet.echoed_requests().pop().unwrap_or_default()
    }
}

fn allowlist() -> Value {
    json!({"network": "allowlist", "network_allow": ["allowed.example", "other.example"]})
}

fn files_with(directory: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with(&path, text));
        } else if fs::read(&path).is_ok_and(|bytes| contains(&bytes, text)) {
            found.push(path.display().to_string());
        }
    }
    found
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

const PYTHON: &str = "
import os, urllib.request
token = {'Authorization': 'Bearer ' + os.environ['CLOCHE_CREDENTIAL_API']}
url = urllib.request.Request('https://allowed.example/echo', headers=token)
print(urllib.request.urlopen(url).read().decode())
";
const NODE: &str = "
const headers = {Authorization: 'Bearer ' + process.env.CLOCHE_CREDENTIAL_API};
fetch('https://allowed.example/echo', {headers}).then((reply) => reply.text()).then(console.log);
";

#[tokio::test]
async fn programs_of_every_language_have_the_credential_added_and_never_see_it() {
    check_every_language(allowlist()).await;
}

#[tokio::test]
async fn an_unrestricted_network_is_intercepted_for_bound_hosts_only() {
    check_every_language(json!({"network": "unrestricted"})).await;
}

/// A host whose own authorities do not vouch for the server, with and without `ca_file`.
#[tokio::test]
async fn the_operators_authorities_vouch_for_a_server_that_the_hosts_do_not_know() {
    let code = "curl -sS -w ' %{http_code}' https://allowed.example/echo";
    for has_ca_file in [true, false] {
        let started = BrokeredHost::start_on(allowlist(), Internet::start_untrusted, has_ca_file);
        let Some(host) = started.await else { return };
        let said = host.output("bash", code).await;
        let requests = host.internet.echoed_requests();
        match has_ca_file {
            true => {
                assert!(said.contains("Bearer ****") && said.ends_with(" 200"), "{said}");
                let sent = format!("https://allowed.example/echo Bearer {SECRET}");
                assert_eq!(requests, [sent]);
            }
            false => {
                assert!(said.ends_with(" 502"), "{said}");
                assert_eq!(requests, [""; 0]);
            }
        }
        // What is not bound is verified in the cell, by the program.
        let reply = host.run("bash", "curl -sS https://other.example/echo").await;
        assert_eq!(reply["exit_code"], 60, "{reply}");
    }
}

#[test]
fn a_ca_file_that_cannot_be_used_is_refused_with_a_sentence() {
    let files = TempDir::new().unwrap();
    let (config, authorities) = (files.path().join("cloche.toml"), files.path().join("ca.pem"));
    fs::write(&config, format!("[network]\nca_file = \"{}\"\n", authorities.display())).unwrap();
    let long = "#".repeat(1_100_000);
    let broken = "-----BEGIN CERTIFICATE-----\nno base64!\n-----END CERTIFICATE-----\n";
    let cases = [
        (None, "No such file"),
        (Some("just words\n"), "it has no certificate in PEM"),
        (Some(broken), "a certificate is not PEM"),
        (Some(long.as_str()), "it has 1100000 bytes, and 1048576 are the most"),
    ];
    for (content, sentence) in cases {
        if let Some(content) = content {
            fs::write(&authorities, content).unwrap();
        }
        let mut command = Command::new(binary());
        command.args(["config", "check"]).arg(&config);
        let refused = ended(command, b"");
        assert_eq!(refused.code, 1, "{sentence}: {refused:?}");
        assert!(refused.stderr.contains("network.ca_file"), "{refused:?}");
        assert!(refused.stderr.contains(sentence), "{sentence}: {refused:?}");
    }
}

async fn check_every_language(network: Value) {
    {
        let Some(host) = BrokeredHost::start(network).await else { return };
        let with_secret = format!("https://allowed.example/echo Bearer {SECRET}");
        for (language, code) in [
            ("bash", "curl -sS https://allowed.example/echo"),
            (
                "bash",
                "curl -sS -H \"Authorization: $CLOCHE_CREDENTIAL_API\" https://allowed.example/echo",
            ),
            ("bash", "env -i curl -sS https://allowed.example/echo"),
            ("python", PYTHON),
            ("node", NODE),
        ] {
            let before = host.internet.echoed_requests().len();
            let echoed = host.output(language, code).await;
            assert!(echoed.contains("Bearer ****"), "{code}: {echoed}");
            assert_eq!(host.internet.echoed_requests().len(), before + 1, "{code}");
            assert_eq!(host.last_request(), with_secret, "{code}");
        }
        // What is not bound passes the broker untouched, and has no credential.
        for (code, request) in [
            ("curl -sS http://allowed.example/echo", "http://allowed.example/echo nothing"),
            ("curl -sSk https://other.example/echo", "https://other.example/echo nothing"),
            (
                "curl -sSk -H \"Authorization: Bearer $CLOCHE_CREDENTIAL_API\" https://other.example/echo",
                "https://other.example/echo Bearer cloche-credential-api",
            ),
        ] {
            host.output("bash", code).await;
            assert_eq!(host.last_request(), request, "{code}");
        }
        assert_eq!(files_with(&host.host.data(), SECRET), [""; 0]);
        assert!(!host.host.said("log").contains("sk-live"), "{}", host.host.said("log"));
        assert_eq!(host.internet.reached_canaries(), [""; 0]);
    }
}

#[tokio::test]
async fn a_credential_goes_to_no_other_host_and_ends_with_its_binding() {
    let Some(host) = BrokeredHost::start(allowlist()).await else { return };
    let before = host.internet.echoed_requests().len();
    let misdirected = "curl -sS -o /dev/null -w '%{http_code}' -H 'Host: other.example' \
        https://allowed.example/echo";
    assert_eq!(host.output("bash", misdirected).await, "421");
    assert_eq!(host.internet.echoed_requests().len(), before);
    let to = URL_SAFE.encode("https://other.example/echo");
    let redirected = format!("curl -sSkL https://allowed.example/redirect/{to}");
    host.output("bash", &redirected).await;
    assert_eq!(host.last_request(), "https://other.example/echo nothing");

    // The secret is in no file, variable or process of the cell.
    let search = "m=sk-li; m=${m}ve\n\
        env | grep -c $m; cat /proc/[0-9]*/environ 2>/dev/null | grep -ac $m\n\
        grep -rls $m /run /etc /tmp /dev/shm ~ | grep -vc main; ls /run/trust";
    let found = host.output("bash", &format!("{search}; true")).await;
    assert_eq!(found, "0\n0\n0\nbroker.pem\nca-certificates.crt\n");

    // A new value is used from the next execution on; without a binding there is none.
    host.credential(&["set", "default/api", "--value-file", "-"], ROTATED);
    host.output("bash", "curl -sS https://allowed.example/echo").await;
    assert_eq!(host.last_request(), format!("https://allowed.example/echo Bearer {ROTATED}"));
    host.credential(&["unbind", "default/api", "--sandbox", "default"], "");
    let plain = "curl -sSk https://allowed.example/echo; ls /run/trust; echo $SSL_CERT_FILE";
    host.output("bash", plain).await;
    assert_eq!(host.last_request(), "https://allowed.example/echo nothing");
    assert_eq!(files_with(&host.host.data(), ROTATED), [""; 0]);
}
