//! Runs in: spawner (root).
//!
//! Turns the specification of a cell into the list of steps that builds it: a pure function.
//!
//! It knows the order of the walls and why. It makes no system call: what it must know of the host
//! comes in as [`HostFacts`], so a plan can be inspected, tested and mutated without root.

use std::{
    ffi::CString,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use super::{
    cgroup::CgroupLimits,
    landlock,
    rlimits::{self, GuestRlimits},
};
use crate::{
    protocol::encode::{self, OwnedStep},
    seccomp::SyscallPolicy,
    sys::{CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, CLONE_NEWUTS},
};

mod builder;

pub use builder::RESOLVER_FILE;
use builder::{PlanBuilder, TEMPLATE_IMAGE};

/// The specification of a cell.
#[derive(Clone, Debug)]
pub struct JailSpec {
    /// The root file system.
    pub image: ImageView,
    /// An empty directory of the host to build on; only its name is used, nothing stays there.
    pub stage: PathBuf,
    /// The guest's user and group id inside the cell.
    pub guest: (u32, u32),
    /// The host ids of the cell's users.
    pub identity: HostIdentity,
    /// The host name inside the cell.
    pub hostname: String,
    /// The guest's home and working directory.
    pub home: PathBuf,
    /// The most bytes and inodes of all files that the guest writes.
    pub disk: (u64, u64),
    /// The limits of its cgroup.
    pub cgroup: CgroupLimits,
    /// The resource limits of its processes.
    pub rlimits: GuestRlimits,
    /// The system call policy of the guest.
    pub syscalls: SyscallPolicy,
    /// Whether a network is attached to the cell before it gets its job.
    pub network: bool,
    /// The directories of the cell that show the certificate authorities of its job. The first one
    /// is where the job writes them; none if it brings none.
    pub trust_dirs: Vec<PathBuf>,
    /// What the plan must know of this host.
    pub host: HostFacts,
}

/// A root file system, as directories of the host.
#[derive(Clone, Debug)]
pub struct ImageView {
    /// The lower directory of the overlay.
    pub tree: PathBuf,
    /// Directories shown read-only: (on the host, in the cell).
    pub binds: Vec<(PathBuf, PathBuf)>,
    /// A directory with the device nodes in it: one bind mount shows them all.
    pub dev: PathBuf,
    /// Directories of the cell that are shown empty.
    pub hidden: Vec<PathBuf>,
    /// Whether the root is mounted read-only. Files of the tree may be writable for all users.
    pub read_only: bool,
}

/// The host ids of a cell's users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostIdentity {
    /// Two host ids, for the image's owner and for the guest. No other cell uses that of the guest.
    Own {
        /// The host id of the image's owner.
        image_owner: u32,
        /// The host id of the guest.
        guest: u32,
    },
    /// The guest has the ids of the user who started the spawner: the kernel lets an ordinary user
    /// map no other id.
    Shared {
        /// The user id of that user.
        uid: u32,
        /// The group id of that user.
        gid: u32,
    },
    /// Host ids of a template: the image's owner, and every id of its cells.
    Range {
        /// The host id of the image's owner, which is the template's own.
        image_owner: u32,
        /// The first host id of a guest.
        first: u32,
        /// The number of guests' ids.
        count: u32,
    },
}

/// The first id of guests inside a template's user namespace.
pub const TEMPLATE_GUESTS: u32 = 100_000;

/// What the plan must know of this host.
#[derive(Clone, Debug)]
pub struct HostFacts {
    /// The Landlock version; zero if there is none.
    pub landlock: u32,
    /// The highest capability of the kernel.
    pub last_capability: u32,
    /// Which of [`super::speculation::KINDS`] can be disabled for one process.
    pub speculation: [bool; 2],
    /// The most files that all processes of the host may have open.
    pub open_files: u64,
    /// The paths to mask under `/proc` that exist: (path, whether it is a directory).
    pub proc_masks: Vec<(String, bool)>,
}

/// The most sockets of a cell, by its memory limit. A socket pins up to an eighth of a MiB of kernel
/// memory that is charged to no cgroup, so all sockets pin at most half of the limit.
#[must_use]
pub fn most_sockets(memory: Option<u64>) -> u32 {
    const EACH: u64 = 256 << 10;
    const LEAST: u64 = 256;
    const MOST: u64 = 4096;
    memory.map_or(MOST / 4, |memory| memory / EACH).clamp(LEAST, MOST) as u32
}

