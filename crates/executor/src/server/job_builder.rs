//! Runs in: server (no capabilities). Encodes the job of a run: files, variables, what to start.

use std::{ffi::CString, path::Path};

use cloche_jail::job_writer::{self, ExecProgram, InvalidJob};
use cloche_model::{Language, RunSpec};

use crate::protocol::{HOME, SITE_DIR, USER, contained_cell_dir};

/// Where a run has its home.
#[derive(Clone, Debug)]
pub(crate) enum HomePlace {
    /// At its usual path, in a cell with a root of its own.
    Usual,
    /// In a directory of the container.
    Contained {
        /// The name of the cell's directory.
        directory: String,
        /// The path of that directory.
        path: String,
        /// Whether the packages of the container are hidden from Python.
        hides_packages: bool,
    },
}

impl HomePlace {
    /// The place of a new run; contained cells have theirs beside `scratch`.
    pub(crate) fn choose(scratch: Option<&Path>, hides_packages: bool) -> Self {
        let Some(scratch) = scratch else { return Self::Usual };
        let directory = Self::choose_directory();
        let path = contained_cell_dir(scratch, &directory).display().to_string();
        Self::Contained { directory, path, hides_packages }
    }

    /// A name that no other cell can guess: contained cells have the same user.
    pub(crate) fn choose_directory() -> String {
        let mut bytes = [0; 16];
        if getrandom::fill(&mut bytes).is_err() {
            // The spawner refuses a name that exists, so two runs never share a directory.
            bytes.copy_from_slice(&std::process::id().to_le_bytes().repeat(4));
        }
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The path of the home.
    fn home(&self) -> String {
        match self {
            Self::Usual => HOME.to_owned(),
            Self::Contained { path, .. } => format!("{path}/home"),
        }
    }
}

/// The environment that every program has beside its own variables.
fn base_env(place: &HomePlace) -> Vec<(&'static str, String)> {
    let home = place.home();
    let mut contained = Vec::new();
    if let HomePlace::Contained { path, hides_packages, .. } = place {
        contained.push(("TMPDIR", format!("{path}/tmp")));
        if *hides_packages {
            contained.push(("PYTHONPATH", format!("{path}/{SITE_DIR}")));
        }
    }
    let usual = [
        ("PATH", format!("{home}/.local/bin:/usr/local/bin:/usr/bin:/bin")),
        ("HOME", home.clone()),
        ("USER", USER.into()),
        ("LOGNAME", USER.into()),
        ("SHELL", "/bin/bash".into()),
        ("PWD", home.clone()),
        ("LANG", "C.UTF-8".into()),
        // Output is read while the program runs, so Python must not buffer it.
        ("PYTHONUNBUFFERED", "1".into()),
        // pip installs into the guest's own home, where it breaks no system package.
        ("PIP_BREAK_SYSTEM_PACKAGES", "1".into()),
        ("PIP_DISABLE_PIP_VERSION_CHECK", "1".into()),
        ("NPM_CONFIG_PREFIX", format!("{home}/.local")),
        ("NPM_CONFIG_UPDATE_NOTIFIER", "false".into()),
    ];
    usual.into_iter().chain(contained).collect()
}

/// The environment of a run, as `NAME=value`.
fn run_env(spec: &RunSpec, place: &HomePlace) -> Vec<CString> {
    let base = base_env(place);
    let own = base.iter().filter(|(name, _)| !spec.env.contains_key(*name));
    let own = own.map(|(name, value)| (*name, value.as_str()));
    let given = spec.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let pairs = own.chain(given).map(|(name, value)| format!("{name}={value}"));
    pairs.filter_map(|pair| CString::new(pair).ok()).collect()
}

/// Whether a run has variables that an interpreter reads only at its start. A parked interpreter
/// has started without them, so the run needs a cold cell. A request cannot set such variables of
/// Python, nor `NODE_OPTIONS`: they are reserved.
pub(crate) fn needs_cold_start(spec: &RunSpec) -> bool {
    let is_read_at_start = |name: &String| name.starts_with("NODE_") && name != "NODE_ENV";
    spec.language == Language::Node && spec.env.keys().any(is_read_at_start)
}

/// The environment of an interpreter that waits for its job.
pub(crate) fn base_env_strings() -> Vec<CString> {
    let pairs =
        base_env(&HomePlace::Usual).into_iter().map(|(name, value)| format!("{name}={value}"));
    pairs.filter_map(|pair| CString::new(pair).ok()).collect()
}

/// The command that runs the main file, as a user would type it. It has no environment yet.
pub(crate) fn main_exec(language: Language, interpreter: &str, place: &HomePlace) -> ExecProgram {
    let text = |value: String| CString::new(value).unwrap_or_default();
    let main = format!("{}/{}", place.home(), language.main_file());
    ExecProgram {
        program: text(interpreter.to_owned()),
        args: vec![text(language.interpreter().to_owned()), text(main)],
        env: Vec::new(),
        keeps_job: false,
    }
}

/// The job of a run: write the files, then start the interpreter on the main file. A parked
/// interpreter takes the same job and runs the main file itself.
pub(crate) fn build_job(
    spec: &RunSpec,
    interpreter: &str,
    place: &HomePlace,
) -> Result<Vec<u8>, InvalidJob> {
    let mut out = Vec::with_capacity(spec.code.len() + 4096);
    if spec.home.is_some() {
        job_writer::append_directory(&mut out, &CString::new(HOME).unwrap_or_default());
    }
    for input in &spec.files {
        job_writer::append_file(&mut out, input.name.as_str(), 0o644, &input.content)?;
    }
    job_writer::append_file(&mut out, spec.language.main_file(), 0o644, &spec.code)?;
    job_writer::append_exec(
        &mut out,
        &ExecProgram { env: run_env(spec, place), ..main_exec(spec.language, interpreter, place) },
    )?;
    Ok(out)
}

/// Where interpreters are looked for, in this order.
pub(crate) const INTERPRETER_DIRS: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];

/// The path of a language's interpreter on this host, and so in the `host` image.
pub(crate) fn find_interpreter(language: Language) -> Option<String> {
    INTERPRETER_DIRS
        .into_iter()
        .map(|dir| format!("{dir}/{}", language.interpreter()))
        .find(|path| Path::new(path).exists())
}
