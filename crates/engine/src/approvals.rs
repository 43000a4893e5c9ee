//! Runs in: server (no capabilities).
//!
//! The gates in front of agent tools: whether the server can run code, whether the team has turned
//! agents on, the policy of the team, and the answer of a person.
//!
//! The entry points for agents ask here before they run anything. [`Approvals::tool_offered`] says
//! whether a tool is shown at all, [`Approvals::decide_call`] decides about one call. An error
//! means no. Settings are read from the store each time, so the decision follows what holds now,
//! however long ago the caller was looked up.

mod answers;
mod approval_waiters;
mod ask;
mod call;
mod changes;
mod describe;
mod expiry;
mod startup_files;
mod waiting;

use std::sync::Arc;

use cloche_model::{
    AgentTool, Approval, Decision, DecisionId, DecisionKind, GateSettings, HomeState,
    PendingApproval, TeamId, ToolPolicy, TraceId,
};
use cloche_store::Store;

use crate::{
    Caller, Dispatcher, EngineMetrics, GateConfig, Refusal, Threads, clock, lifecycle::Lifecycle,
    secrets, shared_parts::SharedParts,
};

use approval_waiters::ApprovalWaiters;

pub use answers::Approver;
pub use call::{ResponseTools, ToolCall};
pub use describe::{describe_approval, form_text};
pub use waiting::ApprovalWaitResult;

/// Decides about the calls of agents, and keeps the questions that wait for a person.
pub struct Approvals {
    store: Arc<dyn Store>,
    /// Gate 1 asks it whether anything can run code.
    dispatcher: Arc<dyn Dispatcher>,
    /// The homes that calls run in, as an approver is shown them.
    threads: Arc<Threads>,
    waiters: ApprovalWaiters,
    metrics: Arc<EngineMetrics>,
    lifecycle: Arc<Lifecycle>,
    config: GateConfig,
}

/// What is decided about a call.
#[derive(Debug)]
pub enum GateDecision {
    /// It may run, once; the decision is in the ledger.
    Open(CallPermit),
    /// It may not.
    Closed(GateRefusal),
    /// A person has to answer first. Wait with [`Approvals::wait_for_approval`], then ask
    /// [`Approvals::decide_call`] again with the same call: that uses the approval.
    Ask(Box<Approval>),
}

/// The right to make one call. Say which execution it became with [`Approvals::note_execution`].
#[derive(Debug)]
#[must_use = "the decision should name the execution that it allowed"]
pub struct CallPermit {
    /// The decision that let it run.
    pub decision: DecisionId,
    /// Who made it.
    pub by: String,
    /// The home that a person approved it for; none where a policy let it through.
    pub home: Option<HomeState>,
    /// What the response lets the code of this call use besides.
    pub web_tools: ResponseTools,
}

/// Why a call may not run.
#[derive(Debug)]
pub struct GateRefusal {
    /// Which gate.
    pub why: GateRefusalReason,
    /// A sentence for the caller, which says who can change it.
    pub message: String,
}

/// What a call was stopped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateRefusalReason {
    /// Gate 1: nothing here can run code.
    NotWired,
    /// Gate 2: the team has not turned agents on.
    TeamOff,
    /// The policy says no.
    Policy,
    /// A person said no to this very call.
    Denied,
    /// Too many calls of the team wait for a person.
    Crowded,
    /// Its arguments are more than a person can be shown.
    TooLarge,
    /// A person would have to be asked, and none can be.
    NoPerson,
    /// The check failed, and an error means no.
    Unknown,
}

/// What holds for a caller now.
struct CallerGates {
    own: GateSettings,
    effective: GateSettings,
    team_name: String,
}

impl Approvals {
    pub(crate) fn new(shared: &SharedParts, threads: Arc<Threads>, config: GateConfig) -> Self {
        Self {
            store: Arc::clone(&shared.store),
            dispatcher: Arc::clone(&shared.dispatcher),
            threads,
            waiters: ApprovalWaiters::default(),
            metrics: Arc::clone(&shared.metrics),
            lifecycle: Arc::clone(&shared.lifecycle),
            config,
        }
    }

    /// Whether a tool is to be shown to this caller's agents at all. An error means no.
    pub async fn tool_offered(&self, caller: &Caller, tool: AgentTool) -> bool {
        if tool.runs_code() && !self.dispatcher.is_wired() {
            return false;
        }
        match self.caller_gates(caller).await {
            Ok(Some(standing)) => policy_refusal(&standing, tool).is_none(),
            Ok(None) => false,
            Err(error) => {
                tracing::error!(%error, "gates could not be looked up, so they are closed");
                false
            }
        }
    }

