//! Runs in: spawner (root). Sets up the spawner's own mount namespace, which has next to nothing in
//! it.
//!
//! It has `/usr` shown as the image owner's, the tree of the image, device nodes, `/proc` and an
//! empty stage, all on a private tmpfs. It ends with the spawner, and nothing is left on the host.
//! The spawner of an ordinary user does the same in its own user namespace.

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
    sys::{self, CloneRequest, CloneSide},
};

use super::{
    contained_host::{self, ContainedHost},
    home_mounter,
    host_ids::{self, HostIds},
    image, io_error, network_worker, storage_mounter,
};
use crate::protocol::{SPAWNER_ARG0, SPAWNER_CONTAINED, SpawnerSetup};

const BIND_REC: u64 = 4096 | 16384;
const PRIVATE_REC: u64 = 1 << 18 | 16384;

/// What the spawner builds cells with.
pub(super) struct HostSetup {
    pub(super) image: ImageView,
    pub(super) stage: PathBuf,
    pub(super) facts: HostFacts,
    pub(super) cgroups: Option<CgroupHierarchy>,
    /// Whether the spawner is root and can give each cell its own host id.
    pub(super) privileged: bool,
    /// The host ids of its cells.
    pub(super) ids: HostIds,
    pub(super) missing: Vec<(String, String)>,
    /// Where contained cells are made; `None` where cells have namespaces.
    pub(super) contained: Option<ContainedHost>,
    /// The device node of tun interfaces, opened without access; `None` if there is none.
    pub(super) tun_node: Option<OwnedFd>,
    /// The kernel's directory of the devices behind mounts, if the spawner may change them.
    pub(super) mount_devices: Option<OwnedFd>,
    /// Keeps the cgroup directories reachable without the host's root, and the host ids reserved.
    pub(super) _open: Vec<OwnedFd>,
}

/// What the server gives a new spawner to build cells on.
pub(super) struct SpawnerGround {
    /// The directory of unpacked layers.
    layers: Option<OwnedFd>,
    /// The directory in which contained cells have theirs.
    pub(super) scratch: Option<OwnedFd>,
    /// Whether the host's Python packages are hidden.
    pub(super) hides_packages: bool,
}

impl SpawnerGround {
    pub(super) fn from_setup(setup: &SpawnerSetup, fds: Vec<OwnedFd>) -> Self {
        let mut fds = fds.into_iter();
        let layers = if setup.has_layers { fds.next() } else { None };
        let scratch = if setup.has_scratch { fds.next() } else { None };
        Self { layers, scratch, hides_packages: setup.hides_packages }
    }
}

/// Replaces the host's mounts by a private root, with the layers of homes in it. For contained
/// cells it changes nothing.
pub(super) fn prepare_host(ground: &SpawnerGround) -> io::Result<HostSetup> {
    if let Some(scratch) = &ground.scratch {
        return contained_host::prepare_contained_host(scratch, ground.hides_packages);
    }
    let layers = ground.layers.as_ref();
    let mut missing = Vec::new();
    let (cgroups, mut open) = match CgroupHierarchy::claim_on_host().and_then(open_cgroup_dirs) {
        Ok((hierarchy, open)) => (Some(hierarchy), open),
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
            .push(("host-uid".to_owned(), "only root can give each cell its own host id".into()));
    }
    let ids = take_host_ids(privileged, &mut open, &mut missing);
    mount_at(c"", Path::new("/"), c"", PRIVATE_REC, c"")?;
    // Cloned before the new root hides any path.
    let layers = layers.map(clone_mount_tree).transpose()?;
    let tun_node = network_worker::open_tun_node();
    let mount_devices = privileged.then(storage_mounter::open_device_directory).flatten();
    let root = Path::new("/tmp");
    mount_at(c"cloche", root, c"tmpfs", 2, c"mode=755")?;
    let mut image = build_root(root, privileged.then_some(ids))?;
    if ground.hides_packages {
        image.hidden = image::list_package_dirs(root);
    }
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
        contained: None,
        tun_node: tun_node.or_else(|| network_worker::make_tun_node(privileged)),
        mount_devices,
        _open: open,
    })
}

