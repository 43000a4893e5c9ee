//! Control groups: what a box may use, and what it did use; v2 where the host has it, else v1.
//!
//! Knows the files of both versions. Does not know who the box is for.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::{
        fd::{AsRawFd, RawFd},
        unix::fs::FileExt,
    },
    path::{Path, PathBuf},
    time::Duration,
};

mod hierarchy;
mod page_cache;

pub use hierarchy::{CgroupHierarchy, V1Controllers};

/// What a cgroup holds its members to; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CgroupLimits {
    /// Bytes of memory; swap is not given.
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

    /// The same without one wall.
    #[must_use]
    pub fn without_wall(self, wall: &str) -> Self {
        Self {
            memory: self.memory.filter(|_| wall != MEMORY),
            pids: self.pids.filter(|_| wall != PIDS),
            cpu: self.cpu.filter(|_| wall != CPU),
        }
    }
}

/// One box's place in the control groups of the host.
#[derive(Debug)]
pub struct Cgroup {
    /// Its directories: one with v2, one per hierarchy with v1.
    dirs: Vec<PathBuf>,
    /// The open files that a process gets in by: v1's `tasks`, v2's `cgroup.procs`.
    entry_files: Vec<File>,
    /// v2: the open directory, to be born in.
    born_in: Option<File>,
    gauges: CgroupGauges,
    /// What it takes to be used again, where that can be done.
    renewal: Option<RenewalFiles>,
    /// The processor time after which it is not.
    most_cpu_time: Duration,
}

/// The files that make a v1 cgroup as good as new. The members of a box that printed a line leave
/// nothing in its cgroup but counters, and four directories take half a millisecond to be made and
/// removed.
#[derive(Debug)]
struct RenewalFiles {
    /// How many processes are in it.
    members: File,
    /// The memory that is charged to it now.
    memory: File,
    /// What its sockets queue now, where that is counted.
    sockets: Option<File>,
    /// The counters of time and of the most memory, which begin anew when they are written to. Not
    /// the gauges, which others have, too.
    counters: [File; 2],
}

impl RenewalFiles {
    fn open_for_cell(controllers: &V1Controllers, name: &str) -> io::Result<Self> {
        let file = |base: &Option<PathBuf>, file: &str| match base {
            Some(base) => Ok(base.join(name).join(file)),
            None => Err(io::Error::from(io::ErrorKind::NotFound)),
        };
        let write = |path: PathBuf| File::options().write(true).open(path);
        Ok(Self {
            members: File::open(file(&controllers.pids, "pids.current")?)?,
            memory: File::open(file(&controllers.memory, "memory.usage_in_bytes")?)?,
            sockets: File::open(file(&controllers.memory, "memory.kmem.tcp.usage_in_bytes")?).ok(),
            counters: [
                write(file(&controllers.cpuacct, "cpuacct.usage")?)?,
                write(file(&controllers.memory, "memory.max_usage_in_bytes")?)?,
            ],
        })
    }

    /// Whether nobody is in it, and hardly any memory is charged to it.
    fn is_empty(&self) -> bool {
        read_number(&self.members) == Some(0)
            && read_number(&self.memory).is_some_and(|bytes| bytes <= MOST_LEFT_OVER)
            && self.sockets.as_ref().is_none_or(|sockets| read_number(sockets) == Some(0))
    }

    fn reset_counters(&self) -> bool {
        self.counters.iter().all(|mut counter| counter.write_all(b"0").is_ok())
    }
}

/// What may be charged to a cgroup that is used again: the kernel keeps names of files, and pages
/// for the next charge.
const MOST_LEFT_OVER: u64 = 1 << 20;
/// The part of a quota's period of a tenth of a second that members may have used of a cgroup that is
/// used again: the rest is for the next ones.
const MOST_TIME: u32 = 10;

/// v1: what its sockets may queue.
const SOCKET_LIMIT: &str = "memory.kmem.tcp.limit_in_bytes";
/// As a part of the memory limit.
const SOCKET_SHARE: u64 = 4;

/// How a new process gets in.
#[derive(Clone, Debug, Default)]
pub struct CgroupEntry {
    /// v2: be born in this directory.
    pub born_in: Option<RawFd>,
    /// v1: write to these `tasks` files.
    pub tasks: Vec<RawFd>,
}

