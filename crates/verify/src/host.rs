//! The host as it is now: what runs below us, what is mounted, which cgroups there are.
//!
//! Reads `/proc` and nothing else; it must not know of probes.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

/// Counts that must be the same before and after a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostCounts {
    /// Processes below this one.
    pub processes: usize,
    /// Mounts that this process sees.
    pub mounts: usize,
    /// Cgroups of cells that have a process in them.
    pub cgroups: usize,
    /// Open file descriptors of this process.
    pub descriptors: usize,
}

impl HostCounts {
    /// As of now.
    pub fn take() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Self {
            processes: list_descendants(std::process::id()).len(),
            mounts: mounts.lines().count(),
            cgroups: count_cell_cgroups(),
            descriptors: fs::read_dir("/proc/self/fd").map_or(0, Iterator::count),
        }
    }

    /// What there is more of than before, in words; nothing if there is none.
    pub fn growth(&self, before: &Self) -> Option<String> {
        let pairs = [
            ("processes", self.processes, before.processes),
            ("mounts", self.mounts, before.mounts),
            ("cgroups", self.cgroups, before.cgroups),
            ("descriptors", self.descriptors, before.descriptors),
        ];
        let grown = pairs.iter().filter(|(_, now, then)| now > then);
        let words: Vec<_> =
            grown.map(|(what, now, then)| format!("{what} {then} to {now}")).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }
}

/// The processes below one, by pid.
pub fn list_descendants(of: u32) -> Vec<u32> {
    let mut parents = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if let Some(parent) = parent_pid(pid) {
            parents.insert(pid, parent);
        }
    }
    let below = |pid: &u32| {
        let mut at = *pid;
        // A pid may be its own ancestor in a listing that was read while pids were reused.
        for _ in 0..parents.len() {
            match parents.get(&at) {
                Some(&up) if up == of => return true,
                Some(&up) => at = up,
                None => return false,
            }
        }
        false
    };
    parents.keys().copied().filter(below).collect()
}

/// The parent of a process.
pub fn parent_pid(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, so count from its end.
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// The cgroups of cells of the spawners below us that have a process in them: some are made ahead.
fn count_cell_cgroups() -> usize {
    let spawners = list_descendants(std::process::id());
    let names: Vec<String> = spawners.iter().map(|pid| format!("cloche.{pid}")).collect();
    count_inhabited(Path::new("/sys/fs/cgroup"), &names, 6)
}

fn count_inhabited(dir: &Path, names: &[String], depth: usize) -> usize {
    if depth == 0 {
        return 0;
    }
    let mut found = 0;
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let is_ours =
            entry.file_name().to_str().is_some_and(|name| names.iter().any(|n| n == name));
        found += if is_ours {
            let inside = fs::read_dir(entry.path()).into_iter().flatten().flatten();
            inside.filter(|cell| is_inhabited(&cell.path())).count()
        } else {
            count_inhabited(&entry.path(), names, depth - 1)
        };
    }
    found
}

fn is_inhabited(cgroup: &Path) -> bool {
    fs::read_to_string(cgroup.join("cgroup.procs")).is_ok_and(|members| !members.is_empty())
}

/// The processor time that this process has used.
pub fn own_processor_time() -> Duration {
    const TICKS_PER_SECOND: u64 = 100;
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    // User and system time, counted from the field after the name.
    let ticks = fields.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u64>().ok());
    Duration::from_millis(ticks.sum::<u64>() * 1000 / TICKS_PER_SECOND)
}

/// How much memory this process has resident, in KiB.
pub fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_are_below_our_parent_and_not_below_ourselves() {
        let own = std::process::id();
        assert!(list_descendants(parent_pid(own).unwrap()).contains(&own));
        assert!(!list_descendants(own).contains(&own));
    }

    #[test]
    fn growth_names_what_grew() {
        let before = HostCounts { processes: 2, mounts: 20, cgroups: 0, descriptors: 9 };
        let after = HostCounts { mounts: 21, descriptors: 8, ..before.clone() };
        assert_eq!(after.growth(&before).unwrap(), "mounts 20 to 21");
        assert_eq!(before.growth(&before), None);
    }
}
