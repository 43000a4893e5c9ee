//! Runs in: server (no capabilities). Starts interpreters before there is a job: parked cells and
//! templates.
//!
//! Knows how each language is made to wait for its job. Does not know how many cells there should
//! be.

use std::{
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
use cloche_model::{ImageRoot, Language};
use tokio::time::timeout;

use super::{
    cell::{self, Cell, CellMaking},
    cell_exit::CellExit,
    control_socket::NotReady,
    home_place::HomePlace,
    interpreter, job_builder,
    run_error::RunError,
    shell_gate,
    spawner_client::{CellSource, SpawnerClient},
};
use crate::protocol::{CellId, HOME, NODE_START, SpawnKind};

/// The library that a template loads.
const TEMPLATE_LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/template.so"));
/// The Python runtime, which waits for a job: `guest/python`, as an archive.
const PYTHON_RUNTIME: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cloche.zip"));
/// The name of that archive in the home. The runtime removes it before it takes a job.
const PYTHON_ARCHIVE: &str = "cloche.zip";
/// How long an interpreter may take to start.
const START_LIMIT: Duration = Duration::from_secs(30);

/// The standard-library modules that every template imports.
pub const DEFAULT_PRELOAD: [&str; 58] = [
    "__future__",
    "_strptime",
    "argparse",
    "array",
    "base64",
    "bisect",
    "calendar",
    "cmath",
    "collections",
    "concurrent.futures.thread",
    "contextlib",
    "copy",
    "csv",
    "dataclasses",
    "datetime",
    "decimal",
    "difflib",
    "enum",
    "fractions",
    "functools",
    "glob",
    "gzip",
    "hashlib",
    "heapq",
    "html.parser",
    "io",
    "itertools",
    "json",
    "logging",
    "math",
    "operator",
    "os",
    "pathlib",
    "pickle",
    "pprint",
    "queue",
    "random",
    "re",
    "secrets",
    "shutil",
    "sqlite3",
    "statistics",
    "string",
    "struct",
    "subprocess",
    "tempfile",
    "textwrap",
    "time",
    "timeit",
    "traceback",
    "typing",
    "unicodedata",
    "unittest",
    "urllib.parse",
    "uuid",
    "xml.etree.ElementTree",
    "zipfile",
    "zoneinfo",
];

/// Starts a cold cell and parks it: its interpreter waits for a job, if the language can.
pub(crate) async fn start_parked_cell(
    spawner: &SpawnerClient,
    making: &CellMaking,
    language: Language,
) -> Result<Cell, RunError> {
    let job = start_job(language, making)?;
    let kind = match language {
        Language::Bash if job.is_some() => SpawnKind::Gated,
        _ => SpawnKind::Cell,
    };
    let mut cell = cell::spawn_cell(spawner, making, CellSource::Nothing(kind)).await?;
    match job {
        Some(job) => {
            // Programs that run now go before an interpreter that is started for later. A shell
            // starts so fast that it is not worth it: on a busy host it would never get its turn.
            let yields = kind != SpawnKind::Gated;
            if yields {
                cell.meter.yield_to_others(true);
            }
            wait_for_interpreter(&mut cell, &job).await?;
            if yields {
                cell.meter.yield_to_others(false);
            }
        }
        None => wait_for_walls(&mut cell).await?,
    }
    Ok(cell)
}

/// The job that starts an interpreter and makes it wait; `None` for a language that cannot wait.
fn start_job(language: Language, making: &CellMaking) -> Result<Option<Vec<u8>>, RunError> {
    let mut out = Vec::new();
    let variables = match language {
        Language::Python => {
            job_writer::append_file(&mut out, PYTHON_ARCHIVE, 0o600, PYTHON_RUNTIME)?;
            python_start(constants::START_SINGLE)
        }
        Language::Node => {
            // Node.js looks for a package in the directory where it is started, and caches that
            // there is none. The job may bring one into the home, so Node.js starts in `/` and
            // changes to the home later.
            job_writer::append_directory(&mut out, c"/");
            vec![("NODE_OPTIONS", format!("--require={NODE_START}"))]
        }
        Language::Bash => {
            let image = making.image.as_deref();
            let interpreter = interpreter::find_interpreter(language, image)?;
            let Some(variable) = shell_gate::wait_variable(&interpreter, image) else {
                return Ok(None);
            };
            vec![variable]
        }
        _ => return Ok(None),
    };
    let exec = interpreter_exec(language, making, variables)?;
    // Pid 1 takes the job of a shell.
    let keeps_job = language != Language::Bash;
    job_writer::append_exec(&mut out, &ExecProgram { keeps_job, ..exec })?;
    Ok(Some(out))
}

/// The variables with which Python finds its runtime.
fn python_start(way: &str) -> Vec<(&'static str, String)> {
    let archive = format!("{HOME}/{PYTHON_ARCHIVE}");
    vec![("PYTHONPATH", archive), (constants::START_VARIABLE, way.to_owned())]
}

/// The command that starts an interpreter which waits. An image may set the variables that the
/// runtime needs for itself. Then both values are there, ours first; the job brings the image's.
fn interpreter_exec(
    language: Language,
    making: &CellMaking,
    variables: Vec<(&str, String)>,
) -> Result<ExecProgram, RunError> {
    let image = making.image.as_deref();
    let interpreter = interpreter::find_interpreter(language, image)?;
    let mut env = interpreter::base_env(image, &HomePlace::Usual, making.tool_client);
    for (name, value) in variables {
        let between = if name == "PYTHONPATH" { ":" } else { " " };
        match env.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = format!("{value}{between}{known}"),
            None => env.push((name.to_owned(), value)),
        }
    }
    let env = interpreter::env_strings(env.iter().map(|(name, value)| (&name[..], &value[..])));
    let main = job_builder::main_exec(language, &interpreter, &HomePlace::Usual);
    Ok(ExecProgram { env, keeps_job: true, ..main })
}

