//! Runs in: server (no capabilities). The storage mounts of one run: what is behind them goes from
//! here to the mount server, on a socket that the spawner only passes on.

use std::{
    fs::{self, File, Permissions},
    io::{self, Write as _},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::PermissionsExt as _,
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use cloche_model::{MountReport, MountSource, MountSpec, RunSpec};
use cloche_mounts::{
    EndpointAccess as _, MountCommand, MountServerRequest, MountSetup, MountSetupSource,
    MountWireError, SystemAccess, VolumeFiles, VolumeStore, WireConnection, receive_mount_packet,
    send_mount_packet, trusted_roots,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags},
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
};
use tokio::{
    io::unix::AsyncFd,
    sync::{Semaphore, mpsc},
    time::timeout,
};

use super::{
    cell::Cell, control_socket::ControlSocket, reached_stores::ReachedStores, run_error::RunError,
    spawner_client::SpawnerClient, warm,
};
use crate::protocol::{MountServerUser, StorageMountRequest};

/// How long a finished run waits for its mount server. It has deadlines of its own.
const REPORT_TIMEOUT: Duration = Duration::from_secs(90);
/// How long a stopped run waits for the counts of its mount server. The program goes on meanwhile.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// How many questions of one mount server are answered at once.
const MAX_LOOKUPS: usize = 8;

/// Where the executor has what mounts need.
#[derive(Clone, Debug, Default)]
pub struct MountStorageConfig {
    /// The managed volumes of this host.
    pub volumes: Option<VolumeStore>,
    /// A private directory for files that are being written to object stores; the system's
    /// directory of temporary files if absent.
    pub spool: Option<PathBuf>,
}

impl MountStorageConfig {
    /// These volumes, and a directory for spool files, which is made. It must lie in a directory
    /// that only the server's user can enter: mount servers have ids of their own and get it as an
    /// open file, so its mode lets every user make files.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn with_spool(volumes: VolumeStore, spool: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&spool)?;
        fs::set_permissions(&spool, Permissions::from_mode(0o733))?;
        Ok(Self { volumes: Some(volumes), spool: Some(spool) })
    }
}

/// The storage of one run, while it is mounted. A drop ends the mount server: what was not stored is
/// lost then.
pub(crate) struct StorageMounts {
    socket: Arc<MountServerSocket>,
    /// What the mount server says, except questions that a task answers.
    said: mpsc::Receiver<MountServerRequest>,
    reader: tokio::task::JoinHandle<()>,
    specs: Vec<MountSpec>,
    /// The mount server knows that the program has ended.
    is_finishing: bool,
    /// The program has ended without a use of its storage.
    is_unused: bool,
    /// What the mount server has counted until the run was stopped.
    stopped: Option<Vec<MountReport>>,
}

impl Drop for StorageMounts {
    fn drop(&mut self) {
        // The task holds the socket, whose end ends the mount server.
        self.reader.abort();
    }
}

impl StorageMounts {
    /// Mounts the storage of a run in its cell, which has run nothing yet. If that fails the cell is
    /// killed.
    pub(crate) async fn attach(
        spec: &mut RunSpec,
        config: &MountStorageConfig,
        cell: &mut Cell,
        spawner: &SpawnerClient,
    ) -> Result<Option<Self>, RunError> {
        let specs = std::mem::take(&mut spec.mounts);
        if specs.is_empty() {
            return Ok(None);
        }
        let attached = Self::attach_all(specs, config, cell, spawner).await;
        if attached.is_err() {
            // Some of it may be mounted, so nothing may run in this cell.
            spawner.kill_cell(cell.id).await;
        }
        attached.map(Some)
    }

