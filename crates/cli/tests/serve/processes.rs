//! Processes on the host: by a word among their arguments, and descendants of a process.

use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use crate::host::PATIENCE;

/// A number of seconds to sleep that no other process on the host uses.
pub(crate) fn mark() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}.{}", 1000 + NEXT.fetch_add(1, Ordering::Relaxed), std::process::id())
}

/// Two sleeping processes, one in a session of its own, and a line of output when both run.
pub(crate) fn sleepers(mark: &str) -> String {
    format!("trap '' TERM INT HUP\nsetsid sleep {mark} &\nsleep {mark} &\necho up\nwait")
}

fn numbers() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// How many processes have this word among their arguments. A process that is being torn down has
/// no arguments any more.
pub(crate) fn count(mark: &str) -> usize {
    let has = |pid: &u32| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments.split(|&byte| byte == 0).any(|word| word == mark.as_bytes())
    };
    numbers().filter(has).count()
}

/// Waits until this many processes have this word. Returns how long it took.
pub(crate) fn wait_for(mark: &str, wanted: usize) -> Duration {
    let begin = Instant::now();
    while count(mark) != wanted {
        assert!(begin.elapsed() < PATIENCE, "{} processes, not {wanted}", count(mark));
        std::thread::sleep(Duration::from_millis(1));
    }
    begin.elapsed()
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Every descendant of a process with its start time, so that a reused pid is not mistaken.
pub(crate) fn below(root: u32) -> Vec<(u32, String)> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&above) = found.get(next) {
        found.extend(numbers().filter(|&pid| parent(pid) == Some(above)));
        next += 1;
    }
    found.into_iter().skip(1).filter_map(|pid| Some((pid, begun(pid)?))).collect()
}

/// The start time of a process. `None` if it has ended, even if it was not reaped yet.
fn begun(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    fields.next().filter(|state| !matches!(*state, "Z" | "X"))?;
    fields.nth(18).map(ToOwned::to_owned)
}

/// Waits until none of these processes exists.
pub(crate) fn wait_until_gone(processes: &[(u32, String)]) {
    let begin = Instant::now();
    let there = |(pid, begin): &&(u32, String)| begun(*pid).as_ref() == Some(begin);
    while let Some((pid, _)) = processes.iter().find(there) {
        let name = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        assert!(begin.elapsed() < PATIENCE, "{pid} is still there: {name}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The control groups that these processes created.
pub(crate) fn cgroups_of(processes: &[(u32, String)]) -> Vec<PathBuf> {
    let names: Vec<_> = processes.iter().map(|(pid, _)| format!("cloche.{pid}")).collect();
    let mut found = Vec::new();
    let mut places = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(place) = places.pop() {
        let entries = fs::read_dir(place).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            if names.iter().any(|name| entry.file_name() == name.as_str()) {
                found.push(entry.path());
            }
            places.push(entry.path());
        }
    }
    found
}
