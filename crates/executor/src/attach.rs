//! What is brought into a cell: files, program, environment, as one job.

use std::ffi::CString;

use cloche_jail::job::{self, Exec, InvalidJob};
use cloche_model::{Language, RunSpec};

use crate::image::{HOME, USER};

/// The environment every program has, before its own variables.
fn base_env() -> [(&'static str, String); 12] {
    [
        ("PATH", format!("{HOME}/.local/bin:/usr/local/bin:/usr/bin:/bin")),
        ("HOME", HOME.into()),
        ("USER", USER.into()),
        ("LOGNAME", USER.into()),
        ("SHELL", "/bin/bash".into()),
        ("PWD", HOME.into()),
        ("LANG", "C.UTF-8".into()),
        // Output is read while the program runs, so Python must not hold it back.
        ("PYTHONUNBUFFERED", "1".into()),
        // The home is the guest's own: installing there breaks no system.
        ("PIP_BREAK_SYSTEM_PACKAGES", "1".into()),
        ("PIP_DISABLE_PIP_VERSION_CHECK", "1".into()),
        ("NPM_CONFIG_PREFIX", format!("{HOME}/.local")),
        ("NPM_CONFIG_UPDATE_NOTIFIER", "false".into()),
    ]
}

/// The environment of a run, as `NAME=value`.
fn env(spec: &RunSpec) -> Vec<CString> {
    let base = base_env();
    let own = base.iter().filter(|(name, _)| !spec.env.contains_key(*name));
    let own = own.map(|(name, value)| (*name, value.as_str()));
    let given = spec.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let pairs = own.chain(given).map(|(name, value)| format!("{name}={value}"));
    pairs.filter_map(|pair| CString::new(pair).ok()).collect()
}

/// The job of a cold start: write the files, then exec the interpreter on the main file.
pub(crate) fn cold_job(spec: &RunSpec, interpreter: &str) -> Result<Vec<u8>, InvalidJob> {
    let mut out = Vec::with_capacity(spec.code.len() + 4096);
    for input in &spec.files {
        job::file(&mut out, input.name.as_str(), 0o644, &input.content)?;
    }
    let main = spec.language.main_file();
    job::file(&mut out, main, 0o644, &spec.code)?;
    let text = |value: String| CString::new(value).unwrap_or_default();
    let exec = Exec {
        program: text(interpreter.to_owned()),
        args: vec![text(spec.language.interpreter().to_owned()), text(format!("{HOME}/{main}"))],
        env: env(spec),
        keeps_job: false,
    };
    job::exec(&mut out, &exec)?;
    Ok(out)
}

/// Where the interpreter of a language is, on this host and so in the `host` image.
pub(crate) fn interpreter(language: Language) -> Option<String> {
    ["/usr/local/bin", "/usr/bin", "/bin"]
        .into_iter()
        .map(|dir| format!("{dir}/{}", language.interpreter()))
        .find(|path| std::path::Path::new(path).exists())
}
