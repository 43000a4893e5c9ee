//! The plans a spawner works by, one per configuration and shape, made once.

use std::io;

use cloche_jail::{
    cgroup::CgroupLimits,
    fork_server::{NO_ID, WITH_LOOPBACK},
    plan::{self, CellPlan, HostIdentity, JailSpec, TEMPLATE_GUESTS},
    seccomp::SyscallPolicy,
};

use super::{host_ids::GUEST_IDS, host_setup::HostSetup, template_connection::TemplateIds};
use crate::protocol::{CellConfig, inodes_for_disk};
use crate::protocol::{GUEST_ID, HOME};

/// What a template gets, whatever its cells do: it only imports.
const TEMPLATE_MEMORY: u64 = 2 << 30;
const TEMPLATE_PIDS: u32 = 4096;

/// Which kind of box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellPlanKind {
    /// Built from nothing.
    Cell,
    /// A template's own.
    Template,
    /// Forked by a template.
    Forked,
}

/// A plan and the bytes that a new cell reads of it.
pub(super) struct PreparedPlan {
    pub(super) plan: CellPlan,
    /// Whether it is to have a network of its own, which can be one that was made ahead.
    pub(super) wants_network: bool,
    program: Vec<u8>,
    /// The steps of a cell whose network was made ahead, with its loopback up.
    networked: Vec<u8>,
}

impl PreparedPlan {
    fn new(plan: CellPlan, shape: CellPlanKind) -> Self {
        let wants_network = plan.wall_names().iter().any(|wall| wall == "namespace:net");
        let networked = plan.without_wall("loopback").encode_steps();
        let mut program = plan.encode_steps();
        if shape == CellPlanKind::Forked {
            // A template is told which namespaces; where we clone ourselves the plan is at hand. It
            // makes networks ahead, too.
            let mut namespaces = plan.namespaces;
            if wants_network {
                program.clone_from(&networked);
                let with_loopback = plan.wall_names().iter().any(|wall| wall == "loopback");
                namespaces |= if with_loopback { WITH_LOOPBACK } else { 0 };
            }
            program.splice(..0, namespaces.to_le_bytes());
        }
        Self { program, networked, wants_network, plan }
    }

    /// The steps for a cell with or without a network that was made ahead.
    pub(super) fn encoded_steps(&self, networked: bool) -> &[u8] {
        if networked { &self.networked } else { &self.program }
    }
}

/// All plans so far: building one costs more than starting a cell should.
pub(super) struct PlanCache<'a> {
    pub(super) host: HostSetup,
    /// What is done to a plan before it is used; nothing, but in the escape suite.
    change: &'a dyn Fn(CellPlan) -> CellPlan,
    made: Vec<(CellConfig, CellPlanKind, PreparedPlan)>,
}

impl<'a> PlanCache<'a> {
    pub(super) fn new(ground: HostSetup, change: &'a dyn Fn(CellPlan) -> CellPlan) -> Self {
        Self { host: ground, change, made: Vec::new() }
    }

    pub(super) fn get(&self, at: usize) -> &PreparedPlan {
        &self.made[at].2
    }

    /// Where the plan for a configuration is, made on its first use.
    pub(super) fn find_or_build(
        &mut self,
        config: &CellConfig,
        shape: CellPlanKind,
    ) -> io::Result<usize> {
        if config.image != "host" {
            return Err(io::Error::other(format!("there is no image {:?} here", config.image)));
        }
        let known = |(have, kind, _): &(CellConfig, CellPlanKind, PreparedPlan)| {
            have == config && *kind == shape
        };
        if let Some(at) = self.made.iter().position(known) {
            return Ok(at);
        }
        let spec = self.jail_spec(config, shape);
        let plan = match shape {
            CellPlanKind::Cell => plan::plan_cell(&spec),
            CellPlanKind::Template => plan::plan_template(&spec),
            CellPlanKind::Forked => plan::plan_forked_cell(&spec),
        };
        let plan = (self.change)(plan);
        self.made.push((config.clone(), shape, PreparedPlan::new(plan, shape)));
        Ok(self.made.len() - 1)
    }

    fn jail_spec(&self, config: &CellConfig, shape: CellPlanKind) -> JailSpec {
        let guest = if shape == CellPlanKind::Template { 0 } else { GUEST_ID };
        JailSpec {
            image: self.host.image.clone(),
            stage: self.host.stage.clone(),
            guest: (guest, guest),
            identity: self.cell_identity(shape, 0),
            hostname: "cloche".to_owned(),
            home: HOME.into(),
            disk: (config.disk, inodes_for_disk(config.disk)),
            cgroup: self.cgroup_limits(config, shape),
            syscalls: if config.strict { SyscallPolicy::Strict } else { SyscallPolicy::Standard },
            host: self.host.facts.clone(),
        }
    }

    fn cgroup_limits(&self, config: &CellConfig, shape: CellPlanKind) -> CgroupLimits {
        let can = self.host.cgroups.as_ref().map_or([false; 3], |all| all.can_limit());
        if shape == CellPlanKind::Template {
            let memory = can[0].then_some(TEMPLATE_MEMORY);
            return CgroupLimits { memory, pids: can[1].then_some(TEMPLATE_PIDS), cpu: None };
        }
        CgroupLimits {
            memory: can[0].then_some(config.memory),
            pids: can[1].then_some(config.pids),
            cpu: can[2].then_some(config.cpu_milli),
        }
    }

    /// Who the users of a box are, on the host or where the spawner's own ids end.
    pub(super) fn cell_identity(&self, shape: CellPlanKind, slot: u32) -> HostIdentity {
        if !self.host.privileged {
            // Ids of the spawner's own namespace, where it is the only user.
            return HostIdentity::Shared { uid: 0, gid: 0 };
        }
        let ids = self.host.ids;
        let image_owner = ids.image_owner();
        if shape == CellPlanKind::Template {
            return HostIdentity::Range { image_owner, first: ids.guest_id(0), count: GUEST_IDS };
        }
        HostIdentity::Own { image_owner, guest: ids.guest_id(slot) }
    }

    /// The ids of a cell in a slot, as a template counts them.
    pub(super) fn ids_in_template(&self, slot: u32) -> TemplateIds {
        if self.host.privileged {
            return [0, TEMPLATE_GUESTS + slot, GUEST_ID];
        }
        [NO_ID, 0, GUEST_ID]
    }
}
