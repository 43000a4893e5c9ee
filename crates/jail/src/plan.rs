//! From what a box must be to the list of steps that builds it: a pure function.
//!
//! It knows the order of the walls and why. It touches nothing: what it must know of the host
//! comes in as [`HostFacts`], so a plan can be looked at, tested and mutated without root.

use std::{
    ffi::CString,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use crate::{
    cgroup::CgroupLimits,
    encode::{self, OwnedStep},
    init::FIRST_FOREIGN_FD,
    landlock, proc_masks, rlimits, seccomp,
    step::Step,
};

/// Everything that decides what the box is like.
#[derive(Clone, Debug)]
pub struct JailSpec {
    /// The root file system.
    pub image: ImageView,
    /// An empty directory of the host's to build on; only its name is used, nothing stays there.
    pub stage: PathBuf,
    /// The guest's user and group, as it sees them.
    pub guest: (u32, u32),
    /// Who these ids are on the host.
    pub identity: Identity,
    /// The machine's name, as the guest sees it.
    pub hostname: String,
    /// The guest's home and working directory.
    pub home: PathBuf,
    /// Bytes and inodes of everything the guest writes to files.
    pub disk: (u64, u64),
    /// What the cgroup holds it to.
    pub cgroup: CgroupLimits,
    /// What this host's kernel can do.
    pub host: HostFacts,
}

/// A root file system, as directories of the host.
#[derive(Clone, Debug)]
pub struct ImageView {
    /// The lower directory of the overlay.
    pub tree: PathBuf,
    /// Directories shown read-only inside: (on the host, in the box).
    pub binds: Vec<(PathBuf, PathBuf)>,
    /// A directory with the device nodes already in it: one bind shows them all.
    pub dev: PathBuf,
}

/// Who the box's users are on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The image's owner is this host id, the guest is that one, and nobody else's.
    Own { image_owner: u32, guest: u32 },
    /// The guest is whoever started us; a kernel lets an ordinary user map no other id.
    Shared { uid: u32, gid: u32 },
}

/// What the plan must know of this host.
#[derive(Clone, Debug)]
pub struct HostFacts {
    /// The Landlock version; zero where there is none.
    pub landlock: u32,
    /// The highest capability the kernel knows.
    pub last_capability: u32,
    /// Which of the paths to mask under `/proc` exist: (path, whether it is a directory).
    pub proc_masks: Vec<(String, bool)>,
}

/// The namespaces a box has, with the names their walls go by.
pub const NAMESPACES: [(&str, u64); 7] = [
    ("namespace:user", 0x1000_0000),
    ("namespace:mount", 0x0002_0000),
    ("namespace:pid", 0x2000_0000),
    ("namespace:net", 0x4000_0000),
    ("namespace:ipc", 0x0800_0000),
    ("namespace:uts", 0x0400_0000),
    ("namespace:cgroup", 0x0200_0000),
];

/// A plan: the namespaces to be born into, the ids, the limits, and the steps taken inside.
#[derive(Clone, Debug)]
pub struct Plan {
    /// `CLONE_NEW*` flags.
    pub namespaces: u64,
    /// Who the box's users are on the host.
    pub identity: Identity,
    /// The guest's user and group, as it sees them.
    pub guest: (u32, u32),
    /// What the cgroup holds the box to.
    pub cgroup: CgroupLimits,
    /// The steps, each under the name of its wall, in order.
    pub steps: Vec<(String, OwnedStep)>,
}

