//! Runs in: server (no capabilities). A cell that was started and waits for its job. It is used
//! once.

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream as StdStream,
    },
    sync::Arc,
};

use cloche_model::ImageRoot;

use super::{
    cell_exit::CellExit,
    cell_meter::CellMeter,
    control_socket::ControlSocket,
    image_mounts::ImageMountError,
    job_socket::CellJobSocket,
    spawner_client::{CellSource, SpawnError, SpawnedCell, SpawnerClient},
};
use crate::protocol::{CellConfig, CellId};

/// What a cell is made from. Cells of equal makings are interchangeable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CellMaking {
    /// Its limits and its walls. The image is filled in when it is mounted.
    pub(crate) config: CellConfig,
    /// The image that is its root; `None` for the image `host`.
    pub(crate) image: Option<Arc<ImageRoot>>,
    /// Whether interpreters find the client of the web tools on their search paths.
    pub(crate) tool_client: bool,
}

/// A cell that has run nothing yet. Watching it takes it by value, so that no cell is used twice.
pub(crate) struct Cell {
    pub(crate) id: CellId,
    pub(crate) meter: CellMeter,
    pub(crate) exit: CellExit,
    /// The pipes of the program, which do not block. The runtime gets to know them only if there
    /// is something to wait for.
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
    /// The socket that the job is written to.
    pub(crate) job: CellJobSocket,
    /// The socket on which pid 1 reports.
    pub(crate) control: ControlSocket,
}

impl Cell {
    /// Whether the cell is gone or lost.
    pub(crate) fn is_gone(&self) -> bool {
        self.exit.is_over()
    }

    /// The standard error of the cell so far, for a log.
    pub(crate) fn read_stderr(&self) -> String {
        let mut buffer = [0; 2048];
        let len = rustix::io::read(&self.stderr, &mut buffer).unwrap_or(0);
        String::from_utf8_lossy(&buffer[..len]).into_owned()
    }
}

/// Why a cell could not be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CellError {
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    #[error(transparent)]
    Image(#[from] ImageMountError),
    #[error("cannot make the pipes and sockets of a cell")]
    Io(#[from] io::Error),
}

/// Lets the spawner start a cell.
pub(crate) async fn spawn_cell(
    spawner: &SpawnerClient,
    making: &CellMaking,
    source: CellSource,
) -> Result<Cell, CellError> {
    let image = match &making.image {
        Some(root) => Some(spawner.hold_image(root).await?),
        None => None,
    };
    let (stdin_theirs, stdin) = io::pipe()?;
    let (stdout, stdout_theirs) = io::pipe()?;
    let (stderr, stderr_theirs) = io::pipe()?;
    let (job, job_theirs) = StdStream::pair()?;
    let (control, control_theirs) = StdStream::pair()?;
    let theirs = [
        stdin_theirs.as_fd(),
        stdout_theirs.as_fd(),
        stderr_theirs.as_fd(),
        job_theirs.as_fd(),
        control_theirs.as_fd(),
    ];
    let SpawnedCell { cell, meter, exit } =
        spawner.spawn_cell(&making.config, image, source, theirs).await?;
    Ok(Cell {
        id: cell,
        meter,
        exit,
        stdin: OwnedFd::from(stdin),
        stdout: without_blocking(stdout.into())?,
        stderr: without_blocking(stderr.into())?,
        job: CellJobSocket::new(job)?,
        control: ControlSocket::new(control)?,
    })
}

/// The same pipe, whose reads do not block.
fn without_blocking(pipe: OwnedFd) -> io::Result<OwnedFd> {
    rustix::io::ioctl_fionbio(&pipe, true)?;
    Ok(pipe)
}
