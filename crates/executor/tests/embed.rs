//! Runs in: test. The program in `examples/` that uses Cloche as a library, as a user starts it.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::{env, process::Command};

use cloche_test_support::command::ended;

#[test]
fn the_example_of_an_embedded_executor_works() {
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = Command::new(cargo);
    command.args(["run", "--quiet", "--package", "cloche-executor", "--example", "embed"]);
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    assert_eq!(ended(command, b"").printed(), "42\n");
}
