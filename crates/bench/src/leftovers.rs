//! What runs leave on the host: processes, mounts, control groups, and our descriptors.

use std::{fs, path::PathBuf};

use crate::print_line;

/// A count of everything that a run could fail to clean up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeftoverCounts {
    /// Our descendants.
    pub(crate) processes: usize,
    pub(crate) mounts: usize,
    /// Our directories below the control groups.
    pub(crate) cgroups: usize,
    pub(crate) descriptors: usize,
    /// Our entries in the temporary directory.
    pub(crate) temporary: usize,
}

impl LeftoverCounts {
    /// Counts now.
    pub(crate) fn count_now() -> Self {
        Self {
            processes: list_descendants(std::process::id()).len(),
            mounts: fs::read_to_string("/proc/self/mounts").map_or(0, |text| text.lines().count()),
            cgroups: count_cgroups(),
            descriptors: fs::read_dir("/proc/self/fd").map_or(0, Iterator::count),
            temporary: fs::read_dir(std::env::temp_dir()).map_or(0, |entries| {
                let ours = |name: &str| name.contains("cloche");
                entries.flatten().filter(|e| e.file_name().to_str().is_some_and(ours)).count()
            }),
        }
    }
}

impl LeftoverCounts {
    /// Prints the counts before and after. Returns true if none has grown.
    pub(crate) fn print_growth(self, after: Self) -> bool {
        print_line("\n| on the host | before | after |\n|---|---|---|");
        let lines = [
            ("processes", self.processes, after.processes),
            ("mounts", self.mounts, after.mounts),
            ("control groups", self.cgroups, after.cgroups),
            ("descriptors", self.descriptors, after.descriptors),
            ("temporary files", self.temporary, after.temporary),
        ];
        for (what, before, after) in lines {
            print_line(&format!("| {what} | {before} | {after} |"));
        }
        lines.iter().all(|(_, before, after)| after <= before)
    }
}

/// The proportional memory of every interpreter below this process, in KiB, without templates.
/// Cells are in the innermost pid namespaces, templates are not.
pub(crate) fn parked_memory() -> u64 {
    let status = |pid: u32, name: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned))
    };
    let depth = |pid| status(pid, "NSpid:").map_or(0, |line| line.split_whitespace().count());
    let rollup = |pid: u32| fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok();
    let pss = |pid: u32| -> Option<u64> {
        let parent = status(pid, "PPid:").and_then(|parent| parent.trim().parse().ok());
        let rollup = rollup(pid).filter(|own| Some(own) != parent.and_then(rollup).as_ref())?;
        let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let all = list_descendants(std::process::id());
    let deepest = all.iter().map(|pid| depth(*pid)).max().unwrap_or(0);
    all.into_iter().filter(|pid| depth(*pid) == deepest).filter_map(pss).sum()
}

/// All descendants of a process.
fn list_descendants(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = threads.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children = children.collect::<Vec<_>>().join(" ");
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    children
        .flat_map(|child| {
            let mut all = list_descendants(child);
            all.push(child);
            all
        })
        .collect()
}

/// The number of cells below the directories that our processes made: `cloche.PID/cellN`.
fn count_cgroups() -> usize {
    let own = list_descendants(std::process::id());
    let own: Vec<String> = own.into_iter().map(|pid| format!("cloche.{pid}")).collect();
    let mut count = 0;
    let mut directories = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            if own.contains(&name) {
                let below = fs::read_dir(entry.path()).into_iter().flatten().flatten();
                count += below.filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir())).count();
            } else {
                directories.push(entry.path());
            }
        }
    }
    count
}
