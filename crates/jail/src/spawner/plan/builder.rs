//! Runs in: spawner (root).
//!
//! The parts of a cell, each as the steps that build it; `plan` decides which, and in which order.

use std::path::{Path, PathBuf};

use super::{HostIdentity, JailSpec, most_sockets, path_to_cstring};
use crate::{
    protocol::{encode::OwnedStep, fd_numbers::FIRST_FOREIGN_FD, step::Step},
    seccomp::{self, SyscallPolicy},
    shared::small_filter::SmallFilter,
    spawner::{landlock, proc_masks, speculation},
    sys::CLONE_NEWCGROUP,
};

mod image_steps;

pub use image_steps::RESOLVER_FILE;

pub(super) type NamedSteps = Vec<(String, OwnedStep)>;

/// mount(2) flags.
mod ms {
    pub(super) const RDONLY: u64 = 1;
    pub(super) const NOSUID: u64 = 2;
    pub(super) const NODEV: u64 = 4;
    pub(super) const NOEXEC: u64 = 8;
    pub(super) const REMOUNT: u64 = 32;
    pub(super) const BIND: u64 = 4096;
    pub(super) const REC: u64 = 16384;
}

/// The directory of injected credentials in a cell.
const SECRETS_DIR: &str = "/run/secrets";
/// Where a template mounts its image a second time, for its cells.
pub(super) const TEMPLATE_IMAGE: &str = "/srv";
/// What can be written to in `/dev`, without `/dev/zero`.
const WRITABLE_DEVICES: [&str; 6] =
    ["/dev/null", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts"];
/// The version of Landlock that can restrict signals.
const LANDLOCK_SCOPES: u32 = 6;
/// Where a template mounts its device nodes a second time, without its own mounts below them.
pub(super) const TEMPLATE_DEV: &str = "/media";

pub(super) struct PlanBuilder<'a> {
    spec: &'a JailSpec,
    /// Where the cell is built; nothing of it is left there.
    stage: &'a Path,
    /// The path of the image's tree while the cell is built.
    image: &'a Path,
    /// The path of the future root directory.
    root: PathBuf,
}

impl<'a> PlanBuilder<'a> {
    pub(super) fn new(spec: &'a JailSpec, stage: &'a Path, image: &'a Path) -> Self {
        Self { spec, stage, image, root: stage.join("root") }
    }

    /// After the process is in its cgroup, so that the hierarchy it sees begins there.
    pub(super) fn unshare_cgroup(&self) -> NamedSteps {
        vec![("namespace:cgroup".into(), Step::Unshare { kinds: CLONE_NEWCGROUP })]
    }

    /// Before any file is made: no file can have an owner that is not mapped in the user namespace.
    pub(super) fn become_builder_user(&self) -> NamedSteps {
        let (uid, gid) = self.builder_ids();
        let clear_groups = self.may_set_groups();
        vec![("identity:builder".into(), Step::Become { uid, gid, clear_groups })]
    }

    pub(super) fn set_hostname(&self) -> NamedSteps {
        vec![("hostname".into(), Step::Hostname { name: self.spec.hostname.clone().into_bytes() })]
    }

    pub(super) fn bring_up_loopback(&self) -> NamedSteps {
        vec![("loopback".into(), Step::Loopback)]
    }

    /// One tmpfs holds everything that the guest can write, so one size limits all of it.
    pub(super) fn mount_scratch(&self) -> NamedSteps {
        let stage = self.stage;
        let (bytes, inodes) = self.spec.disk;
        let options = format!("size={bytes},nr_inodes={inodes},mode=755");
        let mut steps = vec![(
            "scratch".into(),
            mount_step("scratch", stage, "tmpfs", ms::NOSUID | ms::NODEV, &options),
        )];
        let builder = self.builder_ids();
        for name in ["root", "upper", "work"] {
            steps.push((
                format!("scratch:{name}"),
                directory_step(&stage.join(name), 0o755, builder),
            ));
        }
        for (name, mode) in [("home", 0o755), ("secrets", 0o700)] {
            steps.push((
                format!("scratch:{name}"),
                directory_step(&stage.join(name), mode, self.spec.guest),
            ));
        }
        // Storage is mounted on directories that the spawner makes in it.
        steps.push(("scratch:data".into(), directory_step(&stage.join("data"), 0o755, builder)));
        for name in ["tmp", "shm"] {
            steps.push((
                format!("scratch:{name}"),
                directory_step(&stage.join(name), 0o1777, builder),
            ));
        }
        steps
    }

