//! Runs in: spawner (root or an ordinary user). Keeps the limits of memory and processes where a
//! cgroup does not: looks at the processes of a cell, and says when they are too many or too large.
//!
//! All processes of a cell are below its first one, which reaps orphans. A look adds up what the
//! kernel says each process has resident. Forked processes share pages, so the sum may be too
//! large: if it is beyond the limit, the proportional sizes decide, which take longer to read. The
//! next look is due before a cell could have used up what is left, but a look takes time, too: a
//! cell can exceed its limit for some milliseconds.

use std::{
    fs,
    os::fd::{AsRawFd, BorrowedFd},
    time::{Duration, Instant},
};

use cloche_jail::cgroup::CgroupLimits;

use crate::protocol::{CellConfig, CellUsage};

/// How much memory a cell may fill in a second: some four processors that do nothing else.
const FILL_RATE: u64 = 8 << 30;
/// The shortest and the longest time between two looks.
const SHORTEST: Duration = Duration::from_millis(3);
const LONGEST: Duration = Duration::from_millis(40);
/// Processes that a look visits beyond the limit.
const BEYOND: usize = 64;
const PAGE: u64 = 4096;

/// The watch of one cell.
#[derive(Debug)]
pub(super) struct CellWatch {
    memory: u64,
    processes: usize,
    /// The first process.
    root: Option<i32>,
    due: Option<Instant>,
    peak: u64,
    exceeded: Option<ExceededLimit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExceededLimit {
    Memory,
    Processes,
}

impl CellWatch {
    /// The watch of a cell; `None` where a memory cgroup can keep its limit. Then it has a user or
    /// a user namespace of its own, in which `RLIMIT_NPROC` counts its processes alone.
    pub(super) fn for_cell(config: &CellConfig, cgroup: CgroupLimits) -> Option<Self> {
        let (memory, processes) = (config.memory, config.pids as usize);
        let watch = Self { memory, processes, root: None, due: None, peak: 0, exceeded: None };
        cgroup.memory.is_none().then_some(watch)
    }

    /// Begins to watch the processes below this one.
    pub(super) fn begin(&mut self, first: BorrowedFd<'_>) {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", first.as_raw_fd()));
        let info = info.unwrap_or_default();
        let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"));
        self.root = pid.and_then(|pid| pid.trim().parse().ok());
        self.due = Some(Instant::now());
    }

    /// When the next look is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due.filter(|_| self.root.is_some() && self.exceeded.is_none())
    }

    /// Looks at the processes if that is due. Returns whether the cell is beyond a limit.
    pub(super) fn exceeds_limits(&mut self, now: Instant) -> bool {
        let (Some(root), Some(due)) = (self.root, self.due()) else { return false };
        if now < due {
            return false;
        }
        let tree = ProcessTree::read_below(root, self.processes + BEYOND);
        let mut memory = tree.resident;
        if memory > self.memory {
            memory = tree.proportional_size();
        }
        self.peak = self.peak.max(memory);
        self.exceeded = if memory > self.memory {
            Some(ExceededLimit::Memory)
        } else if tree.tasks > self.processes {
            Some(ExceededLimit::Processes)
        } else {
            None
        };
        let left = self.memory.saturating_sub(memory);
        let until_full = Duration::from_nanos(left.saturating_mul(1_000_000_000) / FILL_RATE);
        self.due = Some(Instant::now() + until_full.clamp(SHORTEST, LONGEST));
        self.exceeded.is_some()
    }

    /// Adds what the watch has seen to the usage of a cell that is gone.
    pub(super) fn add_usage(&self, used: &mut CellUsage) {
        used.peak = used.peak.max(self.peak);
        used.oom_kills += u64::from(self.exceeded == Some(ExceededLimit::Memory));
        used.too_many_processes |= self.exceeded == Some(ExceededLimit::Processes);
    }
}

/// The processes of a cell at one moment, without its first one, which is ours.
#[derive(Default)]
struct ProcessTree {
    pids: Vec<i32>,
    /// Processes and threads.
    tasks: usize,
    /// The sum of the resident sizes, in bytes.
    resident: u64,
}

impl ProcessTree {
    /// Visits at most this many processes.
    fn read_below(root: i32, most: usize) -> Self {
        let mut tree = Self::default();
        let mut waiting = Vec::new();
        push_children(root, 1, &mut waiting);
        while let Some(pid) = waiting.pop() {
            let Some((threads, pages)) = read_stat(pid) else { continue };
            tree.pids.push(pid);
            tree.tasks += threads;
            tree.resident += pages * PAGE;
            if tree.pids.len() > most {
                break;
            }
            push_children(pid, threads, &mut waiting);
        }
        tree
    }

