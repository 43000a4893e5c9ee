//! Runs in: spawner (root). The plans of cells, one for each configuration and kind, built once.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use cloche_jail::{
    cgroup::CgroupLimits,
    plan::{self, CellPlan, HostIdentity, ImageView, JailSpec, TEMPLATE_GUESTS},
    protocol::fork_request::{NETNS_USED_ONCE, NO_ID, WITH_LOOPBACK},
    rlimits::GuestRlimits,
    seccomp::SyscallPolicy,
};
use cloche_model::{OciRuntime, Substrate};

use super::{
    host_ids::GUEST_IDS, host_setup::HostSetup, image_mounter::ImageMounter,
    process_watch::CellWatch, template_connection::TemplateIds,
};
use crate::{
    driver::DriverSetup,
    protocol::{CellConfig, GUEST_ID, HOME, ImageNumber, TRUST_DIR, inodes_for_disk},
};

/// The limits of a template, which only imports modules. Those of its cells do not matter.
const TEMPLATE_MEMORY: u64 = 2 << 30;
const TEMPLATE_PIDS: u32 = 4096;
/// Processes and threads that the server and other cells may have, where all have one user.
const SHARED_PROCESSES: u64 = 4096;
/// The largest file where the cell has a file system of its own, whose size is the limit: a sparse
/// file takes no space.
const SPARSE_FILE: u64 = 1 << 40;
/// Memory that a process may reserve and never touch, besides four times its limit. It is only to
/// bound how far one process can get between two looks of the process watch.
const UNTOUCHED_MEMORY: u64 = 1 << 30;

/// Which kind of cell a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellPlanKind {
    /// A cell that the spawner clones.
    Cell,
    /// A template.
    Template,
    /// A cell that a template forks.
    Forked,
    /// A cell without namespaces.
    Contained,
}

/// A plan, and its steps as the bytes that a new cell reads.
pub(super) struct PreparedPlan {
    pub(super) plan: CellPlan,
    /// Whether the cell has a netns of its own, which can be a prepared one.
    pub(super) wants_network: bool,
    program: Vec<u8>,
    /// The steps of a cell with a prepared netns, whose loopback is up already.
    networked: Vec<u8>,
}

impl PreparedPlan {
    fn new(plan: CellPlan, kind: CellPlanKind) -> Self {
        let wants_network = plan.wall_names().iter().any(|wall| wall == "namespace:net");
        let networked = plan.without_wall("loopback").encode_steps();
        let mut program = plan.encode_steps();
        if kind == CellPlanKind::Forked {
            // The request to a template begins with the namespaces; for its own clones the spawner
            // has the plan at hand. A template prepares netns too.
            let mut namespaces = plan.namespaces;
            if wants_network {
                program.clone_from(&networked);
                let with_loopback = plan.wall_names().iter().any(|wall| wall == "loopback");
                namespaces |= if with_loopback { WITH_LOOPBACK } else { 0 };
                namespaces |= if plan.network { NETNS_USED_ONCE } else { 0 };
            }
            program.splice(..0, namespaces.to_le_bytes());
        }
        Self { program, networked, wants_network, plan }
    }

    /// The steps for a cell with or without a prepared netns.
    pub(super) fn encoded_steps(&self, networked: bool) -> &[u8] {
        if networked { &self.networked } else { &self.program }
    }
}

/// The most processes and threads in the cgroup of a cell. Those of a runtime and its driver are
/// there beside the guest's, which has a limit of its own then. gVisor needs several of the host for
/// each process of its guest, and ends if it does not get them.
const fn most_tasks(substrate: Substrate, pids: u32) -> u32 {
    match substrate {
        Substrate::Native => pids,
        Substrate::Oci(OciRuntime::Crun) => pids.saturating_add(8),
        Substrate::Oci(OciRuntime::Runc) => pids.saturating_add(64),
        Substrate::Oci(OciRuntime::Runsc) => pids.saturating_mul(8).saturating_add(256),
    }
}

/// All plans so far. Building one costs more than starting a cell should.
pub(super) struct PlanCache<'a> {
    pub(super) host: HostSetup,
    pub(super) images: ImageMounter,
    /// Changes a plan before it is used. Only the escape suite changes anything.
    change: &'a dyn Fn(CellPlan) -> CellPlan,
    made: Vec<(CellConfig, CellPlanKind, PreparedPlan)>,
}

