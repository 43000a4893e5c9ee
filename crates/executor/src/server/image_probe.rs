//! Runs in: server (no capabilities). Tries the interpreters of an image in cells: whether they
//! start, what they are, and how far they can be started ahead.
//!
//! What a probe prints was written by the image, so it is bounded, and it is text for people. The
//! way of starting is tried, not guessed: a template is started and forks a cell that runs a
//! program.

use std::{sync::Arc, time::Duration};

use cloche_jail::job_writer::{self, ExecProgram};
use cloche_model::{
    ByteSize, ImageRoot, Language, RunEnding, RunLimits, RunOutcome, RunSpec, SandboxShape,
};

use super::{
    cell::{self, Cell, CellMaking},
    cell_watch::{self, CellInput},
    executor::Executor,
    home_place::HomePlace,
    interpreter, job_builder,
    pool::PoolKey,
    run::RunIo,
    run_error::RunError,
    spawner_client::{CellSource, SpawnerClient},
    warm::{self, Template},
};
use crate::protocol::SpawnKind;

/// The limits of a probe.
const PROBE_TIME: Duration = Duration::from_secs(5);
const PROBE_MEMORY: ByteSize = ByteSize::mib(256);
const PROBE_OUTPUT: ByteSize = ByteSize::kib(16);
/// The most characters of one fact or reason.
const MAX_TEXT: usize = 200;

/// What the interpreter of one language is, as it was found in a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbedInterpreter {
    /// The language.
    pub language: Language,
    /// The path of the interpreter in the image.
    pub path: String,
    /// What it says of itself, or why it does not start.
    pub facts: Result<InterpreterFacts, String>,
    /// How programs of this language are started on this host.
    pub start: ProgramStart,
}

/// What an interpreter says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterpreterFacts {
    /// Its version.
    pub version: String,
    /// Its implementation, such as `cpython`, if the language has several.
    pub implementation: Option<String>,
    /// Where it is installed, if it says so.
    pub prefix: Option<String>,
    /// Its C library and the version of that, if it says so.
    pub libc: Option<String>,
}

/// How programs of a language are started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramStart {
    /// A template forks an interpreter that has started.
    Forked,
    /// An interpreter is started ahead and waits for one program.
    Waiting {
        /// Why no template can be used; `None` for a language that has none.
        reason: Option<String>,
    },
    /// Each program starts its interpreter itself.
    Cold {
        /// Why none waits; `None` for a language whose interpreters never wait.
        reason: Option<String>,
    },
}

/// How an interpreter is asked for its version: arguments, and a program for its main file. It
/// prints up to four lines: version, implementation, prefix, libc.
struct ProbeProgram {
    arguments: &'static [&'static str],
    code: Option<&'static str>,
}

const PYTHON_PROBE: &str = "\
import os, sys
def libc():
    try:
        return os.confstr('CS_GNU_LIBC_VERSION') or ''
    except (ValueError, OSError):
        return 'musl' if 'musl' in getattr(sys.implementation, '_multiarch', '') else ''
print('.'.join(map(str, sys.version_info[:3])))
print(sys.implementation.name)
print(sys.prefix)
print(libc())
";
const NODE_PROBE: &str = "\
const libc = process.report.getReport().header.glibcVersionRuntime;
console.log([process.versions.node, '', process.execPath, libc ? `glibc ${libc}` : ''].join('\\n'));
";

const fn probe_program(language: Language) -> ProbeProgram {
    let (arguments, code): (&[&str], _) = match language {
        Language::Python => (&["-I"], Some(PYTHON_PROBE)),
        Language::Node => (&[], Some(NODE_PROBE)),
        Language::Bash => (&[], Some("echo \"${BASH_VERSION:-unknown}\"")),
        Language::Sh => (&[], Some("echo unknown")),
        Language::Ruby => (&[], Some("puts RUBY_VERSION, RUBY_ENGINE")),
        Language::Perl => (&[], Some("printf \"%vd\\n\", $^V;")),
        Language::Php => (&[], Some("<?php echo PHP_VERSION, \"\\n\";")),
        Language::Deno => (&[], Some("console.log(Deno.version.deno)")),
        Language::Bun => (&[], Some("console.log(Bun.version)")),
        Language::R => (&[], Some("cat(as.character(getRversion()), '\\n')")),
        Language::Lua => (&[], Some("print(_VERSION)")),
        Language::Julia => (&["--version"], None),
        Language::Tcl => (&[], Some("puts [info patchlevel]")),
        // To compile a program takes longer than a probe may.
        Language::Go => (&["version"], None),
        Language::Java => (&["--version"], None),
    };
    ProbeProgram { arguments, code }
}

