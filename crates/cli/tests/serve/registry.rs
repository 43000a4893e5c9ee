//! A real registry for one test, images made with real tools, and a proxy that can hold a transfer.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use cloche_test_support::skip;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};

/// The account of registries that want one.
pub(crate) const ACCOUNT: (&str, &str) = ("me", "correct horse");

/// What a registry wants.
#[derive(Clone, Copy, Default)]
pub(crate) struct RegistryOptions {
    pub(crate) account: bool,
    pub(crate) tls: bool,
}

/// A registry. Dropping it ends it.
pub(crate) struct Registry {
    child: Child,
    pub(crate) address: String,
    pub(crate) directory: TempDir,
    options: RegistryOptions,
}

impl Registry {
    /// Starts a registry. Skips the test if a tool is missing.
    pub(crate) fn start(options: RegistryOptions) -> Option<Self> {
        if !has_tools() {
            return None;
        }
        let directory = TempDir::new().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let mut config = format!(
            "version: 0.1\nlog: {{level: info}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\n",
            path("storage")
        );
        if options.account {
            let made = run("htpasswd", &["-Bbn", ACCOUNT.0, ACCOUNT.1]);
            fs::write(directory.path().join("accounts"), made).unwrap();
            config.push_str(&format!(
                "auth: {{htpasswd: {{realm: r, path: {}}}}}\n",
                path("accounts")
            ));
        }
        config.push_str("http:\n  addr: 127.0.0.1:0\n");
        if options.tls {
            let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
            let CertifiedKey { cert, signing_key } = generate_simple_self_signed(names).unwrap();
            fs::write(directory.path().join("ca.pem"), cert.pem()).unwrap();
            fs::write(directory.path().join("key.pem"), signing_key.serialize_pem()).unwrap();
            let (cert, key) = (path("ca.pem"), path("key.pem"));
            config.push_str(&format!("  tls: {{certificate: {cert}, key: {key}}}\n"));
        }
        fs::write(directory.path().join("config.yml"), config).unwrap();
        let mut child = Command::new("docker-registry")
            .args(["serve", &path("config.yml")])
            .env("OTEL_TRACES_EXPORTER", "none")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let rest = line.split_once("listening on ")?.1;
            let end = rest.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | ':')));
            Some(rest[..end.unwrap_or(rest.len())].to_owned())
        });
        std::thread::spawn(move || lines.for_each(drop));
        let address = address.expect("the registry did not start");
        Some(Self { child, address, directory, options })
    }

    /// Copies an image of a layout to the registry.
    pub(crate) fn push(&self, layout: &str, name: &str) {
        let account = format!("{}:{}", ACCOUNT.0, ACCOUNT.1);
        let target = format!("docker://{}/{name}", self.address);
        let mut arguments = vec!["copy", "--dest-tls-verify=false"];
        if self.options.account {
            arguments.extend(["--dest-creds", &account]);
        }
        arguments.extend([layout, &target]);
        run("skopeo", &arguments);
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn has_tools() -> bool {
    let missing = ["docker-registry", "skopeo", "umoci", "htpasswd"].into_iter().find(|tool| {
        let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output();
        !found.unwrap().status.success()
    });
    match missing {
        Some(tool) => skip(&format!("{tool} is not installed: run scripts/setup-tests")),
        None => true,
    }
}

/// Runs a tool that must succeed, and returns what it printed.
pub(crate) fn run(tool: &str, arguments: &[&str]) -> Vec<u8> {
    let output = Command::new(tool).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool} {arguments:?}: {said}");
    output.stdout
}

/// A layout with two images that share their base: `one` and `two`.
pub(crate) struct Layouts {
    directory: TempDir,
}