impl<'a> PlanCache<'a> {
    pub(super) fn new(host: HostSetup, change: &'a dyn Fn(CellPlan) -> CellPlan) -> Self {
        let images = ImageMounter::new(host.privileged.then_some(host.ids));
        Self { host, images, change, made: Vec::new() }
    }

    /// Unmounts an image, and forgets the plans for its cells.
    pub(super) fn release_image(&mut self, image: ImageNumber) {
        self.images.unmount(image);
        self.made.retain(|(config, ..)| config.image != Some(image));
    }

    pub(super) fn get(&self, at: usize) -> &PreparedPlan {
        &self.made[at].2
    }

    /// The index of the plan for a configuration. Builds it on first use.
    pub(super) fn find_or_build(
        &mut self,
        config: &CellConfig,
        kind: CellPlanKind,
    ) -> io::Result<usize> {
        let known = |(have, have_kind, _): &(CellConfig, CellPlanKind, PreparedPlan)| {
            have == config && *have_kind == kind
        };
        if let Some(at) = self.made.iter().position(known) {
            return Ok(at);
        }
        let spec = self.jail_spec(config, kind)?;
        let plan = match kind {
            CellPlanKind::Cell => plan::plan_cell(&spec),
            CellPlanKind::Template => plan::plan_template(&spec),
            CellPlanKind::Forked => plan::plan_forked_cell(&spec),
            CellPlanKind::Contained => {
                let view = self.host.contained.as_ref().map(|host| &host.view);
                let view = view.ok_or_else(|| io::Error::other("cells have namespaces here"))?;
                plan::plan_contained_cell(&spec, view)
            }
        };
        let plan = (self.change)(plan);
        self.made.push((config.clone(), kind, PreparedPlan::new(plan, kind)));
        Ok(self.made.len() - 1)
    }

    fn jail_spec(&self, config: &CellConfig, kind: CellPlanKind) -> io::Result<JailSpec> {
        let guest = if kind == CellPlanKind::Template { 0 } else { GUEST_ID };
        let image = self.view_image(config)?;
        let has_trust = config.trust && kind != CellPlanKind::Template;
        Ok(JailSpec {
            trust_dirs: if has_trust { list_trust_dirs(&image.tree) } else { Vec::new() },
            image,
            stage: self.host.stage.clone(),
            guest: (guest, guest),
            identity: self.cell_identity(kind, 0),
            hostname: "cloche".to_owned(),
            home: HOME.into(),
            disk: (config.disk, inodes_for_disk(config.disk)),
            cgroup: self.cgroup_limits(config, kind),
            rlimits: self.guest_rlimits(config, kind),
            syscalls: match kind {
                CellPlanKind::Contained => SyscallPolicy::Contained,
                _ if config.strict => SyscallPolicy::Strict,
                _ => SyscallPolicy::Standard,
            },
            network: config.network && kind != CellPlanKind::Template,
            host: self.host.facts.clone(),
        })
    }

    /// The root of a cell. That of an image is one tree, made by others, so it is read-only.
    fn view_image(&self, config: &CellConfig) -> io::Result<ImageView> {
        let host = &self.host.image;
        let Some(image) = config.image else { return Ok(host.clone()) };
        let tree = self.images.find_tree(image)?;
        Ok(ImageView {
            tree,
            binds: Vec::new(),
            dev: host.dev.clone(),
            hidden: Vec::new(),
            read_only: true,
        })
    }

    /// The resource limits of each process. Where a cgroup or a file system of the cell's own has
    /// the same limit, it is the one that a program meets first.
    fn guest_rlimits(&self, config: &CellConfig, kind: CellPlanKind) -> GuestRlimits {
        let (cgroup, pids) = (self.cgroup_limits(config, kind), u64::from(config.pids));
        let is_contained = kind == CellPlanKind::Contained;
        GuestRlimits {
            processes: match cgroup.pids {
                // All contained cells have the user of the server; the watch counts each cell.
                _ if is_contained => pids + SHARED_PROCESSES,
                Some(_) => 2 * pids,
                None => pids,
            },
            cpu_seconds: config.cpu_seconds,
            file_bytes: if is_contained { config.disk } else { SPARSE_FILE },
            data_bytes: cgroup.memory.is_none().then(|| 4 * config.memory + UNTOUCHED_MEMORY),
        }
    }

