//! The pieces of a box, each as the steps that build it; `plan` says which, in which order.

use std::path::{Path, PathBuf};

use super::{Identity, JailSpec, text};
use crate::{
    encode::OwnedStep,
    init::FIRST_FOREIGN_FD,
    proc_masks,
    seccomp::{self, SyscallPolicy},
    speculation,
    step::Step,
};

pub(super) type Named = Vec<(String, OwnedStep)>;

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

pub(super) struct Builder<'a> {
    spec: &'a JailSpec,
    /// Where the box is built; nothing of it is left there.
    stage: &'a Path,
    /// The image's tree, as it is seen while building.
    image: &'a Path,
    /// What becomes the root directory.
    root: PathBuf,
}

impl<'a> Builder<'a> {
    pub(super) fn new(spec: &'a JailSpec, stage: &'a Path, image: &'a Path) -> Self {
        Self { spec, stage, image, root: stage.join("root") }
    }

    /// Once it is in its cgroup: so that what it sees of the hierarchy begins there.
    pub(super) fn cgroup_view(&self) -> Named {
        const NEW_CGROUP: u64 = 0x0200_0000;
        vec![("namespace:cgroup".into(), Step::Unshare { kinds: NEW_CGROUP })]
    }

    /// Ids first: files made with an id that is not mapped cannot exist in the new namespace.
    pub(super) fn builder_identity(&self) -> Named {
        let (uid, gid) = self.builder_ids();
        let clear_groups = self.may_set_groups();
        vec![("identity:builder".into(), Step::Become { uid, gid, clear_groups })]
    }

    pub(super) fn hostname(&self) -> Named {
        vec![("hostname".into(), Step::Hostname { name: self.spec.hostname.clone().into_bytes() })]
    }

    pub(super) fn loopback(&self) -> Named {
        vec![("loopback".into(), Step::Loopback)]
    }

    /// One tmpfs holds all that the guest can write, so one size limits it all.
    pub(super) fn scratch(&self) -> Named {
        let stage = self.stage;
        let (bytes, inodes) = self.spec.disk;
        let options = format!("size={bytes},nr_inodes={inodes},mode=755");
        let mut steps = vec![(
            "scratch".into(),
            mount("scratch", stage, "tmpfs", ms::NOSUID | ms::NODEV, &options),
        )];
        let builder = self.builder_ids();
        for name in ["root", "upper", "work"] {
            steps.push((format!("scratch:{name}"), directory(&stage.join(name), 0o755, builder)));
        }
        steps.push(("scratch:home".into(), directory(&stage.join("home"), 0o755, self.spec.guest)));
        for name in ["tmp", "shm"] {
            steps.push((format!("scratch:{name}"), directory(&stage.join(name), 0o1777, builder)));
        }
        steps
    }

    fn builder_ids(&self) -> (u32, u32) {
        match self.spec.identity {
            Identity::Own { .. } | Identity::Range { .. } => (0, 0),
            Identity::Shared { .. } => self.spec.guest,
        }
    }

    /// An ordinary user's namespace has no say over groups.
    fn may_set_groups(&self) -> bool {
        !matches!(self.spec.identity, Identity::Shared { .. })
    }

    /// The image under an overlay of the box's own: its inodes, and so locks and watches on them,
    /// are nobody else's.
    pub(super) fn overlay_root(&self) -> Named {
        let (stage, lower) = (self.stage.display(), self.image.display());
        let options =
            format!("lowerdir={lower},upperdir={stage}/upper,workdir={stage}/work,userxattr");
        vec![(
            "root:overlay".into(),
            mount("overlay", &self.root, "overlay", ms::NOSUID | ms::NODEV, &options),
        )]
    }

    pub(super) fn image_overlays(&self) -> Named {
        let overlay = |(source, target): &(PathBuf, PathBuf)| {
            // One layer alone is refused, so there is an empty one below it.
            let empty = self.image.join("mnt");
            let options = format!("lowerdir={}:{},userxattr", source.display(), empty.display());
            let flags = ms::RDONLY | ms::NOSUID | ms::NODEV;
            let step = mount("overlay", &self.inside(target), "overlay", flags, &options);
            (format!("image:{}", target.display()), step)
        };
        self.spec.image.binds.iter().map(overlay).collect()
    }

    /// A template's root: the image as it is. Its cells put their own overlays on a second view of
    /// it, on which nothing is mounted: the kernel refuses to look under a mount for them.
    pub(super) fn bound_root(&self) -> Named {
        let flags = ms::RDONLY | ms::NOSUID | ms::NODEV;
        let again = self.inside(Path::new(TEMPLATE_IMAGE));
        vec![
            ("root:bind".into(), bind(self.image, &self.root)),
            ("read-only:/".into(), remount(&self.root, flags)),
            ("image:/".into(), bind(self.image, &again)),
            ("read-only:image".into(), remount(&again, flags)),
        ]
    }

