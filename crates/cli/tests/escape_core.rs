//! Runs in: test. A crash in a sandbox starts no handler on the host, also where `core_pattern` is a
//! pipe.
//!
//! It changes settings of the host and puts them back, so it is run by `make test-host` only.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

#[path = "support/cloche.rs"]
mod support;

use support::{cloche, skip};

const PATTERN: &str = "/proc/sys/kernel/core_pattern";
/// Where this is not 0, the kernel ends a process that crashed after its handler has ended.
const PIPE_LIMIT: &str = "/proc/sys/kernel/core_pipe_limit";

/// A setting of the host; the old value is put back at the end.
struct ChangedSetting {
    path: &'static str,
    before: String,
}

impl ChangedSetting {
    /// Changes it; nothing, and a skipped test, where that is not allowed.
    fn set(path: &'static str, value: &str) -> Option<Self> {
        let before = fs::read_to_string(path).unwrap().trim_end().to_owned();
        match fs::write(path, value) {
            Ok(()) => Some(Self { path, before }),
            Err(error) => {
                skip(&format!("{path} cannot be changed here: {error}"));
                None
            }
        }
    }
}

impl Drop for ChangedSetting {
    fn drop(&mut self) {
        fs::write(self.path, &self.before).unwrap();
    }
}

/// A handler that leaves a mark.
fn write_handler(dir: &Path) -> (PathBuf, PathBuf) {
    let (script, mark) = (dir.join("handler"), dir.join("ran"));
    fs::write(&script, format!("#!/bin/sh\ntouch {}\ncat >/dev/null\n", mark.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    (script, mark)
}

#[test]
fn a_crash_in_a_sandbox_starts_no_handler_on_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let (script, mark) = write_handler(dir.path());
    let Some(limit) = ChangedSetting::set(PIPE_LIMIT, "64") else { return };
    let pattern = format!("|{}", script.display());
    let Some(pattern) = ChangedSetting::set(PATTERN, &pattern) else { return };
    // A crashed process has ended only after its handler, so no time needs to pass before a look.
    let crash = "kill -SEGV $$";
    Command::new("sh").args(["-c", crash]).status().unwrap();
    let seen_outside = mark.exists();
    let _ = fs::remove_file(&mark);
    let ended = cloche(["run", "--language", "bash", "-c", crash]);
    let seen_inside = mark.exists();
    drop((pattern, limit));
    assert!(seen_outside, "the handler does not work, so nothing was tested");
    assert_eq!(ended.code, 128 + 11, "{ended:?}");
    assert!(!seen_inside, "the handler ran for a crash in a sandbox");
}
