//! Runs in: spawner (root).
//!
//! Finds where the spawner can make cgroups on this host, and makes its own directory there.

use std::{
    fs::{self, File},
    io,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    process,
};

use crate::sys::Errno;

/// The hierarchy below which cells get their cgroups.
#[derive(Clone, Debug)]
pub enum CgroupHierarchy {
    /// One tree for every controller.
    V2 {
        /// The directory below which cells get theirs.
        base: PathBuf,
        /// The controllers that cells can have.
        controllers: Vec<String>,
    },
    /// A tree per controller.
    V1(V1Controllers),
}

/// The v1 directories below which cells get theirs, by controller.
#[derive(Clone, Debug, Default)]
pub struct V1Controllers {
    /// Memory and swap.
    pub memory: Option<PathBuf>,
    /// Processes and threads.
    pub pids: Option<PathBuf>,
    /// Processor quota.
    pub cpu: Option<PathBuf>,
    /// Processor accounting.
    pub cpuacct: Option<PathBuf>,
}

/// The directories of one spawner are named by this prefix and its pid. A spawner of another pid
/// namespace can have the same pid, so a number may follow.
const PREFIX: &str = "cloche.";
/// How often members are moved out of a cgroup in which others are born meanwhile.
const MOST_MOVES: u32 = 100;
/// The most spawners of one pid.
const MAX_NAMESAKES: u32 = 64;
const WANTED: [&str; 3] = ["memory", "pids", "cpu"];

/// A mount of the host: mount point, root within the file system, type and options.
struct MountInfo {
    point: PathBuf,
    root: String,
    kind: String,
    options: String,
}

impl CgroupHierarchy {
    /// Finds the hierarchies of this host and makes the spawner's own directory in each. Its
    /// directories are locked while the returned files are open; without them another spawner
    /// removes the directories as those of a dead one.
    pub fn claim_on_host() -> io::Result<(Self, Vec<OwnedFd>)> {
        let mounts = parse_mountinfo(&fs::read_to_string("/proc/self/mountinfo")?);
        let own = fs::read_to_string("/proc/self/cgroup")?;
        for namesake in 0..MAX_NAMESAKES {
            let name = own_dir_name(namesake);
            let found = Self::find_v2(&mounts, &own, &name)
                .or_else(|_| Self::find_v1(&mounts, &own, &name))?;
            if namesake == 0 {
                for base in found.base_dirs() {
                    remove_stale_dirs(base.parent().unwrap_or(base));
                }
            }
            if let Some(locks) = found.claim_dirs()? {
                found.delegate_controllers()?;
                return Ok((found, locks));
            }
        }
        Err(io::Error::other("there are too many directories of spawners with this pid"))
    }

    /// Makes the directories and locks them; `None` if one of them is another spawner's.
    fn claim_dirs(&self) -> io::Result<Option<Vec<OwnedFd>>> {
        let mut claimed: Vec<(&PathBuf, File)> = Vec::new();
        for base in self.base_dirs() {
            // One tree can have two controllers.
            if claimed.iter().any(|(other, _)| *other == base) {
                continue;
            }
            match fs::create_dir(base) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            let Some(lock) = lock_dir(base) else {
                claimed.iter().for_each(|(base, _)| drop(fs::remove_dir(base)));
                return Ok(None);
            };
            claimed.push((base, lock));
        }
        Ok(Some(claimed.into_iter().map(|(_, lock)| lock.into()).collect()))
    }

    fn find_v2(mounts: &[MountInfo], own: &str, name: &str) -> io::Result<Self> {
        let mount =
            mounts.iter().find(|mount| mount.kind == "cgroup2").ok_or_else(no_hierarchy_error)?;
        let dir = own_cgroup_dir(mount, own, "").ok_or_else(no_hierarchy_error)?;
        let controllers = fs::read_to_string(dir.join("cgroup.controllers"))?;
        let controllers: Vec<String> = controllers.split_whitespace().map(str::to_owned).collect();
        if !WANTED.iter().all(|name| controllers.iter().any(|have| have == name)) {
            return Err(no_hierarchy_error());
        }
        Ok(Self::V2 { base: dir.join(name), controllers })
    }