/// Reserves the host ids of the cells. Without a range of its own, another spawner may use the same
/// ids, which is a missing wall.
fn take_host_ids(
    privileged: bool,
    open: &mut Vec<OwnedFd>,
    missing: &mut Vec<(String, String)>,
) -> HostIds {
    if !privileged {
        return HostIds::SHARED;
    }
    match host_ids::reserve_host_ids() {
        Ok((ids, lock)) => {
            open.push(lock.into());
            ids
        }
        Err(error) => {
            let reason = format!("could not reserve host ids for this spawner: {error}");
            missing.push(("host-uid".to_owned(), reason));
            HostIds::SHARED
        }
    }
}

/// Clones the mount of an open directory, from that directory on. The directory was opened in the
/// host's mount namespace, and only mounts of this one can be cloned. So it is found again by its
/// path, and refused if that is another directory now.
fn clone_mount_tree(directory: &OwnedFd) -> io::Result<OwnedFd> {
    let path = fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd()))?;
    let tree = sys::into_owned_fd(sys::open_tree(&path_to_cstring(&path)).map_err(io_error)?);
    let (wanted, found) = (rustix::fs::fstat(directory)?, rustix::fs::fstat(&tree)?);
    if (wanted.st_dev, wanted.st_ino) != (found.st_dev, found.st_ino) {
        return Err(io::Error::other(
            "the directory of layers was replaced while the server started",
        ));
    }
    Ok(tree)
}

/// Makes the paths of the cgroup directories go through file descriptors, as `pivot_root` hides the
/// original paths. The files that come with the hierarchy are kept.
fn open_cgroup_dirs(
    (hierarchy, mut open): (CgroupHierarchy, Vec<OwnedFd>),
) -> io::Result<(CgroupHierarchy, Vec<OwnedFd>)> {
    let mut through = |path: PathBuf| -> io::Result<PathBuf> {
        let (parent, name) = path.parent().zip(path.file_name()).ok_or(io::ErrorKind::NotFound)?;
        let fd: OwnedFd = fs::File::open(parent)?.into();
        let path = Path::new("/proc/self/fd").join(fd.as_raw_fd().to_string()).join(name);
        open.push(fd);
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
    Ok((hierarchy, open))
}

/// This variable is set if the spawner is in its own user namespace already.
const INSIDE: &str = "CLOCHE_SPAWNER_INSIDE";

/// As an ordinary user, enters a user namespace and executes this program again. The memory of a
/// process, and of its forks, belongs to the user namespace in which it was executed. To enter the
/// mount namespace of a cell that is not dumpable, the spawner needs capabilities in that one.
pub(super) fn reexec_in_user_namespace() {
    use std::os::unix::process::CommandExt;
    let is_inside = std::env::var_os(INSIDE).is_some();
    let is_contained = std::env::var_os(SPAWNER_CONTAINED).is_some();
    if is_inside
        || is_contained
        || rustix::process::geteuid().is_root()
        || enter_user_namespace(0).is_err()
    {
        return;
    }
    let again = std::process::Command::new("/proc/self/exe")
        .arg0(SPAWNER_ARG0)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .exec();
    tracing::warn!(error = %again, "the spawner could not re-execute; threads have no homes");
}

/// Enters a new user namespace, and these other new namespaces.
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
    image::prepare_for_runtimes(root, Path::new("/"))?;
    mount_at(c"/proc", &root.join("proc"), c"", BIND_REC, c"")?;
    let mapped = ids.is_some_and(|ids| mount_idmapped_usr(&root.join("usr"), ids).is_ok());
    if !mapped {
        mount_at(c"/usr", &root.join("usr"), c"", BIND_REC, c"")?;
    }
    make_device_nodes(&root.join("dev"), ids.is_some())?;
    storage_mounter::make_fuse_node(&root.join("fuse"), ids.is_some());
    if let Some(ids) = ids {
        image::chown_tree(&root.join("dev"), ids.image_owner())?;
    }
    Ok(ImageView {
        tree: "/image/host".into(),
        binds: vec![("/usr".into(), "/usr".into())],
        dev: "/dev".into(),
        hidden: Vec::new(),
        read_only: false,
    })
}

