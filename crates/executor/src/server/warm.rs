//! Runs in: server (no capabilities). Starts interpreters before there is a job: parked cells and
//! templates.
//!
//! Knows how each language is made to wait for its job. Does not know how many cells there should
//! be.

use std::{
    ffi::CString,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use cloche_jail::{
    job_writer::{self, ExecProgram},
    protocol::constants,
    report::CellReport,
};
use cloche_model::Language;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use super::{
    cell::{self, Cell},
    cell_exit::CellExit,
    control_socket::NotReady,
    job_builder::{self, HomePlace},
    run_error::RunError,
    spawner_client::{CellSource, SpawnerClient},
};
use crate::protocol::{CellConfig, CellId, HOME, NODE_START, SpawnKind};

/// The library that a template loads.
const TEMPLATE_LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/template.so"));
/// The Python runtime, which waits for a job: `guest/python`, as an archive.
const PYTHON_RUNTIME: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cloche.zip"));
/// The name of that archive in the home. The runtime removes it before it takes a job.
const PYTHON_ARCHIVE: &str = "cloche.zip";
/// How long an interpreter may take to start.
const START_LIMIT: Duration = Duration::from_secs(30);

/// The standard-library modules that every template imports.
pub const DEFAULT_PRELOAD: [&str; 34] = [
    "base64",
    "bisect",
    "collections",
    "contextlib",
    "copy",
    "csv",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "io",
    "itertools",
    "json",
    "logging",
    "math",
    "operator",
    "os",
    "pathlib",
    "random",
    "re",
    "statistics",
    "string",
    "struct",
    "subprocess",
    "tempfile",
    "textwrap",
    "time",
    "traceback",
    "typing",
    "urllib.parse",
];

/// Starts a cold cell and parks it: its interpreter waits for a job, if the language can.
pub(crate) async fn start_parked_cell(
    spawner: &SpawnerClient,
    config: &CellConfig,
    language: Language,
) -> Result<Cell, RunError> {
    let mut cell = cell::spawn_cell(spawner, config, CellSource::Nothing(SpawnKind::Cell)).await?;
    match start_job(language)? {
        Some(job) => {
            // Programs that run now go before an interpreter that is started for later.
            cell.meter.yield_to_others(true);
            wait_for_interpreter(&mut cell, &job).await?;
            cell.meter.yield_to_others(false);
        }
        None => wait_for_walls(&mut cell).await?,
    }
    Ok(cell)
}

/// The job that starts an interpreter and makes it wait; `None` for a language that cannot wait.
fn start_job(language: Language) -> Result<Option<Vec<u8>>, RunError> {
    let mut out = Vec::new();
    let variables = match language {
        Language::Bash => return Ok(None),
        Language::Python => {
            job_writer::append_file(&mut out, PYTHON_ARCHIVE, 0o600, PYTHON_RUNTIME)?;
            python_start(constants::START_SINGLE)
        }
        Language::Node => vec![("NODE_OPTIONS", format!("--require={NODE_START}"))],
    };
    job_writer::append_exec(&mut out, &interpreter_exec(language, variables)?)?;
    Ok(Some(out))
}

/// The variables with which Python finds its runtime.
fn python_start(way: &str) -> Vec<(&'static str, String)> {
    let archive = format!("{HOME}/{PYTHON_ARCHIVE}");
    vec![("PYTHONPATH", archive), (constants::START_VARIABLE, way.to_owned())]
}

fn interpreter_exec(
    language: Language,
    variables: Vec<(&str, String)>,
) -> Result<ExecProgram, RunError> {
    let interpreter =
        job_builder::find_interpreter(language).ok_or(RunError::NoInterpreter(language))?;
    let more = variables.into_iter().map(|(name, value)| format!("{name}={value}"));
    let mut env = job_builder::base_env_strings();
    env.extend(more.filter_map(|pair| CString::new(pair).ok()));
    let main = job_builder::main_exec(language, &interpreter, &HomePlace::Usual);
    let start = ExecProgram { env, keeps_job: true, ..main };
    Ok(if language == Language::Node { started_in_root(start) } else { start })
}

/// Node.js looks for a package in the directory where it is started, and caches that there is none.
/// The job may bring one into the home, so Node.js starts in `/` and changes to the home later.
fn started_in_root(start: ExecProgram) -> ExecProgram {
    let by = [c"env", c"-C", c"/"].into_iter().map(CString::from);
    let args = by.chain(start.args).collect();
    ExecProgram { program: c"/usr/bin/env".into(), args, ..start }
}

/// Sends the start job and waits for the one byte that the interpreter answers when it is ready.
async fn wait_for_interpreter(cell: &mut Cell, job: &[u8]) -> Result<(), RunError> {
    let ready = async {
        cell.job.write_all(job).await?;
        cell.job.read_u8().await
    };
    match timeout(START_LIMIT, ready).await {
        Ok(Ok(_)) => Ok(()),
        _ => Err(start_failure(cell).await),
    }
}

/// Waits until pid 1 has reported that every wall is up.
pub(crate) async fn wait_for_walls(cell: &mut Cell) -> Result<(), RunError> {
    match timeout(START_LIMIT, cell.control.wait_until_ready()).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(NotReady::Reported(CellReport::Failed(wall, errno)))) => {
            Err(RunError::from_wall(&wall, errno))
        }
        _ => Err(RunError::CellLost),
    }
}