    fn find_v1(mounts: &[MountInfo], own: &str, name: &str) -> io::Result<Self> {
        let base = |controller: &str| {
            let has =
                |mount: &&MountInfo| mount.options.split(',').any(|option| option == controller);
            let mount = mounts.iter().filter(|mount| mount.kind == "cgroup").find(has)?;
            Some(own_cgroup_dir(mount, own, controller)?.join(name))
        };
        let [memory, pids, cpu, cpuacct] = ["memory", "pids", "cpu", "cpuacct"].map(base);
        if memory.is_none() && pids.is_none() && cpu.is_none() {
            return Err(no_hierarchy_error());
        }
        Ok(Self::V1(V1Controllers { memory, pids, cpu, cpuacct }))
    }

    /// v2: enables the controllers for children. The kernel refuses this for a cgroup with members,
    /// so the members of the parent are moved to a leaf first, again while new ones are born in it.
    fn delegate_controllers(&self) -> io::Result<()> {
        let Self::V2 { base, .. } = self else { return Ok(()) };
        let parent = base.parent().unwrap_or(base);
        let enable = WANTED.map(|name| format!("+{name}")).join(" ");
        let mut enabled = fs::write(parent.join("cgroup.subtree_control"), &enable);
        for _ in 0..MOST_MOVES {
            if enabled.is_ok() {
                break;
            }
            move_members(parent, &parent.join("cloche-self"))?;
            enabled = fs::write(parent.join("cgroup.subtree_control"), &enable);
        }
        enabled?;
        fs::write(base.join("cgroup.subtree_control"), &enable)
    }

    fn base_dirs(&self) -> Vec<&PathBuf> {
        match self {
            Self::V2 { base, .. } => vec![base],
            Self::V1(V1Controllers { memory, pids, cpu, cpuacct }) => {
                [memory, pids, cpu, cpuacct].into_iter().flatten().collect()
            }
        }
    }

    /// The directories of a cell by its name.
    #[must_use]
    pub fn cell_dirs(&self, name: &str) -> Vec<PathBuf> {
        self.base_dirs().into_iter().map(|base| base.join(name)).collect()
    }

    /// Removes the spawner's own directories.
    pub fn release(&self) {
        self.base_dirs().into_iter().for_each(|base| drop(fs::remove_dir(base)));
    }

    /// Which limits can be set: memory, processes, processor.
    #[must_use]
    pub fn can_limit(&self) -> [bool; 3] {
        match self {
            Self::V2 { .. } => [true; 3],
            Self::V1(found) => [found.memory.is_some(), found.pids.is_some(), found.cpu.is_some()],
        }
    }
}

/// Moves the members of a cgroup to a leaf, which is made. Members that end meanwhile are left out.
fn move_members(parent: &Path, leaf: &Path) -> io::Result<()> {
    fs::create_dir_all(leaf)?;
    for pid in fs::read_to_string(parent.join("cgroup.procs"))?.lines() {
        match fs::write(leaf.join("cgroup.procs"), pid) {
            Err(error) if error.raw_os_error() == Some(Errno::SRCH.0) => {}
            moved => moved?,
        }
    }
    Ok(())
}

fn no_hierarchy_error() -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        "no usable cgroup hierarchy: neither v2 with memory, pids and cpu nor v1 is available",
    )
}

fn own_dir_name(namesake: u32) -> String {
    match namesake {
        0 => format!("{PREFIX}{}", process::id()),
        _ => format!("{PREFIX}{}-{namesake}", process::id()),
    }
}

/// Locks the directory of a spawner; `None` if it is in use or gone. The kernel gives the lock back
/// when the spawner ends. The pid in the name says nothing of that: a process of another pid
/// namespace does not see it.
fn lock_dir(path: &Path) -> Option<File> {
    let dir = File::open(path).ok()?;
    dir.try_lock().ok()?;
    // Another spawner may have removed it, and a third one made it anew.
    let (locked, named) = (dir.metadata().ok()?, fs::metadata(path).ok()?);
    (locked.ino() == named.ino()).then_some(dir)
}