    async fn attach_all(
        specs: Vec<MountSpec>,
        config: &MountStorageConfig,
        cell: &mut Cell,
        spawner: &SpawnerClient,
    ) -> Result<Self, RunError> {
        warm::wait_for_walls(cell).await?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = SocketType::SEQPACKET;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, kind, flags, None).map_err(io::Error::from)?;
        // The mount server waits in system calls.
        rustix::io::ioctl_fionbio(&theirs, false).map_err(io::Error::from)?;
        // It reads this when it has started.
        send_setup(&specs, config, ours.as_fd())?;
        let requests = specs.iter().map(|spec| StorageMountRequest {
            slug: spec.slug.to_string(),
            read_only: spec.read_only,
        });
        let is_remote = |spec: &MountSpec| matches!(spec.source, MountSource::Objects { .. });
        let user = match specs.iter().all(is_remote) {
            true => MountServerUser::Own,
            false => MountServerUser::Server,
        };
        let requests = (requests.collect(), user);
        let mounted = spawner.mount_storage(cell.id, requests, theirs.as_fd()).await;
        drop(theirs);
        mounted.map_err(|(slug, reason)| {
            // A failure that is none of one mount is that of the first.
            let slug = if slug.is_empty() { specs[0].slug.to_string() } else { slug };
            RunError::Storage { slug, reason }
        })?;
        let socket = Arc::new(MountServerSocket::new(ours)?);
        let (says, said) = mpsc::channel(4);
        let reader = tokio::spawn(answer_questions(Arc::clone(&socket), says));
        let (is_finishing, is_unused, stopped) = (false, false, None);
        Ok(Self { socket, said, reader, specs, is_finishing, is_unused, stopped })
    }

    /// The program has ended: the mount server begins to store and to count, while the server looks
    /// at what else the program has left. Of storage that was not used there is nothing to store and
    /// to count, so its mount server is not waited for.
    pub(crate) fn begin_finish(&mut self) {
        self.is_unused = self.socket.is_silent();
        if !self.is_unused {
            self.is_finishing = self.send(&MountCommand::Finish).is_ok();
        }
    }

    /// Ends the mounts after the program has ended: what it wrote is stored when this returns.
    pub(crate) async fn finish(
        mut self,
        control: &mut ControlSocket,
        stores: &ReachedStores,
    ) -> Vec<MountReport> {
        if self.is_unused {
            return self.specs.iter().map(|spec| MountReport::unused(spec.slug.clone())).collect();
        }
        let reports = timeout(REPORT_TIMEOUT, self.ask_for_reports(control)).await;
        let reports = reports.ok().flatten().unwrap_or_else(|| self.report_loss());
        stores.note_use(&self.specs, &reports);
        reports
    }

    /// Ends the mounts of a run that is stopped: nothing more is stored, and every request of the
    /// program ends. The cell must be killed next.
    pub(crate) async fn stop(&mut self) {
        let counting = async {
            self.send(&MountCommand::Stop).ok()?;
            loop {
                if let MountServerRequest::Report(reports) = self.said.recv().await? {
                    return Some(reports);
                }
            }
        };
        self.stopped = timeout(STOP_TIMEOUT, counting).await.ok().flatten();
    }

    /// The reports of a run that was stopped.
    pub(crate) fn take_stopped(mut self) -> Vec<MountReport> {
        self.stopped.take().unwrap_or_else(|| self.report_loss())
    }

    /// What is reported if the mount server has ended without a report.
    fn report_loss(&self) -> Vec<MountReport> {
        tracing::warn!("a mount server ended without a report");
        let lost = |spec: &MountSpec| MountReport {
            errors: 1,
            first_error: Some("the mount server ended without a report".to_owned()),
            ..MountReport::unused(spec.slug.clone())
        };
        self.specs.iter().map(lost).collect()
    }

    async fn ask_for_reports(&mut self, control: &mut ControlSocket) -> Option<Vec<MountReport>> {
        if !self.is_finishing {
            self.send(&MountCommand::Finish).ok()?;
        }
        loop {
            match self.said.recv().await? {
                MountServerRequest::Report(reports) => return Some(reports),
                // A file is open to write, and a mapping of it may be changed. The end of its
                // processes closes it.
                MountServerRequest::Busy => {
                    let _ = control.end_processes().await;
                    self.send(&MountCommand::Finish).ok()?;
                }
                MountServerRequest::Used | MountServerRequest::Resolve { .. } => {}
            }
        }
    }

    fn send(&self, command: &MountCommand) -> Result<(), MountWireError> {
        self.socket.send(command)
    }
}

/// The socket to a mount server.
struct MountServerSocket {
    socket: AsyncFd<OwnedFd>,
    /// Whether the mount server has said anything, or has ended. Locked while a packet is received,
    /// so that none is neither here nor in the kernel.
    has_spoken: Mutex<bool>,
}

impl MountServerSocket {
    fn new(socket: OwnedFd) -> io::Result<Self> {
        #[expect(deprecated, reason = "unsound only for types that may change their descriptor")]
        let socket = AsyncFd::new(socket)?;
        Ok(Self { socket, has_spoken: Mutex::new(false) })
    }

    fn send(&self, command: &MountCommand) -> Result<(), MountWireError> {
        send_mount_packet(self.socket.get_ref().as_fd(), command, &[])
    }

    fn receive(&self) -> Result<MountServerRequest, MountWireError> {
        let mut has_spoken = self.has_spoken.lock().unwrap_or_else(PoisonError::into_inner);
        let received = receive_mount_packet(self.socket.get_ref());
        *has_spoken |= !matches!(received, Err(MountWireError::WouldBlock));
        received.map(|(said, _)| said)
    }