    fn builder_ids(&self) -> (u32, u32) {
        match self.spec.identity {
            HostIdentity::Own { .. } | HostIdentity::Range { .. } => (0, 0),
            HostIdentity::Shared { .. } => self.spec.guest,
        }
    }

    /// The user namespace of an ordinary user may not change groups.
    fn may_set_groups(&self) -> bool {
        !matches!(self.spec.identity, HostIdentity::Shared { .. })
    }

    /// The image under the cell's own overlay: no other cell shares its inodes, and so no locks or
    /// watches on them.
    pub(super) fn mount_overlay_root(&self) -> NamedSteps {
        let (stage, lower) = (self.stage.display(), self.image.display());
        let (layers, flags) = match self.spec.image.read_only {
            // The kernel refuses an overlay of a single layer, so there is an empty one below it.
            true => (format!("lowerdir={lower}:{stage}/upper"), ms::RDONLY),
            false => (format!("lowerdir={lower},upperdir={stage}/upper,workdir={stage}/work"), 0),
        };
        let (options, flags) = (format!("{layers},userxattr"), flags | ms::NOSUID | ms::NODEV);
        vec![("root:overlay".into(), mount_step("overlay", &self.root, "overlay", flags, &options))]
    }

    pub(super) fn bind_dev(&self) -> NamedSteps {
        self.bind_dev_from(&self.spec.image.dev)
    }

    /// The `/dev` of a forked cell, from the template's second mount. The template's own `/dev` has
    /// the template's terminals and shared memory mounted below it, which would be bound with it.
    pub(super) fn bind_forked_dev(&self) -> NamedSteps {
        self.bind_dev_from(Path::new(TEMPLATE_DEV))
    }

    fn bind_dev_from(&self, source: &Path) -> NamedSteps {
        vec![("dev".into(), bind_step(source, &self.path_in_root(Path::new("/dev"))))]
    }

    /// The second mount of the device nodes, for the cells of a template.
    pub(super) fn bind_dev_for_cells(&self) -> NamedSteps {
        let second = self.path_in_root(Path::new(TEMPLATE_DEV));
        let flags = ms::RDONLY | ms::NOSUID | ms::NOEXEC;
        vec![
            ("dev:cells".into(), bind_step(&self.spec.image.dev, &second)),
            ("read-only:dev:cells".into(), remount_step(&second, flags)),
        ]
    }

    /// Not for a forked cell: the mount is read-only in the template, and stays so.
    pub(super) fn make_dev_read_only(&self) -> NamedSteps {
        let flags = ms::RDONLY | ms::NOSUID | ms::NOEXEC;
        vec![("read-only:/dev".into(), remount_step(&self.path_in_root(Path::new("/dev")), flags))]
    }

    /// The cell's own terminals.
    pub(super) fn mount_pts(&self) -> NamedSteps {
        let pts = self.path_in_root(Path::new("/dev/pts"));
        // All cells count against one limit of the host.
        let options = "newinstance,ptmxmode=0666,mode=620,max=64";
        let flags = ms::NOSUID | ms::NOEXEC;
        vec![("dev:pts".into(), mount_step("devpts", &pts, "devpts", flags, options))]
    }

    /// The `/proc` of this pid namespace. What shows or reaches the host is masked.
    pub(super) fn mount_proc(&self, masks: &[(String, bool)]) -> NamedSteps {
        let proc = self.path_in_root(Path::new("/proc"));
        let flags = ms::NOSUID | ms::NODEV | ms::NOEXEC;
        let mut steps = vec![("proc".into(), mount_step("proc", &proc, "proc", flags, ""))];
        if masks.is_empty() {
            return steps;
        }
        // With relative paths: to resolve each absolute path would take as long as its mount.
        steps.push(("proc:build-in".into(), Step::BuildIn { path: path_to_cstring(&proc) }));
        let mut empty = None;
        let (below, others): (Vec<_>, Vec<_>) =
            masks.iter().partition(|(path, _)| proc_masks::is_below_read_only(path));
        steps.extend(mask_proc_paths(&others, &mut empty));
        for (name, value) in proc_masks::NAMESPACE_LIMITS {
            let path = path_to_cstring(&Path::new("sys/user").join(name));
            let content = value.to_string().into_bytes();
            steps.push((format!("limit:{name}"), Step::Write { path, content }));
        }
        for path in proc_masks::READ_ONLY {
            let target = Path::new(path);
            steps.push((format!("bind:/proc/{path}"), bind_step(target, target)));
            steps.push((
                format!("read-only:/proc/{path}"),
                remount_step(target, flags | ms::RDONLY),
            ));
        }
        steps.extend(mask_proc_paths(&below, &mut empty));
        steps
    }

