//! The pieces of a box, each as the steps that build it; `plan` says which, in which order.

use std::path::{Path, PathBuf};

use super::{HostIdentity, JailSpec, path_to_cstring};
use crate::{
    encode::OwnedStep,
    init::FIRST_FOREIGN_FD,
    proc_masks,
    seccomp::{self, SyscallPolicy},
    speculation,
    step::Step,
};

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

/// Where a template shows its image once more, for its cells.
pub(super) const TEMPLATE_IMAGE: &str = "/srv";
/// Where a template shows its device nodes once more, without the mounts of its own below them.
pub(super) const TEMPLATE_DEV: &str = "/media";

pub(super) struct PlanBuilder<'a> {
    spec: &'a JailSpec,
    /// Where the box is built; nothing of it is left there.
    stage: &'a Path,
    /// The image's tree, as it is seen while building.
    image: &'a Path,
    /// What becomes the root directory.
    root: PathBuf,
}

impl<'a> PlanBuilder<'a> {
    pub(super) fn new(spec: &'a JailSpec, stage: &'a Path, image: &'a Path) -> Self {
        Self { spec, stage, image, root: stage.join("root") }
    }

    /// Once it is in its cgroup: so that what it sees of the hierarchy begins there.
    pub(super) fn unshare_cgroup(&self) -> NamedSteps {
        const NEW_CGROUP: u64 = 0x0200_0000;
        vec![("namespace:cgroup".into(), Step::Unshare { kinds: NEW_CGROUP })]
    }

    /// Ids first: files made with an id that is not mapped cannot exist in the new namespace.
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

    /// One tmpfs holds all that the guest can write, so one size limits it all.
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
        steps.push((
            "scratch:home".into(),
            directory_step(&stage.join("home"), 0o755, self.spec.guest),
        ));
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

    /// An ordinary user's namespace has no say over groups.
    fn may_set_groups(&self) -> bool {
        !matches!(self.spec.identity, HostIdentity::Shared { .. })
    }

    /// The image under an overlay of the box's own: its inodes, and so locks and watches on them,
    /// are nobody else's.
    pub(super) fn mount_overlay_root(&self) -> NamedSteps {
        let (stage, lower) = (self.stage.display(), self.image.display());
        let options =
            format!("lowerdir={lower},upperdir={stage}/upper,workdir={stage}/work,userxattr");
        vec![(
            "root:overlay".into(),
            mount_step("overlay", &self.root, "overlay", ms::NOSUID | ms::NODEV, &options),
        )]
    }

    pub(super) fn mount_image_overlays(&self) -> NamedSteps {
        let overlay = |(source, target): &(PathBuf, PathBuf)| {
            // One layer alone is refused, so there is an empty one below it.
            let empty = self.image.join("mnt");
            let options = format!("lowerdir={}:{},userxattr", source.display(), empty.display());
            let flags = ms::RDONLY | ms::NOSUID | ms::NODEV;
            let step =
                mount_step("overlay", &self.path_in_root(target), "overlay", flags, &options);
            (format!("image:{}", target.display()), step)
        };
        self.spec.image.binds.iter().map(overlay).collect()
    }

    /// A template's root: the image as it is. Its cells put their own overlays on a second view of
    /// it, on which nothing is mounted: the kernel refuses to look under a mount for them.
    pub(super) fn bind_root(&self) -> NamedSteps {
        let flags = ms::RDONLY | ms::NOSUID | ms::NODEV;
        let again = self.path_in_root(Path::new(TEMPLATE_IMAGE));
        vec![
            ("root:bind".into(), bind_step(self.image, &self.root)),
            ("read-only:/".into(), remount_step(&self.root, flags)),
            ("image:/".into(), bind_step(self.image, &again)),
            ("read-only:image".into(), remount_step(&again, flags)),
        ]
    }

    pub(super) fn bind_image(&self) -> NamedSteps {
        let mut steps = Vec::new();
        for (source, target) in &self.spec.image.binds {
            let (inside, name) = (self.path_in_root(target), target.display());
            steps.push((format!("image:{name}"), bind_step(source, &inside)));
            let flags = ms::RDONLY | ms::NOSUID | ms::NODEV;
            steps.push((format!("read-only:{name}"), remount_step(&inside, flags)));
        }
        steps
    }

    pub(super) fn bind_dev(&self) -> NamedSteps {
        self.bind_dev_from(&self.spec.image.dev)
    }

    /// A forked cell's: from the template's clean view. The template's own `/dev` would bring the
    /// template's terminals and shared memory along, as mounts beneath the cell's.
    pub(super) fn bind_forked_dev(&self) -> NamedSteps {
        self.bind_dev_from(Path::new(TEMPLATE_DEV))
    }

    fn bind_dev_from(&self, source: &Path) -> NamedSteps {
        vec![("dev".into(), bind_step(source, &self.path_in_root(Path::new("/dev"))))]
    }

    /// The device nodes once more, for the cells of a template.
    pub(super) fn bind_dev_for_cells(&self) -> NamedSteps {
        let again = self.path_in_root(Path::new(TEMPLATE_DEV));
        let flags = ms::RDONLY | ms::NOSUID | ms::NOEXEC;
        vec![
            ("dev:cells".into(), bind_step(&self.spec.image.dev, &again)),
            ("read-only:dev:cells".into(), remount_step(&again, flags)),
        ]
    }