/// Mounts the directory of unpacked layers, and makes the directories that mounting homes needs.
fn mount_layers(root: &Path, layers: Option<OwnedFd>) -> io::Result<()> {
    let Some(layers) = layers else { return Ok(()) };
    let at = |path: &str| root.join(path.trim_start_matches('/'));
    for path in home_mounter::TEMPORARY_MOUNTS.into_iter().chain([home_mounter::LAYERS]) {
        fs::create_dir_all(at(path))?;
    }
    sys::attach_mount(layers.as_raw_fd(), &path_to_cstring(&at(home_mounter::LAYERS)))
        .map_err(io_error)
}

/// Mounts `/usr` with root's files shown as the image owner's, who is root inside a cell.
fn mount_idmapped_usr(target: &Path, ids: HostIds) -> io::Result<()> {
    let tree = sys::into_owned_fd(sys::open_tree(c"/usr").map_err(io_error)?);
    let mapping = IdMapping { from: (0, 0), to: ids.image_owner(), count: ids.image_ids() };
    let namespace = create_idmap_namespace(mapping)?;
    sys::idmap_mount(tree.as_raw_fd(), namespace.as_raw_fd()).map_err(io_error)?;
    sys::attach_mount(tree.as_raw_fd(), &path_to_cstring(target)).map_err(io_error)
}

/// An idmapped mount shows files of user and group `from` as those of user and group `to`, and so
/// on for `count` ids.
#[derive(Clone, Copy)]
pub(super) struct IdMapping {
    pub(super) from: (u32, u32),
    pub(super) to: u32,
    pub(super) count: u32,
}

/// Makes a user namespace that only describes an idmapped mount. A child enters it and does
/// nothing.
pub(super) fn create_idmap_namespace(mapping: IdMapping) -> io::Result<OwnedFd> {
    let (read, write) = sys::pipe()
        .map(|(r, w)| (sys::into_owned_fd(r), sys::into_owned_fd(w)))
        .map_err(io_error)?;
    let (read_fd, write_fd) = (read.as_raw_fd(), write.as_raw_fd());
    match sys::clone(CloneRequest { namespaces: sys::CLONE_NEWUSER, cgroup: None })
        .map_err(io_error)?
    {
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
            // The child ends now, and is reaped with the next ended cells.
            drop(write);
            Ok(namespace.into())
        }
    }
}

/// Makes the device nodes; an ordinary user, who may not, bind mounts those of the host.
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

pub(super) fn read_host_facts() -> HostFacts {
    /// The mode bits of users that are neither the owner nor in the group.
    const OTHERS: u32 = 0o007;
    let last = fs::read_to_string("/proc/sys/kernel/cap_last_cap").unwrap_or_default();
    let needs_mask = |path: &&str| {
        let found = fs::symlink_metadata(Path::new("/proc").join(path)).ok()?;
        // A file that only the host's root may open needs no mask: no process of a cell is that
        // user, whatever its capabilities. Each mask is a mount and costs every cell some
        // microseconds.
        let is_for_root = found.is_file() && found.mode() & OTHERS == 0;
        (!is_for_root).then(|| ((*path).to_owned(), found.is_dir()))
    };
    HostFacts {
        landlock: sys::landlock_version().unwrap_or(0),
        last_capability: last.trim().parse().unwrap_or(40),
        speculation: speculation::KINDS.map(|(kind, _)| speculation::can_disable(kind)),
        open_files: read_number("/proc/sys/fs/file-max").unwrap_or(0),
        proc_masks: proc_masks::MASKED.iter().filter_map(needs_mask).collect(),
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
