//! The executor itself: starts the spawner, runs programs, stops.

use std::{io, path::PathBuf, sync::Arc, time::Instant};

use cloche_jail::job::InvalidJob;
use cloche_model::{Language, Outcome, OutputChunk, RunSpec};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    attach,
    cell::{self, CellError},
    drive::{Drive, drive},
    spawner::{
        client::{SpawnError, Spawner},
        protocol::CellConfig,
    },
};

/// How an executor is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// The `cloche` binary, which is started again as the spawner.
    pub program: PathBuf,
    /// The arguments that make it one.
    pub spawner_args: Vec<String>,
    /// Walls that may be missing, by name.
    pub allow_missing: Vec<String>,
}

impl Config {
    /// The defaults, with this binary as the spawner.
    pub fn with_program(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            spawner_args: vec!["__spawner".to_owned()],
            allow_missing: Vec::new(),
        }
    }
}

/// What goes in and out while a program runs.
#[derive(Debug, Default)]
pub struct RunIo {
    /// Output as it arrives. A receiver that is gone stops nothing.
    pub output: Option<mpsc::Sender<OutputChunk>>,
    /// Standard input beyond the spec's, until the sender is gone.
    pub stdin: Option<mpsc::Receiver<Vec<u8>>>,
    /// Stops the run.
    pub cancel: CancellationToken,
}

/// Why an executor could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The spawner could not be started.
    #[error("cannot start the spawner")]
    Spawner(#[from] io::Error),
    /// The spawner died while starting.
    #[error("the spawner died while starting")]
    Lost(#[from] SpawnError),
    /// Walls are missing that were not allowed to be.
    #[error("this host cannot build: {}", describe(.0))]
    Missing(Vec<(String, String)>),
}

fn describe(missing: &[(String, String)]) -> String {
    let each = missing.iter().map(|(wall, why)| format!("{wall} ({why})"));
    each.collect::<Vec<_>>().join(", ")
}

/// Why a run has no outcome: we failed, not the program.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The host has no interpreter for the language.
    #[error("{0} is not installed on this host: there is no {program} in /usr/bin", program = .0.interpreter())]
    NoInterpreter(Language),
    /// No cell could be started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// A wall could not be built, so nothing was run.
    #[error("the wall {wall} could not be built")]
    Wall {
        /// Its name.
        wall: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The cell died, and not by anything it or we did.
    #[error("the cell was lost")]
    CellLost,
    /// The job cannot be given to a cell.
    #[error(transparent)]
    Job(#[from] InvalidJob),
    /// Pipes or sockets could not be made.
    #[error("cannot set up a run")]
    Io(#[from] io::Error),
}

impl From<CellError> for RunError {
    fn from(error: CellError) -> Self {
        match error {
            CellError::Spawn(error) => Self::Spawn(error),
            CellError::Io(error) => Self::Io(error),
        }
    }
}

/// Runs programs on this host. Cheap to clone; the last one to be dropped ends the spawner.
#[derive(Clone)]
pub struct Executor {
    spawner: Arc<Spawner>,
    missing: Arc<[(String, String)]>,
}

impl Executor {
    /// Starts a spawner, and refuses where a wall is missing that may not be.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let spawner = Spawner::start(&config.program, &config.spawner_args)?;
        let missing = spawner.missing().await?;
        let mut refused = missing.clone();
        refused.retain(|(wall, _)| !config.allow_missing.contains(wall));
        if !refused.is_empty() {
            spawner.stop().await;
            return Err(StartError::Missing(refused));
        }
        Ok(Self { spawner: Arc::new(spawner), missing: missing.into() })
    }

    /// The walls this host cannot build and was allowed not to: name and reason.
    #[must_use]
    pub fn missing(&self) -> &[(String, String)] {
        &self.missing
    }

    /// Runs one program in a fresh sandbox, to its end.
    pub async fn run(&self, spec: RunSpec, io: RunIo) -> Result<Outcome, RunError> {
        let interpreter = attach::interpreter(spec.language);
        let interpreter = interpreter.ok_or(RunError::NoInterpreter(spec.language))?;
        let job = attach::cold_job(&spec, &interpreter)?;
        let asked = Instant::now();
        let cell = cell::start(&self.spawner, &config(&spec)).await?;
        let waited = asked.elapsed();
        let work = Drive { job, stdin: spec.stdin, limits: spec.limits, io };
        let mut outcome = drive(cell, &self.spawner, work).await?;
        outcome.timings.cell = waited;
        Ok(outcome)
    }

    /// Waits until nothing of past runs is left on the host.
    pub async fn settle(&self) {
        self.spawner.settle().await;
    }

    /// Ends the spawner and everything that still runs. With other clones around, they keep it.
    pub async fn stop(self) {
        if let Some(spawner) = Arc::into_inner(self.spawner) {
            spawner.stop().await;
        }
    }
}

fn config(spec: &RunSpec) -> CellConfig {
    CellConfig {
        image: spec.sandbox.image.clone(),
        memory: spec.limits.memory.bytes(),
        cpu_milli: spec.limits.cpus.milli(),
        pids: spec.limits.pids,
        disk: spec.limits.disk.bytes(),
    }
}