    /// The sum of the sizes, with a page that several processes share counted once.
    fn proportional_size(&self) -> u64 {
        self.pids.iter().filter_map(|pid| read_proportional(*pid)).sum()
    }
}

/// Adds the children of a process. Each of its threads may have some.
fn push_children(pid: i32, threads: usize, out: &mut Vec<i32>) {
    let mut push = |thread: &str| {
        let list = fs::read_to_string(format!("/proc/{pid}/task/{thread}/children"));
        let list = list.unwrap_or_default();
        out.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
    };
    if threads < 2 {
        return push(&pid.to_string());
    }
    for thread in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        push(&thread.file_name().to_string_lossy());
    }
}

/// The number of threads of a process, and its resident pages.
fn read_stat(pid: i32) -> Option<(usize, u64)> {
    parse_stat(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// The name of a process may contain anything; the numbers come after its last bracket.
fn parse_stat(stat: &[u8]) -> Option<(usize, u64)> {
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let fields = std::str::from_utf8(&stat[after_name..]).ok()?;
    let mut fields = fields.split_ascii_whitespace();
    // The state is the third field of the line, the threads the 20th, the pages the 24th.
    let threads = fields.nth(17)?.parse().ok()?;
    Some((threads, fields.nth(3)?.parse().ok()?))
}

/// The proportional size of a process, without files; the resident size where it may not be read.
fn read_proportional(pid: i32) -> Option<u64> {
    const PROPORTIONAL: [&str; 3] = ["Pss_Anon:", "Pss_Shmem:", "SwapPss:"];
    const RESIDENT: [&str; 3] = ["RssAnon:", "RssShmem:", "VmSwap:"];
    let sum = |file: &str, names: &[&str]| {
        let text = fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
        let lines = text.lines().filter_map(|line| {
            let size = names.iter().find_map(|name| line.strip_prefix(name))?;
            size.trim().trim_end_matches(" kB").parse::<u64>().ok()
        });
        let sizes: Vec<u64> = lines.collect();
        (!sizes.is_empty()).then(|| sizes.iter().sum::<u64>() << 10)
    };
    sum("smaps_rollup", &PROPORTIONAL).or_else(|| sum("status", &RESIDENT))
}

#[cfg(test)]
mod tests {
    use cloche_model::Substrate;

    use super::*;

    #[test]
    fn threads_and_pages_are_read_whatever_the_name_is() {
        let rest = "S 1 7 7 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 5 0 100 200 42 1844 1 1";
        for name in ["python3", "a) S 1 2", ") ", ""] {
            let stat = format!("7 ({name}) {rest}");
            assert_eq!(parse_stat(stat.as_bytes()), Some((5, 42)), "{name}");
        }
        assert_eq!(parse_stat(b"7 (a) S 1"), None);
    }

    #[test]
    fn own_size_is_read() {
        let own = std::process::id().cast_signed();
        let (threads, pages) = read_stat(own).unwrap();
        assert!(threads >= 1 && pages > 100, "{threads} {pages}");
        assert!(read_proportional(own).unwrap() > 100 << 10);
    }

    #[test]
    fn a_child_of_a_thread_is_found() {
        let child = std::thread::spawn(|| {
            let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
            let own = std::process::id().cast_signed();
            let mut found = Vec::new();
            push_children(own, 2, &mut found);
            let pid = child.id().cast_signed();
            child.kill().unwrap();
            child.wait().unwrap();
            found.contains(&pid)
        });
        assert!(child.join().unwrap());
    }

    #[test]
    fn a_cell_without_missing_cgroups_is_not_watched() {
        let config = CellConfig {
            image: None,
            memory: 1 << 20,
            cpu_milli: 1000,
            pids: 8,
            disk: 1 << 20,
            cpu_seconds: 1,
            strict: false,
            substrate: Substrate::Native,
            network: false,
            trust: false,
        };
        let all = CgroupLimits { memory: Some(1), pids: Some(1), cpu: None };
        assert!(CellWatch::for_cell(&config, all).is_none());
        let watch = CellWatch::for_cell(&config, CgroupLimits::default()).unwrap();
        assert_eq!((watch.memory, watch.processes), (1 << 20, 8));
    }
}
