//! Runs in: spawner (an ordinary user). What contained cells are made with: they have no root of
//! their own, so Landlock decides what of the container they see.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use cloche_jail::{
    cgroup::CgroupEntry,
    launch::{LaunchKind, LaunchRequest, launch_cell},
    plan::{ContainedView, ImageView, ReadAccess},
};

use super::{
    cell_registry::CellRegistry,
    home_target::HomeMountPoint,
    host_ids::HostIds,
    host_setup::{self, HostSetup},
    image,
    plan_cache::CellPlanKind,
    scratch_dir::{ScratchDir, remove_tree},
};
use crate::protocol::{CellConfig, CellId, SITE_DIR, contained_cell_dir, is_plain_name};

/// Directories of programs and libraries.
const PROGRAMS: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
/// What programs read of `/etc` besides the list of the image.
const ACCOUNTS: [&str; 4] = ["passwd", "group", "nsswitch.conf", "hosts"];
/// Facts about the kernel and the machine. Of processes, only the main one sees itself.
const FACTS: [&str; 11] = [
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/loadavg",
    "/proc/uptime",
    "/proc/version",
    "/proc/filesystems",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system/cpu",
];
/// Devices to read and write.
const DEVICES: [&str; 5] = ["/dev/null", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];
/// Only to read: if it is open for writing, a shared mapping of it is memory that the process watch
/// cannot see.
const ZEROS: &str = "/dev/zero";
/// The walls that a contained cell does not have.
const ABSENT: [&str; 13] = [
    "namespace:user",
    "namespace:mount",
    "namespace:pid",
    "namespace:net",
    "namespace:ipc",
    "namespace:uts",
    "namespace:cgroup",
    "names",
    "disk",
    "root",
    "dev",
    "proc",
    "sockets",
];
/// The version of Landlock that can restrict signals.
const LANDLOCK_SCOPES: u32 = 6;

/// Where contained cells are made, and what they see.
pub(super) struct ContainedHost {
    scratch: PathBuf,
    pub(super) view: ContainedView,
    hides_packages: bool,
}

impl ContainedHost {
    /// Makes the directory of a cell.
    pub(super) fn make_cell_dir(&self, name: &str) -> io::Result<ScratchDir> {
        if !is_plain_name(name) {
            return Err(io::Error::other("the directory of a cell is a plain name"));
        }
        ScratchDir::create(contained_cell_dir(&self.scratch, name), self.hides_packages)
    }

    /// Removes the directories of all cells, at the end of the spawner.
    pub(super) fn remove_scratch(&self) {
        let removed = remove_cell_dirs(&self.scratch).and_then(|()| remove_tree(&self.scratch));
        if let Err(error) = removed {
            tracing::warn!(%error, "could not remove the directories of contained cells");
        }
    }
}

impl CellRegistry<'_> {
    /// Clones a contained cell, in a new directory of this name.
    pub(super) fn spawn_contained(
        &mut self,
        cell: CellId,
        config: &CellConfig,
        directory: &str,
        fds: &[OwnedFd],
    ) -> io::Result<()> {
        let [stdin, stdout, stderr, job, control] = fds else {
            return Err(io::Error::other("a cell needs five file descriptors"));
        };
        let at = self.plans.find_or_build(config, CellPlanKind::Contained)?;
        let prepared = self.plans.get(at);
        let (limits, guest) = (prepared.plan.cgroup, prepared.plan.guest);
        let host = self.plans.host.contained.as_ref();
        let host = host.ok_or_else(|| io::Error::other("cells have namespaces here"))?;
        let made = host.make_cell_dir(directory)?;
        let home = made.home();
        let watch = self.plans.watch_cell(config);
        self.register_cell(cell, limits, watch, HomeMountPoint::InCell)?;
        if let Some(record) = self.cells.get_mut(&cell) {
            record.directory = Some(made);
        }
        // The new process starts in its home: its plan is the same for every cell.
        std::env::set_current_dir(&home)?;
        let launched = launch_cell(&LaunchRequest {
            namespaces: 0,
            program: self.plans.get(at).encoded_steps(false),
            network: None,
            identity: self.plans.cell_identity(CellPlanKind::Contained, 0),
            guest,
            cgroup: CgroupEntry::default(),
            stdio: [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()],
            job: job.as_fd(),
            control: control.as_fd(),
            fork: None,
            kind: LaunchKind::Contained,
        });
        std::env::set_current_dir("/")?;
        self.mark_running(cell, launched?.pidfd)
    }
}