    /// Not for a forked cell: what a template has read-only stays so.
    pub(super) fn make_dev_read_only(&self) -> NamedSteps {
        let flags = ms::RDONLY | ms::NOSUID | ms::NOEXEC;
        vec![("read-only:/dev".into(), remount_step(&self.path_in_root(Path::new("/dev")), flags))]
    }

    /// Terminals of the box's own.
    pub(super) fn mount_pts(&self) -> NamedSteps {
        let pts = self.path_in_root(Path::new("/dev/pts"));
        // All boxes draw on one number of terminals.
        let options = "newinstance,ptmxmode=0666,mode=620,max=64";
        let flags = ms::NOSUID | ms::NOEXEC;
        vec![("dev:pts".into(), mount_step("devpts", &pts, "devpts", flags, options))]
    }

    /// A `/proc` of this pid namespace, with what tells of or reaches the host covered up.
    pub(super) fn mount_proc(&self, masks: &[(String, bool)]) -> NamedSteps {
        let proc = self.path_in_root(Path::new("/proc"));
        let flags = ms::NOSUID | ms::NODEV | ms::NOEXEC;
        let mut steps = vec![("proc".into(), mount_step("proc", &proc, "proc", flags, ""))];
        if masks.is_empty() {
            return steps;
        }
        // From there, since the way to each of them would take as long as its mount.
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
        ]
    }

    pub(super) fn pivot_root(&self) -> NamedSteps {
        vec![
            ("root:pivot".into(), Step::Pivot { root: path_to_cstring(&self.root) }),
            ("home:enter".into(), Step::Enter { path: path_to_cstring(&self.spec.home) }),
        ]
    }

    /// The bounding set while there still is a capability to do it with, then the user, which
    /// takes the other sets along; `capset` is for an ordinary user's namespace, whose guest was
    /// never root.
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

    pub(super) fn no_new_privs(&self) -> NamedSteps {
        vec![("no-new-privs".into(), Step::NoNewPrivs)]
    }

    /// Where it can be had, and only for the strict profile: it slows every program down.
    pub(super) fn disable_speculation(&self) -> NamedSteps {
        if self.spec.syscalls != SyscallPolicy::Strict {
            return Vec::new();
        }
        let kinds = speculation::KINDS.into_iter().zip(self.spec.host.speculation);
        let controlled = kinds.filter_map(|(kind, can)| can.then_some(kind));
        controlled.map(|(kind, name)| (name.into(), Step::NoSpeculation { kind })).collect()
    }

    /// Before the filter, which forbids it. A socket pins up to an eighth of a MiB of kernel memory that
    /// is charged to no control group, so half of the memory limit is the most that all of them do.
    pub(super) fn limit_sockets(&self) -> NamedSteps {
        const EACH: u64 = 256 << 10;
        const LEAST: u64 = 256;
        const MOST: u64 = 4096;
        let most = self.spec.cgroup.memory.map_or(MOST / 4, |memory| memory / EACH);
        let most = most.clamp(LEAST, MOST) as u32;
        vec![("sockets".into(), Step::WatchSockets { most })]
    }

    /// The filter last: it forbids what the steps before it did.
    pub(super) fn install_filter(&self) -> NamedSteps {
        vec![(
            "seccomp".into(),
            Step::Seccomp { program: seccomp::guest_filter(self.spec.syscalls).to_vec() },
        )]
    }

    /// After the change of user, which would undo it.
    pub(super) fn die_with_parent(&self) -> NamedSteps {
        vec![("die-with-parent".into(), Step::DieWithParent)]
    }

    /// A template keeps its fork socket, and nothing else that is not its own.
    pub(super) fn finish_template(&self) -> NamedSteps {
        vec![
            ("close-fds".into(), Step::CloseFrom { first: FIRST_FOREIGN_FD + 1 }),
            ("no-new-privs".into(), Step::NoNewPrivs),
            ("die-with-parent".into(), Step::DieWithParent),
        ]
    }

    /// Where the guest may write, once inside.
    /// Where Landlock lets the guest write. The directory above the home, since a home that is
    /// mounted later is another file to it; nothing else is there, and it is not the guest's.
    pub(super) fn landlock_writable_dirs(&self) -> Vec<PathBuf> {
        let above_home = self.spec.home.parent().unwrap_or(&self.spec.home);
        [above_home, Path::new("/tmp"), Path::new("/dev/shm")].map(PathBuf::from).into()
    }

    fn path_in_root(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// Covers files by the null device and directories by one that is empty, seen from the box's `/proc`.
/// `empty` is a directory that is covered already.
fn mask_proc_paths<'a>(masks: &[&'a (String, bool)], empty: &mut Option<&'a Path>) -> NamedSteps {
    let mut steps = Vec::new();
    for (path, is_directory) in masks {
        let (name, target) = (format!("mask:/proc/{path}"), Path::new(path));
        match *empty {
            _ if !is_directory => steps.push((name, bind_step(Path::new("../dev/null"), target))),
            Some(empty) => steps.push((name, bind_step(empty, target))),
            None => {
                // Of the box's own, and read-only with all that are made from it.
                let flags = ms::RDONLY | ms::NOSUID | ms::NODEV | ms::NOEXEC;
                steps.push((name.clone(), bind_step(Path::new("../mnt"), target)));
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
