//! Runs in: mount server (no capabilities). The life of the process: it reads its mounts, confines
//! itself, serves them, reports, and ends.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    thread,
    time::Duration,
};

use cloche_jail::sys;
use cloche_model::{MountReport, MountSlug};
use parking_lot::Mutex;

use super::{
    confinement,
    control::{RemoteAccess, RootsFile, ServerSocket},
    directory::{DirectoryFs, DirectoryMount},
    idle_session::{IdleSession, start_used_sessions},
    lazy_runtime::LazyRuntime,
    meter::MountMeter,
    objects::{ObjectFs, ObjectMount, ObjectMountSettings},
};
use crate::{
    MountCommand, MountSetup, MountSetupSource,
    volume::{VolumeLedger, VolumeQuota},
};

/// How long a finished run waits for writes that were closed just before.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

/// What the spawner gives a mount server.
#[derive(Debug)]
pub struct MountServerInput {
    /// The socket to the server.
    pub control: OwnedFd,
    /// The connection of the first mount, if it was prepared while the process waited.
    pub ready: Option<ReadyConnection>,
    /// The other FUSE connections, in the order in which the server sends the mounts.
    pub connections: Vec<OwnedFd>,
    /// The files with the kernel's read-ahead of those, in the same order; none if it cannot be
    /// changed.
    pub read_ahead: Vec<OwnedFd>,
    /// The host ids of the guest.
    pub guest: (u32, u32),
}

/// A FUSE connection that has answered the kernel's first request before its mount is known.
pub struct ReadyConnection(IdleSession);

impl ReadyConnection {
    /// Answers the kernel's first request, and sets the kernel's read-ahead with the file for it.
    ///
    /// # Errors
    /// When the kernel asks something else.
    pub fn open(connection: OwnedFd, read_ahead: Option<OwnedFd>) -> io::Result<Self> {
        Ok(Self(IdleSession::open(connection, read_ahead)?))
    }
}

impl std::fmt::Debug for ReadyConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadyConnection").finish_non_exhaustive()
    }
}

/// One mount that is served.
enum ServedMount {
    Directory(Arc<DirectoryMount>),
    Objects(Arc<ObjectMount>),
}

impl ServedMount {
    /// Whether the guest has a file open to write.
    fn has_writers(&self) -> bool {
        match self {
            Self::Directory(mount) => mount.has_writers(),
            Self::Objects(mount) => mount.has_writers(),
        }
    }

    /// Whether the store must be asked before the process can end.
    fn must_store(&self) -> bool {
        match self {
            Self::Directory(_) => false,
            Self::Objects(mount) => mount.must_store(),
        }
    }

    /// Stores what the guest, which has ended, wrote and did not close.
    fn finish(&self) {
        match self {
            Self::Directory(mount) => mount.finish(),
            Self::Objects(mount) => mount.finish(DRAIN_TIMEOUT),
        }
    }

    fn meter(&self) -> &MountMeter {
        match self {
            Self::Directory(mount) => mount.meter(),
            Self::Objects(mount) => mount.meter(),
        }
    }
}

/// Serves the mounts of one cell until the server says that its run is over, or is gone. The process
/// must have one thread, no capability and its final user. Ends the process.
pub fn run_mount_server(input: MountServerInput) -> ! {
    rustix::process::umask(rustix::fs::Mode::empty());
    let code = match serve(input) {
        Ok(()) => 0,
        Err(_) => 1,
    };
    // Closing the FUSE connections ends every request of the guest that is under way.
    sys::exit(code)
}

fn serve(input: MountServerInput) -> io::Result<()> {
    let MountServerInput { control, ready, connections, read_ahead, guest } = input;
    let socket = Arc::new(ServerSocket::new(control));
    let (mounts, network) = receive_setup(&socket)?;
    if mounts.len() != connections.len() + usize::from(ready.is_some()) {
        return Err(io::Error::other("there are not as many connections as mounts"));
    }
    let mut visible: Vec<_> =
        mounts.iter().flat_map(|(_, fds)| fds.iter().take(2)).map(AsFd::as_fd).collect();
    visible.extend(network.as_ref().map(|(_, spool)| spool.as_fd()));
    confinement::confine(&visible, network.is_some())?;
    let runtime = match network {
        Some((roots, spool)) => {
            let runtime = Arc::new(LazyRuntime::default());
            let roots = Mutex::new(RootsFile::Unread(File::from(roots)));
            let access = Arc::new(RemoteAccess { socket: Arc::clone(&socket), roots });
            Some((runtime, access, Arc::new(spool)))
        }
        None => None,
    };
    let mut read_ahead = read_ahead.into_iter();
    let others = connections.into_iter().map(|fd| IdleSession::open(fd, read_ahead.next()));
    let opened = ready.map(|ready| Ok(ready.0)).into_iter().chain(others);
    let (mut served, mut sessions) = (Vec::new(), Vec::new());
    for ((setup, fds), session) in mounts.into_iter().zip(opened) {
        let (slug, session) = (setup.slug.clone(), session?);
        let mount = match setup.source {
            MountSetupSource::Objects(connection_setup) => {
                let (runtime, access, spool) =
                    runtime.as_ref().ok_or_else(|| io::Error::other("there is no network"))?;
                let settings = ObjectMountSettings {
                    connection: connection_setup.into_parts(),
                    access: Arc::clone(access) as Arc<_>,
                    spool: Arc::clone(spool),
                    owner: guest,
                    read_only: setup.read_only,
                    most_bytes: setup.file_size,
                    most_spool: setup.spool,
                };
                let mount = Arc::new(ObjectMount::new(settings, Arc::clone(runtime)));
                session.show(ObjectFs(Arc::clone(&mount)));
                ServedMount::Objects(mount)
            }
            MountSetupSource::Volume { .. } | MountSetupSource::Directory => {
                let mount = Arc::new(open_directory(&setup, fds, guest)?);
                session.show(DirectoryFs(Arc::clone(&mount)));
                ServedMount::Directory(mount)
            }
        };
        sessions.push(session);
        served.push((slug, mount));
    }
    follow_commands(&socket, sessions, served)
}