/// Forgets an image whose trial failed or was cancelled: it is not going to exist.
struct ForgetOnDrop<'a> {
    spawner: &'a SpawnerClient,
    image: Option<&'a ImageRoot>,
}

impl Drop for ForgetOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(image) = self.image {
            self.spawner.forget_image(image);
        }
    }
}

impl Executor {
    /// Tries every interpreter of an image in cells of this host, without a network, for a few
    /// seconds each. An interpreter that does not start is no error: the reason is in the answer.
    /// `on_try` gets the name of each interpreter before it is tried.
    ///
    /// # Errors
    /// If the image cannot be mounted, or this host cannot start a cell.
    pub async fn probe_image(
        &self,
        image: &Arc<ImageRoot>,
        on_try: impl Fn(&str),
    ) -> Result<Vec<ProbedInterpreter>, RunError> {
        // Dropped after what holds the image.
        let mut unless_probed = ForgetOnDrop { spawner: &self.inner.spawner, image: Some(image) };
        // Unpacked and mounted before the first trial, which then takes as long as the others.
        let _held = self.inner.spawner.hold_image(image).await.map_err(RunError::Image)?;
        let mut probed = Vec::new();
        for language in image.languages() {
            let Some(found) = image.interpreter_of(language) else { continue };
            on_try(found.path.rsplit('/').next().unwrap_or(language.name()));
            let facts = self.probe_interpreter(image, language).await?;
            let start = match &facts {
                Ok(_) => self.find_program_start(image, language).await,
                Err(why) => ProgramStart::Cold { reason: Some(why.clone()) },
            };
            probed.push(ProbedInterpreter { language, path: found.path.clone(), facts, start });
        }
        unless_probed.image = None;
        Ok(probed)
    }

    async fn probe_interpreter(
        &self,
        image: &Arc<ImageRoot>,
        language: Language,
    ) -> Result<Result<InterpreterFacts, String>, RunError> {
        let cell = self.start_probe_cell(image).await?;
        let outcome = self.run_in(cell, build_probe_job(image, language)?).await?;
        if outcome.ending != RunEnding::Exited(0) {
            return Ok(Err(describe_failure(&outcome)));
        }
        let text = outcome.stdout.to_text_lossy();
        let mut lines = text.lines().map(shorten);
        let version = lines.next().filter(|version| !version.is_empty());
        let Some(version) = version else { return Ok(Err("it printed no version".to_owned())) };
        let mut fact = || lines.next().filter(|fact| !fact.is_empty());
        let (implementation, prefix, libc) = (fact(), fact(), fact());
        Ok(Ok(InterpreterFacts { version, implementation, prefix, libc }))
    }

    /// Tries the ways of starting a program, the fastest first.
    async fn find_program_start(&self, image: &Arc<ImageRoot>, language: Language) -> ProgramStart {
        let mut reason = None;
        if language == Language::Python {
            match self.try_template(image).await {
                Ok(()) => return ProgramStart::Forked,
                Err(error) => reason = Some(shorten(&cloche_model::error_chain(&error))),
            }
        }
        if !warm::can_wait(language, Some(image)) {
            return ProgramStart::Cold { reason: None };
        }
        match self.try_waiting(image, language).await {
            Ok(()) => ProgramStart::Waiting { reason },
            Err(error) => {
                ProgramStart::Cold { reason: Some(shorten(&cloche_model::error_chain(&error))) }
            }
        }
    }

    async fn try_template(&self, image: &Arc<ImageRoot>) -> Result<(), RunError> {
        let (spawner, making) = (&self.inner.spawner, probe_making(image));
        let template = Template::start(spawner, &making, std::iter::empty()).await?;
        let tried = match template.fork_cell(spawner, &making).await {
            Ok(cell) => self.check_program(cell, image, Language::Python).await,
            Err(error) => Err(error),
        };
        spawner.kill_cell(template.id()).await;
        tried
    }

    async fn try_waiting(
        &self,
        image: &Arc<ImageRoot>,
        language: Language,
    ) -> Result<(), RunError> {
        let making = probe_making(image);
        let cell = warm::start_parked_cell(&self.inner.spawner, &making, language).await?;
        self.check_program(cell, image, language).await
    }

