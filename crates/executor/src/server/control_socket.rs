//! Runs in: server (no capabilities). The control socket of a cell: pid 1 reports on it, and passes
//! the cell's home. The end of this socket tells pid 1 to take the cell apart.

use std::{
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::net::UnixStream as StdStream,
    },
    time::Duration,
};

use cloche_jail::{
    report::{CellReport, REPORT_LEN},
    sys::{self, Errno},
};
use tokio::{io::Interest, net::UnixStream, time::timeout};

/// How long the processes of a cell may take to end after they are killed.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// The most bytes of what an OCI runtime said.
const MAX_WORDS: usize = 4 << 10;

/// The server's end of a cell's control socket.
pub(crate) struct ControlSocket {
    socket: UnixStream,
    is_ready: bool,
    home: Option<OwnedFd>,
    /// What an OCI runtime said.
    words: Vec<u8>,
    /// Every process but pid 1 has ended.
    is_alone: bool,
}

/// Why a cell is not ready.
pub(crate) enum NotReady {
    /// Pid 1 reported something else.
    Reported(CellReport),
    /// Pid 1 is gone.
    Closed,
}

impl ControlSocket {
    pub(crate) fn new(socket: StdStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: UnixStream::from_std(socket)?,
            is_ready: false,
            home: None,
            words: Vec::new(),
            is_alone: false,
        })
    }

    /// The next report; `None` when pid 1 is gone. Cancel-safe: no report is lost.
    pub(crate) async fn next_report(&mut self) -> Option<CellReport> {
        loop {
            let socket = &self.socket;
            let (bytes, fd) =
                socket.async_io(Interest::READABLE, || receive_report(socket)).await.ok()?;
            match CellReport::from_bytes(&bytes)? {
                CellReport::Words(part) if self.words.len() < MAX_WORDS => {
                    self.words.extend(part.iter().take_while(|byte| **byte != 0));
                }
                CellReport::Words(_) => {}
                CellReport::Ready => {
                    self.is_ready = true;
                    self.home = fd;
                    return Some(CellReport::Ready);
                }
                report => return Some(report),
            }
        }
    }

    /// What an OCI runtime said before a report of a failure.
    pub(crate) fn words(&self) -> String {
        String::from_utf8_lossy(&self.words).into_owned()
    }

    /// Waits until pid 1 has reported that every wall is up.
    pub(crate) async fn wait_until_ready(&mut self) -> Result<(), NotReady> {
        if self.is_ready {
            return Ok(());
        }
        match self.next_report().await {
            Some(CellReport::Ready) => Ok(()),
            Some(other) => Err(NotReady::Reported(other)),
            None => Err(NotReady::Closed),
        }
    }

    /// Ends every process of the cell after pid 1 has reported the end of the main process, which
    /// may only be stopped. Returns when pid 1 has confirmed it, or is gone: then the kernel has
    /// killed the others.
    pub(crate) async fn end_processes(&mut self) -> io::Result<()> {
        if self.is_alone {
            return Ok(());
        }
        // It is no error if pid 1 is gone and does not read this.
        let _ = self.socket.try_write(b"!");
        match timeout(END_TIMEOUT, self.next_report()).await {
            Ok(Some(CellReport::Alone) | None) => {
                self.is_alone = true;
                Ok(())
            }
            Ok(Some(_)) => Err(io::ErrorKind::InvalidData.into()),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// The home that the cell came with. Pid 1 passes it when the cell is ready.
    pub(crate) fn take_home(&mut self) -> Option<OwnedFd> {
        self.home.take()
    }

    /// Releases the cell by closing the socket: pid 1 takes its end as the order to kill what is
    /// left and to take the cell apart. Pack the home before. A drop without this call, as on an
    /// error, does the same.
    pub(crate) fn release(self) {
        drop(self.socket);
    }
}

/// Receives one report and its file descriptor. A report is one short message, so it arrives whole.
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