type Setup = (Vec<(MountSetup, Vec<OwnedFd>)>, Option<(OwnedFd, OwnedFd)>);

/// Reads the mounts, and what an object store needs besides.
fn receive_setup(socket: &ServerSocket) -> io::Result<Setup> {
    let mut mounts = Vec::new();
    loop {
        match socket.receive().map_err(io::Error::other)? {
            (MountCommand::Mount(setup), fds) => mounts.push((setup, fds)),
            (MountCommand::Start { has_network }, fds) => {
                let mut fds = fds.into_iter();
                let network = match (has_network, fds.next(), fds.next()) {
                    (false, ..) => None,
                    (true, Some(roots), Some(spool)) => Some((roots, spool)),
                    _ => return Err(io::Error::other("an object store needs a spool")),
                };
                return Ok((mounts, network));
            }
            _ => return Err(io::Error::other("this is not a setup")),
        }
    }
}

fn open_directory(
    setup: &MountSetup,
    fds: Vec<OwnedFd>,
    guest: (u32, u32),
) -> io::Result<DirectoryMount> {
    let missing = || io::Error::other("a mount came without its file descriptors");
    let mut fds = fds.into_iter();
    let root = fds.next().ok_or_else(missing)?;
    let ledger = match setup.source {
        MountSetupSource::Volume { quota, boot } => {
            let files = fds.next().ok_or_else(missing)?;
            let ledger = [fds.next(), fds.next()].map(|fd| fd.map(File::from));
            let [Some(ledger), Some(users)] = ledger else { return Err(missing()) };
            let quota = VolumeQuota { bytes: quota };
            Some(VolumeLedger::new(files, [ledger, users], quota, boot))
        }
        _ => None,
    };
    Ok(DirectoryMount::new(root, ledger, guest, setup.file_size))
}

/// Follows the server's commands to the end.
fn follow_commands(
    socket: &Arc<ServerSocket>,
    mut sessions: Vec<IdleSession>,
    served: Vec<(MountSlug, ServedMount)>,
) -> io::Result<()> {
    let mut was_busy = false;
    let served = loop {
        start_used_sessions(socket, &mut sessions)?;
        match socket.receive().map_err(io::Error::other)? {
            (MountCommand::Resolved { id, addresses }, _) => socket.answer(id, addresses),
            (MountCommand::Finish, _) => {
                if was_busy || !served.iter().any(|(_, mount)| mount.has_writers()) {
                    break served;
                }
                was_busy = true;
                socket.report_busy();
            }
            (MountCommand::Stop, _) => {
                socket.report(count_mounts(&served));
                return Ok(());
            }
            _ => return Err(io::Error::other("this is not a command of a running mount server")),
        }
    };
    let must_store = served.iter().any(|(_, mount)| mount.must_store());
    let reporter = Arc::clone(socket);
    let finish = move || {
        served.iter().for_each(|(_, mount)| mount.finish());
        reporter.report(count_mounts(&served));
        sys::exit(0)
    };
    if !must_store {
        finish();
    }
    thread::Builder::new().name("finish".to_owned()).spawn(finish)?;
    // What is stored now may need a new connection, and for it an answer of the server.
    loop {
        if let (MountCommand::Resolved { id, addresses }, _) =
            socket.receive().map_err(io::Error::other)?
        {
            socket.answer(id, addresses);
        }
    }
}

fn count_mounts(served: &[(MountSlug, ServedMount)]) -> Vec<MountReport> {
    served.iter().map(|(slug, mount)| mount.meter().report(slug.clone())).collect()
}