    pub(super) fn bind_writable_dirs(&self) -> NamedSteps {
        let stage = self.stage;
        let shm = self.path_in_root(Path::new("/dev/shm"));
        vec![
            ("home".into(), bind_step(&stage.join("home"), &self.path_in_root(&self.spec.home))),
            ("tmp".into(), bind_step(&stage.join("tmp"), &self.path_in_root(Path::new("/tmp")))),
            ("shm".into(), bind_step(&stage.join("shm"), &shm)),
            ("data".into(), bind_step(&stage.join("data"), &self.path_in_root(Path::new("/data")))),
        ]
    }

    pub(super) fn pivot_root(&self) -> NamedSteps {
        vec![
            ("root:pivot".into(), Step::Pivot { root: path_to_cstring(&self.root) }),
            ("home:enter".into(), Step::Enter { path: path_to_cstring(&self.spec.home) }),
        ]
    }

    /// The bounding set first, while the process has the capability to do it; then the user, which
    /// clears the other sets. `capset` is for the user namespace of an ordinary user, whose guest
    /// was never root.
    pub(super) fn become_guest_user(&self) -> NamedSteps {
        let (uid, gid) = self.spec.guest;
        let clear_groups = self.may_set_groups();
        let mut steps = vec![
            ("close-fds".into(), Step::CloseFrom { first: FIRST_FOREIGN_FD }),
            (
                "capabilities:bounding".into(),
                Step::DropBounding { last: self.spec.host.last_capability },
            ),
            ("identity:guest".into(), Step::Become { uid, gid, clear_groups }),
        ];
        if matches!(self.spec.identity, HostIdentity::Shared { .. }) {
            steps.push(("capabilities".into(), Step::DropCapabilities));
        }
        steps
    }

    /// No step before Landlock 6; the host then reports the wall `signals` as missing.
    pub(super) fn contain_signals(&self) -> NamedSteps {
        let can = self.spec.host.landlock >= LANDLOCK_SCOPES;
        can.then(|| ("signals".into(), Step::ContainSignals)).into_iter().collect()
    }

    /// An ordinary user has no bounding set to drop and no other id to become.
    pub(super) fn become_contained_guest(&self) -> NamedSteps {
        vec![
            ("close-fds".into(), Step::CloseFrom { first: FIRST_FOREIGN_FD }),
            ("capabilities".into(), Step::DropCapabilities),
            ("die-with-parent".into(), Step::DieWithParent),
        ]
    }

    /// Refuses memory that no process has mapped. Without a memory cgroup only the process watch
    /// counts memory, and it sees what is mapped.
    pub(super) fn refuse_unmapped_memory(&self) -> NamedSteps {
        if self.spec.cgroup.memory.is_some() {
            return Vec::new();
        }
        let filter = SmallFilter::of_unmapped_memory();
        vec![("unmapped-memory".into(), Step::Seccomp { program: filter.as_bytes().to_vec() })]
    }

    pub(super) fn no_new_privs(&self) -> NamedSteps {
        vec![("no-new-privs".into(), Step::NoNewPrivs)]
    }

    /// If the host can do it, and only for the strict profile: it slows every program down.
    pub(super) fn disable_speculation(&self) -> NamedSteps {
        if self.spec.syscalls != SyscallPolicy::Strict {
            return Vec::new();
        }
        let kinds = speculation::KINDS.into_iter().zip(self.spec.host.speculation);
        let available = kinds.filter_map(|(kind, can)| can.then_some(kind));
        available.map(|(kind, name)| (name.into(), Step::NoSpeculation { kind })).collect()
    }