/// Finds out what contained cells can have here, and names what they lack.
pub(super) fn prepare_contained_host(
    scratch: &OwnedFd,
    hides_packages: bool,
) -> io::Result<HostSetup> {
    let scratch = fs::read_link(format!("/proc/self/fd/{}", scratch.as_raw_fd()))?;
    // An event loop that died may have left directories.
    remove_cell_dirs(&scratch)?;
    let facts = host_setup::read_host_facts();
    let mut missing: Vec<(String, String)> = Vec::new();
    let mut lacks = |wall: &str, why: &str| missing.push((wall.to_owned(), why.to_owned()));
    for wall in ABSENT {
        lacks(wall, "a contained cell has no namespaces");
    }
    for wall in ["cgroups", "host-uid"] {
        lacks(wall, "a contained cell has the user and the cgroup of the server");
    }
    if rustix::process::geteuid().is_root() {
        lacks("capabilities", "a contained cell needs an ordinary user, and this one is root");
    }
    if facts.landlock == 0 {
        lacks("landlock", "this kernel has no Landlock, or it is off");
    }
    if facts.landlock < LANDLOCK_SCOPES {
        lacks("signals", "Landlock restricts signals from version 6 on (Linux 6.12)");
    }
    if fs::read("/proc/thread-self/children").is_err() {
        lacks("process-watch", "this kernel does not list the children of a process");
    }
    let hidden = if hides_packages { image::list_package_dirs(Path::new("/")) } else { Vec::new() };
    let view = ContainedView {
        readable: list_readable(&hidden),
        devices: DEVICES.map(PathBuf::from).into(),
    };
    let contained = ContainedHost { scratch, view, hides_packages };
    Ok(HostSetup {
        image: ImageView {
            tree: "/".into(),
            binds: Vec::new(),
            dev: "/dev".into(),
            hidden: Vec::new(),
            read_only: false,
        },
        stage: "/".into(),
        facts,
        cgroups: None,
        privileged: false,
        ids: HostIds::SHARED,
        missing,
        contained: Some(contained),
        tun_node: None,
        mount_devices: None,
        _open: Vec::new(),
    })
}

/// Removes the directories of cells beside `scratch`.
fn remove_cell_dirs(scratch: &Path) -> io::Result<()> {
    let all_begin_with = contained_cell_dir(scratch, "");
    let prefix = all_begin_with.file_name().unwrap_or_default().as_encoded_bytes();
    for entry in fs::read_dir(scratch.parent().unwrap_or(scratch))? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(prefix) {
            remove_tree(&entry.path())?;
        }
    }
    Ok(())
}

/// Everything that a contained cell may read. A rule of Landlock includes everything below a
/// directory, so where something below is hidden, its siblings are listed instead.
fn list_readable(hidden: &[PathBuf]) -> Vec<(PathBuf, ReadAccess)> {
    let etc = image::FROM_HOST_ETC.iter().chain(&ACCOUNTS).map(|name| Path::new("/etc").join(name));
    let all = PROGRAMS.iter().chain(&FACTS).chain([&ZEROS]).map(PathBuf::from).chain(etc);
    let mut readable = vec![(Path::new("..").join(SITE_DIR), ReadAccess::Directory)];
    for path in all {
        list_except(&path, hidden, &mut readable);
    }
    readable
}

fn list_except(path: &Path, hidden: &[PathBuf], out: &mut Vec<(PathBuf, ReadAccess)>) {
    // A link is followed: `/lib` leads into `/usr`, where something may be hidden.
    let found = if path.starts_with("/proc") { Ok(path.to_owned()) } else { path.canonicalize() };
    let Ok(found) = found else { return };
    if hidden.contains(&found) || out.iter().any(|(listed, _)| *listed == found) {
        return;
    }
    let Ok(metadata) = fs::metadata(&found) else { return };
    if !hidden.iter().any(|hidden| hidden.starts_with(&found)) {
        let access = if metadata.is_dir() { ReadAccess::Directory } else { ReadAccess::File };
        out.push((found, access));
        return;
    }
    if found.join("os.py").exists() {
        // The standard library, with packages in a directory of it. Python finds modules by
        // listing it.
        out.push((found.clone(), ReadAccess::Names));
    }
    for entry in fs::read_dir(&found).into_iter().flatten().flatten() {
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        if !is_link {
            list_except(&entry.path(), hidden, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_of_what_is_hidden_are_listed_instead_of_their_parent() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let packages = ["lib/python3/dist-packages", "lib/python3.9/site-packages"];
        for path in packages.into_iter().chain(["lib/python3/other", "lib/c", "bin"]) {
            fs::create_dir_all(root.join(path)).unwrap();
        }
        fs::write(root.join("lib/python3.9/os.py"), "x").unwrap();
        let mut out = Vec::new();
        list_except(&root, &packages.map(|path| root.join(path)), &mut out);
        out.sort();
        let expected = [
            ("bin", ReadAccess::Directory),
            ("lib/c", ReadAccess::Directory),
            ("lib/python3/other", ReadAccess::Directory),
            ("lib/python3.9", ReadAccess::Names),
            ("lib/python3.9/os.py", ReadAccess::File),
        ];
        assert_eq!(out, expected.map(|(path, access)| (root.join(path), access)));
    }
}
