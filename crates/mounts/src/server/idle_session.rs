//! Runs in: mount server (no capabilities). A FUSE connection that has answered the kernel's first
//! request, and gets threads when the guest first uses its mount. An unused mount has none.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    thread,
};

use fuser::{Config, Filesystem, Session, SessionACL};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};

use super::{attributes::MAX_REQUEST, control::ServerSocket, late_filesystem::LateFilesystem};

/// Threads that read requests of one mount. Those of an object store are answered by the
/// asynchronous runtime if they have to wait.
const THREADS: usize = 2;

/// A connection without threads.
pub(super) struct IdleSession {
    session: Session<LateFilesystem>,
    filesystem: LateFilesystem,
}

impl IdleSession {
    /// Answers the first request of the kernel, which waits already, and sets the kernel's
    /// read-ahead of the mount with the file for it.
    pub(super) fn open(connection: OwnedFd, read_ahead: Option<OwnedFd>) -> io::Result<Self> {
        let mut config = Config::default();
        config.n_threads = Some(THREADS);
        let filesystem = LateFilesystem::default();
        let session = Session::from_fd(filesystem.clone(), connection, SessionACL::All, config)?;
        if let Some(file) = read_ahead {
            // The first request had a smaller one. Without it the kernel asks for less at once.
            let kibibytes = (MAX_REQUEST >> 10).to_string();
            let _ = rustix::io::write(&file, kibibytes.as_bytes());
        }
        Ok(Self { session, filesystem })
    }

    /// What the mount shows. Called before the guest can use it.
    pub(super) fn show(&self, filesystem: impl Filesystem) {
        self.filesystem.become_one(filesystem);
    }

    fn start(self) -> io::Result<()> {
        thread::Builder::new().name("mount".to_owned()).spawn(move || self.session.run())?;
        Ok(())
    }
}

/// Waits for a command of the server. Meanwhile starts every session that has a request.
pub(super) fn start_used_sessions(
    socket: &ServerSocket,
    sessions: &mut Vec<IdleSession>,
) -> io::Result<()> {
    while !sessions.is_empty() {
        let fds = std::iter::once(socket.as_fd());
        let fds = fds.chain(sessions.iter().map(|idle| idle.session.as_fd()));
        let mut waits: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut waits, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ready: Vec<_> = waits.iter().map(|wait| !wait.revents().is_empty()).collect();
        for at in (0..sessions.len()).rev().filter(|at| ready[at + 1]) {
            socket.report_use();
            sessions.swap_remove(at).start()?;
        }
        if ready[0] {
            break;
        }
    }
    Ok(())
}
