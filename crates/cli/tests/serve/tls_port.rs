//! Runs in: test.
//!
//! The port of the server with a certificate: both protocols, a new certificate while it runs, and
//! clients that never complete a handshake.

use std::{
    fs::{self, Permissions},
    net::SocketAddr,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{
    host::{Host, PATIENCE},
    support::{Ended, binary, cloche, ended, eventually},
};

/// A certificate for `localhost` that is its own authority, and its key.
struct Pair {
    cert: String,
    key: String,
}

impl Pair {
    fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        Self { cert: made.cert.pem(), key: made.signing_key.serialize_pem() }
    }

    /// Writes both files into a new directory.
    fn write_to(&self, directory: &Path) {
        fs::create_dir_all(directory).unwrap();
        fs::write(directory.join("cert.pem"), &self.cert).unwrap();
        fs::write(directory.join("key.pem"), &self.key).unwrap();
        fs::set_permissions(directory.join("key.pem"), Permissions::from_mode(0o600)).unwrap();
    }

    /// A line from the middle of the key, which no log may contain.
    fn part_of_key(&self) -> &str {
        self.key.lines().nth(1).unwrap()
    }
}

fn arguments(directory: &Path) -> [String; 4] {
    let file = |name: &str| directory.join(name).display().to_string();
    ["--tls-cert".to_owned(), file("cert.pem"), "--tls-key".to_owned(), file("key.pem")]
}

async fn start(directory: &Path, more: &[&str]) -> Option<Host> {
    let arguments = arguments(directory);
    let all: Vec<&str> = arguments.iter().map(String::as_str).chain(more.iter().copied()).collect();
    Host::start_with(&all).await
}

fn address(host: &Host) -> SocketAddr {
    host.url.strip_prefix("https://").unwrap().parse().unwrap()
}

/// `curl` to the server under the name in its certificate, which trusts only this certificate.
fn curl(host: &Host, trusted: &str, more: &[&str]) -> Ended {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), trusted).unwrap();
    let mut command = Command::new("curl");
    command.args(["-s", "--max-time", "20", "--cacert"]).arg(file.path()).args(more);
    command.arg(format!("https://localhost:{}/v1/executions", address(host).port()));
    command.args(["-H", &format!("Authorization: Bearer {}", host.key)]);
    ended(command, b"")
}

fn is_trusted(host: &Host, trusted: &str) -> bool {
    let answer = curl(host, trusted, &["-o", "/dev/null", "-w", "%{http_code}"]);
    // 60: the certificate comes from no trusted authority.
    assert!(answer.stdout == "200" || answer.code == 60, "{answer:?}");
    answer.code == 0
}

async fn wait_until_served(host: &Host, pair: &Pair) {
    eventually("the new certificate is served", async || {
        is_trusted(host, &pair.cert).then_some(()).ok_or_else(|| host.said("log"))
    })
    .await;
}

#[tokio::test]
async fn http_2_and_http_1_are_served_over_tls() {
    let (files, pair) = (TempDir::new().unwrap(), Pair::new());
    pair.write_to(files.path());
    fs::set_permissions(files.path().join("key.pem"), Permissions::from_mode(0o644)).unwrap();
    let Some(host) = start(files.path(), &[]).await else { return };
    for (flag, version) in [("--http2", "2"), ("--http1.1", "1.1")] {
        let show = [flag, "-o", "/dev/null", "-w", "%{http_version} %{http_code}"];
        let answer = curl(&host, &pair.cert, &show);
        assert_eq!(answer.stdout, format!("{version} 200"), "{answer:?}");
    }
    assert!(!is_trusted(&host, &Pair::new().cert), "another certificate is served");
    let (status, answer) = host.run(json!({"code": "print(6 * 7)"})).await;
    assert_eq!((status, &answer["stdout"]), (200, &json!("42\n")), "{answer}");
    let place = json!({"source": "thread", "id": "t", "path": "f", "content_length": 1});
    let signed = host.request(reqwest::Method::POST, "/v1/files/upload_url").json(&place);
    let signed: Value = signed.send().await.unwrap().json().await.unwrap();
    assert!(signed["url"].as_str().unwrap().starts_with("https://"), "{signed}");

    // What the server says of itself.
    let said = host.said("stdout");
    assert!(said.contains(&format!("listening on {}", host.url)), "{said}");
    assert!(said.contains(&format!("curl -s {}/v1/sandbox/execute", host.url)), "{said}");
    let log = host.said("log");
    assert!(log.contains("every user of this host can read the private key"), "{log}");
    assert!(!log.contains(pair.part_of_key()), "the key is in the log");

    // A client that does not know better learns it.
    let mut plain = TcpStream::connect(address(&host)).await.unwrap();
    plain.write_all(b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    plain.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("use an https URL"), "{answer}");
}

