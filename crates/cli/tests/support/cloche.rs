//! Runs in: test. Driving the real binary: what is typed, and what comes back.
#![allow(dead_code, unused_imports, reason = "every test target uses its own part of this")]

use std::{ffi::OsStr, process::Command, sync::OnceLock};

pub(crate) use cloche_test_support::{
    command::{Ended, ended},
    eventually, skip,
};

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

/// A program in a language, with default limits.
pub(crate) fn run(language: &str, code: &str) -> Ended {
    cloche(["run", "--language", language, "-c", code])
}

/// Whether a sandbox can be built here; the test is skipped where not.
#[track_caller]
pub(crate) fn can_sandbox() -> bool {
    static REFUSAL: OnceLock<Option<String>> = OnceLock::new();
    let refusal = REFUSAL.get_or_init(|| {
        let tried = run("bash", ":");
        (tried.code != 0).then_some(tried.stderr)
    });
    refusal.as_ref().is_none_or(|why| skip(why))
}
