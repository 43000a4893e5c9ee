//! Interpreters that are started before there is a job: parked cells and templates.
//!
//! Knows how each language is made to wait for its job. Does not know how many there should be.

use std::{
    ffi::CString,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use cloche_jail::{
    init::CellReport,
    job_writer::{self, ExecProgram},
    protocol,
};
use cloche_model::Language;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::{
    cell::{self, Cell},
    cell_run::wall_error,
    executor::RunError,
    image::{HOME, NODE_START},
    job_builder,
    spawner::{
        cell_exit::CellExit,
        client::{CellSource, SpawnerClient},
        protocol::{CellConfig, CellId, SpawnKind},
    },
};

/// The library that a template loads.
const TEMPLATE_LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/template.so"));
/// The runtime that has Python wait for its job: `guest/python`, as an archive.
const PYTHON_RUNTIME: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cloche.zip"));
/// The name of that archive in the home; it is removed before there is a job.
const PYTHON_ARCHIVE: &str = "cloche.zip";
/// How long an interpreter may take to be ready.
const START_LIMIT: Duration = Duration::from_secs(30);

/// The standard-library modules that a template imports unless told otherwise.
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

/// Starts a cell from nothing and has it wait as its language allows.
pub(crate) async fn start_parked_cell(
    spawner: &SpawnerClient,
    config: &CellConfig,
    language: Language,
) -> Result<Cell, RunError> {
    let mut cell = cell::spawn_cell(spawner, config, CellSource::Nothing(SpawnKind::Cell)).await?;
    match start_job(language)? {
        Some(job) => {
            // The start of an interpreter for later must not take time from programs that run.
            cell.meter.yield_to_others(true);
            wait_for_interpreter(&mut cell, &job).await?;
            cell.meter.yield_to_others(false);
        }
        None => wait_for_walls(&mut cell).await?,
    }
    Ok(cell)
}

/// What makes an interpreter start and wait; nothing for a language that only starts with a job.
fn start_job(language: Language) -> Result<Option<Vec<u8>>, RunError> {
    let mut out = Vec::new();
    let variables = match language {
        Language::Bash => return Ok(None),
        Language::Python => {
            job_writer::append_file(&mut out, PYTHON_ARCHIVE, 0o600, PYTHON_RUNTIME)?;
            python_start(protocol::START_SINGLE)
        }
        Language::Node => vec![("NODE_OPTIONS", format!("--require={NODE_START}"))],
    };
    job_writer::append_exec(&mut out, &interpreter_exec(language, variables)?)?;
    Ok(Some(out))
}

/// The variables with which Python finds its runtime.
fn python_start(way: &str) -> Vec<(&'static str, String)> {
    let archive = format!("{HOME}/{PYTHON_ARCHIVE}");
    vec![("PYTHONPATH", archive), (protocol::START_VARIABLE, way.to_owned())]
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
    let start =
        ExecProgram { env, keeps_job: true, ..job_builder::main_exec(language, &interpreter) };
    Ok(if language == Language::Node { started_in_root(start) } else { start })
}

/// Node.js looks for a package where it is started, and remembers that there was none: so not in
/// the home, where one may come with the job. It goes home by itself.
fn started_in_root(start: ExecProgram) -> ExecProgram {
    let by = [c"env", c"-C", c"/"].into_iter().map(CString::from);
    let args = by.chain(start.args).collect();
    ExecProgram { program: c"/usr/bin/env".into(), args, ..start }
}

/// Sends the start job and waits for the interpreter's one byte.
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

/// Waits until pid 1 has said that every wall is up.
pub(crate) async fn wait_for_walls(cell: &mut Cell) -> Result<(), RunError> {
    match timeout(START_LIMIT, cell.control.wait_until_ready()).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(Some(CellReport::Failed(wall, errno)))) => Err(wall_error(&wall, errno)),
        _ => Err(RunError::CellLost),
    }
}

/// The reason a cell did not get ready, if it gave one.
async fn start_failure(cell: &mut Cell) -> RunError {
    loop {
        match timeout(START_LIMIT, cell.control.next_report()).await {
            Ok(Some(CellReport::Ready)) => {}
            Ok(Some(CellReport::Failed(wall, errno))) => return wall_error(&wall, errno),
            _ => return RunError::CellLost,
        }
    }
}

/// An interpreter that forks one for each job, and never sees a job itself.
pub(crate) struct Template {
    cell: Cell,
    born: Instant,
    forks: AtomicU32,
    /// What it takes, read when it had imported everything.
    memory: u64,
    /// Cells of its that are alive: they end with it, so it may not end before them.
    children: Mutex<Vec<CellExit>>,
}

impl Template {
    /// Starts one and waits until it has imported what it should.
    pub(crate) async fn start(
        spawner: &SpawnerClient,
        config: &CellConfig,
        preload: &[String],
    ) -> Result<Self, RunError> {
        let mut modules: Vec<&str> = DEFAULT_PRELOAD.to_vec();
        modules.extend(preload.iter().map(String::as_str));
        let mut variables = python_start(protocol::START_TEMPLATE);
        variables.push((protocol::PRELOAD_VARIABLE, modules.join(" ")));
        let mut out = Vec::new();
        job_writer::append_file(&mut out, PYTHON_ARCHIVE, 0o644, PYTHON_RUNTIME)?;
        job_writer::append_file(&mut out, protocol::TEMPLATE_LIBRARY, 0o755, TEMPLATE_LIBRARY)?;
        job_writer::append_exec(&mut out, &interpreter_exec(Language::Python, variables)?)?;
        let mut cell =
            cell::spawn_cell(spawner, config, CellSource::Nothing(SpawnKind::Template)).await?;
        if let Err(error) = wait_for_interpreter(&mut cell, &out).await {
            let said = cell.read_stderr();
            tracing::warn!(%error, said, "no template: interpreters are started one by one");
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

    /// Forks a cell; it takes its job when it is ready.
    pub(crate) async fn fork_cell(
        &self,
        spawner: &SpawnerClient,
        config: &CellConfig,
    ) -> Result<Cell, RunError> {
        self.forks.fetch_add(1, Ordering::Relaxed);
        let cell = cell::spawn_cell(spawner, config, CellSource::Template(self.id())).await?;
        let mut cells = self.lock_children();
        // Looked through only when it would grow: the list stays about as long as there are cells.
        if cells.len() == cells.capacity() {
            cells.retain(|cell| !cell.is_over());
        }
        cells.push(cell.gone.clone());
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

    /// Whether it has forked often or long enough for its siblings to share no more.
    pub(crate) fn is_worn(&self, forks: u32, age: Duration) -> bool {
        self.forks.load(Ordering::Relaxed) >= forks || self.born.elapsed() >= age
    }

    /// Whether nothing would end with it.
    pub(crate) fn is_childless(&self) -> bool {
        let mut cells = self.lock_children();
        cells.retain(|cell| !cell.is_over());
        cells.is_empty()
    }

    fn lock_children(&self) -> MutexGuard<'_, Vec<CellExit>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.cell.is_gone()
    }
}
