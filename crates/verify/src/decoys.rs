//! What the host puts out for probes to find: a secret file, an open port, a local socket.
//!
//! All of it goes when the value is dropped. It must not know who looks for it.

use std::{
    collections::BTreeMap,
    fs, io,
    net::TcpListener,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::{DirBuilderExt, MetadataExt},
            net::{SocketAddr, UnixListener},
        },
    },
    path::{Path, PathBuf},
    process,
    time::{SystemTime, UNIX_EPOCH},
};

/// Things of the host that a guest must not reach.
pub struct HostDecoys {
    dir: PathBuf,
    nonce: String,
    port: TcpListener,
    _socket: UnixListener,
    secret: FileFingerprint,
    binary: Option<FileFingerprint>,
}

/// What tells whether a file was touched: inode, owner, mode, size, links, times.
type FileFingerprint = (u64, u32, u32, u64, u64, i64, i64);

fn fingerprint_file(path: &Path) -> io::Result<FileFingerprint> {
    let at = fs::metadata(path)?;
    Ok((at.ino(), at.uid(), at.mode(), at.size(), at.nlink(), at.mtime(), at.ctime()))
}

impl HostDecoys {
    /// Puts it out.
    pub fn create() -> io::Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let nonce = format!("cloche-verify-{}-{:x}", process::id(), now.as_nanos());
        let dir = std::env::temp_dir().join(&nonce);
        fs::DirBuilder::new().mode(0o755).create(&dir)?;
        let secret = dir.join("secret");
        fs::write(&secret, &nonce)?;
        let address = SocketAddr::from_abstract_name(format!("{nonce}-host"))?;
        Ok(Self {
            nonce,
            port: TcpListener::bind(("127.0.0.1", 0))?,
            _socket: UnixListener::bind_addr(&address)?,
            secret: fingerprint_file(&secret)?,
            binary: fingerprint_own_binary(),
            dir,
        })
    }

    /// Tells a probe where to look.
    pub fn probe_env(&self) -> io::Result<BTreeMap<String, String>> {
        let vars = [
            ("PROBE_SECRET", self.dir.join("secret").display().to_string()),
            ("PROBE_NONCE", self.nonce.clone()),
            ("PROBE_PORT", self.port.local_addr()?.port().to_string()),
            ("PROBE_SOCKET", format!("{}-host", self.nonce)),
            ("PROBE_HOST_PID", process::id().to_string()),
        ];
        Ok(vars.map(|(name, value)| (name.to_owned(), value)).into())
    }

    /// Whether the secret is as it was put out.
    pub fn is_untouched(&self) -> bool {
        let secret = self.dir.join("secret");
        let same = fingerprint_file(&secret).is_ok_and(|now| now == self.secret);
        same && fs::read_to_string(secret).is_ok_and(|text| text == self.nonce)
    }

    /// Whether this program's file is as it was at the start.
    pub fn binary_is_untouched(&self) -> bool {
        fingerprint_own_binary() == self.binary
    }
}

fn fingerprint_own_binary() -> Option<FileFingerprint> {
    fingerprint_file(&std::env::current_exe().ok()?).ok()
}

impl Drop for HostDecoys {
    fn drop(&mut self) {
        // Nothing to be done about a directory that somebody else removed.
        let _ = fs::remove_dir_all(&self.dir);
    }
}