#[tokio::test]
async fn operators_name_the_authority_of_the_server() {
    let (files, pair) = (TempDir::new().unwrap(), Pair::new());
    pair.write_to(files.path());
    let Some(host) = start(files.path(), &[]).await else { return };
    let ca = files.path().join("cert.pem").display().to_string();
    let url = format!("https://localhost:{}", address(&host).port());
    let list = |more: &[&str]| {
        let mut command = Command::new(binary());
        command.args(["team", "list", "--json", "--url", &url]).args(more);
        command.env("CLOCHE_ADMIN_TOKEN", &host.admin);
        ended(command, b"")
    };
    let listed = list(&["--ca", &ca]);
    assert_eq!((listed.code, &listed.json()["teams"][0]["name"]), (0, &json!("default")));
    let refused = list(&[]);
    assert!(refused.code == 1 && refused.stderr.contains("cannot reach"), "{refused:?}");
    let missing = list(&["--ca", "/nonexistent.pem"]);
    assert!(missing.stderr.contains("/nonexistent.pem"), "{missing:?}");
}

#[tokio::test]
async fn a_new_certificate_is_served_when_the_files_change() {
    let (files, old, new) = (TempDir::new().unwrap(), Pair::new(), Pair::new());
    // As Kubernetes does: the names are links through a link that is replaced in one step. Only the
    // operator can enter the directory.
    old.write_to(&files.path().join("one"));
    new.write_to(&files.path().join("two"));
    fs::set_permissions(files.path(), Permissions::from_mode(0o700)).unwrap();
    symlink("one", files.path().join("data")).unwrap();
    for name in ["cert.pem", "key.pem"] {
        symlink(Path::new("data").join(name), files.path().join(name)).unwrap();
    }
    let Some(host) = start(files.path(), &[]).await else { return };
    assert!(is_trusted(&host, &old.cert));
    symlink("two", files.path().join("next")).unwrap();
    fs::rename(files.path().join("next"), files.path().join("data")).unwrap();
    wait_until_served(&host, &new).await;
    assert!(!is_trusted(&host, &old.cert));
}

#[tokio::test]
async fn a_hangup_loads_a_new_certificate_and_a_bad_one_keeps_the_old() {
    let (files, old, new) = (TempDir::new().unwrap(), Pair::new(), Pair::new());
    old.write_to(files.path());
    let Some(host) = start(files.path(), &[]).await else { return };
    let replace = |name: &str, text: &str| {
        let staged: PathBuf = files.path().join("staged");
        fs::write(&staged, text).unwrap();
        fs::rename(&staged, files.path().join(name)).unwrap();
    };
    // A key that does not belong to the certificate.
    replace("key.pem", &new.key);
    host.signal(Signal::HUP);
    eventually("the log says why", async || {
        let log = host.said("log");
        let is_said = log.contains("the old one is still served") && log.contains("KeyMismatch");
        is_said.then_some(()).ok_or(log)
    })
    .await;
    assert!(is_trusted(&host, &old.cert));
    replace("cert.pem", &new.cert);
    host.signal(Signal::HUP);
    wait_until_served(&host, &new).await;
    replace("cert.pem", "no certificate");
    host.signal(Signal::HUP);
    eventually("the log says why", async || {
        let log = host.said("log");
        log.contains("has no certificate in PEM format").then_some(()).ok_or(log)
    })
    .await;
    fs::remove_file(files.path().join("key.pem")).unwrap();
    host.signal(Signal::HUP);
    eventually("the log says why", async || {
        let log = host.said("log");
        log.contains("key.pem: No such file").then_some(()).ok_or(log)
    })
    .await;
    assert!(is_trusted(&host, &new.cert));
    for pair in [&old, &new] {
        assert!(!host.said("log").contains(pair.part_of_key()), "a key is in the log");
    }
}