    /// Gives a program to an interpreter that has started, and looks whether it runs.
    async fn check_program(
        &self,
        cell: Cell,
        image: &Arc<ImageRoot>,
        language: Language,
    ) -> Result<(), RunError> {
        let code = match language {
            Language::Node => "console.log(42)",
            Language::Bash => "echo 42",
            _ => "print(42)",
        };
        let spec = RunSpec { sandbox: shape_of(image), ..RunSpec::new(language, code) };
        let job = job_builder::build_job(
            &spec,
            &interpreter::find_interpreter(language, Some(image))?,
            &HomePlace::Usual,
            None,
        )?;
        let outcome = self.run_in(cell, job).await?;
        if outcome.ending == RunEnding::Exited(0) && outcome.stdout.bytes == b"42\n" {
            return Ok(());
        }
        Err(RunError::NotWaiting(describe_failure(&outcome)))
    }

    async fn start_probe_cell(&self, image: &Arc<ImageRoot>) -> Result<Cell, RunError> {
        let source = CellSource::Nothing(SpawnKind::Cell);
        Ok(cell::spawn_cell(&self.inner.spawner, &probe_making(image), source).await?)
    }

    async fn run_in(&self, cell: Cell, job: Vec<u8>) -> Result<RunOutcome, RunError> {
        let input = CellInput {
            job,
            stdin: Vec::new(),
            limits: probe_limits(),
            io: RunIo::default(),
            storage: None,
        };
        let finished = cell_watch::watch_cell(cell, &self.inner.spawner, input).await?;
        finished.control.release();
        Ok(finished.outcome)
    }
}

fn probe_limits() -> RunLimits {
    RunLimits {
        timeout: PROBE_TIME,
        memory: PROBE_MEMORY,
        output: PROBE_OUTPUT,
        ..RunLimits::default()
    }
}

fn shape_of(image: &Arc<ImageRoot>) -> SandboxShape {
    SandboxShape { root: Some(Arc::clone(image)), ..SandboxShape::default() }
}

fn probe_making(image: &Arc<ImageRoot>) -> CellMaking {
    PoolKey::new(Language::Python, &probe_limits(), &shape_of(image)).making
}

/// The job of a probe: the program as the main file, if there is one, and the interpreter with the
/// arguments that ask for its version.
fn build_probe_job(image: &ImageRoot, language: Language) -> Result<Vec<u8>, RunError> {
    let ProbeProgram { arguments, code } = probe_program(language);
    let found = interpreter::find_interpreter(language, Some(image))?;
    let exec = job_builder::main_exec(language, &found, &HomePlace::Usual);
    let (name, usual) =
        exec.args.split_first().map_or((None, &[][..]), |(name, rest)| (Some(name.clone()), rest));
    let usual = if code.is_some() { usual } else { &[] };
    let own = arguments.iter().filter_map(|word| std::ffi::CString::new(*word).ok());
    let args = name.into_iter().chain(own).chain(usual.iter().cloned()).collect();
    let env = interpreter::base_env(Some(image), &HomePlace::Usual, false);
    let env = interpreter::env_strings(env.iter().map(|(name, value)| (&name[..], &value[..])));
    let mut out = Vec::new();
    if let Some(code) = code {
        job_writer::append_file(&mut out, language.main_file(), 0o644, code.as_bytes())?;
    }
    job_writer::append_exec(&mut out, &ExecProgram { args, env, ..exec })?;
    Ok(out)
}

/// Why a probe did not end well, for people.
fn describe_failure(outcome: &RunOutcome) -> String {
    const NOT_FOUND: u8 = 127;
    const NOT_EXECUTABLE: u8 = 126;
    let said = outcome.stderr.to_text_lossy();
    let said = said.lines().rfind(|line| !line.trim().is_empty()).map(shorten);
    match (outcome.ending, said) {
        (RunEnding::TimedOut, _) => format!("it took longer than {} s", PROBE_TIME.as_secs()),
        (RunEnding::OutOfMemory, _) => format!("it needs more than {PROBE_MEMORY} of memory"),
        (RunEnding::Exited(NOT_FOUND), None) => {
            "the file, or the loader that it names, is not in the image".to_owned()
        }
        (RunEnding::Exited(NOT_EXECUTABLE), None) => {
            "the guest may not execute the file, or it is no program for this machine".to_owned()
        }
        (RunEnding::Exited(code), None) => format!("it exited with {code}"),
        (RunEnding::Exited(code), Some(said)) => format!("it exited with {code}: {said}"),
        (RunEnding::Signalled(signal), _) => format!("signal {signal} killed it"),
        (RunEnding::Cancelled, _) => "it was cancelled".to_owned(),
    }
}

/// The beginning of a line, without control characters.
fn shorten(line: &str) -> String {
    line.trim().chars().filter(|c| !c.is_control()).take(MAX_TEXT).collect()
}
