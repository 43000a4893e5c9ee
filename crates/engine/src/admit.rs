//! Runs in: server (no capabilities).
//!
//! Admission: the one place that turns a request into a run.

mod admission;
mod fair_queue;
mod job;
mod run_credentials;
mod storage_mounts;

use std::{collections::HashMap, sync::Arc};

use cloche_model::{
    ByteSize, CheckedRequest, CpuPriority, DeliveryMode, ErrorCode, HOST_IMAGE, Language,
    MemoryAccount, MountUse, NetworkPolicy, PlanLimits, RunLimits, RunSpec, SandboxShape, TeamId,
    TeamPlan, ThreadHome, TraceId, env,
};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{Caller, CellTools, Refusal, RunNeeds, TakenSignal};

pub(crate) use admission::AdmissionControl;
pub(crate) use fair_queue::{FairQueue, HostPlace, PlaceRequest, QueueTicket};
pub use job::{JobRefusal, JobRequest, admit_job};

/// A run that was admitted. Only this module makes one.
#[derive(Debug)]
pub struct AdmittedRun {
    spec: RunSpec,
    trace_id: TraceId,
    team: TeamId,
    /// The record of each mount.
    mount_uses: Vec<MountUse>,
    /// What the output that is kept is paid from.
    output_account: Option<Arc<MemoryAccount>>,
    /// Its turn to run, where it has to have one.
    ticket: Option<QueueTicket>,
    priority: Option<Arc<CpuPriority>>,
    /// Fires when the answer is out.
    answered: Option<CancellationToken>,
    /// Reports that an executor has taken it, where the answer waits for that.
    taken: Option<TakenSignal>,
    /// The web tools that its code may call.
    cell_tools: Option<Arc<CellTools>>,
}

impl AdmittedRun {
    fn new(spec: RunSpec, trace_id: TraceId, team: TeamId) -> Self {
        Self {
            spec,
            trace_id,
            team,
            mount_uses: Vec::new(),
            output_account: None,
            ticket: None,
            priority: None,
            answered: None,
            taken: None,
            cell_tools: None,
        }
    }

    /// What is to be run.
    #[must_use]
    pub fn into_spec(self) -> RunSpec {
        self.spec
    }

    /// The execution it is.
    #[must_use]
    pub fn trace_id(&self) -> &TraceId {
        &self.trace_id
    }

    /// Whose it is.
    #[must_use]
    pub fn team(&self) -> &TeamId {
        &self.team
    }

    /// The record of each of its mounts, without what was read and written.
    pub(crate) fn take_mount_uses(&mut self) -> Vec<MountUse> {
        std::mem::take(&mut self.mount_uses)
    }

    /// The same with the home of its thread, if it has one.
    pub(crate) fn with_home(mut self, home: Option<ThreadHome>) -> Self {
        self.spec.home = home;
        self
    }

    /// The same with an account for the output that is kept.
    pub(crate) fn with_output_account(mut self, account: Arc<MemoryAccount>) -> Self {
        self.output_account = Some(account);
        self
    }

    /// The account that the captured output is charged to, if there is one.
    #[must_use]
    pub fn output_account(&self) -> Option<Arc<MemoryAccount>> {
        self.output_account.clone()
    }

    /// The same with the web tools that its code may call.
    pub(crate) fn with_cell_tools(mut self, tools: Option<Arc<CellTools>>) -> Self {
        self.cell_tools = tools;
        self
    }

    /// The same, whose programs find the client of the web tools.
    pub(crate) fn with_tool_client(mut self, has_client: bool) -> Self {
        self.spec.sandbox.tool_client = has_client;
        self
    }

    /// The web tools that its code may call; if there are none, nothing is put into the cell.
    #[must_use]
    pub fn cell_tools(&self) -> Option<Arc<CellTools>> {
        self.cell_tools.clone()
    }

    /// The same with its turn to run.
    pub(crate) fn with_ticket(mut self, ticket: QueueTicket) -> Self {
        self.ticket = Some(ticket);
        self
    }

    pub(crate) fn take_ticket(&mut self) -> Option<QueueTicket> {
        self.ticket.take()
    }

    /// How its cell competes for processors, from now on.
    pub(crate) fn set_cpu_priority(&mut self, priority: Arc<CpuPriority>) {
        self.priority = Some(priority);
    }

    /// How its cell competes for processors, if admission decides that.
    #[must_use]
    pub fn cpu_priority(&self) -> Option<Arc<CpuPriority>> {
        self.priority.clone()
    }

    /// The same with a signal for the moment when the answer is out.
    pub(crate) fn with_answer_signal(mut self, answered: CancellationToken) -> Self {
        self.answered = Some(answered);
        self
    }

    /// Fires when the answer is out: what then remains of the run competes with no caller.
    #[must_use]
    pub fn answer_signal(&self) -> Option<CancellationToken> {
        self.answered.clone()
    }

    /// The same with a signal for the moment when an executor has taken it.
    pub(crate) fn with_signal(mut self, taken: TakenSignal) -> Self {
        self.taken = Some(taken);
        self
    }

    /// The signal for the moment when an executor has taken it, if the answer waits for that.
    #[must_use]
    pub fn take_signal(&mut self) -> Option<TakenSignal> {
        self.taken.take()
    }

    /// What it needs of an executor, with a thread or without one.
    pub(crate) fn needs(&self, home: bool) -> RunNeeds {
        let image = self.spec.sandbox.image != HOST_IMAGE;
        let network = self.spec.sandbox.network != NetworkPolicy::Blocked;
        let mounts = !self.spec.mounts.is_empty();
        RunNeeds { timeout: self.spec.limits.timeout, home, image, network, mounts }
    }

