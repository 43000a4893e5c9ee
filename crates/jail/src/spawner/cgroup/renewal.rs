//! Runs in: spawner (root).
//!
//! Resets a cgroup after a cell that has left nothing in it, so that another cell can have it.

use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::FileExt,
    path::PathBuf,
};

use super::{Cgroup, V1Controllers, open_tasks, read_number};

/// The files to reset a v1 cgroup. A cell that printed a line leaves only counters in its cgroup,
/// and making and removing four directories takes half a millisecond. They are open only for that:
/// each new cell copies and closes every descriptor of the spawner.
struct RenewalFiles {
    /// The number of its members.
    members: File,
    /// The memory that is charged to it.
    memory: File,
    /// The queues of its sockets, if the kernel counts them.
    sockets: Option<File>,
    /// The counters of processor time and of peak memory; a write resets them. They are opened
    /// apart from the gauges, which the server has, too.
    counters: [File; 2],
}

/// The directories in which a cgroup has its [`RenewalFiles`].
#[derive(Debug)]
pub(super) struct RenewalDirs {
    pids: PathBuf,
    memory: PathBuf,
    cpuacct: PathBuf,
}

impl RenewalDirs {
    pub(super) fn of_cell(controllers: &V1Controllers, name: &str) -> Option<Self> {
        let dir = |base: &Option<PathBuf>| Some(base.as_ref()?.join(name));
        Some(Self {
            pids: dir(&controllers.pids)?,
            memory: dir(&controllers.memory)?,
            cpuacct: dir(&controllers.cpuacct)?,
        })
    }

    fn open_files(&self) -> io::Result<RenewalFiles> {
        let write = |path: PathBuf| File::options().write(true).open(path);
        Ok(RenewalFiles {
            members: File::open(self.pids.join("pids.current"))?,
            memory: File::open(self.memory.join("memory.usage_in_bytes"))?,
            sockets: File::open(self.memory.join("memory.kmem.tcp.usage_in_bytes")).ok(),
            counters: [
                write(self.cpuacct.join("cpuacct.usage"))?,
                write(self.memory.join("memory.max_usage_in_bytes"))?,
            ],
        })
    }
}

impl RenewalFiles {
    /// Whether it has no members and hardly any memory is charged to it.
    fn is_empty(&self) -> bool {
        read_number(&self.members) == Some(0)
            && read_number(&self.memory).is_some_and(|bytes| bytes <= MOST_LEFT_OVER)
            && self.sockets.as_ref().is_none_or(|sockets| read_number(sockets) == Some(0))
    }

    fn reset_counters(&self) -> bool {
        self.counters.iter().all(|mut counter| counter.write_all(b"0").is_ok())
    }
}

/// The most memory that may be charged to a cgroup that is reused: the kernel keeps dentries, and
/// pages for the next charge.
const MOST_LEFT_OVER: u64 = 1 << 20;
/// The part of a quota period, a tenth of a second, that the last members of a reused cgroup may
/// have used: a tenth of it. The rest is left for the next members.
pub(super) const MOST_TIME: u32 = 10;

impl Cgroup {
    /// Whether [`Cgroup::renew`] can succeed on this host.
    #[must_use]
    pub const fn is_renewable(&self) -> bool {
        self.renewal.is_some()
    }

    /// Closes the files through which processes enter, when the first process of a cell has them.
    pub fn close_entry(&mut self) {
        self.entry_files.clear();
    }

    /// Resets it for the next cell, if the last one has left nothing in it: no member, hardly any
    /// memory or processor time, no OOM kill. Not after [`Cgroup::kill`], which changes the limits.
    /// If it returns false, the cgroup can still be removed.
    #[must_use]
    pub fn renew(&mut self) -> bool {
        let Some(used) = self.gauges.read_all() else { return false };
        let hardly_used = used.oom_kills == 0 && used.cpu <= self.most_cpu_time;
        let renewal = self.renewal.as_deref().filter(|_| hardly_used);
        let Some(Ok(files)) = renewal.map(RenewalDirs::open_files) else { return false };
        let is_new = files.is_empty() && files.reset_counters();
        let reset_idle = |idle: &File| idle.write_all_at(b"0", 0).is_ok();
        if !is_new || !self.gauges.idle.as_ref().is_none_or(reset_idle) {
            return false;
        }
        let entry_files = open_tasks(&self.dirs);
        self.entry_files = entry_files.unwrap_or_default();
        self.entry_files.len() == self.dirs.len()
    }
}
