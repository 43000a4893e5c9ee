//! Runs in: spawner (root); server (no capabilities), which reads the gauges.
//!
//! Control groups: the limits of a cell and its usage; v2 if the host has it, else v1.
//!
//! It knows the files of both versions. It does not know the tenant.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsRawFd, RawFd},
        unix::fs::FileExt,
    },
    path::{Path, PathBuf},
    time::Duration,
};

mod hierarchy;
mod page_cache;
mod renewal;

pub use hierarchy::{CgroupHierarchy, V1Controllers};
use renewal::{MOST_TIME, RenewalDirs};

/// The limits of a cgroup; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CgroupLimits {
    /// Bytes of memory; there is no swap.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u32>,
    /// Thousandths of a core.
    pub cpu: Option<u32>,
}

const MEMORY: &str = "cgroup:memory";
const PIDS: &str = "cgroup:pids";
const CPU: &str = "cgroup:cpu";

impl CgroupLimits {
    /// The names of the walls that are up.
    pub fn wall_names(self) -> impl Iterator<Item = &'static str> {
        let walls = [
            (self.memory.is_some(), MEMORY),
            (self.pids.is_some(), PIDS),
            (self.cpu.is_some(), CPU),
        ];
        walls.into_iter().filter_map(|(up, name)| up.then_some(name))
    }

    fn most_cpu_time(self) -> Duration {
        let milli = self.cpu.unwrap_or(1000).min(1000);
        Duration::from_micros(u64::from(milli) * 100 / u64::from(MOST_TIME))
    }

    /// The same limits without one wall.
    #[must_use]
    pub fn without_wall(self, wall: &str) -> Self {
        Self {
            memory: self.memory.filter(|_| wall != MEMORY),
            pids: self.pids.filter(|_| wall != PIDS),
            cpu: self.cpu.filter(|_| wall != CPU),
        }
    }
}

/// The cgroup of one cell.
#[derive(Debug)]
pub struct Cgroup {
    /// Its directories: one with v2, one per hierarchy with v1.
    dirs: Vec<PathBuf>,
    /// The open files through which a process enters: `tasks` with v1, `cgroup.procs` with v2. None
    /// once the first process has entered.
    entry_files: Vec<File>,
    /// v2: the open directory, for `CLONE_INTO_CGROUP`.
    start_in: Option<File>,
    gauges: CgroupGauges,
    /// What is needed to reuse it, if that is possible.
    renewal: Option<Box<RenewalDirs>>,
    /// The most processor time with which it is reused.
    most_cpu_time: Duration,
}

/// v1: the limit of the queues of its sockets.
const SOCKET_LIMIT: &str = "memory.kmem.tcp.limit_in_bytes";
/// That limit is this part of the memory limit.
const SOCKET_SHARE: u64 = 4;

/// How a new process enters a cgroup.
#[derive(Clone, Debug, Default)]
pub struct CgroupEntry {
    /// v2: `clone3` starts it in this directory.
    pub start_in: Option<RawFd>,
    /// v1: it writes to these `tasks` files.
    pub tasks: Vec<RawFd>,
}

/// Open files with the usage of a cgroup. A process without privileges can read them.
#[derive(Debug, Default)]
pub struct CgroupGauges {
    /// The number of processes that the OOM killer has killed.
    pub oom: Option<File>,
    /// Processor time.
    pub cpu: Option<File>,
    /// The peak of memory.
    pub peak: Option<File>,
    /// `cpu.idle`, open for writing: with 1 the members run only on an otherwise idle processor.
    pub idle: Option<File>,
}

impl Cgroup {
    /// Makes the directories and sets the limits.
    pub fn create(
        hierarchy: &CgroupHierarchy,
        name: &str,
        limits: CgroupLimits,
    ) -> io::Result<Self> {
        let group = match hierarchy {
            CgroupHierarchy::V2 { base, .. } => Self::create_v2(&base.join(name), limits),
            CgroupHierarchy::V1(controllers) => Self::create_v1(controllers, name, limits),
        };
        group.inspect_err(|_| {
            hierarchy.cell_dirs(name).iter().for_each(|dir| drop(fs::remove_dir(dir)))
        })
    }