    pub(crate) fn language(&self) -> Language {
        self.spec.language
    }

    pub(crate) fn limits(&self) -> RunLimits {
        self.spec.limits
    }
}

/// Decides by plan, sandbox and environment; `output` is the most that is kept of each output
/// stream. Concurrency and the thread are decided after it, as they have to be given back.
pub(crate) fn admit_execution(
    caller: &Caller,
    request: &CheckedRequest,
    delivery: DeliveryMode,
    trace_id: &TraceId,
    output: ByteSize,
) -> Result<AdmittedRun, Refusal> {
    let allowance = caller.team.effective_limits();
    check_delivery(caller, &allowance, delivery)?;
    check_timeout(caller.team.plan, &allowance, request)?;
    check_resources(caller, &allowance)?;
    let mounts = storage_mounts::admit_mounts(caller, request)?;
    check_image(&caller.sandbox.shape)?;
    caller.sandbox.shape.check_language(request.language)?;
    let (sandbox, key) = (&caller.sandbox, &caller.key);
    let of_sandbox = env::reveal_level(&sandbox.env, &sandbox.secret_env);
    let of_key = env::reveal_level(&key.env, &key.secret_env);
    run_credentials::check_amount(&caller.credentials)?;
    let mut lowest = run_credentials::injected_variables(&caller.credentials);
    lowest.extend(of_sandbox);
    let env = env::merge_levels(&lowest, &of_key, &request.env)?;
    let spec = RunSpec {
        env,
        limits: caller.sandbox.resources.to_run_limits(request.timeout, output),
        // One team's programs share no template with another's.
        sandbox: caller.sandbox.shape.clone().in_group(caller.team.id.as_str()),
        stdin: request.stdin.clone(),
        files: request.files.clone(),
        mounts: mounts.specs,
        ..RunSpec::new(request.language, request.code.as_bytes())
    };
    let spec = run_credentials::with_credentials(spec, &caller.credentials);
    let run = AdmittedRun::new(spec, trace_id.clone(), caller.team.id.clone());
    Ok(AdmittedRun { mount_uses: mounts.uses, ..run })
}

fn check_delivery(
    caller: &Caller,
    allowance: &PlanLimits,
    delivery: DeliveryMode,
) -> Result<(), Refusal> {
    let message = match delivery {
        _ if allowance.streaming => return Ok(()),
        DeliveryMode::Inline => return Ok(()),
        // A plan limits programs. A person who watches their own run is none.
        DeliveryMode::Streaming if caller.by_person => return Ok(()),
        DeliveryMode::Streaming => TeamPlan::streaming_refusal(),
        DeliveryMode::Webhook => TeamPlan::webhook_refusal(),
    };
    Err(Refusal::new(ErrorCode::RateLimited, message).without_retry())
}

fn check_timeout(
    plan: TeamPlan,
    allowance: &PlanLimits,
    request: &CheckedRequest,
) -> Result<(), Refusal> {
    match allowance.timeout {
        Some(limit) if request.timeout > limit => {
            let message = plan.timeout_refusal(request.timeout, limit);
            Err(Refusal::new(ErrorCode::RateLimited, message).without_retry())
        }
        _ => Ok(()),
    }
}

/// A sandbox is checked when it is saved; this catches a team that has changed its plan since.
fn check_resources(caller: &Caller, allowance: &PlanLimits) -> Result<(), Refusal> {
    let resources = &caller.sandbox.resources;
    let plan = caller.team.plan.display_name();
    let over = |what: &str, has: String, limit: String| {
        Refusal::new(
            ErrorCode::RateLimited,
            format!("the sandbox's {what} of {has} exceeds the {plan} plan's maximum of {limit}"),
        )
        .without_retry()
    };
    if let Some(limit) = allowance.memory.filter(|limit| resources.memory > *limit) {
        return Err(over("memory", resources.memory.to_string(), limit.to_string()));
    }
    if let Some(limit) = allowance.cpus.filter(|limit| resources.cpus > *limit) {
        return Err(over("CPU", format!("{} cores", resources.cpus), format!("{limit} cores")));
    }
    Ok(())
}

/// An image in use cannot be removed here. This catches a store that lost it otherwise.
fn check_image(shape: &SandboxShape) -> Result<(), Refusal> {
    if shape.image == HOST_IMAGE || shape.root.is_some() {
        return Ok(());
    }
    let message = format!(
        "the image {:?} of this sandbox is not on this server; get it again, or set another one",
        shape.image
    );
    Err(Refusal::new(ErrorCode::Unavailable, message).without_retry())
}

/// Counts the executions of each team.
#[derive(Clone, Default)]
pub(crate) struct TeamSlots {
    taken: Arc<Mutex<HashMap<TeamId, u32>>>,
}

/// One of a team's executions; dropping it gives the place back.
pub(crate) struct ExecutionSlot {
    slots: TeamSlots,
    team: TeamId,
}

impl TeamSlots {
    pub(crate) fn take(&self, caller: &Caller) -> Result<ExecutionSlot, Refusal> {
        let team = &caller.team;
        let mut taken = self.taken.lock();
        let count = taken.entry(team.id.clone()).or_default();
        if let Some(limit) = team.effective_limits().concurrency.filter(|limit| *count >= *limit) {
            return Err(Refusal::new(ErrorCode::RateLimited, team.plan.concurrency_refusal(limit)));
        }
        *count += 1;
        Ok(ExecutionSlot { slots: self.clone(), team: team.id.clone() })
    }
}

impl Drop for ExecutionSlot {
    fn drop(&mut self) {
        let mut taken = self.slots.taken.lock();
        if let Some(count) = taken.get_mut(&self.team) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.team);
            }
        }
    }
}