fn parse_mountinfo(mountinfo: &str) -> Vec<MountInfo> {
    let parse = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, point) = (before.next()?.to_owned(), PathBuf::from(before.next()?));
        let mut after = after.split(' ');
        let kind = after.next()?.to_owned();
        let options = after.nth(1)?.to_owned();
        Some(MountInfo { point, root, kind, options })
    };
    mountinfo.lines().filter_map(parse).collect()
}

/// The directory of this process's cgroup in a mounted hierarchy.
fn own_cgroup_dir(mount: &MountInfo, own: &str, controller: &str) -> Option<PathBuf> {
    let mut lines = own.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        rest.split_once(':')
    });
    let (_, path) =
        lines.find(|(controllers, _)| controllers.split(',').any(|c| c == controller))?;
    let below = Path::new(path).strip_prefix(&mount.root).ok()?;
    Some(mount.point.join(below))
}

/// Cleans up after spawners that no longer exist: kills the members of their cgroups and removes
/// the directories.
fn remove_stale_dirs(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if !entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX)) {
            continue;
        }
        let Some(_lock) = lock_dir(&entry.path()) else { continue };
        for cell in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
            let members = fs::read_to_string(cell.path().join("cgroup.procs")).unwrap_or_default();
            // Members of another pid namespace have the number 0, which would be our own group.
            let members = members.lines().filter_map(|pid| pid.parse::<i32>().ok());
            for member in members.filter(|pid| *pid > 0) {
                let _ = crate::sys::kill(member, 9);
            }
            let _ = fs::remove_dir(cell.path());
        }
        let _ = fs::remove_dir(entry.path());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
30 20 0:25 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
31 20 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
32 20 0:27 /box /sys/fs/cgroup/pids rw,relatime shared:3 - cgroup cgroup rw,pids
33 20 0:28 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn the_own_cgroup_is_found_in_each_hierarchy() {
        let own = "4:memory:/a/b\n3:cpu,cpuacct:/\n2:pids:/box/in\n0::/x\n";
        let mounts = parse_mountinfo(HYBRID);
        let CgroupHierarchy::V1(found) = CgroupHierarchy::find_v1(&mounts, own, "own").unwrap()
        else {
            unreachable!()
        };
        let parent = |path: Option<PathBuf>| path.unwrap().parent().unwrap().to_owned();
        assert_eq!(parent(found.memory), Path::new("/sys/fs/cgroup/memory/a/b"));
        assert_eq!(parent(found.cpu), Path::new("/sys/fs/cgroup/cpu"));
        assert_eq!(parent(found.cpuacct), Path::new("/sys/fs/cgroup/cpu"));
        assert_eq!(parent(found.pids), Path::new("/sys/fs/cgroup/pids/in"));
        assert_eq!(
            own_cgroup_dir(&mounts[3], own, "").unwrap(),
            Path::new("/sys/fs/cgroup/unified/x")
        );
    }

    #[test]
    fn a_directory_is_removed_only_after_its_owner_has_ended() {
        // Ordinary directories have the same locks. The pid in the name is that of no process.
        let parent = Path::new(env!("OUT_DIR")).join("hierarchy-test");
        fs::create_dir_all(&parent).unwrap();
        let base = parent.join("cloche.4194305");
        let cpu = Some(base.clone());
        let found = V1Controllers { cpu: cpu.clone(), cpuacct: cpu, ..V1Controllers::default() };
        let found = CgroupHierarchy::V1(found);
        let locks = found.claim_dirs().unwrap().unwrap();
        assert!(found.claim_dirs().unwrap().is_none());
        remove_stale_dirs(&parent);
        assert!(base.exists());
        drop(locks);
        remove_stale_dirs(&parent);
        assert!(!base.exists());
    }

    #[test]
    fn a_host_without_cgroups_is_an_error() {
        assert!(CgroupHierarchy::find_v1(&[], "", "own").is_err());
        assert!(CgroupHierarchy::find_v2(&[], "", "own").is_err());
    }
}