    pub(super) fn image_binds(&self) -> Named {
        let mut steps = Vec::new();
        for (source, target) in &self.spec.image.binds {
            let (inside, name) = (self.inside(target), target.display());
            steps.push((format!("image:{name}"), bind(source, &inside)));
            let flags = ms::RDONLY | ms::NOSUID | ms::NODEV;
            steps.push((format!("read-only:{name}"), remount(&inside, flags)));
        }
        steps
    }

    pub(super) fn dev(&self) -> Named {
        self.dev_from(&self.spec.image.dev)
    }

    /// A forked cell's: from the template's clean view. The template's own `/dev` would bring the
    /// template's terminals and shared memory along, as mounts beneath the cell's.
    pub(super) fn forked_dev(&self) -> Named {
        self.dev_from(Path::new(TEMPLATE_DEV))
    }

    fn dev_from(&self, source: &Path) -> Named {
        vec![("dev".into(), bind(source, &self.inside(Path::new("/dev"))))]
    }

    /// The device nodes once more, for the cells of a template.
    pub(super) fn dev_for_cells(&self) -> Named {
        let again = self.inside(Path::new(TEMPLATE_DEV));
        let flags = ms::RDONLY | ms::NOSUID | ms::NOEXEC;
        vec![
            ("dev:cells".into(), bind(&self.spec.image.dev, &again)),
            ("read-only:dev:cells".into(), remount(&again, flags)),
        ]
    }

    /// Not for a forked cell: what a template has read-only stays so.
    pub(super) fn dev_read_only(&self) -> Named {
        let flags = ms::RDONLY | ms::NOSUID | ms::NOEXEC;
        vec![("read-only:/dev".into(), remount(&self.inside(Path::new("/dev")), flags))]
    }

    /// Terminals of the box's own.
    pub(super) fn pts(&self) -> Named {
        let pts = self.inside(Path::new("/dev/pts"));
        // All boxes draw on one number of terminals.
        let options = "newinstance,ptmxmode=0666,mode=620,max=64";
        let flags = ms::NOSUID | ms::NOEXEC;
        vec![("dev:pts".into(), mount("devpts", &pts, "devpts", flags, options))]
    }

    /// A `/proc` of this pid namespace, with what tells of or reaches the host covered up.
    pub(super) fn proc(&self, masks: &[(String, bool)]) -> Named {
        let proc = self.inside(Path::new("/proc"));
        let flags = ms::NOSUID | ms::NODEV | ms::NOEXEC;
        let mut steps = vec![("proc".into(), mount("proc", &proc, "proc", flags, ""))];
        if masks.is_empty() {
            return steps;
        }
        // From there, since the way to each of them would take as long as its mount.
        steps.push(("proc:build-in".into(), Step::BuildIn { path: text(&proc) }));
        let mut empty = None;
        let (below, others): (Vec<_>, Vec<_>) =
            masks.iter().partition(|(path, _)| proc_masks::is_below_read_only(path));
        steps.extend(proc_masked(&others, &mut empty));
        for (name, value) in proc_masks::NAMESPACE_LIMITS {
            let path = text(&Path::new("sys/user").join(name));
            let content = value.to_string().into_bytes();
            steps.push((format!("limit:{name}"), Step::Write { path, content }));
        }
        for path in proc_masks::READ_ONLY {
            let target = Path::new(path);
            steps.push((format!("bind:/proc/{path}"), bind(target, target)));
            steps.push((format!("read-only:/proc/{path}"), remount(target, flags | ms::RDONLY)));
        }
        steps.extend(proc_masked(&below, &mut empty));
        steps
    }

    pub(super) fn writable_places(&self) -> Named {
        let stage = self.stage;
        let shm = self.inside(Path::new("/dev/shm"));
        vec![
            ("home".into(), bind(&stage.join("home"), &self.inside(&self.spec.home))),
            ("tmp".into(), bind(&stage.join("tmp"), &self.inside(Path::new("/tmp")))),
            ("shm".into(), bind(&stage.join("shm"), &shm)),
        ]
    }

    pub(super) fn pivot(&self) -> Named {
        vec![
            ("root:pivot".into(), Step::Pivot { root: text(&self.root) }),
            ("home:enter".into(), Step::Enter { path: text(&self.spec.home) }),
        ]
    }