    /// Why [`Approvals::tool_offered`] says no, in a sentence that says who can change it; `None`
    /// where it says yes. Nothing is recorded.
    pub async fn why_not_offered(&self, caller: &Caller, tool: AgentTool) -> Option<GateRefusal> {
        self.check_gates(caller, tool)
            .await
            .map_or_else(|_| Some(unknown_refusal()), |standing| standing.err())
    }

    /// Whether the person at the caller's client may answer for it. An error means no.
    pub async fn may_elicit(&self, caller: &Caller) -> bool {
        let standing = self.caller_gates(caller).await;
        matches!(standing, Ok(Some(standing)) if standing.effective.allows_elicitation())
    }

    /// How a response of this caller is shown while a call of it waits for a person. If the
    /// settings cannot be looked up, the default holds.
    pub async fn pending_approval(&self, caller: &Caller, background: bool) -> PendingApproval {
        let effective = match self.caller_gates(caller).await {
            Ok(standing) => standing.map(|standing| standing.effective),
            Err(error) => {
                tracing::error!(%error, "gates could not be looked up, so the default is shown");
                None
            }
        };
        effective.unwrap_or_default().pending_approval_of(background)
    }

    /// Decides about one call and writes the decision down. An approval that was given for it is
    /// used by this: a second call needs another.
    pub async fn decide_call(&self, caller: &Caller, call: &ToolCall) -> GateDecision {
        self.decide_or_refuse(caller, call, true).await
    }

    /// The same where no person can be asked: a call that needs an answer is refused.
    pub async fn decide_without_people(&self, caller: &Caller, call: &ToolCall) -> GateDecision {
        self.decide_or_refuse(caller, call, false).await
    }

    async fn decide_or_refuse(
        &self,
        caller: &Caller,
        call: &ToolCall,
        people: bool,
    ) -> GateDecision {
        self.try_decide(caller, call, people).await.unwrap_or_else(|refusal| {
            let cause = refusal.source.as_ref().map(ToString::to_string);
            tracing::error!(error = %refusal, cause, "a gate could not be looked up, so it is closed");
            GateDecision::Closed(unknown_refusal())
        })
    }

    async fn try_decide(
        &self,
        caller: &Caller,
        call: &ToolCall,
        people: bool,
    ) -> Result<GateDecision, Refusal> {
        let standing = match self.check_gates(caller, call.tool).await? {
            Ok(standing) => standing,
            Err(closed) => {
                let by = if closed.why == GateRefusalReason::Policy { "policy" } else { "gate" };
                return self.refuse_call(caller, call, by, closed).await;
            }
        };
        if standing.effective.policy_for(call.tool) == ToolPolicy::Allow {
            let own = standing.own.set_policy(call.tool);
            let whose = own.map_or("fleet policy", |_| "team policy");
            let allowed = new_decision(DecisionKind::Allowed, whose.to_owned(), caller, call)?;
            let pass = CallPermit {
                decision: allowed.id.clone(),
                by: allowed.by.clone(),
                home: None,
                web_tools: ResponseTools::default(),
            };
            self.store.record_decision(allowed).await?;
            self.metrics.agents.count_decision(DecisionKind::Allowed);
            return Ok(GateDecision::Open(pass));
        }
        if !people {
            return self.refuse_call(caller, call, "gate", no_person_refusal()).await;
        }
        self.ask_person(caller, call).await
    }

    /// Turns a call away, and writes that down.
    async fn refuse_call(
        &self,
        caller: &Caller,
        call: &ToolCall,
        by: &str,
        closed: GateRefusal,
    ) -> Result<GateDecision, Refusal> {
        let note = Some(closed.message.clone());
        let refused = new_decision(DecisionKind::Refused, by.to_owned(), caller, call)?;
        self.store.record_decision(Decision { note, ..refused }).await?;
        self.metrics.agents.count_decision(DecisionKind::Refused);
        Ok(GateDecision::Closed(closed))
    }

    /// What holds for the caller, or why nothing does.
    async fn check_gates(
        &self,
        caller: &Caller,
        tool: AgentTool,
    ) -> Result<Result<CallerGates, GateRefusal>, Refusal> {
        if tool.runs_code() && !self.dispatcher.is_wired() {
            return Ok(Err(GateRefusal {
                why: GateRefusalReason::NotWired,
                message: format!(
                    "{tool} is not available: this server has nothing that can run code; its \
                     operator can start a local executor or set SANDBOX_EXECUTOR_URL"
                ),
            }));
        }
        let Some(standing) = self.caller_gates(caller).await? else {
            return Ok(Err(unknown_refusal()));
        };
        Ok(match policy_refusal(&standing, tool) {
            Some(closed) => Err(closed),
            None => Ok(standing),
        })
    }