impl Layouts {
    /// Makes the images with umoci. `None` if a tool is missing.
    pub(crate) fn make(noise: usize) -> Option<Self> {
        if !has_tools() {
            return None;
        }
        let directory = TempDir::new().unwrap();
        let layout = directory.path().join("layout");
        let at = |tag: &str| format!("{}:{tag}", layout.display());
        run("umoci", &["init", "--layout", layout.to_str().unwrap()]);
        run("umoci", &["new", "--image", &at("base")]);
        let made = Self { directory };
        made.add_layer("base", "base", |root| {
            fs::create_dir_all(root.join("usr/bin")).unwrap();
            std::os::unix::fs::symlink("usr/bin", root.join("bin")).unwrap();
            fs::copy("/bin/busybox", root.join("usr/bin/busybox")).unwrap();
            std::os::unix::fs::symlink("busybox", root.join("usr/bin/sh")).unwrap();
            let bytes: Vec<u8> = (0..noise as u64).map(mix).collect();
            fs::write(root.join("noise"), bytes).unwrap();
        });
        for tag in ["one", "two"] {
            made.add_layer("base", tag, |root| fs::write(root.join(tag), tag).unwrap());
        }
        run("umoci", &["config", "--image", &at("one"), "--config.env", "COLOR=blue"]);
        Some(made)
    }

    pub(crate) fn add_layer(&self, from: &str, tag: &str, change: impl FnOnce(&Path)) {
        let layout = self.path();
        let bundle = self.directory.path().join(format!("bundle-{tag}"));
        let bundle = bundle.to_str().unwrap();
        let image = |tag: &str| format!("{}:{tag}", layout.display());
        run("umoci", &["unpack", "--image", &image(from), bundle]);
        change(&Path::new(bundle).join("rootfs"));
        run("umoci", &["repack", "--image", &image(tag), bundle]);
    }

    /// The directory of the layout.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("layout")
    }

    /// As skopeo names an image of it.
    pub(crate) fn source(&self, tag: &str) -> String {
        format!("oci:{}:{tag}", self.path().display())
    }

    /// A path for a file beside it.
    pub(crate) fn beside(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }
}

/// Bytes that do not compress.
fn mix(n: u64) -> u8 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 56) as u8
}

/// Passes connections on to a registry, and holds each after so many bytes of replies.
pub(crate) struct HoldingProxy {
    pub(crate) address: String,
    pub(crate) limit: Arc<AtomicU64>,
    pub(crate) passed: Arc<AtomicU64>,
    listening: JoinHandle<()>,
}

impl HoldingProxy {
    pub(crate) async fn start(target: &str, limit: u64) -> Self {
        Self::start_at("127.0.0.1:0", target, limit).await
    }

    /// A proxy at the address of one that has stopped.
    pub(crate) async fn start_at(address: &str, target: &str, limit: u64) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (limit, passed) = (Arc::new(AtomicU64::new(limit)), Arc::new(AtomicU64::new(0)));
        let (most, count, target) = (Arc::clone(&limit), Arc::clone(&passed), target.to_owned());
        let listening = tokio::spawn(async move {
            // Dropped with the listener, and every connection with them.
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&target).await.unwrap();
                connections.spawn(pass_on(client, server, Arc::clone(&most), Arc::clone(&count)));
            }
        });
        Self { address, limit, passed, listening }
    }

    /// Closes every connection, and refuses new ones.
    pub(crate) async fn stop(&mut self) {
        self.listening.abort();
        let _ = (&mut self.listening).await;
    }
}

async fn pass_on(
    client: TcpStream,
    server: TcpStream,
    limit: Arc<AtomicU64>,
    passed: Arc<AtomicU64>,
) {
    let (mut client_reads, mut client_writes) = client.into_split();
    let (mut server_reads, mut server_writes) = server.into_split();
    tokio::spawn(async move { tokio::io::copy(&mut client_reads, &mut server_writes).await });
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count @ 1..) = server_reads.read(&mut buffer).await {
        if passed.fetch_add(count as u64, Ordering::SeqCst) > limit.load(Ordering::SeqCst) {
            // Held until the client gives up.
            std::future::pending::<()>().await;
        }
        if client_writes.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
