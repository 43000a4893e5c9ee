//! Runs in: server (no capabilities). Encodes the job of a run: files, variables, what to start.

use std::ffi::CString;

use cloche_jail::job_writer::{self, ExecProgram, InvalidJob};
use cloche_model::{Language, RunSpec};

use crate::protocol::{HOME, USER};

/// The environment that every program has beside its own variables.
fn base_env() -> [(&'static str, String); 12] {
    [
        ("PATH", format!("{HOME}/.local/bin:/usr/local/bin:/usr/bin:/bin")),
        ("HOME", HOME.into()),
        ("USER", USER.into()),
        ("LOGNAME", USER.into()),
        ("SHELL", "/bin/bash".into()),
        ("PWD", HOME.into()),
        ("LANG", "C.UTF-8".into()),
        // Output is read while the program runs, so Python must not buffer it.
        ("PYTHONUNBUFFERED", "1".into()),
        // pip installs into the guest's own home, where it breaks no system package.
        ("PIP_BREAK_SYSTEM_PACKAGES", "1".into()),
        ("PIP_DISABLE_PIP_VERSION_CHECK", "1".into()),
        ("NPM_CONFIG_PREFIX", format!("{HOME}/.local")),
        ("NPM_CONFIG_UPDATE_NOTIFIER", "false".into()),
    ]
}

/// The environment of a run, as `NAME=value`.
fn run_env(spec: &RunSpec) -> Vec<CString> {
    let base = base_env();
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
    let pairs = base_env().into_iter().map(|(name, value)| format!("{name}={value}"));
    pairs.filter_map(|pair| CString::new(pair).ok()).collect()
}

/// The command that runs the main file, as a user would type it. It has no environment yet.
pub(crate) fn main_exec(language: Language, interpreter: &str) -> ExecProgram {
    let text = |value: String| CString::new(value).unwrap_or_default();
    let main = format!("{HOME}/{}", language.main_file());
    ExecProgram {
        program: text(interpreter.to_owned()),
        args: vec![text(language.interpreter().to_owned()), text(main)],
        env: Vec::new(),
        keeps_job: false,
    }
}

/// The job of a run: write the files, then start the interpreter on the main file. A parked
/// interpreter takes the same job and runs the main file itself.
pub(crate) fn build_job(spec: &RunSpec, interpreter: &str) -> Result<Vec<u8>, InvalidJob> {
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
        &ExecProgram { env: run_env(spec), ..main_exec(spec.language, interpreter) },
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
        .find(|path| std::path::Path::new(path).exists())
}
