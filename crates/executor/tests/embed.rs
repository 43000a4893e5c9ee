//! Runs in: test. The program in `examples/` that uses Cloche as a library, as a user starts it.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::{env, path::PathBuf, process::Command};

use cloche_test_support::command::ended;

/// The example, which is built together with the tests of the workspace.
fn example() -> PathBuf {
    let tests = env::current_exe().unwrap();
    let path = tests.ancestors().nth(2).unwrap().join("examples/embed");
    assert!(path.exists(), "there is no {path:?}: run `cargo build -p cloche-executor --examples`");
    path
}

#[test]
fn the_example_of_an_embedded_executor_works() {
    assert_eq!(ended(Command::new(example()), b"").printed(), "42\n");
}
