//! Teams, keys and sandbox configurations, as rows.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    ByteSize, CpuShare, EnvVars, GateSettings, KeyId, Moment, PlanLimits, RunLimits, SandboxId,
    SandboxShape, Secret, SecretVars, TeamId, TeamPlan,
};

/// A tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Team {
    /// Its id.
    pub id: TeamId,
    /// Its display name; unique.
    pub name: String,
    /// Its plan.
    pub plan: TeamPlan,
    /// Its own concurrency limit, which replaces the plan's.
    pub max_concurrency: Option<u32>,
    /// Its own longest timeout, which replaces the plan's.
    pub max_timeout: Option<Duration>,
    /// Its own storage budget, which replaces the plan's.
    pub storage: Option<ByteSize>,
    /// Its own monthly allowance in millionths of a credit, which replaces the plan's.
    pub monthly_micro_credits: Option<u64>,
    /// Its settings for the gates in front of agent tools.
    pub gates: GateSettings,
    /// When it was created.
    pub created_at: Moment,
}

impl Team {
    /// The plan's limits, with the team's own limits applied.
    #[must_use]
    pub fn effective_limits(&self) -> PlanLimits {
        let plan = self.plan.default_limits();
        PlanLimits {
            concurrency: self.max_concurrency.or(plan.concurrency),
            timeout: self.max_timeout.or(plan.timeout),
            ..plan
        }
    }
}

/// A sandbox configuration: the environment that a key's executions run in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Its id.
    pub id: SandboxId,
    /// The team that owns it.
    pub team: TeamId,
    /// Its display name; unique in the team.
    pub name: String,
    /// Image, network, preloaded modules.
    pub shape: SandboxShape,
    /// The resources of a run.
    pub resources: SandboxResources,
    /// Environment variables of every run.
    pub env: EnvVars,
    /// Environment variables with secret values.
    pub secret_env: SecretVars,
    /// What the ledger keeps of its executions.
    pub retention: LedgerRetention,
    /// When it was created.
    pub created_at: Moment,
}

/// The resources of the runs of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxResources {
    /// Processor share.
    pub cpus: CpuShare,
    /// Memory.
    pub memory: ByteSize,
    /// Bytes in files at any one time.
    pub disk: ByteSize,
    /// Processes and threads at any one time.
    pub pids: u32,
}

impl SandboxResources {
    /// Adds a timeout and an output limit, which gives the limits of a run.
    #[must_use]
    pub fn to_run_limits(self, timeout: Duration, output: ByteSize) -> RunLimits {
        let Self { cpus, memory, disk, pids } = self;
        RunLimits { timeout, memory, cpus, pids, disk, output }
    }
}

impl Default for SandboxResources {
    fn default() -> Self {
        let limits = RunLimits::default();
        Self { cpus: limits.cpus, memory: limits.memory, disk: limits.disk, pids: limits.pids }
    }
}

/// What the ledger keeps of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerRetention {
    /// Whether the code is kept, or only its digest and size.
    pub code: bool,
    /// Days until the record is deleted; never deleted if absent.
    pub days: Option<u32>,
}

impl Default for LedgerRetention {
    fn default() -> Self {
        Self { code: true, days: Some(30) }
    }
}

/// An API key without its secret. The secret is shown once and stored only as a digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// Its id.
    pub id: KeyId,
    /// The team that owns it.
    pub team: TeamId,
    /// The sandbox that its executions run in.
    pub sandbox: SandboxId,
    /// Its display name.
    pub name: String,
    /// The first characters of the secret, which help people to tell keys apart.
    pub prefix: String,
    /// Environment variables of every run.
    pub env: EnvVars,
    /// Environment variables with secret values.
    pub secret_env: SecretVars,
    /// The URL for results in webhook mode if the request has none.
    pub webhook_url: Option<String>,
    /// The secret that signs deliveries.
    pub webhook_secret: Option<Secret>,
    /// Whether its holder may answer approvals that other keys of the team request.
    pub may_approve: bool,
    /// When it was created.
    pub created_at: Moment,
    /// When it was revoked.
    pub revoked_at: Option<Moment>,
}
