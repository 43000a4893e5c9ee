//! The wire format of the gates in front of agent tools.

use cloche_engine::GateChange;
use cloche_model::{GateSettings, PendingApproval, ToolPolicy};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::present;

/// The policy for calls of an agent tool.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PolicyName {
    Allow,
    Ask,
    Deny,
}

impl From<PolicyName> for ToolPolicy {
    fn from(name: PolicyName) -> Self {
        match name {
            PolicyName::Allow => Self::Allow,
            PolicyName::Ask => Self::Ask,
            PolicyName::Deny => Self::Deny,
        }
    }
}

impl From<ToolPolicy> for PolicyName {
    fn from(policy: ToolPolicy) -> Self {
        match policy {
            ToolPolicy::Allow => Self::Allow,
            ToolPolicy::Ask => Self::Ask,
            ToolPolicy::Deny => Self::Deny,
        }
    }
}

/// The status of a response while a call of it waits for a person.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PendingApprovalName {
    InProgress,
    RequiresAction,
}

impl From<PendingApprovalName> for PendingApproval {
    fn from(name: PendingApprovalName) -> Self {
        match name {
            PendingApprovalName::InProgress => Self::InProgress,
            PendingApprovalName::RequiresAction => Self::RequiresAction,
        }
    }
}

impl From<PendingApproval> for PendingApprovalName {
    fn from(shown: PendingApproval) -> Self {
        match shown {
            PendingApproval::InProgress => Self::InProgress,
            PendingApproval::RequiresAction => Self::RequiresAction,
        }
    }
}

/// Changes to the fleet's gates; null clears a setting.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpdateDefaults {
    /// Whether agents of teams without a setting may run code; off if null.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<bool>)]
    agent_sandbox: Option<Option<bool>>,
    /// The policy for their calls; `ask` if null.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<PolicyName>)]
    execute_code: Option<Option<PolicyName>>,
    /// Whether the person at the calling MCP client may answer; true if null.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<bool>)]
    elicitation: Option<Option<bool>>,
    /// The status of a response while a call of it waits for a person; if null, `in_progress` for
    /// responses in the background and `requires_action` for others.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<PendingApprovalName>)]
    pending_approval: Option<Option<PendingApprovalName>>,
    /// The policy for calls of `web_search`; `deny` if null.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<PolicyName>)]
    web_search: Option<Option<PolicyName>>,
    /// The policy for calls of `fetch_url`; `deny` if null.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<PolicyName>)]
    fetch_url: Option<Option<PolicyName>>,
    /// The policy for calls of `people_search`; `deny` if null.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<PolicyName>)]
    people_search: Option<Option<PolicyName>>,
}

impl From<UpdateDefaults> for GateChange {
    fn from(body: UpdateDefaults) -> Self {
        Self {
            agent_sandbox: body.agent_sandbox,
            execute_code: body.execute_code.map(|policy| policy.map(Into::into)),
            elicitation: body.elicitation,
            pending_approval: body.pending_approval.map(|shown| shown.map(Into::into)),
            web_search: body.web_search.map(|policy| policy.map(Into::into)),
            fetch_url: body.fetch_url.map(|policy| policy.map(Into::into)),
            people_search: body.people_search.map(|policy| policy.map(Into::into)),
        }
    }
}

/// The gates in front of agent tools; null means not set.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GateRecord {
    agent_sandbox: Option<bool>,
    execute_code: Option<PolicyName>,
    elicitation: Option<bool>,
    pending_approval: Option<PendingApprovalName>,
    web_search: Option<PolicyName>,
    fetch_url: Option<PolicyName>,
    people_search: Option<PolicyName>,
}

impl From<GateSettings> for GateRecord {
    fn from(gates: GateSettings) -> Self {
        Self {
            agent_sandbox: gates.agent_sandbox,
            execute_code: gates.execute_code.map(Into::into),
            elicitation: gates.elicitation,
            pending_approval: gates.pending_approval.map(Into::into),
            web_search: gates.web_search.map(Into::into),
            fetch_url: gates.fetch_url.map(Into::into),
            people_search: gates.people_search.map(Into::into),
        }
    }
}
