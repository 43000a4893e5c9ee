//! Runs in: test. What is on the host: processes by a word among their arguments, those below
//! another, and the cgroups that they made.

use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::eventually_blocking;

/// A number of seconds to sleep that nothing else on the host sleeps.
pub fn mark() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}.{}", 1000 + NEXT.fetch_add(1, Ordering::Relaxed), std::process::id())
}

/// Two processes that sleep, of which one has left its parent's session, and a line when both do.
pub fn sleepers(mark: &str) -> String {
    format!("trap '' TERM INT HUP\nsetsid sleep {mark} &\nsleep {mark} &\necho up\nwait")
}

fn list_pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// How many processes have this word among their arguments. A process that is being torn down has
/// no arguments any more.
pub fn count(mark: &str) -> usize {
    let has = |pid: &u32| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments.split(|&byte| byte == 0).any(|word| word == mark.as_bytes())
    };
    list_pids().filter(has).count()
}

/// Waits until so many processes have this word, and returns how long it took.
pub fn wait_for(mark: &str, wanted: usize) -> Duration {
    let begin = Instant::now();
    eventually_blocking(format!("{wanted} processes have the word {mark}"), || {
        let found = count(mark);
        if found == wanted { Ok(()) } else { Err(format!("{found} have it")) }
    });
    begin.elapsed()
}

/// The fields of `/proc/PID/stat` from the state on; nothing if the process has ended, although its
/// parent may not have waited for it yet.
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields = stat.rsplit_once(") ")?.1.split_whitespace().map(str::to_owned);
    let fields: Vec<String> = fields.collect();
    (!matches!(fields.first()?.as_str(), "Z" | "X")).then_some(fields)
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split_whitespace().nth(1)?.parse().ok()
}

/// When a process began, in clock ticks since the host started.
fn began(pid: u32) -> Option<u64> {
    stat_fields(pid)?.get(19)?.parse().ok()
}

/// Whether a process runs; one that has ended and waits for its parent does not.
pub fn is_alive(pid: u32) -> bool {
    stat_fields(pid).is_some()
}

/// Sends SIGKILL; a process that has ended by itself is no failure.
pub fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).unwrap();
    let _ = kill_process(pid, Signal::KILL);
}

/// Every process below this one, with when it began, so that a reused pid is not mistaken.
pub fn below(root: u32) -> Vec<(u32, u64)> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&above) = found.get(next) {
        found.extend(list_pids().filter(|&pid| parent(pid) == Some(above)));
        next += 1;
    }
    found.into_iter().skip(1).filter_map(|pid| Some((pid, began(pid)?))).collect()
}

/// The child of a process that began last.
pub fn youngest_child(of: u32) -> u32 {
    let children = list_pids().filter(|&pid| parent(pid) == Some(of));
    children.max_by_key(|&pid| began(pid)).unwrap()
}

/// Waits until none of these runs any more.
pub fn wait_until_gone(processes: &[(u32, u64)]) {
    let is_there = |(pid, start): &&(u32, u64)| began(*pid).as_ref() == Some(start);
    eventually_blocking("all processes have ended", || match processes.iter().find(is_there) {
        None => Ok(()),
        Some((pid, _)) => {
            Err(fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default())
        }
    });
}

/// The cgroups that these processes made and left.
pub fn cgroups_of(processes: &[(u32, u64)]) -> Vec<PathBuf> {
    let names: Vec<_> = processes.iter().map(|(pid, _)| format!("cloche.{pid}")).collect();
    let mut found = Vec::new();
    let mut directories = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = directories.pop() {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            if names.iter().any(|name| entry.file_name() == name.as_str()) {
                found.push(entry.path());
            }
            directories.push(entry.path());
        }
    }
    found
}