    /// `None` if the team is gone or the key was revoked since the caller was looked up.
    async fn caller_gates(&self, caller: &Caller) -> Result<Option<CallerGates>, Refusal> {
        let store = &self.store;
        let Some(team) = store.find_team(caller.team.id.as_str()).await? else { return Ok(None) };
        let key = store.find_key(&caller.key.id).await?;
        if key.is_none_or(|key| key.revoked_at.is_some()) {
            return Ok(None);
        }
        let effective = team.gates.with_fallback(store.fleet_gates().await?);
        Ok(Some(CallerGates { own: team.gates, effective, team_name: team.name }))
    }

    /// Writes down which execution a decision let run, for its record to show.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn note_execution(
        &self,
        pass: &CallPermit,
        execution: &TraceId,
    ) -> Result<(), Refusal> {
        self.store.record_decision_execution(&pass.decision, execution).await?;
        Ok(())
    }

    /// The decision that let an execution of a team run, if an agent asked for it.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn decision_of(
        &self,
        team: &TeamId,
        execution: &TraceId,
    ) -> Result<Option<Decision>, Refusal> {
        Ok(self.store.find_execution_decision(team, execution).await?)
    }
}

/// Gate 2 and a policy that says no.
fn policy_refusal(standing: &CallerGates, tool: AgentTool) -> Option<GateRefusal> {
    let team = &standing.team_name;
    // Gate 2 is about running code.
    if tool.runs_code() && !standing.effective.allows_agents() {
        return Some(GateRefusal {
            why: GateRefusalReason::TeamOff,
            message: format!(
                "{tool} is off for the team {team:?}: an operator of this server can turn it on \
                 with `cloche team set {team} agent_sandbox=on`"
            ),
        });
    }
    (standing.effective.policy_for(tool) == ToolPolicy::Deny).then(|| GateRefusal {
        why: GateRefusalReason::Policy,
        message: format!(
            "the policy of the team {team:?} denies {tool}: an operator of this server can change \
             it with `cloche team set {team} {}={}`",
            tool.policy_name(),
            if tool.runs_code() { "ask" } else { "allow" },
        ),
    })
}

fn unknown_refusal() -> GateRefusal {
    let message = "could not check whether this tool is allowed, so the call was refused; an \
                   operator of this server finds the reason in its log";
    GateRefusal { why: GateRefusalReason::Unknown, message: message.to_owned() }
}

fn no_person_refusal() -> GateRefusal {
    let message = "every call here needs the word of the person at the client, and this client \
                   cannot ask them: use one that offers elicitation, or start `cloche mcp` without \
                   --ask";
    GateRefusal { why: GateRefusalReason::NoPerson, message: message.to_owned() }
}

fn crowded_refusal() -> GateRefusal {
    let message = "too many calls of this team wait for a person already; they are listed by \
                   `cloche approval list`";
    GateRefusal { why: GateRefusalReason::Crowded, message: message.to_owned() }
}

fn denied_refusal(by: &str, reason: Option<&str>) -> GateRefusal {
    let why = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    GateRefusal { why: GateRefusalReason::Denied, message: format!("{by} denied this call{why}") }
}

/// A decision about a call, made now.
fn new_decision(
    kind: DecisionKind,
    by: String,
    caller: &Caller,
    call: &ToolCall,
) -> Result<Decision, Refusal> {
    Ok(Decision {
        id: DecisionId::from_random(secrets::random_bytes()?),
        kind,
        by,
        at: clock::now(),
        team: Some(caller.team.id.clone()),
        key: Some(caller.key.id.clone()),
        tool: Some(call.tool),
        digest: Some(call.digest.clone()),
        approval: None,
        execution: None,
        note: None,
    })
}

/// A decision about an approval, made now.
fn decision_about(
    kind: DecisionKind,
    by: String,
    approval: &Approval,
) -> Result<Decision, Refusal> {
    Ok(Decision {
        id: DecisionId::from_random(secrets::random_bytes()?),
        kind,
        by,
        at: clock::now(),
        team: Some(approval.team.clone()),
        key: Some(approval.key.clone()),
        tool: Some(approval.tool),
        digest: Some(approval.digest.clone()),
        approval: Some(approval.id.clone()),
        execution: None,
        note: None,
    })
}
