//! The socket on which pid 1 of a cell reports, and hands out the cell's home.

use std::{
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::net::UnixStream as StdStream,
    },
    time::Duration,
};

use cloche_jail::{
    init::{CellReport, REPORT_LEN},
    sys::{self, Errno},
};
use tokio::{io::Interest, net::UnixStream, time::timeout};

/// How long the processes of a cell may take to end when they are killed.
const LONGEST_END: Duration = Duration::from_secs(5);

/// Our end of a cell's control socket.
pub(crate) struct ControlSocket {
    socket: UnixStream,
    is_ready: bool,
    home: Option<OwnedFd>,
}

impl ControlSocket {
    pub(crate) fn new(socket: StdStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket: UnixStream::from_std(socket)?, is_ready: false, home: None })
    }

    /// The next report; nothing when pid 1 is gone. Can be dropped and asked again.
    pub(crate) async fn next_report(&mut self) -> Option<CellReport> {
        let socket = &self.socket;
        let (bytes, fd) =
            socket.async_io(Interest::READABLE, || receive_report(socket)).await.ok()?;
        let report = CellReport::from_bytes(&bytes)?;
        if report == CellReport::Ready {
            self.is_ready = true;
            self.home = fd;
        }
        Some(report)
    }

    /// Waits until every wall is up; otherwise gives back what was said instead.
    pub(crate) async fn wait_until_ready(&mut self) -> Result<(), Option<CellReport>> {
        if self.is_ready {
            return Ok(());
        }
        match self.next_report().await {
            Some(CellReport::Ready) => Ok(()),
            other => Err(other),
        }
    }

    /// Has every process of the cell ended, once its main process was reported to have: that one may
    /// only have stopped. Pid 1 says so, or is gone, and then all others are.
    pub(crate) async fn end_processes(&mut self) -> io::Result<()> {
        // A pid 1 that is gone takes nothing any more, and is no error.
        let _ = self.socket.try_write(b"!");
        match timeout(LONGEST_END, self.next_report()).await {
            Ok(Some(CellReport::Alone) | None) => Ok(()),
            Ok(Some(_)) => Err(io::ErrorKind::InvalidData.into()),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// The directory that is the home, once the cell is ready.
    pub(crate) fn take_home(&mut self) -> Option<OwnedFd> {
        self.home.take()
    }
}

/// One report with what came along. A report is one message, and short: it is there as a whole.
fn receive_report(socket: &UnixStream) -> io::Result<([u8; REPORT_LEN], Option<OwnedFd>)> {
    let mut bytes = [0; REPORT_LEN];
    let received = sys::recvmsg(socket.as_fd().as_raw_fd(), &mut bytes);
    let (len, fds) = received.map_err(|Errno(code)| io::Error::from_raw_os_error(code))?;
    let mut fds = fds.into_iter().flatten().map(sys::into_owned_fd);
    if len < REPORT_LEN {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((bytes, fds.next()))
}
