//! Runs in: server (no capabilities). What the running cells of a host may be promised together,
//! and how requests wait for it. Plain data; who waits for what is in `admit/fair_queue.rs`.

use std::time::Duration;

use cloche_model::{RunLimits, TeamPlan};

/// An amount of each resource that is promised to cells: the need of one, the use of many, or the
/// capacity of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostShare {
    /// Bytes of memory.
    pub memory: u64,
    /// Thousandths of a core.
    pub cpu_milli: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Cells, or transfers.
    pub places: u64,
}

impl HostShare {
    /// Nothing at all.
    pub const NONE: Self = Self { memory: 0, cpu_milli: 0, pids: 0, places: 0 };
    /// No limit.
    pub const UNLIMITED: Self =
        Self { memory: u64::MAX, cpu_milli: u64::MAX, pids: u64::MAX, places: u64::MAX };
    /// One place, and nothing else.
    pub const PLACE: Self = Self { places: 1, ..Self::NONE };

    /// What a cell with these limits is promised.
    #[must_use]
    pub fn of_cell(limits: &RunLimits) -> Self {
        Self {
            memory: limits.memory.bytes(),
            cpu_milli: u64::from(limits.cpus.millicores()),
            pids: u64::from(limits.pids),
            places: 1,
        }
    }

    fn to_array(self) -> [u64; 4] {
        [self.memory, self.cpu_milli, self.pids, self.places]
    }

    fn zip_with(self, other: Self, with: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            memory: with(self.memory, other.memory),
            cpu_milli: with(self.cpu_milli, other.cpu_milli),
            pids: with(self.pids, other.pids),
            places: with(self.places, other.places),
        }
    }

    pub(crate) fn saturating_add(self, other: Self) -> Self {
        self.zip_with(other, u64::saturating_add)
    }

    pub(crate) fn saturating_sub(self, other: Self) -> Self {
        self.zip_with(other, u64::saturating_sub)
    }

    /// The smaller of each.
    pub(crate) fn at_most(self, other: Self) -> Self {
        self.zip_with(other, u64::min)
    }

    /// Whether there is no more of anything in it than in the other.
    pub(crate) fn fits_in(self, other: Self) -> bool {
        self.to_array().into_iter().zip(other.to_array()).all(|(part, most)| part <= most)
    }

    /// Whether no part is more than `share : 1 - share` of what is free of it, in thousandths.
    pub(crate) fn is_within(self, free: Self, share_milli: u64) -> bool {
        let share = u128::from(share_milli.min(1000));
        let mut pairs = self.to_array().into_iter().zip(free.to_array());
        pairs.all(|(has, free)| u128::from(has) * (1000 - share) <= u128::from(free) * share)
    }
}

/// How requests of one class are admitted.
#[derive(Clone, Copy, Debug)]
pub struct ClassLimits {
    /// What all that run may have together.
    pub capacity: HostShare,
    /// How much of it one team may have while no other has any, in thousandths. With others, a team
    /// may have `share : 1 - share` of what is free, so something is left for the next team.
    pub team_share_milli: u64,
    /// Requests of one team that may wait.
    pub queued_per_team: usize,
    /// Requests of all teams that may wait.
    pub queued: usize,
    /// The longest that a request waits.
    pub longest_wait: Duration,
}

/// Turns of a team in each round, by its plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanWeights {
    /// Of a team on the Free plan.
    pub free: u32,
    /// On the Pro plan.
    pub pro: u32,
    /// On the Enterprise plan.
    pub enterprise: u32,
}

impl PlanWeights {
    /// The turns of a team on this plan; at least one.
    #[must_use]
    pub fn weight_for(&self, plan: TeamPlan) -> u32 {
        let weight = match plan {
            TeamPlan::Free => self.free,
            TeamPlan::Pro => self.pro,
            TeamPlan::Enterprise => self.enterprise,
        };
        weight.max(1)
    }
}

impl Default for PlanWeights {
    fn default() -> Self {
        Self { free: 1, pro: 2, enterprise: 4 }
    }
}

/// Admission of everything that takes much of a host.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionConfig {
    /// Executions.
    pub runs: ClassLimits,
    /// Uploads, imports and exports.
    pub transfers: ClassLimits,
    /// Who has how many turns.
    pub weights: PlanWeights,
    /// Cells of one team that compete for processors with other teams' on equal terms; more of them
    /// have the time that is left over.
    pub cells_in_front: u64,
}

impl Default for AdmissionConfig {
    /// No limit to what runs: this host is not known here.
    fn default() -> Self {
        let runs = ClassLimits {
            capacity: HostShare::UNLIMITED,
            team_share_milli: 750,
            queued_per_team: 128,
            queued: 1024,
            longest_wait: Duration::from_secs(30),
        };
        let places = HostShare { places: 32, ..HostShare::UNLIMITED };
        let transfers =
            ClassLimits { capacity: places, team_share_milli: 500, queued_per_team: 16, ..runs };
        Self { runs, transfers, weights: PlanWeights::default(), cells_in_front: 2 }
    }
}
