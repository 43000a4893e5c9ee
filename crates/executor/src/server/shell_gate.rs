//! Runs in: server (no capabilities). How Bash waits for its job, and what it reads when that has
//! come.
//!
//! Bash reads the file that `BASH_ENV` names before it opens its main file. For a parked shell that
//! is the gate, where it waits; pid 1 takes the job. The few commands that come through the gate
//! take `BASH_ENV` away, set what the job has changed, and leave everything else as after a start.

use std::{ffi::CString, path::Path};

use cloche_jail::protocol::constants;
use cloche_model::{ImageRoot, Language, RunSpec};

use super::interpreter::CellInterpreter;

/// The variable with which Bash finds the gate.
const GATE_VARIABLE: &str = "BASH_ENV";
/// The most bytes of variables that go through the gate.
const MAX_VARIABLES: usize = 16 << 10;
/// The beginnings of names that mean something to Bash, to the C library or to the loader when a
/// program starts, or that cannot be set like others.
const STARTING: [&str; 27] = [
    "BASH",
    "COMP",
    "COPROC",
    "EMACS",
    "EPOCH",
    "GCONV_",
    "GLIBC_",
    "GLOB",
    "HIST",
    "LANG",
    "LC_",
    "LD_",
    "LOC",
    "MAIL",
    "MALLOC_",
    "MUSL_",
    "NLS",
    "OPT",
    "POSIX",
    "PROMPT_",
    "PS",
    "READLINE_",
    "SHELL",
    "SSH_",
    "TERM",
    "TEXTDOMAIN",
    "TZ",
];
/// Such names.
const NAMES: [&str; 35] = [
    "CDPATH",
    "CHILD_MAX",
    "COLUMNS",
    "DIRSTACK",
    "ENV",
    "EUID",
    "EXECIGNORE",
    "FCEDIT",
    "FIGNORE",
    "FUNCNAME",
    "FUNCNEST",
    "GROUPS",
    "HOSTALIASES",
    "HOSTFILE",
    "HOSTNAME",
    "HOSTTYPE",
    "IFS",
    "IGNOREEOF",
    "INPUTRC",
    "INSIDE_EMACS",
    "LINENO",
    "LINES",
    "MACHTYPE",
    "MAPFILE",
    "OSTYPE",
    "OUTPUT_CHARSET",
    "PIPESTATUS",
    "PPID",
    "RANDOM",
    "REPLY",
    "SECONDS",
    "SHLVL",
    "SRANDOM",
    "TMOUT",
    "UID",
];

/// The variable with which the shell of an image, or of the host, waits at the gate. `None` if it
/// would not: it is no Bash, or its environment has it do something else when it starts.
pub(crate) fn wait_variable(
    interpreter: &CellInterpreter,
    image: Option<&ImageRoot>,
) -> Option<(&'static str, String)> {
    let is_bash = Path::new(&interpreter.path).file_name().is_some_and(|name| name == "bash");
    let mut names = image.into_iter().flat_map(|image| image.env.keys());
    let is_plain = names.all(|name| !is_read_at_start(name) || is_locale(name));
    let is_alone = interpreter.arguments.is_empty();
    (is_bash && is_plain && is_alone).then(|| (GATE_VARIABLE, constants::GATE.to_owned()))
}

/// Locales are set when the parked shell starts, and are not changed later.
fn is_locale(name: &str) -> bool {
    name.starts_with("LC_") || name.starts_with("LANG")
}

fn is_read_at_start(name: &str) -> bool {
    let others = ["_", "TIMEFORMAT", "TMPDIR", "auto_resume", "histchars", "ignoreeof"];
    STARTING.iter().any(|start| name.starts_with(start))
        || NAMES.contains(&name)
        || others.contains(&name)
}

/// Whether a shell must start anew for a run: the run has variables that a shell which has started
/// cannot be given in a way that leaves no difference.
pub(crate) fn needs_new_shell(spec: &RunSpec, base: &[(String, String)]) -> bool {
    if spec.language != Language::Bash {
        return false;
    }
    let is_ours = |name: &str| base.iter().any(|(known, _)| known == name);
    let fits = |(name, value): (&String, &String)| {
        is_name(name) && !is_read_at_start(name) && !is_ours(name) && is_text(value)
    };
    let bytes: usize = spec.env.iter().map(|(name, value)| name.len() + value.len()).sum();
    bytes > MAX_VARIABLES || !spec.env.iter().all(fits)
}