/// Whether the interpreter of a language can wait for a job.
pub(crate) fn can_wait(language: Language, image: Option<&ImageRoot>) -> bool {
    let has_gate = |interpreter| shell_gate::wait_variable(&interpreter, image).is_some();
    match language {
        Language::Python | Language::Node => true,
        Language::Bash => interpreter::find_interpreter(language, image).is_ok_and(has_gate),
        _ => false,
    }
}

/// Starts a cold cell and parks it without an interpreter: the job will start that.
pub(crate) async fn start_empty_cell(
    spawner: &SpawnerClient,
    making: &CellMaking,
) -> Result<Cell, RunError> {
    let mut cell = cell::spawn_cell(spawner, making, CellSource::Nothing(SpawnKind::Cell)).await?;
    wait_for_walls(&mut cell).await?;
    Ok(cell)
}

/// Sends the start job and waits for the one byte that the interpreter answers when it is ready.
async fn wait_for_interpreter(cell: &mut Cell, job: &[u8]) -> Result<(), RunError> {
    match timeout(START_LIMIT, cell.job.start_waiting(job)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(start_failure(cell).await),
        Err(_) => {
            let seconds = START_LIMIT.as_secs();
            Err(RunError::NotWaiting(format!("it did not answer within {seconds} s")))
        }
    }
}

/// Waits until pid 1 has reported that every wall is up.
pub(crate) async fn wait_for_walls(cell: &mut Cell) -> Result<(), RunError> {
    match timeout(START_LIMIT, cell.control.wait_until_ready()).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(NotReady::Reported(CellReport::Failed(wall, errno)))) => {
            Err(RunError::from_wall(&wall, errno, &cell.control.words()))
        }
        _ => Err(RunError::CellLost),
    }
}

/// Why an interpreter did not get ready, from the reports of pid 1 and its last words.
async fn start_failure(cell: &mut Cell) -> RunError {
    loop {
        match timeout(START_LIMIT, cell.control.next_report()).await {
            Ok(Some(CellReport::Ready)) => {}
            Ok(Some(CellReport::Failed(wall, errno))) => {
                return RunError::from_wall(&wall, errno, &cell.control.words());
            }
            Ok(Some(CellReport::Exited(code))) => {
                return RunError::NotWaiting(describe_start(code, &cell.read_stderr()));
            }
            _ => return RunError::CellLost,
        }
    }
}

/// Why an interpreter ended instead of waiting. If it looked for its main file, it has not run the
/// runtime at all.
fn describe_start(code: i32, said: &str) -> String {
    let last = said.lines().rfind(|line| !line.trim().is_empty()).map_or("", str::trim);
    match code {
        _ if last.contains("main.py") => "it runs no usercustomize; a virtual environment without \
             system packages does not, and no interpreter with PYTHONNOUSERSITE"
            .to_owned(),
        _ if last.contains("main.sh") => "it does not read BASH_ENV".to_owned(),
        constants::EXIT_NOT_FOUND => {
            "the file, or the loader that it names, is not in the image".to_owned()
        }
        code if last.is_empty() => format!("it exited with {code}"),
        _ => last.to_owned(),
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
        making: &CellMaking,
        preload: impl Iterator<Item = &str>,
    ) -> Result<Self, RunError> {
        let modules: Vec<&str> = DEFAULT_PRELOAD.into_iter().chain(preload).collect();
        let mut variables = python_start(constants::START_TEMPLATE);
        variables.push((constants::PRELOAD_VARIABLE, modules.join(" ")));
        let mut out = Vec::new();
        job_writer::append_file(&mut out, PYTHON_ARCHIVE, 0o644, PYTHON_RUNTIME)?;
        job_writer::append_file(&mut out, constants::TEMPLATE_LIBRARY, 0o755, TEMPLATE_LIBRARY)?;
        job_writer::append_exec(&mut out, &interpreter_exec(Language::Python, making, variables)?)?;
        let mut cell =
            cell::spawn_cell(spawner, making, CellSource::Nothing(SpawnKind::Template)).await?;
        if let Err(error) = wait_for_interpreter(&mut cell, &out).await {
            tracing::warn!(%error, "no template: each cell starts its own interpreter");
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
        making: &CellMaking,
    ) -> Result<Cell, RunError> {
        self.forks.fetch_add(1, Ordering::Relaxed);
        let cell = cell::spawn_cell(spawner, making, CellSource::Template(self.id())).await?;
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
        making: &CellMaking,
    ) -> Result<Cell, RunError> {
        let mut cell = self.fork_cell(spawner, making).await?;
        wait_for_interpreter(&mut cell, &[]).await?;
        cell.job.note_cool();
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
