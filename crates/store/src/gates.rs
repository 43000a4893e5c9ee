//! Calls that wait for a person, and the record of what was decided.
//!
//! Each change of an approval is one atomic operation that also writes its decision, so that no
//! approval changes unseen and none is used twice, however many try at once.

use async_trait::async_trait;
use cloche_model::{
    AgentTool, Approval, ApprovalId, ApprovalState, Decision, DecisionId, GateSettings, HomeState,
    KeyId, LayerDigest, Moment, TeamId, TraceId,
};

use crate::{Result, ThreadKey};

/// Which call an approval is good for: this key's, of this tool, with these very arguments, in a home
/// in this very state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallId {
    /// Whose agent.
    pub team: TeamId,
    /// Which key.
    pub key: KeyId,
    /// The tool.
    pub tool: AgentTool,
    /// SHA-256 of the arguments.
    pub digest: String,
    /// The home that it runs in, if it names a thread.
    pub home: Option<HomeState>,
}

/// How much of a team may wait for its people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuestionLimits {
    /// Questions that are open.
    pub count: u32,
    /// Bytes of their arguments, and of those that are approved and not used.
    pub bytes: u64,
}

/// What became of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApprovalRequestOutcome {
    /// It waits now.
    New,
    /// The same question waits already, or has been approved and not been used.
    Same(Box<Approval>),
    /// Too many of the team's questions wait; nothing was written.
    Crowded,
}

/// What a person said.
#[derive(Clone, Debug)]
pub struct ApprovalAnswer {
    /// About which question.
    pub id: ApprovalId,
    /// Yes or no.
    pub approve: bool,
    /// When.
    pub at: Moment,
    /// Until when the answer counts.
    pub expires_at: Moment,
    /// Why, if they said.
    pub reason: Option<String>,
    /// The record of it, which also says who.
    pub decision: Decision,
}

/// Which approvals to list. Empty fields do not narrow.
#[derive(Clone, Debug, Default)]
pub struct ApprovalFilter {
    /// Only those of this team.
    pub team: Option<TeamId>,
    /// Only those that stand there.
    pub state: Option<ApprovalState>,
    /// Only those older than this one.
    pub before: Option<ApprovalId>,
    /// At most so many.
    pub limit: u32,
}

/// Which decisions to list. Empty fields do not narrow.
#[derive(Clone, Debug, Default)]
pub struct DecisionFilter {
    /// Only those about this team.
    pub team: Option<TeamId>,
    /// Only those about this approval.
    pub approval: Option<ApprovalId>,
    /// Only those older than this one.
    pub before: Option<DecisionId>,
    /// At most so many.
    pub limit: u32,
}

/// The gates in front of agent tools.
#[async_trait]
pub trait GateStore: Send + Sync {
    /// What the fleet has set.
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

    /// Writes a question, unless the same one is open or `most` of the team's wait.
    async fn request_approval(
        &self,
        approval: Approval,
        most: QuestionLimits,
        decision: Decision,
    ) -> Result<ApprovalRequestOutcome>;
    /// Writes an answer to a question that still waits; `None` if it does not. A yes for a home that
    /// has changed since is not written: the approval that comes back has expired.
    async fn answer_approval(&self, answer: ApprovalAnswer) -> Result<Option<Approval>>;
    /// Uses an approval for this call, once and for all; `None` if none is good now. The decision is
    /// completed with the approval's id and whoever gave it.
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
    /// Ends an open approval because its home has changed; false if it is not open.
    async fn expire_changed_approval(&self, id: &ApprovalId, decision: Decision) -> Result<bool>;
    /// The layers that a thread's home consists of, as a [`HomeState`] has them.
    async fn home_layers(&self, key: &ThreadKey) -> Result<Vec<LayerDigest>>;
    /// The layers of the home that a person approved last, and by which approval.
    async fn approved_home(
        &self,
        key: &ThreadKey,
    ) -> Result<Option<(ApprovalId, Vec<LayerDigest>)>>;
    /// The latest denial of this call that still counts, whatever the state of its home.
    async fn find_denial(&self, call: &CallId, now: Moment) -> Result<Option<Approval>>;
    /// Open approvals whose time is up, oldest first.
    async fn overdue_approvals(&self, now: Moment, limit: u32) -> Result<Vec<Approval>>;
    /// Closes an open approval whose time is up; false if it is not open or not up.
    async fn expire_overdue_approval(
        &self,
        id: &ApprovalId,
        now: Moment,
        decision: Decision,
    ) -> Result<bool>;
    /// How many questions are open.
    async fn count_pending_approvals(&self, now: Moment) -> Result<u64>;
    /// When the next open approval's time is up.
    async fn next_expiry(&self) -> Result<Option<Moment>>;
    /// One approval.
    async fn find_approval(&self, id: &ApprovalId) -> Result<Option<Approval>>;
    /// Approvals, newest first, without their arguments.
    async fn list_approvals(&self, filter: &ApprovalFilter) -> Result<Vec<Approval>>;

    /// Writes a decision.
    async fn record_decision(&self, decision: Decision) -> Result<()>;
    /// Fills in which execution a decision let run; false if it has one or does not exist.
    async fn record_decision_execution(&self, id: &DecisionId, execution: &TraceId)
    -> Result<bool>;
    /// Decisions, newest first.
    async fn list_decisions(&self, filter: &DecisionFilter) -> Result<Vec<Decision>>;
    /// The decision that let an execution of this team run.
    async fn find_execution_decision(
        &self,
        team: &TeamId,
        execution: &TraceId,
    ) -> Result<Option<Decision>>;
    /// Deletes decisions and closed approvals from before then; gives back how many.
    async fn prune_gates(&self, before: Moment) -> Result<u64>;
}
