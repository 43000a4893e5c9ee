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
    landlock, rlimits,
    seccomp::SyscallPolicy,
};

mod builder;

use builder::{PlanBuilder, TEMPLATE_IMAGE};

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
    pub identity: HostIdentity,
    /// The machine's name, as the guest sees it.
    pub hostname: String,
    /// The guest's home and working directory.
    pub home: PathBuf,
    /// Bytes and inodes of everything the guest writes to files.
    pub disk: (u64, u64),
    /// What the cgroup holds it to.
    pub cgroup: CgroupLimits,
    /// Which system calls it may make.
    pub syscalls: SyscallPolicy,
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
pub enum HostIdentity {
    /// The image's owner is this host id, the guest is that one, and nobody else's.
    Own {
        /// The host id of the image's owner.
        image_owner: u32,
        /// The host id of the guest.
        guest: u32,
    },
    /// The guest is whoever started us; a kernel lets an ordinary user map no other id.
    Shared {
        /// That user.
        uid: u32,
        /// And its group.
        gid: u32,
    },
    /// A template's: the image's owner, and every id that its cells will be given.
    Range {
        /// The host id of the image's owner, which the template is itself.
        image_owner: u32,
        /// The first host id of a guest.
        first: u32,
        /// How many there are.
        count: u32,
    },
}

/// Where the ids of guests begin, inside a template's user namespace.
pub const TEMPLATE_GUESTS: u32 = 100_000;

/// What the plan must know of this host.
#[derive(Clone, Debug)]
pub struct HostFacts {
    /// The Landlock version; zero where there is none.
    pub landlock: u32,
    /// The highest capability the kernel knows.
    pub last_capability: u32,
    /// Which of the kinds of speculation can be switched off for one process.
    pub speculation: [bool; 2],
    /// How many files all of the host may have open.
    pub open_files: u64,
    /// Which of the paths to mask under `/proc` exist: (path, whether it is a directory).
    pub proc_masks: Vec<(String, bool)>,
}

/// The namespaces a box is born into, with the names their walls go by. That of cgroups is a step:
/// its root is where a process is when it is made.
pub const NAMESPACES: [(&str, u64); 6] = [
    ("namespace:user", 0x1000_0000),
    ("namespace:mount", 0x0002_0000),
    ("namespace:pid", 0x2000_0000),
    ("namespace:net", 0x4000_0000),
    ("namespace:ipc", 0x0800_0000),
    ("namespace:uts", 0x0400_0000),
];

/// A plan: the namespaces to be born into, the ids, the limits, and the steps taken inside.
#[derive(Clone, Debug)]
pub struct CellPlan {
    /// `CLONE_NEW*` flags.
    pub namespaces: u64,
    /// Who the box's users are on the host.
    pub identity: HostIdentity,
    /// The guest's user and group, as it sees them.
    pub guest: (u32, u32),
    /// What the cgroup holds the box to.
    pub cgroup: CgroupLimits,
    /// The steps, each under the name of its wall, in order.
    pub(crate) steps: Vec<(String, OwnedStep)>,
}

impl CellPlan {
    /// The steps as the bytes that a new cell reads.
    #[must_use]
    pub fn encode_steps(&self) -> Vec<u8> {
        let mut program = Vec::new();
        for (wall, step) in &self.steps {
            encode::append_text(&mut program, &path_to_cstring(Path::new(wall)));
            encode::append_step(&mut program, step);
        }
        program
    }

    /// Every wall by name: namespaces, cgroup limits, steps.
    #[must_use]
    pub fn wall_names(&self) -> Vec<String> {
        let namespaces = NAMESPACES.iter().filter(|(_, flag)| self.namespaces & flag != 0);
        let namespaces = namespaces.map(|(name, _)| (*name).to_owned());
        let limits = self.cgroup.wall_names().map(str::to_owned);
        let steps = self.steps.iter().map(|(name, _)| name.clone());
        namespaces.chain(limits).chain(steps).collect()
    }

    /// The same plan with one wall left out: what the escape suite attacks to see it missed.
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

/// The order of the box, on one screen.
#[must_use]
pub fn plan_cell(spec: &JailSpec) -> CellPlan {
    let build = PlanBuilder::new(spec, &spec.stage, &spec.image.tree);
    let (masks, count_processes) = (&spec.host.proc_masks, spec.cgroup.pids.is_none());
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
            build.bind_dev(),
            build.make_dev_read_only(),
            build.mount_pts(),
            build.mount_proc(masks),
            build.bind_writable_dirs(),
            build.pivot_root(),
            rlimits::limit_steps(count_processes, spec.host.open_files),
            build.become_guest_user(),
            build.no_new_privs(),
            landlock::wall_steps(&build.landlock_writable_dirs(), spec.host.landlock),
            build.disable_speculation(),
            build.limit_sockets(),
            build.install_filter(),
            build.die_with_parent(),
        ],
    )
}

/// The box of a template: the same but for what its cells put on themselves. It keeps the
/// capabilities of its own user namespace to build them with; it never sees guest code.
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
            build.bind_dev_for_cells(),
            build.bind_dev(),
            build.make_dev_read_only(),
            build.mount_pts(),
            // Unmasked: the kernel lets a cell have a `/proc` only where a whole one is visible.
            build.mount_proc(&[]),
            build.bind_writable_dirs(),
            build.pivot_root(),
            rlimits::limit_steps(false, spec.host.open_files),
            build.finish_template(),
        ],
    )
}

/// The box of a cell that a template forks: built on the template's image as others are on the
/// host's, so that siblings share no inode. It inherits the template's name, limits and
/// `no_new_privs`, is the image's owner to begin with, and dies with the template's pid namespace.
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
            build.mount_image_overlays(),
            build.bind_forked_dev(),
            build.mount_pts(),
            build.mount_proc(&spec.host.proc_masks),
            build.bind_writable_dirs(),
            build.pivot_root(),
            build.become_guest_user(),
            landlock::wall_steps(&build.landlock_writable_dirs(), spec.host.landlock),
            build.limit_sockets(),
            build.install_filter(),
        ],
    )
}

fn assemble_plan<const N: usize>(spec: &JailSpec, steps: [builder::NamedSteps; N]) -> CellPlan {
    CellPlan {
        namespaces: NAMESPACES.iter().fold(0, |flags, (_, flag)| flags | flag),
        identity: spec.identity,
        guest: spec.guest,
        cgroup: spec.cgroup,
        steps: steps.into_iter().flatten().collect(),
    }
}

/// A path as the kernel takes it; the part before a NUL, which no path of ours has.
pub(crate) fn path_to_cstring(path: &Path) -> CString {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    CString::new(&bytes[..end]).unwrap_or_default()
}