impl Plan {
    /// The steps as the bytes that a new cell reads.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut program = Vec::new();
        for (wall, step) in &self.steps {
            encode::text(&mut program, &text(Path::new(wall)));
            encode::step(&mut program, step);
        }
        program
    }

    /// Every wall by name: namespaces, cgroup limits, steps.
    #[must_use]
    pub fn walls(&self) -> Vec<String> {
        let namespaces = NAMESPACES.iter().filter(|(_, flag)| self.namespaces & flag != 0);
        let namespaces = namespaces.map(|(name, _)| (*name).to_owned());
        let limits = self.cgroup.names().map(str::to_owned);
        let steps = self.steps.iter().map(|(name, _)| name.clone());
        namespaces.chain(limits).chain(steps).collect()
    }

    /// The same plan with one wall left out: what the escape suite attacks to see it missed.
    #[must_use]
    pub fn without(&self, wall: &str) -> Self {
        let mut plan = self.clone();
        plan.steps.retain(|(name, _)| name != wall);
        plan.cgroup = plan.cgroup.without(wall);
        let left_out = NAMESPACES.iter().find(|(name, _)| *name == wall);
        plan.namespaces &= !left_out.map_or(0, |(_, flag)| *flag);
        plan
    }
}

/// The order of the box, on one screen.
#[must_use]
pub fn plan(spec: &JailSpec) -> Plan {
    let build = Builder::new(spec);
    let steps = [
        build.builder_identity(),
        build.names(),
        build.scratch(),
        build.root(),
        build.image_binds(),
        build.dev(),
        build.proc(),
        build.writable_places(),
        build.pivot(),
        rlimits::steps(spec.cgroup.pids.is_none()),
        build.guest_identity(),
        landlock::steps(&build.writable(), spec.host.landlock),
        vec![
            ("seccomp".into(), Step::Seccomp { program: seccomp::filter().to_vec() }),
            ("die-with-parent".into(), Step::DieWithParent),
        ],
    ];
    Plan {
        namespaces: NAMESPACES.iter().fold(0, |flags, (_, flag)| flags | flag),
        identity: spec.identity,
        guest: spec.guest,
        cgroup: spec.cgroup,
        steps: steps.into_iter().flatten().collect(),
    }
}

type Named = Vec<(String, OwnedStep)>;

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

struct Builder<'a> {
    spec: &'a JailSpec,
    root: PathBuf,
}

impl<'a> Builder<'a> {
    fn new(spec: &'a JailSpec) -> Self {
        Self { spec, root: spec.stage.join("root") }
    }

    /// Ids first: files made with an id that is not mapped cannot exist in the new namespace.
    fn builder_identity(&self) -> Named {
        let (uid, gid, clear_groups) = match self.spec.identity {
            Identity::Own { .. } => (0, 0, true),
            Identity::Shared { .. } => (self.spec.guest.0, self.spec.guest.1, false),
        };
        vec![("identity:builder".into(), Step::Become { uid, gid, clear_groups })]
    }

    fn names(&self) -> Named {
        vec![
            ("hostname".into(), Step::Hostname { name: self.spec.hostname.clone().into_bytes() }),
            ("loopback".into(), Step::Loopback),
        ]
    }

