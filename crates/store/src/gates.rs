//! Approvals of agent tool calls, and the record of decisions.
//!
//! Each change of an approval is one transaction that also writes its decision. So no approval
//! changes without a record, and none is used twice, however many calls compete.

use async_trait::async_trait;
use cloche_model::{
    AgentTool, Approval, ApprovalId, ApprovalState, Decision, DecisionId, GateSettings, HomeState,
    KeyId, LayerDigest, Moment, TeamId, TraceId,
};

use crate::{Result, ThreadKey};

/// The call that an approval is valid for: by this key, of this tool, with exactly these arguments,
/// in a home in exactly this state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallId {
    /// The team.
    pub team: TeamId,
    /// The key.
    pub key: KeyId,
    /// The tool.
    pub tool: AgentTool,
    /// SHA-256 of the arguments.
    pub digest: String,
    /// The home in which the call runs, if it names a thread.
    pub home: Option<HomeState>,
}

/// Limits of a team's open questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuestionLimits {
    /// The number of pending questions.
    pub count: u32,
    /// The bytes of their arguments, including those of approvals that were not used.
    pub bytes: u64,
}

/// The outcome of a request for approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApprovalRequestOutcome {
    /// The question was written and is pending.
    New,
    /// The same question is pending already, or was approved and not used.
    Same(Box<Approval>),
    /// The team has too many pending questions; nothing was written.
    Crowded,
}

/// A person's answer.
#[derive(Clone, Debug)]
pub struct ApprovalAnswer {
    /// The question.
    pub id: ApprovalId,
    /// Whether the call is approved.
    pub approve: bool,
    /// The time of the answer.
    pub at: Moment,
    /// When the answer expires.
    pub expires_at: Moment,
    /// The reason, if the person gave one.
    pub reason: Option<String>,
    /// The record of the answer, including who gave it.
    pub decision: Decision,
}

/// Which approvals to list. An empty field does not filter.
#[derive(Clone, Debug, Default)]
pub struct ApprovalFilter {
    /// Only those of this team.
    pub team: Option<TeamId>,
    /// Only those with this state.
    pub state: Option<ApprovalState>,
    /// Only those older than this one.
    pub before: Option<ApprovalId>,
    /// The maximum number of rows.
    pub limit: u32,
}

/// Which decisions to list. An empty field does not filter.
#[derive(Clone, Debug, Default)]
pub struct DecisionFilter {
    /// Only those about this team.
    pub team: Option<TeamId>,
    /// Only those about this approval.
    pub approval: Option<ApprovalId>,
    /// Only those older than this one.
    pub before: Option<DecisionId>,
    /// The maximum number of rows.
    pub limit: u32,
}

/// The gates in front of agent tools.
#[async_trait]
pub trait GateStore: Send + Sync {
    /// The settings of the fleet.
    async fn fleet_gates(&self) -> Result<GateSettings>;
    /// Sets the gates of the fleet and writes the decision, unless they are no longer as in `from`;
    /// false if so. The gates of a team are written by [`TenancyStore::update_team`].
    ///
    /// [`TenancyStore::update_team`]: crate::TenancyStore::update_team
    async fn change_fleet_gates(
        &self,
        from: GateSettings,
        to: GateSettings,
        decision: Decision,
    ) -> Result<bool>;

    /// Writes a question, unless the same one is open or the team has reached `limits`.
    async fn request_approval(
        &self,
        approval: Approval,
        limits: QuestionLimits,
        decision: Decision,
    ) -> Result<ApprovalRequestOutcome>;
    /// Writes an answer to a pending question. Returns `None` if it is not pending. If the home has
    /// changed since, an approval is not written: the returned approval has expired.
    async fn answer_approval(&self, answer: ApprovalAnswer) -> Result<Option<Approval>>;
    /// Uses an approval for this call, once. Returns `None` if none is valid now. The decision is
    /// completed with the approval's id and with who gave it.
    async fn consume_approval(
        &self,
        call: &CallId,
        now: Moment,
        decision: Decision,
    ) -> Result<Option<Approval>>;
    /// Open approvals of this call for this state of its home, approved ones first.
    async fn open_approvals(&self, call: &CallId, now: Moment) -> Result<Vec<Approval>>;
    /// Open approvals of this call for another state of its home.
    async fn outdated_approvals(&self, call: &CallId, now: Moment) -> Result<Vec<Approval>>;
    /// Ends an open approval because its home has changed. Returns false if it is not open.
    async fn expire_changed_approval(&self, id: &ApprovalId, decision: Decision) -> Result<bool>;
    /// The layers of a thread's home, in the form of [`HomeState`].
    async fn home_layers(&self, key: &ThreadKey) -> Result<Vec<LayerDigest>>;
    /// The layers of the home that a person approved last, and the id of that approval.
    async fn approved_home(
        &self,
        key: &ThreadKey,
    ) -> Result<Option<(ApprovalId, Vec<LayerDigest>)>>;
    /// The latest valid denial of this call, whatever the state of its home.
    async fn find_denial(&self, call: &CallId, now: Moment) -> Result<Option<Approval>>;
    /// Open approvals that have expired, oldest first.
    async fn overdue_approvals(&self, now: Moment, limit: u32) -> Result<Vec<Approval>>;
    /// Closes an open approval that has expired. Returns false if it is not open or has not
    /// expired.
    async fn expire_overdue_approval(
        &self,
        id: &ApprovalId,
        now: Moment,
        decision: Decision,
    ) -> Result<bool>;
    /// The number of pending questions.
    async fn count_pending_approvals(&self, now: Moment) -> Result<u64>;
    /// When the next open approval expires.
    async fn next_expiry(&self) -> Result<Option<Moment>>;
    /// One approval.
    async fn find_approval(&self, id: &ApprovalId) -> Result<Option<Approval>>;
    /// Approvals, newest first, without their arguments.
    async fn list_approvals(&self, filter: &ApprovalFilter) -> Result<Vec<Approval>>;

    /// Writes a decision.
    async fn record_decision(&self, decision: Decision) -> Result<()>;
    /// Records the execution that a decision allowed. Returns false if the decision already has one
    /// or does not exist.
    async fn record_decision_execution(&self, id: &DecisionId, execution: &TraceId)
    -> Result<bool>;
    /// Decisions, newest first.
    async fn list_decisions(&self, filter: &DecisionFilter) -> Result<Vec<Decision>>;
    /// The decision that allowed an execution of this team.
    async fn find_execution_decision(
        &self,
        team: &TeamId,
        execution: &TraceId,
    ) -> Result<Option<Decision>>;
    /// Deletes decisions and closed approvals older than `before`. Returns their number.
    async fn prune_gates(&self, before: Moment) -> Result<u64>;
}