/// The namespaces in which a cell starts, with the names of their walls. The cgroup namespace is a
/// step instead: its root is the cgroup of the process that makes it.
pub const NAMESPACES: [(&str, u64); 6] = [
    ("namespace:user", CLONE_NEWUSER),
    ("namespace:mount", CLONE_NEWNS),
    ("namespace:pid", CLONE_NEWPID),
    ("namespace:net", CLONE_NEWNET),
    ("namespace:ipc", CLONE_NEWIPC),
    ("namespace:uts", CLONE_NEWUTS),
];

/// A plan: the namespaces, the ids, the cgroup limits, and the steps that the new process applies.
#[derive(Clone, Debug)]
pub struct CellPlan {
    /// `CLONE_NEW*` flags.
    pub namespaces: u64,
    /// The host ids of the cell's users.
    pub identity: HostIdentity,
    /// The guest's user and group id inside the cell.
    pub guest: (u32, u32),
    /// The limits of the cell's cgroup.
    pub cgroup: CgroupLimits,
    /// Whether a network is attached to the cell. Its netns is then never reused.
    pub network: bool,
    /// The steps in order, each with the name of its wall.
    pub(crate) steps: Vec<(String, OwnedStep)>,
}

impl CellPlan {
    /// The steps as bytes for the new process.
    #[must_use]
    pub fn encode_steps(&self) -> Vec<u8> {
        let mut program = Vec::new();
        for (wall, step) in &self.steps {
            encode::append_text(&mut program, &path_to_cstring(Path::new(wall)));
            encode::append_step(&mut program, step);
        }
        program
    }

    /// The names of all walls: namespaces, cgroup limits, steps.
    #[must_use]
    pub fn wall_names(&self) -> Vec<String> {
        let namespaces = NAMESPACES.iter().filter(|(_, flag)| self.namespaces & flag != 0);
        let namespaces = namespaces.map(|(name, _)| (*name).to_owned());
        let limits = self.cgroup.wall_names().map(str::to_owned);
        let steps = self.steps.iter().map(|(name, _)| name.clone());
        namespaces.chain(limits).chain(steps).collect()
    }

    /// The same plan without one wall. The escape suite attacks such a cell, to see that the wall
    /// is needed.
    #[must_use]
    pub fn without_wall(&self, wall: &str) -> Self {
        let mut plan = self.clone();
        plan.steps.retain(|(name, _)| name != wall);
        plan.cgroup = plan.cgroup.without_wall(wall);
        let left_out = NAMESPACES.iter().find(|(name, _)| *name == wall);
        plan.namespaces &= !left_out.map_or(0, |(_, flag)| *flag);
        plan
    }
}

/// The plan of a cold or parked cell: the order of the walls, on one screen.
#[must_use]
pub fn plan_cell(spec: &JailSpec) -> CellPlan {
    let build = PlanBuilder::new(spec, &spec.stage, &spec.image.tree);
    assemble_plan(
        spec,
        [
            build.unshare_cgroup(),
            build.become_builder_user(),
            build.set_hostname(),
            build.bring_up_loopback(),
            build.mount_scratch(),
            build.mount_overlay_root(),
            build.mount_image_overlays(),
            build.name_resolver(),
            build.hide_directories(),
            build.bind_dev(),
            build.make_dev_read_only(),
            build.mount_pts(),
            build.mount_proc(&spec.host.proc_masks),
            build.bind_writable_dirs(),
            build.bind_secrets_dir(),
            build.bind_trust_dirs(),
            build.pivot_root(),
            rlimits::common_steps(spec.host.open_files),
            rlimits::guest_steps(&spec.rlimits),
            build.become_guest_user(),
            build.no_new_privs(),
            build.restrict_files(),
            build.disable_speculation(),
            build.refuse_unmapped_memory(),
            build.limit_sockets(),
            build.install_filter(),
            build.die_with_parent(),
        ],
    )
}