    /// Whether the mount server has said nothing at all so far, and has not ended.
    fn is_silent(&self) -> bool {
        let has_spoken = self.has_spoken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut waits = [PollFd::new(self.socket.get_ref(), PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        !*has_spoken && matches!(poll(&mut waits, Some(&at_once)), Ok(0))
    }
}

/// Sends what is mounted to a mount server that has not started yet.
fn send_setup(
    specs: &[MountSpec],
    config: &MountStorageConfig,
    socket: BorrowedFd<'_>,
) -> Result<(), RunError> {
    let mut has_network = false;
    for spec in specs {
        let failed = |error: io::Error| RunError::Storage {
            slug: spec.slug.to_string(),
            reason: error.to_string(),
        };
        let (source, fds) = open_source(spec, config).map_err(failed)?;
        has_network |= matches!(spec.source, MountSource::Objects { .. });
        let setup = MountSetup {
            slug: spec.slug.clone(),
            read_only: spec.read_only,
            file_size: spec.limits.file_size.bytes(),
            spool: spec.limits.spool.bytes(),
            source,
        };
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let sent = send_mount_packet(socket, &MountCommand::Mount(setup), &fds);
        sent.map_err(|error| failed(io::Error::other(error)))?;
    }
    let start = MountCommand::Start { has_network };
    let sent = if has_network {
        let directory = config.spool.clone().unwrap_or_else(std::env::temp_dir);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let spool = rustix::fs::open(&directory, flags, Mode::empty()).map_err(io::Error::from)?;
        let roots = roots_file(&directory)?;
        send_mount_packet(socket, &start, &[roots.as_fd(), spool.as_fd()])
    } else {
        send_mount_packet(socket, &start, &[])
    };
    sent.map_err(|error| RunError::Io(io::Error::other(error)))
}

/// Opens what is behind a mount.
fn open_source(
    spec: &MountSpec,
    config: &MountStorageConfig,
) -> io::Result<(MountSetupSource, Vec<OwnedFd>)> {
    match &spec.source {
        MountSource::Objects { connection, prefix } => {
            let connection = Box::new(WireConnection::new(connection, prefix));
            Ok((MountSetupSource::Objects(connection), Vec::new()))
        }
        MountSource::Volume { id, quota, sub_path } => {
            let missing = || io::Error::other("this executor has no volumes");
            let volumes = config.volumes.as_ref().ok_or_else(missing)?;
            let VolumeFiles { root, files, ledger: [ledger, users], boot } =
                volumes.open_files(id, sub_path, spec.read_only)?;
            let fds = vec![root, files, ledger.into(), users.into()];
            Ok((MountSetupSource::Volume { quota: quota.bytes(), boot }, fds))
        }
        MountSource::Directory(path) => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let directory = rustix::fs::open(path, flags, Mode::empty())?;
            Ok((MountSetupSource::Directory, vec![directory]))
        }
    }
}

/// A file without a name that has the trusted certificates, each after its length. It is written
/// once; every mount server reads it at its own pace.
fn roots_file(directory: &Path) -> io::Result<&'static File> {
    static ROOTS: OnceLock<File> = OnceLock::new();
    if let Some(file) = ROOTS.get() {
        return Ok(file);
    }
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::EXCL;
    let file = rustix::fs::open(directory, flags, Mode::from_raw_mode(0o600))?;
    let mut file = File::from(file);
    let mut bytes = Vec::new();
    for certificate in trusted_roots() {
        let length = u32::try_from(certificate.len()).unwrap_or(0);
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(certificate);
    }
    file.write_all(&bytes)?;
    Ok(ROOTS.get_or_init(|| file))
}

/// Answers questions of a mount server about names, some at a time, and passes on what else it says.
async fn answer_questions(socket: Arc<MountServerSocket>, says: mpsc::Sender<MountServerRequest>) {
    let lookups = Arc::new(Semaphore::new(MAX_LOOKUPS));
    loop {
        match socket.receive() {
            Ok(MountServerRequest::Resolve { id, host, private }) => {
                let socket = Arc::clone(&socket);
                // A mount server that asks without end waits.
                let Ok(turn) = Arc::clone(&lookups).acquire_owned().await else { return };
                tokio::spawn(async move {
                    let _turn = turn;
                    let found = SystemAccess.lookup(&host, private).await;
                    let addresses = found.map_err(|error| error.to_string());
                    let _ = socket.send(&MountCommand::Resolved { id, addresses });
                });
            }
            // Noted by the socket.
            Ok(MountServerRequest::Used) => {}
            Ok(said) => {
                if says.send(said).await.is_err() {
                    return;
                }
            }
            Err(MountWireError::WouldBlock) => match socket.socket.readable().await {
                Ok(mut ready) => ready.clear_ready(),
                Err(_) => return,
            },
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_mount_server_that_has_spoken_or_ended_is_not_silent() {
        let pair = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
        };
        let (ours, theirs) = pair();
        let socket = MountServerSocket::new(ours).unwrap();
        assert!(socket.is_silent());
        // What waits in the kernel counts, and so does what was received.
        send_mount_packet(theirs.as_fd(), &MountServerRequest::Used, &[]).unwrap();
        assert!(!socket.is_silent());
        assert!(matches!(socket.receive(), Ok(MountServerRequest::Used)));
        assert!(matches!(socket.receive(), Err(MountWireError::WouldBlock)));
        assert!(!socket.is_silent());
        let (ours, theirs) = pair();
        let socket = MountServerSocket::new(ours).unwrap();
        drop(theirs);
        assert!(!socket.is_silent());
    }
}
