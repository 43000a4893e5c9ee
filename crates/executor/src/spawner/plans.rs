//! The plans a spawner works by, one per configuration and shape, made once.

use std::io;

use cloche_jail::{
    cgroup::CgroupLimits,
    plan::{self, Identity, JailSpec, Plan, TEMPLATE_GUESTS},
    seccomp::SyscallPolicy,
    serve::{NO_ID, WITH_LOOPBACK},
};

use super::{
    ground::Ground,
    host_ids::GUEST_IDS,
    protocol::{CellConfig, inodes_for_disk},
    templates::TemplateIds,
};
use crate::image::{GUEST_ID, HOME};

/// What a template gets, whatever its cells do: it only imports.
const TEMPLATE_MEMORY: u64 = 2 << 30;
const TEMPLATE_PIDS: u32 = 4096;

/// Which kind of box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Built from nothing.
    Cell,
    /// A template's own.
    Template,
    /// Forked by a template.
    Forked,
}

/// A plan and the bytes that a new cell reads of it.
pub(super) struct Prepared {
    pub(super) plan: Plan,
    /// Whether it is to have a network of its own, which can be one that was made ahead.
    pub(super) wants_network: bool,
    program: Vec<u8>,
    /// The steps of a cell whose network was made ahead, with its loopback up.
    networked: Vec<u8>,
}

impl Prepared {
    fn new(plan: Plan, shape: Shape) -> Self {
        let wants_network = plan.walls().iter().any(|wall| wall == "namespace:net");
        let networked = plan.without("loopback").encode();
        let mut program = plan.encode();
        if shape == Shape::Forked {
            // A template is told which namespaces; where we clone ourselves the plan is at hand. It
            // makes networks ahead, too.
            let mut namespaces = plan.namespaces;
            if wants_network {
                program.clone_from(&networked);
                let with_loopback = plan.walls().iter().any(|wall| wall == "loopback");
                namespaces |= if with_loopback { WITH_LOOPBACK } else { 0 };
            }
            program.splice(..0, namespaces.to_le_bytes());
        }
        Self { program, networked, wants_network, plan }
    }

    /// The steps for a cell with or without a network that was made ahead.
    pub(super) fn program(&self, networked: bool) -> &[u8] {
        if networked { &self.networked } else { &self.program }
    }
}

/// All plans so far: building one costs more than starting a cell should.
pub(super) struct Plans<'a> {
    pub(super) ground: Ground,
    /// What is done to a plan before it is used; nothing, but in the escape suite.
    change: &'a dyn Fn(Plan) -> Plan,
    made: Vec<(CellConfig, Shape, Prepared)>,
}

impl<'a> Plans<'a> {
    pub(super) fn new(ground: Ground, change: &'a dyn Fn(Plan) -> Plan) -> Self {
        Self { ground, change, made: Vec::new() }
    }

    pub(super) fn at(&self, at: usize) -> &Prepared {
        &self.made[at].2
    }

    /// Where the plan for a configuration is, made on its first use.
    pub(super) fn find(&mut self, config: &CellConfig, shape: Shape) -> io::Result<usize> {
        if config.image != "host" {
            return Err(io::Error::other(format!("there is no image {:?} here", config.image)));
        }
        let known =
            |(have, kind, _): &(CellConfig, Shape, Prepared)| have == config && *kind == shape;
        if let Some(at) = self.made.iter().position(known) {
            return Ok(at);
        }
        let spec = self.spec(config, shape);
        let plan = match shape {
            Shape::Cell => plan::plan(&spec),
            Shape::Template => plan::template_plan(&spec),
            Shape::Forked => plan::forked_plan(&spec),
        };
        let plan = (self.change)(plan);
        self.made.push((config.clone(), shape, Prepared::new(plan, shape)));
        Ok(self.made.len() - 1)
    }

    fn spec(&self, config: &CellConfig, shape: Shape) -> JailSpec {
        let guest = if shape == Shape::Template { 0 } else { GUEST_ID };
        JailSpec {
            image: self.ground.image.clone(),
            stage: self.ground.stage.clone(),
            guest: (guest, guest),
            identity: self.identity(shape, 0),
            hostname: "cloche".to_owned(),
            home: HOME.into(),
            disk: (config.disk, inodes_for_disk(config.disk)),
            cgroup: self.limits(config, shape),
            syscalls: if config.strict { SyscallPolicy::Strict } else { SyscallPolicy::Standard },
            host: self.ground.facts.clone(),
        }
    }

    fn limits(&self, config: &CellConfig, shape: Shape) -> CgroupLimits {
        let can = self.ground.cgroups.as_ref().map_or([false; 3], |all| all.can_limit());
        if shape == Shape::Template {
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
    pub(super) fn identity(&self, shape: Shape, slot: u32) -> Identity {
        if !self.ground.privileged {
            // Ids of the spawner's own namespace, where it is the only user.
            return Identity::Shared { uid: 0, gid: 0 };
        }
        let ids = self.ground.ids;
        let image_owner = ids.image_owner();
        if shape == Shape::Template {
            return Identity::Range { image_owner, first: ids.guest(0), count: GUEST_IDS };
        }
        Identity::Own { image_owner, guest: ids.guest(slot) }
    }

    /// The ids of a cell in a slot, as a template counts them.
    pub(super) fn ids_in_template(&self, slot: u32) -> TemplateIds {
        if self.ground.privileged {
            return [0, TEMPLATE_GUESTS + slot, GUEST_ID];
        }
        [NO_ID, 0, GUEST_ID]
    }
}
