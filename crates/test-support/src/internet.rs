//! Runs in: test. An internet of its own, in network namespaces: name servers, web servers, package
//! indexes, and addresses that no cell may reach. Nothing of it leaves the machine.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use rustix::thread::UnshareFlags;

use crate::command::ended;

const SERVERS: &str = include_str!("../internet/servers.py");
/// The name server of this internet.
pub const NAME_SERVER: &str = "9.9.9.9:53";
/// The public address of the host that cells run on.
pub const HOST_ADDRESS: &str = "5.6.7.2";
/// The address of `allowed.example`.
pub const WEB_ADDRESS: &str = "93.184.216.34";

/// A running internet. The thread that made it is in the network namespace of a host that is
/// connected to it and trusts its certificates, and so are the processes and threads that it starts.
pub struct Internet {
    directory: PathBuf,
    servers: Child,
}

impl Internet {
    /// Moves this thread into a network namespace with an internet. `directory` is for its files.
    /// `None` if this user may not make one.
    ///
    /// # Panics
    /// If the servers do not start.
    #[must_use]
    pub fn start(directory: &Path) -> Option<Self> {
        Self::start_trusted(directory, true)
    }

    /// The same, but the host does not trust the certificates of this internet. The authority is
    /// in the file `ca.pem` of the directory.
    ///
    /// # Panics
    /// If the servers do not start.
    #[must_use]
    pub fn start_untrusted(directory: &Path) -> Option<Self> {
        Self::start_trusted(directory, false)
    }

    fn start_trusted(directory: &Path, is_trusted: bool) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !has_tools() {
            return None;
        }
        make_certificates(directory);
        fs::write(directory.join("servers.py"), SERVERS).ok()?;
        let own = UnshareFlags::NEWNET | UnshareFlags::NEWNS;
        #[expect(deprecated, reason = "it is unsafe only with a table of descriptors of its own")]
        rustix::thread::unshare(own).ok()?;
        if is_trusted {
            trust_authority(directory);
        }
        let mut servers = Command::new("unshare")
            .args(["--net", "/usr/bin/python3"])
            .arg(directory.join("servers.py"))
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let mut line = String::new();
        BufReader::new(servers.stdout.take()?).read_line(&mut line).ok()?;
        assert_eq!(line, "ready\n", "the servers of the internet did not start");
        connect_host(servers.id());
        Some(Self { directory: directory.to_owned(), servers })
    }

    /// The requests for `/echo`: URL and `Authorization` of each.
    #[must_use]
    pub fn echoed_requests(&self) -> Vec<String> {
        let text = fs::read_to_string(self.directory.join("requests")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The forbidden addresses that something has connected to, one for each connection.
    #[must_use]
    pub fn reached_canaries(&self) -> Vec<String> {
        let text = fs::read_to_string(self.directory.join("canaries")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Internet {
    fn drop(&mut self) {
        let _ = self.servers.kill();
        let _ = self.servers.wait();
    }
}

fn has_tools() -> bool {
    ["ip", "unshare", "openssl"].iter().all(|tool| {
        let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output();
        found.is_ok_and(|found| found.status.success())
    })
}

/// A certificate authority, and a certificate for every name of the internet.
fn make_certificates(directory: &Path) {
    const NAMES: &str = "DNS:allowed.example,DNS:www.allowed.example,DNS:other.example,\
        DNS:pypi.example,DNS:files.example,DNS:npm.example,DNS:changing.example";
    let script = format!(
        "openssl ecparam -genkey -name prime256v1 -noout -out ca.key && \
         openssl req -x509 -key ca.key -days 30 -subj /CN=test -out ca.pem \
           -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign && \
         openssl ecparam -genkey -name prime256v1 -noout -out server.key && \
         openssl req -new -key server.key -subj /CN=allowed.example -out server.csr && \
         printf 'subjectAltName={NAMES}\\nextendedKeyUsage=serverAuth\\n\
           authorityKeyIdentifier=keyid\\nsubjectKeyIdentifier=hash\\n' > server.ext && \
         openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 \
           -extfile server.ext -out server.crt && cat server.key server.crt > server.pem"
    );
    let mut command = Command::new("sh");
    command.args(["-ec", &script]).current_dir(directory);
    ended(command, b"").printed();
}

/// Makes the processes of this thread trust the authority besides the host's, in a mount namespace.
fn trust_authority(directory: &Path) {
    let script = "mount --make-rprivate / && cat \"$0\" ca.pem > bundle.pem && \
                  mount --bind bundle.pem \"$0\"";
    let mut command = Command::new("sh");
    command.args(["-ec", script, "/etc/ssl/certs/ca-certificates.crt"]).current_dir(directory);
    ended(command, b"").printed();
}

/// Connects this network namespace to that of a process.
fn connect_host(servers: u32) {
    let run = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments);
        ended(command, b"").printed()
    };
    let ip = |arguments: &str| run("ip", &arguments.split_whitespace().collect::<Vec<_>>());
    ip("link set lo up");
    ip(&format!("link add h0 type veth peer name i0 netns {servers}"));
    ip(&format!("address add {HOST_ADDRESS}/24 dev h0"));
    ip("link set h0 up");
    let inside = format!(
        "nsenter -t {servers} -n sh -ec 'ip address add 5.6.7.1/24 dev i0; ip link set i0 up'"
    );
    run("sh", &["-ec", &inside]);
    ip("route add default via 5.6.7.1");
}