/// The plan of a template: the same without the walls that its cells apply to themselves. It keeps
/// the capabilities of its own user namespace to build cells with; it never runs guest code.
#[must_use]
pub fn plan_template(spec: &JailSpec) -> CellPlan {
    let build = PlanBuilder::new(spec, &spec.stage, &spec.image.tree);
    assemble_plan(
        spec,
        [
            build.become_builder_user(),
            build.set_hostname(),
            build.mount_scratch(),
            build.bind_root(),
            build.bind_image(),
            build.bind_image_for_cells(),
            build.hide_directories(),
            build.bind_dev_for_cells(),
            build.bind_dev(),
            build.make_dev_read_only(),
            build.mount_pts(),
            // Unmasked: the kernel lets a cell mount `/proc` only if a complete one is visible.
            build.mount_proc(&[]),
            build.bind_writable_dirs(),
            build.pivot_root(),
            rlimits::common_steps(spec.host.open_files),
            build.finish_template(),
        ],
    )
}

/// The plan of a cell that a template forks: built on the template's image as other cells are on
/// the host's, so that siblings share no inode. It inherits the template's host name, limits and
/// `no_new_privs`, starts as the image's owner, and dies with the template's pid namespace.
#[must_use]
pub fn plan_forked_cell(spec: &JailSpec) -> CellPlan {
    let build = PlanBuilder::new(spec, Path::new("/run"), Path::new(TEMPLATE_IMAGE));
    assemble_plan(
        spec,
        [
            build.unshare_cgroup(),
            build.bring_up_loopback(),
            build.mount_scratch(),
            build.mount_overlay_root(),
            build.mount_forked_image_overlays(),
            build.name_resolver(),
            build.hide_directories(),
            build.bind_forked_dev(),
            build.mount_pts(),
            build.mount_proc(&spec.host.proc_masks),
            build.bind_writable_dirs(),
            build.bind_secrets_dir(),
            build.bind_trust_dirs(),
            build.pivot_root(),
            rlimits::guest_steps(&spec.rlimits),
            build.become_guest_user(),
            build.restrict_files(),
            build.refuse_unmapped_memory(),
            build.limit_sockets(),
            build.install_filter(),
        ],
    )
}

/// The plan of a contained cell: one that is made where no user namespace can be. It has only the
/// walls that need no privilege, and starts in its home, with a directory `tmp` beside it. Pid 1
/// applies the first step, and the guest's process the others.
#[must_use]
pub fn plan_contained_cell(spec: &JailSpec, view: &ContainedView) -> CellPlan {
    let build = PlanBuilder::new(spec, &spec.stage, &spec.image.tree);
    let writable = [".", "../tmp"].map(PathBuf::from);
    let steps = [
        build.contain_signals(),
        rlimits::common_steps(spec.host.open_files),
        rlimits::guest_steps(&spec.rlimits),
        build.become_contained_guest(),
        build.no_new_privs(),
        landlock::contained_steps(&view.readable, &view.devices, &writable, spec.host.landlock),
        build.refuse_unmapped_memory(),
        build.install_filter(),
    ];
    CellPlan { namespaces: 0, ..assemble_plan(spec, steps) }
}

/// How a contained cell reads a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReadAccess {
    /// Reads and executes a file.
    File,
    /// Lists a directory and everything below it, and reads and executes the files.
    Directory,
    /// Only lists a directory and everything below it.
    Names,
}

/// What a contained cell sees of the container it is in.
#[derive(Clone, Debug, Default)]
pub struct ContainedView {
    /// Files and directories to read, and how. Relative paths begin at the home.
    pub readable: Vec<(PathBuf, ReadAccess)>,
    /// Device nodes.
    pub devices: Vec<PathBuf>,
}

fn assemble_plan<const N: usize>(spec: &JailSpec, steps: [builder::NamedSteps; N]) -> CellPlan {
    CellPlan {
        namespaces: NAMESPACES.iter().fold(0, |flags, (_, flag)| flags | flag),
        identity: spec.identity,
        guest: spec.guest,
        cgroup: spec.cgroup,
        network: spec.network,
        steps: steps.into_iter().flatten().collect(),
    }
}

/// A path as a C string, truncated at a NUL, which no path of ours has.
pub(crate) fn path_to_cstring(path: &Path) -> CString {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    CString::new(&bytes[..end]).unwrap_or_default()
}