    /// Before the guest's filter, which forbids it.
    pub(super) fn limit_sockets(&self) -> NamedSteps {
        let most = most_sockets(self.spec.cgroup.memory);
        vec![("sockets".into(), Step::WatchSockets { most })]
    }

    /// After the steps whose calls it forbids.
    pub(super) fn install_filter(&self) -> NamedSteps {
        vec![(
            "seccomp".into(),
            Step::Seccomp { program: seccomp::guest_filter(self.spec.syscalls).to_vec() },
        )]
    }

    /// After the change of user, which would clear it.
    pub(super) fn die_with_parent(&self) -> NamedSteps {
        vec![("die-with-parent".into(), Step::DieWithParent)]
    }

    /// A template keeps its fork socket besides the descriptors of a cell.
    pub(super) fn finish_template(&self) -> NamedSteps {
        vec![
            ("close-fds".into(), Step::CloseFrom { first: FIRST_FOREIGN_FD + 1 }),
            ("no-new-privs".into(), Step::NoNewPrivs),
            ("die-with-parent".into(), Step::DieWithParent),
        ]
    }

    /// The directories in which Landlock lets the guest write. It is the parent of the home,
    /// because Landlock treats a home that is mounted later as another file. The parent has no
    /// other entry, and the guest does not own it.
    /// The Landlock wall of a cell with a root of its own.
    pub(super) fn restrict_files(&self) -> NamedSteps {
        let devices = match self.spec.cgroup.memory {
            Some(_) => vec![PathBuf::from("/dev")],
            // A shared mapping of `/dev/zero` would be memory that is counted for none.
            None => WRITABLE_DEVICES.map(PathBuf::from).into(),
        };
        landlock::wall_steps(&devices, &self.landlock_writable_dirs(), self.spec.host.landlock)
    }

    fn landlock_writable_dirs(&self) -> Vec<PathBuf> {
        let above_home = self.spec.home.parent().unwrap_or(&self.spec.home);
        // The same for `/data` and the storage that is mounted below it.
        let usual = [
            above_home,
            Path::new("/tmp"),
            Path::new("/dev/shm"),
            Path::new("/data"),
            Path::new(SECRETS_DIR),
        ];
        usual.map(PathBuf::from).into_iter().chain(self.spec.trust_dirs.first().cloned()).collect()
    }

    fn path_in_root(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// Masks files by the null device and directories by an empty one, by paths relative to the cell's
/// `/proc`. `empty` is a directory that is masked already.
fn mask_proc_paths<'a>(masks: &[&'a (String, bool)], empty: &mut Option<&'a Path>) -> NamedSteps {
    let mut steps = Vec::new();
    for (path, is_directory) in masks {
        let (name, target) = (format!("mask:/proc/{path}"), Path::new(path));
        match *empty {
            _ if !is_directory => steps.push((name, bind_step(Path::new("../dev/null"), target))),
            Some(empty) => steps.push((name, bind_step(empty, target))),
            None => {
                // A mount of the cell's own. It is read-only, and so are the bind mounts of it.
                let flags = ms::RDONLY | ms::NOSUID | ms::NODEV | ms::NOEXEC;
                steps.push((name.clone(), bind_step(Path::new("../sys"), target)));
                steps.push((name, remount_step(target, flags)));
                *empty = Some(target);
            }
        }
    }
    steps
}

fn mount_step(source: &str, target: &Path, kind: &str, flags: u64, data: &str) -> OwnedStep {
    let [source, kind, data] = [source, kind, data].map(|value| path_to_cstring(Path::new(value)));
    Step::Mount { source, target: path_to_cstring(target), kind, flags, data }
}

fn bind_step(source: &Path, target: &Path) -> OwnedStep {
    let (source, target) = (path_to_cstring(source), path_to_cstring(target));
    Step::Mount { source, target, kind: c"".into(), flags: ms::BIND | ms::REC, data: c"".into() }
}

fn remount_step(target: &Path, flags: u64) -> OwnedStep {
    mount_step("", target, "", ms::REMOUNT | ms::BIND | flags, "")
}

fn directory_step(path: &Path, mode: u32, (uid, gid): (u32, u32)) -> OwnedStep {
    Step::Directory { path: path_to_cstring(path), mode, uid, gid }
}
