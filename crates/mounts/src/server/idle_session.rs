//! Runs in: mount server (no capabilities). A FUSE connection that has answered the kernel's first
//! request, and gets threads when the guest first uses its mount. An unused mount has none.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread,
};

use fuser::{Config, Filesystem, Session, SessionACL};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};

use super::control::ServerSocket;

/// A connection without threads.
pub(super) struct IdleSession(Box<dyn StartSession>);

/// A session of any file system.
trait StartSession {
    fn connection(&self) -> BorrowedFd<'_>;
    fn start(self: Box<Self>) -> io::Result<()>;
}

impl<F: Filesystem> StartSession for Session<F> {
    fn connection(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn start(self: Box<Self>) -> io::Result<()> {
        thread::Builder::new().name("mount".to_owned()).spawn(move || self.run())?;
        Ok(())
    }
}

impl IdleSession {
    /// Answers the first request of the kernel, which waits already.
    pub(super) fn open<F: Filesystem>(
        filesystem: F,
        connection: OwnedFd,
        threads: usize,
    ) -> io::Result<Self> {
        let mut config = Config::default();
        config.n_threads = Some(threads);
        let session = Session::from_fd(filesystem, connection, SessionACL::All, config)?;
        Ok(Self(Box::new(session)))
    }
}

/// Waits for a command of the server. Meanwhile starts every session that has a request.
pub(super) fn start_used_sessions(
    socket: &ServerSocket,
    sessions: &mut Vec<IdleSession>,
) -> io::Result<()> {
    while !sessions.is_empty() {
        let fds = std::iter::once(socket.as_fd());
        let fds = fds.chain(sessions.iter().map(|session| session.0.connection()));
        let mut waits: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut waits, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ready: Vec<_> = waits.iter().map(|wait| !wait.revents().is_empty()).collect();
        for at in (0..sessions.len()).rev().filter(|at| ready[at + 1]) {
            sessions.swap_remove(at).0.start()?;
        }
        if ready[0] {
            break;
        }
    }
    Ok(())
}