    /// One tmpfs holds all that the guest can write, so one size limits it all.
    fn scratch(&self) -> Named {
        let (bytes, inodes) = self.spec.disk;
        let stage = &self.spec.stage;
        let options = format!("size={bytes},nr_inodes={inodes},mode=755");
        let mut steps =
            vec![("scratch".into(), mount("scratch", stage, "tmpfs", ms::NOSUID | ms::NODEV, &options))];
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
            Identity::Own { .. } => (0, 0),
            Identity::Shared { .. } => self.spec.guest,
        }
    }

    fn root(&self) -> Named {
        let stage = self.spec.stage.display();
        let lower = self.spec.image.tree.display();
        let options =
            format!("lowerdir={lower},upperdir={stage}/upper,workdir={stage}/work,userxattr");
        vec![(
            "root:overlay".into(),
            mount("overlay", &self.root, "overlay", ms::NOSUID | ms::NODEV, &options),
        )]
    }

    fn image_binds(&self) -> Named {
        let mut steps = Vec::new();
        for (source, target) in &self.spec.image.binds {
            let inside = self.inside(target);
            let name = target.display();
            steps.push((format!("image:{name}"), bind(source, &inside)));
            let flags = ms::RDONLY | ms::NOSUID | ms::NODEV;
            steps.push((format!("read-only:{name}"), remount(&inside, flags)));
        }
        steps
    }

    fn dev(&self) -> Named {
        let dev = self.inside(Path::new("/dev"));
        let read_only = ms::RDONLY | ms::NOSUID | ms::NOEXEC;
        let mut steps = vec![
            ("dev".into(), bind(&self.spec.image.dev, &dev)),
            ("read-only:/dev".into(), remount(&dev, read_only)),
        ];
        let options = "newinstance,ptmxmode=0666,mode=620";
        let flags = ms::NOSUID | ms::NOEXEC;
        steps.push(("dev:pts".into(), mount("devpts", &dev.join("pts"), "devpts", flags, options)));
        steps
    }

    /// A `/proc` of this pid namespace, with what tells of or reaches the host covered up.
    fn proc(&self) -> Named {
        let proc = self.inside(Path::new("/proc"));
        let flags = ms::NOSUID | ms::NODEV | ms::NOEXEC;
        let mut steps = vec![("proc".into(), mount("proc", &proc, "proc", flags, ""))];
        let null = self.inside(Path::new("/dev/null"));
        for (path, is_directory) in &self.spec.host.proc_masks {
            let target = proc.join(path);
            let name = format!("mask:/proc/{path}");
            if *is_directory {
                let flags = flags | ms::RDONLY;
                steps.push((name, mount("mask", &target, "tmpfs", flags, "size=0,nr_inodes=2,mode=555")));
            } else {
                steps.push((name, bind(&null, &target)));
            }
        }
        for path in proc_masks::READ_ONLY {
            let target = proc.join(path);
            steps.push((format!("bind:/proc/{path}"), bind(&target, &target)));
            steps.push((format!("read-only:/proc/{path}"), remount(&target, flags | ms::RDONLY)));
        }
        steps
    }

    fn writable_places(&self) -> Named {
        let stage = &self.spec.stage;
        let shm = self.inside(Path::new("/dev/shm"));
        vec![
            ("home".into(), bind(&stage.join("home"), &self.inside(&self.spec.home))),
            ("tmp".into(), bind(&stage.join("tmp"), &self.inside(Path::new("/tmp")))),
            ("shm".into(), bind(&stage.join("shm"), &shm)),
        ]
    }

    fn pivot(&self) -> Named {
        vec![
            ("root:pivot".into(), Step::Pivot { root: text(&self.root) }),
            ("home:enter".into(), Step::Enter { path: text(&self.spec.home) }),
        ]
    }

    /// The bounding set while there still is a capability to do it with, then the user, which
    /// takes the other sets along; `capset` is for ids that were never root.
    fn guest_identity(&self) -> Named {
        let (uid, gid) = self.spec.guest;
        let clear_groups = matches!(self.spec.identity, Identity::Own { .. });
        vec![
            ("close-fds".into(), Step::CloseFrom { first: FIRST_FOREIGN_FD }),
            (
                "capabilities:bounding".into(),
                Step::DropBounding { last: self.spec.host.last_capability },
            ),
            ("identity:guest".into(), Step::Become { uid, gid, clear_groups }),
            ("capabilities".into(), Step::DropCapabilities),
            ("no-new-privs".into(), Step::NoNewPrivs),
        ]
    }

    /// Where the guest may write, once inside.
    fn writable(&self) -> Vec<PathBuf> {
        [self.spec.home.as_path(), Path::new("/tmp"), Path::new("/dev/shm")].map(PathBuf::from).into()
    }

    fn inside(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// A path as the kernel takes it; the part before a NUL, which no path of ours has.
pub(crate) fn text(path: &Path) -> CString {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    CString::new(&bytes[..end]).unwrap_or_default()
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
