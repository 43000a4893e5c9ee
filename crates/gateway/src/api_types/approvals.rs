//! Approvals and decisions on the wire.

use cloche_engine::format_rfc3339;
use cloche_model::{Approval, ApprovalState, Decision};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::home_changes::HomeChangesRecord;

/// The state of an approval.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ApprovalStateName {
    Pending,
    Approved,
    Denied,
    Expired,
    Used,
}

impl From<ApprovalState> for ApprovalStateName {
    fn from(state: ApprovalState) -> Self {
        match state {
            ApprovalState::Pending => Self::Pending,
            ApprovalState::Approved => Self::Approved,
            ApprovalState::Denied => Self::Denied,
            ApprovalState::Expired => Self::Expired,
            ApprovalState::Used => Self::Used,
        }
    }
}

/// A tool call that waits, or waited, for a person's answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ApprovalRecord {
    id: String,
    team_id: String,
    /// The key of the agent.
    key_id: String,
    tool: String,
    state: ApprovalStateName,
    #[schema(format = DateTime)]
    created_at: String,
    /// The deadline for an answer; after approval, the deadline for the call.
    #[schema(format = DateTime)]
    expires_at: String,
    #[schema(format = DateTime)]
    decided_at: Option<String>,
    decided_by: Option<String>,
    /// Why it was denied, or why it is no longer valid.
    reason: Option<String>,
    /// SHA-256 of the arguments in their canonical form.
    arguments_digest: String,
    arguments_bytes: u64,
    /// The arguments as JSON text, until the approval is settled; not in lists.
    arguments: Option<String>,
    /// The thread whose home the call runs in. The approval is valid only for the current state of
    /// the home.
    thread_id: Option<String>,
    /// The changes in that home since the last approval, until the approval is settled; not in
    /// lists.
    changes: Option<HomeChangesRecord>,
}

impl From<Approval> for ApprovalRecord {
    fn from(approval: Approval) -> Self {
        Self {
            id: approval.id.into(),
            team_id: approval.team.into(),
            key_id: approval.key.into(),
            tool: approval.tool.name().to_owned(),
            state: approval.state.into(),
            created_at: format_rfc3339(approval.created_at),
            expires_at: format_rfc3339(approval.expires_at),
            decided_at: approval.decided_at.map(format_rfc3339),
            decided_by: approval.decided_by,
            reason: approval.reason,
            arguments_digest: approval.digest,
            arguments_bytes: approval.arguments_bytes,
            arguments: approval.arguments,
            thread_id: approval.home.map(|home| home.thread.into()),
            changes: approval.changes.map(Into::into),
        }
    }
}

/// Approvals, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ApprovalList {
    pub(crate) approvals: Vec<ApprovalRecord>,
}

impl From<Vec<Approval>> for ApprovalList {
    fn from(approvals: Vec<Approval>) -> Self {
        Self { approvals: approvals.into_iter().map(Into::into).collect() }
    }
}

/// An approval by the holder of the admin token.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApproveBody {
    /// The name of the person, for the record.
    #[schema(min_length = 1, max_length = 63, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    pub(crate) by: Option<String>,
}

/// A denial by the holder of the admin token.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DenyBody {
    /// The name of the person, for the record.
    #[schema(min_length = 1, max_length = 63, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    pub(crate) by: Option<String>,
    /// The reason; the agent can read it.
    #[schema(min_length = 1, max_length = 500, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    pub(crate) reason: Option<String>,
}

/// A denial by the holder of a key.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReasonBody {
    /// The reason; the agent can read it.
    #[schema(min_length = 1, max_length = 500, pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]+$")]
    pub(crate) reason: Option<String>,
}

/// One decision.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DecisionRecord {
    id: String,
    #[schema(format = DateTime)]
    at: String,
    /// `allowed`, `refused`, `asked`, `approved`, `denied`, `expired`, `used` or `changed`.
    kind: String,
    /// The author: a person, a key, a policy, or the expiry timer.
    by: String,
    /// The team concerned; null for the fleet.
    team_id: Option<String>,
    /// The key of the agent.
    key_id: Option<String>,
    tool: Option<String>,
    /// SHA-256 of the arguments.
    arguments_digest: Option<String>,
    approval_id: Option<String>,
    /// The execution that it allowed.
    trace_id: Option<String>,
    /// The reason, or the setting that was changed.
    note: Option<String>,
}

impl From<Decision> for DecisionRecord {
    fn from(decision: Decision) -> Self {
        Self {
            id: decision.id.into(),
            at: format_rfc3339(decision.at),
            kind: decision.kind.name().to_owned(),
            by: decision.by,
            team_id: decision.team.map(Into::into),
            key_id: decision.key.map(Into::into),
            tool: decision.tool.map(|tool| tool.name().to_owned()),
            arguments_digest: decision.digest,
            approval_id: decision.approval.map(Into::into),
            trace_id: decision.execution.map(Into::into),
            note: decision.note,
        }
    }
}

/// Decisions, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DecisionList {
    pub(crate) decisions: Vec<DecisionRecord>,
}
