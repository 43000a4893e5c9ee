//! The ground a spawner works on: a mount namespace with next to nothing in it.
//!
//! `/usr` with the image's owner, the image's tree, device nodes, `/proc`, an empty stage. All of
//! it on a tmpfs that is the spawner's alone and goes with it: nothing is left on the host. As an
//! ordinary user it lives in a user namespace of its own, where it may do the same.

use std::{
    ffi::CString,
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{MetadataExt, symlink},
        },
    },
    path::{Path, PathBuf},
};

use cloche_jail::{
    cgroup::{CgroupHierarchy, V1Controllers},
    plan::{HostFacts, ImageView},
    proc_masks, speculation,
    sys::{self, CloneRequest, CloneSide, Errno},
};

use super::{
    client::ARG0,
    home_mounter,
    host_ids::{self, HostIds},
};
use crate::image;

const BIND_REC: u64 = 4096 | 16384;
const PRIVATE_REC: u64 = 1 << 18 | 16384;

/// What a spawner has to build boxes with.
pub(super) struct HostSetup {
    pub(super) image: ImageView,
    pub(super) stage: PathBuf,
    pub(super) facts: HostFacts,
    pub(super) cgroups: Option<CgroupHierarchy>,
    /// Whether we may give every cell a host id of its own.
    pub(super) privileged: bool,
    /// The host ids of our cells.
    pub(super) ids: HostIds,
    pub(super) missing: Vec<(String, String)>,
    /// Keeps the cgroup directories reachable after the host's root is gone, and our ids ours.
    _held: Vec<OwnedFd>,
}

/// Leaves the host's mounts for a ground of our own, with the layers of homes on it.
pub(super) fn prepare_host(layers: Option<&OwnedFd>) -> io::Result<HostSetup> {
    let mut missing = Vec::new();
    let (cgroups, mut held) = match CgroupHierarchy::claim_on_host().and_then(hold_cgroup_dirs) {
        Ok((hierarchy, held)) => (Some(hierarchy), held),
        Err(error) => {
            missing.push(("cgroups".to_owned(), error.to_string()));
            (None, Vec::new())
        }
    };
    let can = cgroups.as_ref().map_or([true; 3], CgroupHierarchy::can_limit);
    for (name, _) in ["memory", "pids", "cpu"].into_iter().zip(can).filter(|(_, can)| !can) {
        missing.push((format!("cgroup:{name}"), "this host has no such controller".to_owned()));
    }
    let is_inside = std::env::var_os(INSIDE).is_some();
    let is_root = !is_inside && rustix::process::geteuid().is_root();
    let privileged = is_root && sys::unshare(sys::CLONE_NEWNS).is_ok();
    if !privileged {
        match is_inside {
            true => sys::unshare(sys::CLONE_NEWNS).map_err(io_error)?,
            false => enter_user_namespace(sys::CLONE_NEWNS)?,
        }
        missing
            .push(("host-uid".to_owned(), "only root can give each cell an id of its own".into()));
    }
    let ids = take_host_ids(privileged, &mut held, &mut missing);
    mount_at(c"", Path::new("/"), c"", PRIVATE_REC, c"")?;
    // Taken before the ground covers any path.
    let layers = layers.map(clone_mount_tree).transpose()?;
    let root = Path::new("/tmp");
    mount_at(c"cloche", root, c"tmpfs", 2, c"mode=755")?;
    let image = build_root(root, privileged.then_some(ids))?;
    mount_layers(root, layers)?;
    std::env::set_current_dir(root)?;
    sys::pivot_to_current_dir().map_err(io_error)?;
    let facts = read_host_facts();
    if facts.landlock == 0 {
        missing.push(("landlock".to_owned(), "this kernel has no Landlock, or it is off".into()));
    }
    Ok(HostSetup {
        image,
        stage: "/stage".into(),
        facts,
        cgroups,
        privileged,
        ids,
        missing,
        _held: held,
    })
}

/// The host ids of our cells. Without a range of our own another spawner may use the same ones, which
/// is a missing wall.
fn take_host_ids(
    privileged: bool,
    held: &mut Vec<OwnedFd>,
    missing: &mut Vec<(String, String)>,
) -> HostIds {
    if !privileged {
        return HostIds::SHARED;
    }
    match host_ids::reserve_host_ids() {
        Ok((ids, lock)) => {
            held.push(lock.into());
            ids
        }
        Err(error) => {
            let reason = format!("no host ids could be reserved for this spawner: {error}");
            missing.push(("host-uid".to_owned(), reason));
            HostIds::SHARED
        }
    }
}