/// Open files that tell what a cgroup has used; they can be read by a process without privileges.
#[derive(Debug, Default)]
pub struct CgroupGauges {
    /// Counts processes killed for memory.
    pub oom: Option<File>,
    /// Processor time.
    pub cpu: Option<File>,
    /// The most memory at once.
    pub peak: Option<File>,
    /// `cpu.idle`, to be written: 1 makes the members run only when nothing else wants to.
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
            // Without swap support in the kernel there is no such file, and nothing to forbid.
            write_if_there(&dir.join("memory.swap.max"), "0")?;
            // The whole box goes, not one process of it, so the ending is the same every time.
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
        let born_in = Some(File::open(dir)?);
        let doors = vec![File::options().write(true).open(dir.join("cgroup.procs"))?];
        let (dirs, most_time) = (vec![dir.to_owned()], limits.most_cpu_time());
        Ok(Self {
            dirs,
            entry_files: doors,
            born_in,
            gauges,
            renewal: None,
            most_cpu_time: most_time,
        })
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
                // What TCP and UDP queue is counted for itself, and only where it has a limit.
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
        let open = |dir: &PathBuf| File::options().write(true).open(dir.join("tasks"));
        let doors = dirs.iter().map(open).collect::<io::Result<_>>()?;
        let renewal = RenewalFiles::open_for_cell(controllers, name).ok();
        Ok(Self {
            dirs,
            entry_files: doors,
            born_in: None,
            gauges,
            renewal,
            most_cpu_time: limits.most_cpu_time(),
        })
    }

    /// How a new process gets in; valid as long as this value lives.
    #[must_use]
    pub fn entry(&self) -> CgroupEntry {
        match &self.born_in {
            Some(directory) => {
                CgroupEntry { born_in: Some(directory.as_raw_fd()), tasks: Vec::new() }
            }
            None => CgroupEntry { born_in: None, tasks: self.entry_fds() },
        }
    }

    /// The files by which a process that exists already gets in: it writes `0` to each. The kernel
    /// asks who opened them, so they work for a process without rights of its own.
    #[must_use]
    pub fn entry_fds(&self) -> Vec<RawFd> {
        self.entry_files.iter().map(AsRawFd::as_raw_fd).collect()
    }

    /// What it has used.
    #[must_use]
    pub const fn gauges(&self) -> &CgroupGauges {
        &self.gauges
    }

    /// Reads what it has used.
    #[must_use]
    pub fn read_usage(&self) -> Option<CgroupReading> {
        self.gauges.read_all()
    }

    /// Kills every member at once. With v1 this is the pid namespace's work. Dying takes processor
    /// time: who is held back by a quota gets it a tenth of a second later, who shares a busy
    /// machine later still. So the quota is lifted, and the dying go first.
    pub fn kill(&self) {
        // An old v2 without cgroup.kill: killing pid 1 of the box does the same.
        const V2: &[(&str, &str)] =
            &[("cpu.max", "max"), ("cpu.idle", "0"), ("cpu.weight", "10000"), ("cgroup.kill", "1")];
        // While cpu.idle is set, cpu.shares cannot be.
        const V1: &[(&str, &str)] =
            &[("cpu.cfs_quota_us", "-1"), ("cpu.idle", "0"), ("cpu.shares", "262144")];
        let settings = if self.born_in.is_some() { V2 } else { V1 };
        for (dir, (file, value)) in
            self.dirs.iter().flat_map(|dir| settings.iter().map(move |s| (dir, s)))
        {
            // Not there in the directories of other controllers.
            drop(fs::write(dir.join(file), value));
        }
    }

    /// Whether [`Cgroup::renew`] is worth trying here.
    #[must_use]
    pub const fn is_renewable(&self) -> bool {
        self.renewal.is_some()
    }

    /// Makes it as good as new for the next box, if this one has left nothing there: no member, hardly
    /// any memory or time, nobody killed for memory. Not after [`Cgroup::kill`], which changes the
    /// limits. False is no harm: it can still be removed.
    #[must_use]
    pub fn renew(&self) -> bool {
        let (Some(renewal), Some(used)) = (&self.renewal, self.gauges.read_all()) else {
            return false;
        };
        let hardly_used = used.oom_kills == 0 && used.cpu <= self.most_cpu_time;
        let is_new = hardly_used && renewal.is_empty() && renewal.reset_counters();
        is_new && self.gauges.idle.as_ref().is_none_or(|idle| idle.write_all_at(b"0", 0).is_ok())
    }

    /// Removes the directories that can go; true when none is left. Members that are still dying
    /// keep theirs for a moment: call again.
    pub fn remove(&mut self) -> bool {
        self.dirs.retain(|dir| match fs::remove_dir(dir) {
            Err(error) => error.kind() != io::ErrorKind::NotFound,
            Ok(()) => false,
        });
        self.dirs.is_empty()
    }
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

/// What a cgroup has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupReading {
    /// Processes killed because the memory limit was reached.
    pub oom_kills: u64,
    /// Processor time of all members.
    pub cpu: Duration,
    /// The most memory at once.
    pub peak: u64,
}

impl CgroupGauges {
    /// Reads them all; one that the host does not have is zero. Nothing once the cgroup has been
    /// removed: open files outlive it, but tell no more.
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

/// Everything in a gauge. The kernel gives it at once, and it is never long.
fn read_text(file: &File) -> Option<String> {
    let mut text = [0; 1024];
    let len = file.read_at(&mut text, 0).ok()?;
    String::from_utf8(text[..len].to_vec()).ok()
}

fn read_number(file: &File) -> Option<u64> {
    read_text(file)?.trim().parse().ok()
}

/// The number after a name, in a file of `name number` lines.
fn parse_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.split(' ').next() == Some(name))?;
    line.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\noom_group_kill 9\n";
        assert_eq!(parse_field(text, "oom_kill"), Some(3));
        assert_eq!(parse_field(text, "oom"), None);
    }

    #[test]
    fn a_limit_left_out_is_only_that_one() {
        let limits = CgroupLimits { memory: Some(1), pids: Some(2), cpu: Some(3) };
        let names: Vec<_> = limits.without_wall(PIDS).wall_names().collect();
        assert_eq!(names, [MEMORY, CPU]);
    }
}
