//! Runs in: server (no capabilities). Encodes the job of a run: files, variables, what to start.

use std::ffi::CString;

use cloche_jail::job_writer::{self, ExecProgram, InvalidJob};
use cloche_model::{
    Language, NetworkPolicy, OciRuntime, RunSpec, SECRETS_DIR, SandboxShape, Substrate,
};

use super::{
    cell_trust::CellTrust,
    home_place::HomePlace,
    interpreter::{self, CellInterpreter},
    shell_gate,
};
use crate::protocol::HOME;

/// Has Python write each `print` at once. Not in gVisor: it writes only as much to a pipe as fits,
/// where a kernel would wait, and Python without buffers would lose the rest.
const UNBUFFERED: &str = "PYTHONUNBUFFERED";

/// The environment of a run, as `NAME=value`: that of every program, then its own variables.
fn run_env(spec: &RunSpec, place: &HomePlace, trust: Option<&CellTrust<'_>>) -> Vec<CString> {
    let tool_client = spec.sandbox.tool_client;
    let mut base = interpreter::base_env(spec.sandbox.root.as_deref(), place, tool_client);
    for (name, value) in trust.map(CellTrust::variables).unwrap_or_default() {
        base.retain(|(known, _)| *known != name);
        base.push((name, value));
    }
    let is_buffered = spec.sandbox.substrate == Substrate::Oci(OciRuntime::Runsc);
    let own = base.iter().filter(|(name, _)| !(is_buffered && name == UNBUFFERED));
    let own = own.filter(|(name, _)| !spec.env.contains_key(name));
    let own = own.map(|(name, value)| (name.as_str(), value.as_str()));
    let given = spec.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    interpreter::env_strings(own.chain(given))
}

/// Whether a run has variables that an interpreter reads only at its start. A parked interpreter
/// has started without them, so the run needs a cold cell. A request cannot set such variables of
/// Python, nor `NODE_OPTIONS`: they are reserved.
pub(crate) fn needs_cold_start(spec: &RunSpec) -> bool {
    let is_read_at_start = |name: &String| name.starts_with("NODE_") && name != "NODE_ENV";
    // The authority of brokered credentials is such a variable, too.
    let has_authority = !spec.brokered.is_empty() && spec.sandbox.network != NetworkPolicy::Blocked;
    spec.language == Language::Node && (has_authority || spec.env.keys().any(is_read_at_start))
}

/// Whether a run needs a shell that starts anew, in a parked cell without one.
pub(crate) fn needs_new_shell(spec: &RunSpec) -> bool {
    // Most runs have no variables of their own.
    if spec.language != Language::Bash || spec.env.is_empty() {
        return false;
    }
    let SandboxShape { root, tool_client, .. } = &spec.sandbox;
    let base = interpreter::base_env(root.as_deref(), &HomePlace::Usual, *tool_client);
    shell_gate::needs_new_shell(spec, &base)
}

/// The command that runs the main file, as a user would type it. It has no environment yet.
pub(crate) fn main_exec(
    language: Language,
    interpreter: &CellInterpreter,
    place: &HomePlace,
) -> ExecProgram {
    let text = |value: &str| CString::new(value).unwrap_or_default();
    let main = format!("{}/{}", place.home(), language.main_file());
    let words = [&interpreter.name[..]].into_iter();
    let words = words.chain(interpreter.arguments.iter().map(String::as_str)).chain([&main[..]]);
    ExecProgram {
        program: text(&interpreter.path),
        args: words.map(text).collect(),
        env: Vec::new(),
        keeps_job: false,
    }
}

/// The job of a run: write the files, then start the interpreter on the main file. A parked
/// interpreter takes the same job and runs the main file itself.
pub(crate) fn build_job(
    spec: &RunSpec,
    interpreter: &CellInterpreter,
    place: &HomePlace,
    trust: Option<&CellTrust<'_>>,
) -> Result<Vec<u8>, InvalidJob> {
    let mut out = Vec::with_capacity(spec.code.len() + 4096);
    if spec.home.is_some() {
        job_writer::append_directory(&mut out, &CString::new(HOME).unwrap_or_default());
    }
    for secret in &spec.secret_files {
        let path = format!("{SECRETS_DIR}/{}", secret.name);
        job_writer::append_file(&mut out, &path, 0o400, secret.content.reveal().as_bytes())?;
    }
    if let Some(trust) = trust {
        trust.append_files(&mut out)?;
    }
    for input in &spec.files {
        job_writer::append_file(&mut out, input.name.as_str(), 0o644, &input.content)?;
    }
    job_writer::append_file(&mut out, spec.language.main_file(), 0o644, &spec.code)?;
    let env = run_env(spec, place, trust);
    if spec.language == Language::Bash {
        let image = spec.sandbox.root.as_deref();
        let base = interpreter::base_env(image, place, spec.sandbox.tool_client);
        let started = base.iter().map(|(name, value)| (&name[..], &value[..]));
        let started = interpreter::env_strings(started);
        let moves = spec.home.is_some();
        let words = shell_gate::gate_words(&interpreter.name, &started, &env, moves);
        job_writer::append_gate(&mut out, &words)?;
    }
    let main = main_exec(spec.language, interpreter, place);
    job_writer::append_exec(&mut out, &ExecProgram { env, ..main })?;
    Ok(out)
}
