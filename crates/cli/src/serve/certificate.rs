//! Runs in: server (root until it is confined, then its own user).
//!
//! The certificate of the port: read before the server is confined, and again when it changes or on
//! SIGHUP. The certificate reader reads the files, see `tls_reader`. A pair that cannot be served
//! is in the log, and the old one stays.

use std::{
    fs,
    io::{self, Read, Write},
    os::{
        fd::OwnedFd,
        unix::{fs::PermissionsExt, net::UnixStream, process::CommandExt},
    },
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use cloche_gateway::{TlsIdentity, TlsIdentityError};
use cloche_model::error_chain;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{settings::TlsPaths, tls_reader};

/// The hidden command that reads the files.
pub(crate) const READER: &str = "__tls-files";
/// The interval at which the files are compared with what is served.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long the reader may take.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest text that the reader sends.
const MAX_TEXT: u32 = 2 << 20;

/// Why there is no certificate to serve.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateError {
    #[error("the process that reads the certificate did not answer")]
    Reader(#[source] io::Error),
    #[error("{0}")]
    File(String),
    #[error("cannot use the certificate in {cert} with the key in {key}")]
    Pair { cert: String, key: String, source: TlsIdentityError },
}

/// The contents of both files. Without `Debug`, so that no log can show a key.
#[derive(PartialEq, Eq)]
struct PemPair {
    certificates: Vec<u8>,
    key: Vec<u8>,
}

/// The certificate that is served, and where it comes from.
pub(super) struct ServedCertificate {
    paths: TlsPaths,
    reader: UnixStream,
    served: PemPair,
    identity: Arc<TlsIdentity>,
}

/// The last refused pair, so that a reason is logged once.
struct LastRefusal {
    reason: String,
    is_logged: bool,
}

impl ServedCertificate {
    /// Starts the reader and reads both files, while the server still has its privileges.
    pub(super) fn load(paths: TlsPaths) -> Result<Self, CertificateError> {
        let mut reader = start_reader(&paths).map_err(CertificateError::Reader)?;
        let served = read_pair(&mut reader)?;
        let identity = TlsIdentity::from_pem(&served.certificates, &served.key);
        let identity = Arc::new(identity.map_err(|source| pair_error(&paths, source))?);
        warn_if_shared(&paths);
        Ok(Self { paths, reader, served, identity })
    }

    /// What the port serves.
    pub(super) fn identity(&self) -> Arc<TlsIdentity> {
        Arc::clone(&self.identity)
    }

    /// Follows changes of the files until the server ends. Must be called in the runtime.
    pub(super) fn start_watch(self) -> io::Result<()> {
        let hangup = signal(SignalKind::hangup())?;
        tokio::spawn(self.watch(hangup));
        Ok(())
    }

    async fn watch(mut self, mut hangup: Signal) {
        let mut last_refusal = None;
        loop {
            let is_asked = tokio::select! {
                _ = hangup.recv() => true,
                () = tokio::time::sleep(LOOK_EVERY) => false,
            };
            let looked = tokio::task::spawn_blocking(move || {
                let result = self.look_again();
                (self, result)
            });
            let Ok((next, result)) = looked.await else { return };
            self = next;
            match result {
                Ok(true) => tracing::info!("the new certificate is served from now on"),
                Ok(false) if is_asked => tracing::info!("the certificate has not changed"),
                Ok(false) => {}
                Err(CertificateError::Reader(error)) => {
                    tracing::error!(%error, "the certificate reader has ended; a \
                         new certificate needs a restart of the server");
                    return;
                }
                Err(error) => {
                    last_refusal = Some(note_refusal(last_refusal, &error, is_asked));
                    continue;
                }
            }
            last_refusal = None;
        }
    }

    /// Reads the files, and serves them if they have changed. Returns whether they have.
    fn look_again(&mut self) -> Result<bool, CertificateError> {
        let pair = read_pair(&mut self.reader)?;
        if pair == self.served {
            return Ok(false);
        }
        let replaced = self.identity.replace(&pair.certificates, &pair.key);
        replaced.map_err(|source| pair_error(&self.paths, source))?;
        self.served = pair;
        Ok(true)
    }
}

/// Logs why a new certificate is not served. Two files are rarely replaced at once, so a change
/// that was not asked for is logged only if the next look finds the same.
fn note_refusal(
    last: Option<LastRefusal>,
    error: &CertificateError,
    is_asked: bool,
) -> LastRefusal {
    let reason = error_chain(error);
    let before = last.filter(|last| last.reason == reason);
    let was_logged = before.as_ref().is_some_and(|last| last.is_logged);
    let is_due = is_asked || (before.is_some() && !was_logged);
    if is_due {
        tracing::error!(reason, "the new certificate is not used; the old one is still served");
    }
    LastRefusal { reason, is_logged: was_logged || is_due }
}

fn pair_error(paths: &TlsPaths, source: TlsIdentityError) -> CertificateError {
    let (cert, key) = (paths.cert.display().to_string(), paths.key.display().to_string());
    CertificateError::Pair { cert, key, source }
}

fn start_reader(paths: &TlsPaths) -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_read_timeout(Some(READ_TIMEOUT))?;
    Command::new(std::env::current_exe()?)
        .arg(READER)
        .args([&paths.cert, &paths.key])
        .env_clear()
        .current_dir("/")
        // A signal from the terminal is for the server.
        .process_group(0)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // It ends when our end of the socket is closed.
        .spawn()?;
    Ok(ours)
}

fn read_pair(reader: &mut UnixStream) -> Result<PemPair, CertificateError> {
    let mut kind = [0];
    reader.write_all(&[0]).map_err(CertificateError::Reader)?;
    reader.read_exact(&mut kind).map_err(CertificateError::Reader)?;
    let first = read_text(reader).map_err(CertificateError::Reader)?;
    if kind == [tls_reader::UNREADABLE] {
        return Err(CertificateError::File(String::from_utf8_lossy(&first).into_owned()));
    }
    let key = read_text(reader).map_err(CertificateError::Reader)?;
    Ok(PemPair { certificates: first, key })
}

fn read_text(reader: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    reader.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    if length > MAX_TEXT {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = vec![0; length as usize];
    reader.read_exact(&mut text)?;
    Ok(text)
}

/// Warns about a key that every user of this host can read.
fn warn_if_shared(paths: &TlsPaths) {
    let mode = fs::metadata(&paths.key).map_or(0, |file| file.permissions().mode());
    if mode & 0o004 != 0 {
        let path = paths.key.display();
        tracing::warn!(%path, "every user of this host can read the private key; use chmod o-r");
    }
}