    fn create_v2(dir: &Path, limits: CgroupLimits) -> io::Result<Self> {
        fs::create_dir(dir)?;
        if let Some(memory) = limits.memory {
            fs::write(dir.join("memory.max"), memory.to_string())?;
            // A kernel without swap support has no such file.
            write_if_there(&dir.join("memory.swap.max"), "0")?;
            // The OOM killer kills the whole cell, not one process, so the end is always the same.
            fs::write(dir.join("memory.oom.group"), "1")?;
        }
        if let Some(pids) = limits.pids {
            fs::write(dir.join("pids.max"), pids.to_string())?;
        }
        if let Some(milli) = limits.cpu {
            fs::write(dir.join("cpu.max"), format!("{} 100000", u64::from(milli) * 100))?;
        }
        let gauges = CgroupGauges {
            oom: File::open(dir.join("memory.events")).ok(),
            cpu: File::open(dir.join("cpu.stat")).ok(),
            peak: File::open(dir.join("memory.peak")).ok(),
            idle: open_idle(dir),
        };
        let start_in = Some(File::open(dir)?);
        let entry_files = vec![File::options().write(true).open(dir.join("cgroup.procs"))?];
        let (dirs, most_time) = (vec![dir.to_owned()], limits.most_cpu_time());
        Ok(Self { dirs, entry_files, start_in, gauges, renewal: None, most_cpu_time: most_time })
    }

    fn create_v1(
        controllers: &V1Controllers,
        name: &str,
        limits: CgroupLimits,
    ) -> io::Result<Self> {
        let mut dirs: Vec<PathBuf> = Vec::new();
        let mut make = |base: &Option<PathBuf>| -> io::Result<Option<PathBuf>> {
            let Some(dir) = base.as_ref().map(|base| base.join(name)) else { return Ok(None) };
            if !dirs.contains(&dir) {
                fs::create_dir(&dir)?;
                dirs.push(dir.clone());
            }
            Ok(Some(dir))
        };
        let mut gauges = CgroupGauges::default();
        if let Some(dir) = make(&controllers.memory)? {
            if let Some(memory) = limits.memory {
                fs::write(dir.join("memory.limit_in_bytes"), memory.to_string())?;
                write_if_there(&dir.join("memory.memsw.limit_in_bytes"), &memory.to_string())?;
                // The queues of TCP and UDP are counted apart, and only if they have a limit.
                write_if_there(&dir.join(SOCKET_LIMIT), &(memory / SOCKET_SHARE).to_string())?;
            }
            gauges.oom = File::open(dir.join("memory.oom_control")).ok();
            gauges.peak = File::open(dir.join("memory.max_usage_in_bytes")).ok();
        }
        if let (Some(dir), Some(pids)) = (make(&controllers.pids)?, limits.pids) {
            fs::write(dir.join("pids.max"), pids.to_string())?;
        }
        if let (Some(dir), Some(milli)) = (make(&controllers.cpu)?, limits.cpu) {
            fs::write(dir.join("cpu.cfs_quota_us"), (u64::from(milli) * 100).to_string())?;
            gauges.idle = open_idle(&dir);
        }
        if let Some(dir) = make(&controllers.cpuacct)? {
            gauges.cpu = File::open(dir.join("cpuacct.usage")).ok();
        }
        let entry_files = open_tasks(&dirs)?;
        let renewal = RenewalDirs::of_cell(controllers, name).map(Box::new);
        Ok(Self {
            dirs,
            entry_files,
            start_in: None,
            gauges,
            renewal,
            most_cpu_time: limits.most_cpu_time(),
        })
    }

    /// How a new process enters; valid as long as this value lives.
    #[must_use]
    pub fn entry(&self) -> CgroupEntry {
        match &self.start_in {
            Some(directory) => {
                CgroupEntry { start_in: Some(directory.as_raw_fd()), tasks: Vec::new() }
            }
            None => CgroupEntry { start_in: None, tasks: self.entry_fds() },
        }
    }

    /// The files through which an existing process enters: it writes `0` to each. The kernel checks
    /// the rights of the process that opened them, so the writer needs none.
    #[must_use]
    pub fn entry_fds(&self) -> Vec<RawFd> {
        self.entry_files.iter().map(AsRawFd::as_raw_fd).collect()
    }

    /// The open files with its usage.
    #[must_use]
    pub const fn gauges(&self) -> &CgroupGauges {
        &self.gauges
    }

