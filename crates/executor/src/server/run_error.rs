//! Runs in: server (no capabilities). Why a run has no outcome.

use std::io;

use cloche_jail::{job_writer::InvalidJob, report::WallName, sys::Errno};
use cloche_model::Language;

use super::{
    cell::CellError, cell_network::NetworkError, commit::CommitError, home_mount::HomeError,
    image_mounts::ImageMountError, interpreter::INTERPRETER_DIRS, spawner_client::SpawnError,
};

/// Why a run has no outcome. This host failed, not the program.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The host has no interpreter for the language.
    #[error(
        "{0} is not installed on this host: there is no {program} in {directories}",
        program = .0.interpreter(),
        directories = INTERPRETER_DIRS.join(", ")
    )]
    NoInterpreter(Language),
    /// The image has no interpreter for the language.
    #[error("the image has no {language}; it has {has}")]
    NotInImage {
        /// The language.
        language: Language,
        /// The languages that it has.
        has: String,
    },
    /// The cell would have another root than the image of the sandbox.
    #[error("this executor cannot run programs on the image {0:?}")]
    OtherRoot(String),
    /// An interpreter that was started ahead does not wait for its program; what it said.
    #[error("the interpreter does not wait for a program: {0}")]
    NotWaiting(String),
    /// The image could not be mounted.
    #[error("the image could not be mounted")]
    Image(#[source] ImageMountError),
    /// No cell could be started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// A wall could not be built, so the program was not started.
    #[error("the wall {wall} could not be built")]
    Wall {
        /// The name of the wall.
        wall: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The substrate of the sandbox cannot be used on this host, so the program was not started.
    #[error("the substrate {substrate} cannot be used: {words}")]
    Substrate {
        /// The name of the substrate.
        substrate: String,
        /// What its runtime said.
        words: String,
    },
    /// The cell ended without a report, for no reason that the program or this server gave.
    #[error("the cell was lost")]
    CellLost,
    /// This executor keeps no layers, so a thread has no home.
    #[error("this executor has no storage for threads")]
    NoThreads,
    /// The socket of the web tools could not be mounted.
    #[error("the socket of the web tools could not be mounted: {0}")]
    ToolSocket(String),
    /// The home of a thread could not be mounted.
    #[error("the thread's home could not be mounted")]
    Home(#[source] HomeError),
    /// The sandbox has a network, and the run could not get it.
    #[error("the program was not started, because its network could not be set up")]
    Network(#[source] NetworkError),
    /// A storage mount could not be made, so the program was not started.
    #[error("storage mount {slug:?} failed: {reason}")]
    Storage {
        /// The name of the mount.
        slug: String,
        /// Why.
        reason: String,
    },
    /// The program has run, but the files that it wrote to its home could not be stored.
    #[error("the files that the program wrote could not be stored")]
    Commit(#[source] CommitError),
    /// The job cannot be encoded.
    #[error(transparent)]
    Job(#[from] InvalidJob),
    /// Pipes or sockets could not be made.
    #[error("cannot make the pipes and sockets of a run")]
    Io(#[from] io::Error),
}

impl RunError {
    /// A wall that pid 1 could not build, with what an OCI runtime said of it.
    pub(super) fn from_wall(wall: &WallName, errno: Errno, words: &str) -> Self {
        let wall = String::from_utf8_lossy(wall).trim_end_matches('\0').to_owned();
        if !words.is_empty() {
            return Self::Substrate { substrate: wall, words: words.to_owned() };
        }
        Self::Wall { wall, source: io::Error::from_raw_os_error(errno.0) }
    }
}

impl From<CellError> for RunError {
    fn from(error: CellError) -> Self {
        match error {
            CellError::Spawn(error) => Self::Spawn(error),
            CellError::Image(error) => Self::Image(error),
            CellError::Io(error) => Self::Io(error),
        }
    }
}