    /// The bounding set while there still is a capability to do it with, then the user, which
    /// takes the other sets along; `capset` is for an ordinary user's namespace, whose guest was
    /// never root.
    pub(super) fn guest_identity(&self) -> Named {
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
        if matches!(self.spec.identity, Identity::Shared { .. }) {
            steps.push(("capabilities".into(), Step::DropCapabilities));
        }
        steps
    }

    pub(super) fn no_new_privs(&self) -> Named {
        vec![("no-new-privs".into(), Step::NoNewPrivs)]
    }

    /// Where it can be had, and only for the strict profile: it slows every program down.
    pub(super) fn speculation(&self) -> Named {
        if self.spec.syscalls != SyscallPolicy::Strict {
            return Vec::new();
        }
        let kinds = speculation::KINDS.into_iter().zip(self.spec.host.speculation);
        let controlled = kinds.filter_map(|(kind, can)| can.then_some(kind));
        controlled.map(|(kind, name)| (name.into(), Step::NoSpeculation { kind })).collect()
    }

    /// Before the filter, which forbids it. A socket pins up to an eighth of a MiB of kernel memory that
    /// is charged to no control group, so half of the memory limit is the most that all of them do.
    pub(super) fn sockets(&self) -> Named {
        const EACH: u64 = 256 << 10;
        const LEAST: u64 = 256;
        const MOST: u64 = 4096;
        let most = self.spec.cgroup.memory.map_or(MOST / 4, |memory| memory / EACH);
        let most = most.clamp(LEAST, MOST) as u32;
        vec![("sockets".into(), Step::WatchSockets { most })]
    }

    /// The filter last: it forbids what the steps before it did.
    pub(super) fn filter(&self) -> Named {
        vec![(
            "seccomp".into(),
            Step::Seccomp { program: seccomp::filter(self.spec.syscalls).to_vec() },
        )]
    }

    /// After the change of user, which would undo it.
    pub(super) fn die_with_parent(&self) -> Named {
        vec![("die-with-parent".into(), Step::DieWithParent)]
    }

    /// A template keeps its fork socket, and nothing else that is not its own.
    pub(super) fn template_end(&self) -> Named {
        vec![
            ("close-fds".into(), Step::CloseFrom { first: FIRST_FOREIGN_FD + 1 }),
            ("no-new-privs".into(), Step::NoNewPrivs),
            ("die-with-parent".into(), Step::DieWithParent),
        ]
    }

    /// Where the guest may write, once inside.
    /// Where Landlock lets the guest write. The directory above the home, since a home that is
    /// mounted later is another file to it; nothing else is there, and it is not the guest's.
    pub(super) fn writable(&self) -> Vec<PathBuf> {
        let above_home = self.spec.home.parent().unwrap_or(&self.spec.home);
        [above_home, Path::new("/tmp"), Path::new("/dev/shm")].map(PathBuf::from).into()
    }

    fn inside(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// Covers files by the null device and directories by one that is empty, seen from the box's `/proc`.
/// `empty` is a directory that is covered already.
fn proc_masked<'a>(masks: &[&'a (String, bool)], empty: &mut Option<&'a Path>) -> Named {
    let mut steps = Vec::new();
    for (path, is_directory) in masks {
        let (name, target) = (format!("mask:/proc/{path}"), Path::new(path));
        match *empty {
            _ if !is_directory => steps.push((name, bind(Path::new("../dev/null"), target))),
            Some(empty) => steps.push((name, bind(empty, target))),
            None => {
                // Of the box's own, and read-only with all that are made from it.
                let flags = ms::RDONLY | ms::NOSUID | ms::NODEV | ms::NOEXEC;
                steps.push((name.clone(), bind(Path::new("../mnt"), target)));
                steps.push((name, remount(target, flags)));
                *empty = Some(target);
            }
        }
    }
    steps
}

fn mount(source: &str, target: &Path, kind: &str, flags: u64, data: &str) -> OwnedStep {
    let [source, kind, data] = [source, kind, data].map(|value| text(Path::new(value)));
    Step::Mount { source, target: text(target), kind, flags, data }
}

fn bind(source: &Path, target: &Path) -> OwnedStep {
    let (source, target) = (text(source), text(target));
    Step::Mount { source, target, kind: c"".into(), flags: ms::BIND | ms::REC, data: c"".into() }
}

fn remount(target: &Path, flags: u64) -> OwnedStep {
    mount("", target, "", ms::REMOUNT | ms::BIND | flags, "")
}

fn directory(path: &Path, mode: u32, (uid, gid): (u32, u32)) -> OwnedStep {
    Step::Directory { path: text(path), mode, uid, gid }
}
