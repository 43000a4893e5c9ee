//! Runs in: test. Skipping a test that this host cannot run, in a way that CI can count.

use std::{env, fs::OpenOptions, io::Write};

/// The environment variable with the path of a file: each skip appends one line to it.
pub const SKIP_LOG: &str = "CLOCHE_SKIP_LOG";

/// Records that the calling test is skipped, and why; fails where `REQUIRE_KERNEL=1`.
///
/// Returns `false`, so that a condition can end with it: `is_possible() || skip("why")`.
#[track_caller]
pub fn skip(why: &str) -> bool {
    let line = format!("SKIPPED: {}", why.trim_end().replace('\n', " "));
    eprintln!("{line}");
    // Before the assertion: a test that catches the panic must not hide the skip.
    if let Some(path) = env::var_os(SKIP_LOG) {
        let mut log = OpenOptions::new().create(true).append(true).open(path).unwrap();
        // One write, so that lines of tests that run at once do not mix.
        log.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
    assert!(env::var_os("REQUIRE_KERNEL").is_none_or(|it| it != "1"), "{why}");
    false
}