    /// Reads its usage.
    #[must_use]
    pub fn read_usage(&self) -> Option<CgroupReading> {
        self.gauges.read_all()
    }

    /// Kills every member, with v2; with v1 the end of the pid namespace does. A killed process
    /// needs processor time to exit: throttled by a quota it gets that a tenth of a second later,
    /// on a busy host even later. So the quota is lifted, and the members get a high weight.
    pub fn kill(&self) {
        // On an old v2 without cgroup.kill the end of the cell's pid 1 has the same effect.
        const V2: &[(&str, &str)] =
            &[("cpu.max", "max"), ("cpu.idle", "0"), ("cpu.weight", "10000"), ("cgroup.kill", "1")];
        // While cpu.idle is set, cpu.shares cannot be.
        const V1: &[(&str, &str)] =
            &[("cpu.cfs_quota_us", "-1"), ("cpu.idle", "0"), ("cpu.shares", "262144")];
        let settings = if self.start_in.is_some() { V2 } else { V1 };
        for (dir, (file, value)) in
            self.dirs.iter().flat_map(|dir| settings.iter().map(move |s| (dir, s)))
        {
            // The directories of other v1 controllers do not have these files.
            drop(fs::write(dir.join(file), value));
        }
    }

    /// Removes the directories that have no members; returns true if none is left. A member that
    /// has not exited yet keeps its directory: call again.
    pub fn remove(&mut self) -> bool {
        self.dirs.retain(|dir| match fs::remove_dir(dir) {
            Err(error) => error.kind() != io::ErrorKind::NotFound,
            Ok(()) => false,
        });
        self.dirs.is_empty()
    }
}

/// v1: the files through which a process enters, one for each directory.
fn open_tasks(dirs: &[PathBuf]) -> io::Result<Vec<File>> {
    dirs.iter().map(|dir| File::options().write(true).open(dir.join("tasks"))).collect()
}

/// Kernels before 5.15 have no such file.
fn open_idle(dir: &Path) -> Option<File> {
    File::options().write(true).open(dir.join("cpu.idle")).ok()
}

fn write_if_there(path: &Path, value: &str) -> io::Result<()> {
    match fs::write(path, value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        written => written,
    }
}

/// The usage of a cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupReading {
    /// Processes that were killed because the memory limit was reached.
    pub oom_kills: u64,
    /// Processor time of all members.
    pub cpu: Duration,
    /// The peak of memory.
    pub peak: u64,
}

impl CgroupGauges {
    /// Reads all of them; one that the host does not have is zero. `None` after the cgroup was
    /// removed: the open files outlive it, but reading them fails.
    #[must_use]
    pub fn read_all(&self) -> Option<CgroupReading> {
        let text = |gauge: &Option<File>| gauge.as_ref().map_or(Some(String::new()), read_text);
        let (oom, cpu, peak) = (text(&self.oom)?, text(&self.cpu)?, text(&self.peak)?);
        Some(CgroupReading {
            oom_kills: parse_field(&oom, "oom_kill").unwrap_or(0),
            cpu: parse_field(&cpu, "usage_usec")
                .map(Duration::from_micros)
                .or_else(|| cpu.trim().parse().ok().map(Duration::from_nanos))
                .unwrap_or_default(),
            peak: peak.trim().parse().unwrap_or(0),
        })
    }
}

/// The content of a gauge. The kernel returns it in one read, and it is short.
fn read_text(file: &File) -> Option<String> {
    let mut text = [0; 1024];
    let len = file.read_at(&mut text, 0).ok()?;
    String::from_utf8(text[..len].to_vec()).ok()
}

fn read_number(file: &File) -> Option<u64> {
    read_text(file)?.trim().parse().ok()
}

/// The number after a name in a file of `name number` lines.
fn parse_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.split(' ').next() == Some(name))?;
    line.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_matched_by_their_whole_name() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\noom_group_kill 9\n";
        assert_eq!(parse_field(text, "oom_kill"), Some(3));
        assert_eq!(parse_field(text, "oom"), None);
    }

    #[test]
    fn without_wall_removes_one_limit_only() {
        let limits = CgroupLimits { memory: Some(1), pids: Some(2), cpu: Some(3) };
        let names: Vec<_> = limits.without_wall(PIDS).wall_names().collect();
        assert_eq!(names, [MEMORY, CPU]);
    }
}