/// Why a cell did not get ready, from the reports of pid 1.
async fn start_failure(cell: &mut Cell) -> RunError {
    loop {
        match timeout(START_LIMIT, cell.control.next_report()).await {
            Ok(Some(CellReport::Ready)) => {}
            Ok(Some(CellReport::Failed(wall, errno))) => return RunError::from_wall(&wall, errno),
            _ => return RunError::CellLost,
        }
    }
}

/// The cell of a template: an initialised interpreter that cells are forked from. It never gets a
/// job.
pub(crate) struct Template {
    cell: Cell,
    born: Instant,
    forks: AtomicU32,
    /// Its memory, read after its imports.
    memory: u64,
    /// Its forked cells that are alive. They end with the template, so it must outlive them.
    children: Mutex<Vec<CellExit>>,
}

impl Template {
    /// Starts a template and waits until it has imported its modules.
    pub(crate) async fn start(
        spawner: &SpawnerClient,
        config: &CellConfig,
        preload: &[String],
    ) -> Result<Self, RunError> {
        let mut modules: Vec<&str> = DEFAULT_PRELOAD.to_vec();
        modules.extend(preload.iter().map(String::as_str));
        let mut variables = python_start(constants::START_TEMPLATE);
        variables.push((constants::PRELOAD_VARIABLE, modules.join(" ")));
        let mut out = Vec::new();
        job_writer::append_file(&mut out, PYTHON_ARCHIVE, 0o644, PYTHON_RUNTIME)?;
        job_writer::append_file(&mut out, constants::TEMPLATE_LIBRARY, 0o755, TEMPLATE_LIBRARY)?;
        job_writer::append_exec(&mut out, &interpreter_exec(Language::Python, variables)?)?;
        let mut cell =
            cell::spawn_cell(spawner, config, CellSource::Nothing(SpawnKind::Template)).await?;
        if let Err(error) = wait_for_interpreter(&mut cell, &out).await {
            let said = cell.read_stderr();
            tracing::warn!(%error, said, "no template: each cell starts its own interpreter");
            spawner.kill_cell(cell.id).await;
            return Err(error);
        }
        let memory = cell.meter.read().unwrap_or_default().peak.max(1 << 20);
        let (born, forks) = (Instant::now(), AtomicU32::new(0));
        Ok(Self { cell, born, forks, memory, children: Mutex::default() })
    }

    pub(crate) const fn memory(&self) -> u64 {
        self.memory
    }

    pub(crate) fn id(&self) -> CellId {
        self.cell.id
    }

    /// Forks a cell. It reads its job when it is ready, so the job can be written at once.
    pub(crate) async fn fork_cell(
        &self,
        spawner: &SpawnerClient,
        config: &CellConfig,
    ) -> Result<Cell, RunError> {
        self.forks.fetch_add(1, Ordering::Relaxed);
        let cell = cell::spawn_cell(spawner, config, CellSource::Template(self.id())).await?;
        let mut cells = self.lock_children();
        // Cells that are gone are removed only when the list would grow.
        if cells.len() == cells.capacity() {
            cells.retain(|cell| !cell.is_over());
        }
        cells.push(cell.exit.clone());
        drop(cells);
        Ok(cell)
    }

    /// Forks a cell and waits until it is parked.
    pub(crate) async fn fork_parked(
        &self,
        spawner: &SpawnerClient,
        config: &CellConfig,
    ) -> Result<Cell, RunError> {
        let mut cell = self.fork_cell(spawner, config).await?;
        wait_for_interpreter(&mut cell, &[]).await?;
        Ok(cell)
    }

    /// Whether it has forked so many cells, or is so old, that it should be replaced.
    pub(crate) fn is_worn(&self, forks: u32, age: Duration) -> bool {
        self.forks.load(Ordering::Relaxed) >= forks || self.born.elapsed() >= age
    }

    /// Whether no forked cell is alive, which would end with the template.
    pub(crate) fn is_childless(&self) -> bool {
        let mut cells = self.lock_children();
        cells.retain(|cell| !cell.is_over());
        cells.is_empty()
    }

    fn lock_children(&self) -> MutexGuard<'_, Vec<CellExit>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the template has ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.cell.is_gone()
    }
}
