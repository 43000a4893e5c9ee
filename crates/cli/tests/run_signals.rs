//! `cloche run` when someone stops it: the run ends, and nothing of it is left.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::{
    fs,
    io::Read,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

#[path = "support/cloche.rs"]
mod support;

use support::{binary, can_sandbox};

/// A guest that has started, ignores signals, and would sleep for long under a name of its own.
fn sleeping(mark: &str, own_group: bool) -> Child {
    let code = format!("trap '' INT TERM HUP; sleep {mark} & echo up; sleep {mark}");
    let mut command = Command::new(binary());
    command.args(["run", "--language", "bash", "-c", &code]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    if own_group {
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
    }
    let mut child = command.spawn().unwrap();
    let mut up = [0; 3];
    child.stdout.as_mut().unwrap().read_exact(&mut up).unwrap();
    child
}

/// Whether any process on the host has this word among its arguments.
fn alive(mark: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut arguments = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    arguments
        .any(|arguments| arguments.split(|&byte| byte == 0).any(|word| word == mark.as_bytes()))
}

/// The control groups of ours whose process is gone, anywhere on the host.
fn orphaned_cgroups() -> Vec<String> {
    let mut found = Vec::new();
    let mut places = vec![std::path::PathBuf::from("/sys/fs/cgroup")];
    while let Some(place) = places.pop() {
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let gone = |pid: &str| !fs::exists(format!("/proc/{pid}")).unwrap();
            if name.strip_prefix("cloche.").is_some_and(gone) {
                found.push(entry.path().display().to_string());
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                places.push(entry.path());
            }
        }
    }
    found
}

fn until(what: &str, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(20), "{what}");
        thread::yield_now();
    }
}

/// Waits until no control group is left behind, other than what lay about before: a process that
/// was killed together with everything in its own group can leave one that none of ours can see.
fn until_no_cgroup_is_left(before: &[String]) {
    until("a control group is left", || {
        orphaned_cgroups().iter().all(|found| before.contains(found))
    });
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

#[test]
fn a_signal_ends_the_run_and_leaves_nothing() {
    if !can_sandbox() {
        return;
    }
    let before = orphaned_cgroups();
    for (signal, code, mark) in
        [(Signal::INT, 130, "7100.1"), (Signal::TERM, 143, "7100.2"), (Signal::HUP, 129, "7100.3")]
    {
        let mut child = sleeping(mark, false);
        kill_process(pid(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert!(!alive(mark), "a process outlived {signal:?}");
    }
    until_no_cgroup_is_left(&before);
}

#[test]
fn ctrl_c_reaches_the_whole_foreground_and_still_cleans_up() {
    if !can_sandbox() {
        return;
    }
    let before = orphaned_cgroups();
    let mut child = sleeping("7100.4", true);
    kill_process_group(pid(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!alive("7100.4"));
    until_no_cgroup_is_left(&before);
}

#[test]
fn being_killed_outright_takes_the_run_along() {
    if !can_sandbox() {
        return;
    }
    let before = orphaned_cgroups();
    let mut child = sleeping("7100.5", false);
    child.kill().unwrap();
    child.wait().unwrap();
    until("the guest outlived us", || !alive("7100.5"));
    until_no_cgroup_is_left(&before);
}
