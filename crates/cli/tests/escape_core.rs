//! A crash in a sandbox starts no handler on the host, also where `core_pattern` is a pipe.
//!
//! Changes a setting of the host for a moment and always puts it back; a file of its own, so that
//! nothing else of ours runs meanwhile.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

#[path = "support/cloche.rs"]
mod support;

use support::{cloche, skip};

const PATTERN: &str = "/proc/sys/kernel/core_pattern";

/// Puts the host's own pattern back.
struct Restore(String);

impl Drop for Restore {
    fn drop(&mut self) {
        fs::write(PATTERN, &self.0).unwrap();
    }
}

/// A handler that leaves a mark.
fn handler(dir: &Path) -> (PathBuf, PathBuf) {
    let (script, mark) = (dir.join("handler"), dir.join("ran"));
    fs::write(&script, format!("#!/bin/sh\ncat >/dev/null\ntouch {}\n", mark.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    (script, mark)
}

fn appears(mark: &Path) -> bool {
    (0..50).any(|_| {
        thread::sleep(Duration::from_millis(10));
        mark.exists()
    })
}

#[test]
fn a_crash_in_a_sandbox_starts_no_handler_on_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let (script, mark) = handler(dir.path());
    let restore = Restore(fs::read_to_string(PATTERN).unwrap().trim_end().to_owned());
    if let Err(error) = fs::write(PATTERN, format!("|{}", script.display())) {
        skip(&format!("core_pattern cannot be changed here: {error}"));
        std::mem::forget(restore);
        return;
    }
    let crash = "kill -SEGV $$";
    Command::new("sh").args(["-c", crash]).status().unwrap();
    let seen_outside = appears(&mark);
    let _ = fs::remove_file(&mark);
    let ended = cloche(["run", "--language", "bash", "-c", crash]);
    let seen_inside = appears(&mark);
    drop(restore);
    assert!(seen_outside, "the handler does not work, so nothing was tested");
    assert_eq!(ended.code, 128 + 11, "{ended:?}");
    assert!(!seen_inside, "the handler ran for a crash in a sandbox");
}