#[tokio::test]
async fn a_handshake_that_does_not_end_is_closed_and_counts_for_its_address() {
    let (files, pair) = (TempDir::new().unwrap(), Pair::new());
    pair.write_to(files.path());
    let settings = files.path().join("cloche.toml");
    fs::write(&settings, "[connections]\nheader_seconds = 1\nper_loopback = 3\n").unwrap();
    let Some(host) = start(files.path(), &["--config", settings.to_str().unwrap()]).await else {
        return;
    };
    // The client of `host` keeps one connection.
    let mut silent = TcpStream::connect(address(&host)).await.unwrap();
    let mut slow = TcpStream::connect(address(&host)).await.unwrap();
    // The head of a handshake record, without the handshake.
    slow.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
    let mut refused = TcpStream::connect(address(&host)).await.unwrap();
    let mut rest = Vec::new();
    for stream in [&mut refused, &mut silent, &mut slow] {
        let read = timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
        // A reset counts as an end too.
        let _ = read.expect("the connection is still open");
    }
    let (status, answer) = host.run(json!({"code": "print(1)"})).await;
    assert_eq!((status, &answer["stdout"]), (200, &json!("1\n")), "{answer}");

    // Failures are counted, not listed.
    for _ in 0..20 {
        let mut stream = TcpStream::connect(address(&host)).await.unwrap();
        stream.write_all(&[22, 3, 1, 0, 2, 9, 9]).await.unwrap();
        let _ = timeout(Duration::from_secs(5), stream.read_to_end(&mut rest)).await;
    }
    let log = host.said("log");
    assert_eq!(log.matches("TLS handshakes failed").count(), 1, "{log}");
}

#[test]
fn a_server_without_its_certificate_does_not_start() {
    let (files, pair, other) = (TempDir::new().unwrap(), Pair::new(), Pair::new());
    pair.write_to(files.path());
    let data = files.path().join("data").display().to_string();
    let path = |name: &str| files.path().join(name).display().to_string();
    let (cert, key, foreign) = (path("cert.pem"), path("key.pem"), path("foreign.pem"));
    fs::write(&foreign, &other.key).unwrap();
    for (more, reason) in [
        (vec!["--require-tls"], "TLS is required"),
        (vec!["--tls-cert", &cert], "--tls-cert needs --tls-key"),
        (vec!["--tls-key", &key], "--tls-key needs --tls-cert"),
        (vec!["--tls-cert", &cert, "--tls-key", "/nonexistent.pem"], "/nonexistent.pem"),
        (vec!["--tls-cert", &cert, "--tls-key", &foreign], "KeyMismatch"),
        (vec!["--tls-cert", &key, "--tls-key", &key], "no certificate in PEM format"),
        (vec!["--tls-cert", "/", "--tls-key", &key], "/ is not a file"),
    ] {
        let usual =
            ["serve", "--listen", "127.0.0.1:0", "--no-local-executor", "--data-dir", &data];
        let ended = cloche(usual.into_iter().chain(more));
        assert_eq!(ended.code, 1, "{ended:?}");
        assert!(ended.stderr.contains(reason), "{reason}: {ended:?}");
        let quoted = [&pair, &other].iter().any(|pair| ended.stderr.contains(pair.part_of_key()));
        assert!(!quoted, "{ended:?}");
    }
}

#[tokio::test]
async fn an_open_address_without_tls_is_warned_about() {
    let files = TempDir::new().unwrap();
    for (listen, is_warned) in [("0.0.0.0:0", true), ("127.0.0.1:0", false)] {
        let log = files.path().join("log");
        let mut server = Command::new(binary())
            .args(["serve", "--listen", listen, "--no-local-executor", "--data-dir"])
            .arg(files.path().join(listen))
            .stdin(Stdio::null())
            .stdout(fs::File::create(files.path().join("stdout")).unwrap())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        eventually("the server prints its greeting", async || {
            let said = fs::read_to_string(files.path().join("stdout")).unwrap();
            said.contains("Try it").then_some(()).ok_or_else(|| fs::read_to_string(&log).unwrap())
        })
        .await;
        let log = fs::read_to_string(&log).unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
        assert_eq!(log.contains("without encryption"), is_warned, "{listen}: {log}");
    }
}