/// A copy of the mount that an open directory is in, from there on. The directory was opened among
/// the host's mounts, and only one of ours can be copied: so by its path, if that is still the same.
fn clone_mount_tree(directory: &OwnedFd) -> io::Result<OwnedFd> {
    let path = fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd()))?;
    let tree = sys::into_owned_fd(sys::open_tree(&path_to_cstring(&path)).map_err(io_error)?);
    let (wanted, found) = (rustix::fs::fstat(directory)?, rustix::fs::fstat(&tree)?);
    if (wanted.st_dev, wanted.st_ino) != (found.st_dev, found.st_ino) {
        return Err(io::Error::other("the directory of layers was moved while the server started"));
    }
    Ok(tree)
}

/// Reaches the cgroup directories through descriptors, as their paths will be gone.
fn hold_cgroup_dirs(hierarchy: CgroupHierarchy) -> io::Result<(CgroupHierarchy, Vec<OwnedFd>)> {
    let mut held: Vec<OwnedFd> = Vec::new();
    let mut through = |path: PathBuf| -> io::Result<PathBuf> {
        let (parent, name) = path.parent().zip(path.file_name()).ok_or(io::ErrorKind::NotFound)?;
        let fd: OwnedFd = fs::File::open(parent)?.into();
        let path = Path::new("/proc/self/fd").join(fd.as_raw_fd().to_string()).join(name);
        held.push(fd);
        Ok(path)
    };
    let hierarchy = match hierarchy {
        CgroupHierarchy::V2 { base, controllers } => {
            CgroupHierarchy::V2 { base: through(base)?, controllers }
        }
        CgroupHierarchy::V1(V1Controllers { memory, pids, cpu, cpuacct }) => {
            CgroupHierarchy::V1(V1Controllers {
                memory: memory.map(&mut through).transpose()?,
                pids: pids.map(&mut through).transpose()?,
                cpu: cpu.map(&mut through).transpose()?,
                cpuacct: cpuacct.map(&mut through).transpose()?,
            })
        }
    };
    Ok((hierarchy, held))
}

/// Set where the spawner has a user namespace of its own already.
const INSIDE: &str = "CLOCHE_SPAWNER_INSIDE";

/// As an ordinary user, enters a user namespace and executes this program again. The memory of a
/// process belongs to the namespace in which it was executed, also that of its copies; and to enter
/// the mounts of a cell that lets nobody look into its memory, one must be privileged there.
pub(super) fn reexec_in_user_namespace() {
    use std::os::unix::process::CommandExt;
    let is_inside = std::env::var_os(INSIDE).is_some();
    if is_inside || rustix::process::geteuid().is_root() || enter_user_namespace(0).is_err() {
        return;
    }
    let again = std::process::Command::new("/proc/self/exe")
        .arg0(ARG0)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .exec();
    tracing::warn!(error = %again, "the spawner goes on without homes for threads");
}

/// Enters a user namespace of our own, and these others with it.
fn enter_user_namespace(others: u64) -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    sys::unshare(sys::CLONE_NEWUSER | others).map_err(io_error)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
}

fn build_root(root: &Path, ids: Option<HostIds>) -> io::Result<ImageView> {
    for directory in ["proc", "usr", "dev", "image/host", "stage"] {
        fs::create_dir_all(root.join(directory))?;
    }
    image::build_image(&root.join("image/host"), Path::new("/"), ids.map(HostIds::image_owner))?;
    mount_at(c"/proc", &root.join("proc"), c"", BIND_REC, c"")?;
    let mapped = ids.is_some_and(|ids| mount_idmapped_usr(&root.join("usr"), ids).is_ok());
    if !mapped {
        mount_at(c"/usr", &root.join("usr"), c"", BIND_REC, c"")?;
    }
    make_device_nodes(&root.join("dev"), ids.is_some())?;
    if let Some(ids) = ids {
        image::chown_tree(&root.join("dev"), ids.image_owner())?;
    }
    Ok(ImageView {
        tree: "/image/host".into(),
        binds: vec![("/usr".into(), "/usr".into())],
        dev: "/dev".into(),
    })
}

/// The directory of unpacked layers, and the places that mounting homes needs.
fn mount_layers(root: &Path, layers: Option<OwnedFd>) -> io::Result<()> {
    let Some(layers) = layers else { return Ok(()) };
    let at = |place: &str| root.join(place.trim_start_matches('/'));
    for place in home_mounter::TEMPORARY_MOUNTS.into_iter().chain([home_mounter::LAYERS]) {
        fs::create_dir_all(at(place))?;
    }
    sys::attach_mount(layers.as_raw_fd(), &path_to_cstring(&at(home_mounter::LAYERS)))
        .map_err(io_error)
}

/// `/usr` with root's files shown as the image owner's, so that they are root's inside a box.
fn mount_idmapped_usr(target: &Path, ids: HostIds) -> io::Result<()> {
    let tree = sys::into_owned_fd(sys::open_tree(c"/usr").map_err(io_error)?);
    let mapping = IdMapping { from: (0, 0), to: ids.image_owner(), count: ids.image_ids() };
    let namespace = create_idmap_namespace(mapping)?;
    sys::idmap_mount(tree.as_raw_fd(), namespace.as_raw_fd()).map_err(io_error)?;
    sys::attach_mount(tree.as_raw_fd(), &path_to_cstring(target)).map_err(io_error)
}