fn is_name(name: &str) -> bool {
    let is_start = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    let mut bytes = name.bytes();
    bytes.next().is_some_and(is_start) && bytes.all(|byte| is_start(byte) || byte.is_ascii_digit())
}

/// Bash keeps marks of its own among the control characters.
fn is_text(value: &str) -> bool {
    value.bytes().all(|byte| !byte.is_ascii_control() || matches!(byte, b'\n' | b'\t'))
}

/// What a parked shell reads when its job has come. `started` are the variables with which it was
/// started, and `wanted` those of the job.
pub(crate) fn gate_words(
    name: &str,
    started: &[CString],
    wanted: &[CString],
    moves: bool,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    if moves {
        // Another home was mounted over the one that it started in.
        out.extend_from_slice(b"cd -- \"$PWD\"; unset -v OLDPWD; export OLDPWD\n");
    }
    for pair in wanted.iter().filter(|pair| !started.contains(pair)) {
        let pair = pair.to_bytes();
        let at = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
        out.extend_from_slice(b"export ");
        out.extend_from_slice(&pair[..at]);
        out.push(b'=');
        append_quoted(&mut out, pair.get(at + 1..).unwrap_or_default());
        out.push(b'\n');
    }
    // The time begins now, and `$_` is what it is after a start: the name of the shell.
    out.extend_from_slice(b"unset -v BASH_ENV; SECONDS=0; : ");
    append_quoted(&mut out, name.as_bytes());
    out.push(b'\n');
    out
}

fn append_quoted(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'\'');
    for byte in text {
        match byte {
            b'\'' => out.extend_from_slice(br"'\''"),
            other => out.push(*other),
        }
    }
    out.push(b'\'');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(env: &[(&str, &str)]) -> RunSpec {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        RunSpec { env: env.collect(), ..RunSpec::new(Language::Bash, "echo") }
    }

    #[test]
    fn plain_variables_go_through_the_gate_and_others_need_a_new_shell() {
        let base = [("HOME".to_owned(), "/home".to_owned())];
        for name in ["A", "_a1", "API_KEY", "DATABASE_URL", "DEBUG", "NODE_ENV"] {
            assert!(!needs_new_shell(&run(&[(name, "x y\n'\"$a\\ü\t")]), &base), "{name}");
        }
        let special = [
            "",
            "1a",
            "a-b",
            "a.b",
            "BASH_ENV",
            "BASH_FUNC_a%%",
            "HOME",
            "IFS",
            "LC_ALL",
            "LANG",
            "LD_PRELOAD",
            "POSIXLY_CORRECT",
            "PS4",
            "SHELLOPTS",
            "SECONDS",
            "TZ",
            "UID",
            "_",
        ];
        for name in special {
            assert!(needs_new_shell(&run(&[(name, "x")]), &base), "{name}");
        }
        for value in ["\u{1}", "\u{7f}", "\u{1b}[0m", &"x".repeat(MAX_VARIABLES)[..]] {
            assert!(needs_new_shell(&run(&[("A", value)]), &base), "{value:?}");
        }
        let python = RunSpec { language: Language::Python, ..run(&[("LC_ALL", "C")]) };
        assert!(!needs_new_shell(&python, &base));
    }

    #[test]
    fn only_what_the_job_has_changed_goes_through_the_gate() {
        let strings = |texts: &[&str]| texts.iter().map(|it| CString::new(*it).unwrap()).collect();
        let started: Vec<CString> = strings(&["A=1", "BASH_ENV=/gate"]);
        let wanted: Vec<CString> = strings(&["A=1", "B=it's"]);
        let words = gate_words("bash", &started, &wanted, false);
        let end = "unset -v BASH_ENV; SECONDS=0; : 'bash'\n";
        assert_eq!(String::from_utf8(words).unwrap(), format!("export B='it'\\''s'\n{end}"));
        assert_eq!(gate_words("bash", &started, &started[..1], false), end.as_bytes());
        assert!(gate_words("bash", &started, &started, true).starts_with(b"cd -- \"$PWD\";"));
    }
}