    /// The watch of a cell, by what this host can limit and not by what a changed plan limits.
    pub(super) fn watch_cell(&self, config: &CellConfig) -> Option<CellWatch> {
        CellWatch::for_cell(config, self.cgroup_limits(config, CellPlanKind::Cell))
    }

    /// What the driver of a cell in this slot builds it from.
    pub(super) fn driver_setup(
        &self,
        config: &CellConfig,
        runtime: OciRuntime,
        slot: u32,
    ) -> io::Result<DriverSetup> {
        let HostIdentity::Own { image_owner, guest } = self.cell_identity(CellPlanKind::Cell, slot)
        else {
            return Err(io::Error::other(format!(
                "the substrate oci:{} needs a spawner that is root",
                runtime.program()
            )));
        };
        Ok(DriverSetup {
            runtime,
            image: self.view_image(config)?,
            disk: (config.disk, inodes_for_disk(config.disk)),
            rlimits: GuestRlimits {
                // The cgroup also counts the runtime. This limit counts what the guest's user has,
                // which is the guest and pid 1 of the cell.
                processes: u64::from(config.pids),
                ..self.guest_rlimits(config, CellPlanKind::Cell)
            },
            sockets: plan::most_sockets(self.cgroup_limits(config, CellPlanKind::Cell).memory),
            image_owner,
            guest,
            syscalls: if config.strict { SyscallPolicy::Strict } else { SyscallPolicy::Standard },
            facts: self.host.facts.clone(),
            checks_version: false,
        })
    }

    pub(super) fn cgroup_limits(&self, config: &CellConfig, kind: CellPlanKind) -> CgroupLimits {
        let can = self.host.cgroups.as_ref().map_or([false; 3], |all| all.can_limit());
        if kind == CellPlanKind::Template {
            let memory = can[0].then_some(TEMPLATE_MEMORY);
            return CgroupLimits { memory, pids: can[1].then_some(TEMPLATE_PIDS), cpu: None };
        }
        CgroupLimits {
            memory: can[0].then_some(config.memory),
            pids: can[1].then_some(most_tasks(config.substrate, config.pids)),
            cpu: can[2].then_some(config.cpu_milli),
        }
    }

    /// The host ids of a cell's users; those of the spawner's user namespace if it is not root.
    pub(super) fn cell_identity(&self, kind: CellPlanKind, slot: u32) -> HostIdentity {
        if !self.host.privileged {
            // In its own user namespace the spawner is the only user.
            return HostIdentity::Shared { uid: 0, gid: 0 };
        }
        let ids = self.host.ids;
        let image_owner = ids.image_owner();
        if kind == CellPlanKind::Template {
            return HostIdentity::Range { image_owner, first: ids.guest_id(0), count: GUEST_IDS };
        }
        HostIdentity::Own { image_owner, guest: ids.guest_id(slot) }
    }

    /// The ids of a cell in a slot, as its template's user namespace has them.
    pub(super) fn ids_in_template(&self, slot: u32) -> TemplateIds {
        if self.host.privileged {
            return [0, TEMPLATE_GUESTS + slot, GUEST_ID];
        }
        [NO_ID, 0, GUEST_ID]
    }
}

/// The directories of a cell that show the authorities of its job: one of ours, and that of the
/// image if it is a directory. A link could lead anywhere.
fn list_trust_dirs(tree: &Path) -> Vec<PathBuf> {
    const SYSTEM: &str = "etc/ssl/certs";
    let is_directory =
        |path: &str| fs::symlink_metadata(tree.join(path)).is_ok_and(|found| found.is_dir());
    let is_directory = ["etc", "etc/ssl", SYSTEM].into_iter().all(is_directory);
    let system = is_directory.then(|| Path::new("/").join(SYSTEM));
    std::iter::once(PathBuf::from(TRUST_DIR)).chain(system).collect()
}