/// Files of user and group `from` are shown as those of user and group `to`, and so on for `count` ids.
#[derive(Clone, Copy)]
pub(super) struct IdMapping {
    pub(super) from: (u32, u32),
    pub(super) to: u32,
    pub(super) count: u32,
}

/// A user namespace that exists only to say how ids are shown: made by a child that does nothing.
pub(super) fn create_idmap_namespace(mapping: IdMapping) -> io::Result<OwnedFd> {
    let (read, write) = sys::pipe()
        .map(|(r, w)| (sys::into_owned_fd(r), sys::into_owned_fd(w)))
        .map_err(io_error)?;
    let (read_fd, write_fd) = (read.as_raw_fd(), write.as_raw_fd());
    match sys::clone(CloneRequest { namespaces: sys::CLONE_NEWUSER, cgroup: None }).map_err(io_error)? {
        CloneSide::Child => {
            sys::close(write_fd);
            let _ = sys::read(read_fd, &mut [0]);
            sys::exit(0)
        }
        CloneSide::Parent(pid, pidfd) => {
            sys::close(pidfd);
            let IdMapping { from: (uid, gid), to, count } = mapping;
            fs::write(format!("/proc/{pid}/uid_map"), format!("{uid} {to} {count}"))?;
            fs::write(format!("/proc/{pid}/gid_map"), format!("{gid} {to} {count}"))?;
            let namespace = fs::File::open(format!("/proc/{pid}/ns/user"))?;
            // It ends by itself now, and is reaped with whatever else has ended.
            drop(write);
            Ok(namespace.into())
        }
    }
}

/// The device nodes: made where we may, the host's own bound here where we may not.
fn make_device_nodes(dev: &Path, privileged: bool) -> io::Result<()> {
    const NODES: [(&str, u32, u32); 6] = [
        ("null", 1, 3),
        ("zero", 1, 5),
        ("full", 1, 7),
        ("random", 1, 8),
        ("urandom", 1, 9),
        ("tty", 5, 0),
    ];
    for (name, major, minor) in NODES {
        let path = dev.join(name);
        if privileged {
            sys::mknod(&path_to_cstring(&path), 0o020_666, major, minor).map_err(io_error)?;
            sys::chmod(&path_to_cstring(&path), 0o666).map_err(io_error)?;
        } else {
            fs::write(&path, "")?;
            mount_at(&path_to_cstring(&Path::new("/dev").join(name)), &path, c"", BIND_REC, c"")?;
        }
    }
    for directory in ["pts", "shm"] {
        fs::create_dir(dev.join(directory))?;
    }
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        symlink(target, dev.join(name))?;
    }
    Ok(())
}

fn read_host_facts() -> HostFacts {
    /// What a file lets users do that are neither its owner nor in its group.
    const OTHERS: u32 = 0o007;
    let last = fs::read_to_string("/proc/sys/kernel/cap_last_cap").unwrap_or_default();
    let there = |path: &&str| {
        let found = fs::symlink_metadata(Path::new("/proc").join(path)).ok()?;
        // What is only for the host's root needs no mask: no process of a cell is that, whatever its
        // capabilities. Each mask is a mount, and costs every cell some microseconds.
        let is_for_root = found.is_file() && found.mode() & OTHERS == 0;
        (!is_for_root).then(|| ((*path).to_owned(), found.is_dir()))
    };
    HostFacts {
        landlock: sys::landlock_version().unwrap_or(0),
        last_capability: last.trim().parse().unwrap_or(40),
        speculation: speculation::KINDS.map(|(kind, _)| speculation::can_disable(kind)),
        open_files: read_number("/proc/sys/fs/file-max").unwrap_or(0),
        proc_masks: proc_masks::MASKED.iter().filter_map(there).collect(),
    }
}

fn read_number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn mount_at(
    source: &std::ffi::CStr,
    target: &Path,
    kind: &std::ffi::CStr,
    flags: u64,
    data: &std::ffi::CStr,
) -> io::Result<()> {
    sys::mount(source, &path_to_cstring(target), kind, flags, data).map_err(io_error)
}

fn path_to_cstring(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

fn io_error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}

/// Whether this host lets a process be looked into after it has changed its user. Pid 1 of a cell
/// that comes from a template shares the template's memory, and does just that.
pub(super) fn is_suid_dumpable() -> bool {
    let setting = fs::read_to_string("/proc/sys/fs/suid_dumpable");
    setting.is_ok_and(|setting| setting.trim() == "1")
}
