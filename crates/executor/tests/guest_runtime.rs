//! The guest runtime, outside of any cell: its own tests on every CPython that this machine has, its
//! lints, and the three readers of a job.
#![allow(clippy::unwrap_used, reason = "a test may fail at any line")]
#![allow(clippy::print_stderr, reason = "a test says what it skips")]

#[path = "guest_runtime/readers.rs"]
mod readers;

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use cloche_jail::protocol::constants as protocol;
use readers::Reader;

/// What build.rs has made.
const OUT: &str = env!("OUT_DIR");
const GUEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/guest");

/// Skips, or fails where `REQUIRE_KERNEL=1`.
fn skip(why: &str) {
    assert!(env::var_os("REQUIRE_KERNEL").is_none_or(|it| it != "1"), "{why}");
    eprintln!("SKIPPED: {why}");
}

/// A CPython of each supported version that this machine has.
fn interpreters() -> BTreeMap<u32, PathBuf> {
    let home = PathBuf::from(env::var_os("HOME").unwrap_or_default());
    let collections = [home.join(".pyenv/versions"), home.join(".local/share/uv/python")];
    let installed = collections.iter().filter_map(|place| fs::read_dir(place).ok()).flatten();
    let mut directories: Vec<_> =
        installed.map(|entry| entry.unwrap().path().join("bin")).collect();
    directories.extend(["/usr/local/bin".into(), "/usr/bin".into()]);
    let mut found = BTreeMap::new();
    for directory in directories {
        for minor in 11..=14 {
            let program = directory.join(format!("python3.{minor}"));
            if program.exists() {
                found.insert(minor, program);
            }
        }
    }
    found
}

#[test]
fn the_python_runtime_passes_its_tests_on_every_supported_interpreter() {
    let interpreters = interpreters();
    if interpreters.is_empty() {
        return skip("this machine has no supported python3: scripts/setup-tests");
    }
    for program in interpreters.values() {
        let tests = format!("{GUEST}/python/tests");
        let ran = Command::new(program)
            .args(["-B", "-m", "unittest", "discover", "-s", &tests])
            .env("CLOCHE_ARCHIVE", format!("{OUT}/cloche.zip"))
            .env("CLOCHE_LIBRARY", format!("{OUT}/{}", protocol::TEMPLATE_LIBRARY))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{}: {said}", program.display());
        eprintln!("{}: {}", program.display(), said.lines().last().unwrap_or_default());
    }
}

#[test]
fn the_python_runtime_has_no_lints() {
    let ruff = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/ruff");
    if !ruff.exists() {
        return skip("there is no .venv/bin/ruff: scripts/setup-tests");
    }
    let ran = Command::new(ruff).args(["check", "--no-cache", GUEST]).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
}

#[test]
fn three_readers_understand_the_same_job() {
    if ![readers::PYTHON, readers::NODE].iter().all(|program| Path::new(program).exists()) {
        return skip("this machine has no python3 or no node: scripts/setup-tests");
    }
    for (name, is_whole, job) in readers::jobs() {
        let rust = Reader::Rust.take(&job);
        assert_eq!(rust.refused.is_none(), is_whole, "{name}: {rust:?}");
        for reader in [Reader::Python, Reader::Node] {
            assert_eq!(reader.take(&job), rust, "{name}, {reader:?}");
        }
    }
}
