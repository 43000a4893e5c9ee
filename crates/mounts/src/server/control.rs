//! Runs in: mount server (no capabilities). The socket to the server: commands come in, questions
//! and the report go out.

use std::{
    collections::HashMap,
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use cloche_model::MountReport;
use parking_lot::Mutex;
use rustls::RootCertStore;
use tokio::sync::oneshot;

use crate::{
    EndpointAccess, LookupFuture, MountCommand, MountServerRequest, MountWireError, StorageError,
    objects::parse_roots, receive_mount_packet, send_mount_packet,
};

/// How long the server may take to resolve a name.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);

type Waiter = oneshot::Sender<Result<Vec<IpAddr>, String>>;

/// The socket to the server.
pub(super) struct ServerSocket {
    socket: OwnedFd,
    next: AtomicU64,
    waiters: Mutex<HashMap<u64, Waiter>>,
}

impl ServerSocket {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, next: AtomicU64::new(1), waiters: Mutex::default() }
    }

    pub(super) fn receive(&self) -> Result<(MountCommand, Vec<OwnedFd>), MountWireError> {
        receive_mount_packet(&self.socket)
    }

    /// Gives an answer to whoever asked.
    pub(super) fn answer(&self, id: u64, addresses: Result<Vec<IpAddr>, String>) {
        if let Some(waiter) = self.waiters.lock().remove(&id) {
            let _ = waiter.send(addresses);
        }
    }

    /// Says that the guest uses a mount.
    pub(super) fn report_use(&self) {
        let _ = send_mount_packet(self.socket.as_fd(), &MountServerRequest::Used, &[]);
    }

    /// Says that files are open to write.
    pub(super) fn report_busy(&self) {
        let _ = send_mount_packet(self.socket.as_fd(), &MountServerRequest::Busy, &[]);
    }

    pub(super) fn report(&self, reports: Vec<MountReport>) {
        let packet = MountServerRequest::Report(reports);
        // If the server is gone, there is no reader for the report.
        let _ = send_mount_packet(self.socket.as_fd(), &packet, &[]);
    }
}

impl AsFd for ServerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The network as the server lets this process see it.
pub(super) struct RemoteAccess {
    pub(super) socket: Arc<ServerSocket>,
    /// Certificates as DER, each after its length.
    pub(super) roots: Mutex<RootsFile>,
}

/// The trusted certificates: a file until they are needed.
pub(super) enum RootsFile {
    Unread(std::fs::File),
    Read(Arc<RootCertStore>),
}

impl EndpointAccess for RemoteAccess {
    fn lookup(&self, host: &str, private: bool) -> LookupFuture {
        let id = self.socket.next.fetch_add(1, Ordering::Relaxed);
        let (waiter, answered) = oneshot::channel();
        self.socket.waiters.lock().insert(id, waiter);
        let packet = MountServerRequest::Resolve { id, host: host.to_owned(), private };
        let sent = send_mount_packet(self.socket.socket.as_fd(), &packet, &[]);
        Box::pin(async move {
            sent.map_err(|error| StorageError::Unreachable(error.to_string()))?;
            match tokio::time::timeout(ANSWER_TIMEOUT, answered).await {
                Ok(Ok(Ok(addresses))) => Ok(addresses),
                Ok(Ok(Err(why))) => Err(StorageError::Unreachable(why)),
                Ok(Err(_)) => Err(StorageError::Unreachable("the server is gone".to_owned())),
                Err(_) => Err(StorageError::TimedOut(ANSWER_TIMEOUT)),
            }
        })
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = self.roots.lock();
        if let RootsFile::Unread(file) = &*roots {
            let certificates = read_certificates(file);
            *roots = RootsFile::Read(Arc::new(parse_roots(&certificates)));
        }
        match &*roots {
            RootsFile::Read(roots) => Arc::clone(roots),
            RootsFile::Unread(_) => Arc::new(RootCertStore::empty()),
        }
    }
}

/// Reads certificates that the server wrote one after the other, each after its length. Other
/// processes read the same open file, so this moves no offset.
fn read_certificates(file: &std::fs::File) -> Vec<Vec<u8>> {
    use std::os::unix::fs::FileExt as _;
    let mut certificates = Vec::new();
    let mut at = 0;
    let mut length = [0; 4];
    while file.read_exact_at(&mut length, at).is_ok() {
        const MOST: u32 = 64 << 10;
        let len = u32::from_le_bytes(length).min(MOST);
        let mut certificate = vec![0; len as usize];
        if file.read_exact_at(&mut certificate, at + 4).is_err() {
            break;
        }
        certificates.push(certificate);
        at += 4 + u64::from(len);
    }
    certificates
}
