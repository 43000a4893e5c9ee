//! Who may ask, and what they get: teams, keys and sandbox configurations as rows.

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
    /// The name people use; unique.
    pub name: String,
    /// What it has signed up for.
    pub plan: TeamPlan,
    /// A concurrency limit of its own, instead of the plan's.
    pub max_concurrency: Option<u32>,
    /// The longest time limit of its own, instead of the plan's.
    pub max_timeout: Option<Duration>,
    /// A storage budget of its own, instead of the plan's.
    pub storage: Option<ByteSize>,
    /// What it has set of the gates in front of agent tools.
    pub gates: GateSettings,
    /// When it was made.
    pub created_at: Moment,
}

impl Team {
    /// What the plan allows, with the team's own limits in place of the plan's.
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

/// A sandbox configuration: what a key's executions run in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Its id.
    pub id: SandboxId,
    /// Whose it is.
    pub team: TeamId,
    /// The name people use; unique in the team.
    pub name: String,
    /// Image, network, preloaded modules.
    pub shape: SandboxShape,
    /// What a run may use.
    pub resources: SandboxResources,
    /// Environment variables of every run.
    pub env: EnvVars,
    /// Those whose values are secret.
    pub secret_env: SecretVars,
    /// What the ledger keeps.
    pub retention: LedgerRetention,
    /// When it was made.
    pub created_at: Moment,
}

/// What the runs of a sandbox may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxResources {
    /// Processor share.
    pub cpus: CpuShare,
    /// Memory.
    pub memory: ByteSize,
    /// Bytes in files at once.
    pub disk: ByteSize,
    /// Processes and threads at once.
    pub pids: u32,
}

impl SandboxResources {
    /// As limits of a run with this time and this much output.
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
    /// Whether the code itself is kept, or only its digest and size.
    pub code: bool,
    /// Days until the record is deleted; kept for ever if absent.
    pub days: Option<u32>,
}

impl Default for LedgerRetention {
    fn default() -> Self {
        Self { code: true, days: Some(30) }
    }
}

/// An API key, without the secret: that is shown once and kept only as a digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// Its id.
    pub id: KeyId,
    /// Whose it is.
    pub team: TeamId,
    /// What its executions run in.
    pub sandbox: SandboxId,
    /// The name people use.
    pub name: String,
    /// The first characters of the secret, so that people can tell keys apart.
    pub prefix: String,
    /// Environment variables of every run.
    pub env: EnvVars,
    /// Those whose values are secret.
    pub secret_env: SecretVars,
    /// Where results go in webhook mode when the request names nowhere.
    pub webhook_url: Option<String>,
    /// What deliveries are signed with.
    pub webhook_secret: Option<Secret>,
    /// Whether its holder may answer when other keys of the team ask for an approval.
    pub may_approve: bool,
    /// When it was made.
    pub created_at: Moment,
    /// When it was revoked.
    pub revoked_at: Option<Moment>,
}
