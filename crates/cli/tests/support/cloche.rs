//! Driving the real binary: what is typed, what comes back, and never a wait without an end.
#![allow(dead_code, reason = "every test target uses its own part of this")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test stops at what it did not expect"
)]

use std::{
    ffi::OsStr,
    io::Write,
    process::{Command, Output, Stdio},
    sync::{OnceLock, mpsc},
    thread,
    time::Duration,
};

/// Longer than any test needs; a test that hangs fails instead.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a command left behind.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) bytes: Vec<u8>,
}

impl Ended {
    /// Demands success, and gives what was printed.
    #[track_caller]
    pub(crate) fn printed(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.stdout
    }

    /// The JSON object that was printed.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// The binary under test.
pub(crate) fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_cloche")
}

/// `cloche` with these arguments, standard input empty.
pub(crate) fn cloche<I: AsRef<OsStr>>(arguments: impl IntoIterator<Item = I>) -> Ended {
    cloche_fed(arguments, b"")
}

/// `cloche` with these arguments and this standard input.
pub(crate) fn cloche_fed<I: AsRef<OsStr>>(
    arguments: impl IntoIterator<Item = I>,
    stdin: &[u8],
) -> Ended {
    let mut command = Command::new(binary());
    command.args(arguments);
    ended(command, stdin)
}

/// Runs a command to its end, within our patience.
pub(crate) fn ended(mut command: Command, stdin: &[u8]) -> Ended {
    let said = format!("{command:?}");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{said}: {error}"));
    let mut pipe = child.stdin.take().unwrap();
    let stdin = stdin.to_owned();
    // A program that does not read its input closes the pipe: no failure of the test.
    thread::spawn(move || drop(pipe.write_all(&stdin)));
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || drop(sender.send(child.wait_with_output())));
    let output: Output =
        receiver.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{said} did not end")).unwrap();
    Ended {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        bytes: output.stdout,
    }
}

/// A program in a language, with default limits.
pub(crate) fn run(language: &str, code: &str) -> Ended {
    cloche(["run", "--language", language, "-c", code])
}

/// Whether a sandbox can be built here. Says so loudly where not, and fails where it must be.
#[track_caller]
pub(crate) fn can_sandbox() -> bool {
    static REFUSAL: OnceLock<Option<String>> = OnceLock::new();
    let refusal = REFUSAL.get_or_init(|| {
        let tried = run("bash", ":");
        (tried.code != 0).then_some(tried.stderr)
    });
    refusal.as_ref().is_none_or(|why| skip(why))
}

/// Skips, or fails where `REQUIRE_KERNEL=1`.
#[track_caller]
pub(crate) fn skip(why: &str) -> bool {
    assert!(std::env::var_os("REQUIRE_KERNEL").is_none_or(|it| it != "1"), "{why}");
    eprintln!("SKIPPED: {why}");
    false
}
