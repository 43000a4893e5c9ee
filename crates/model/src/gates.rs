//! The gates in front of agent tools: policies, approvals and the decisions made.
//!
//! Plain rows. The engine decides which gate is open.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    ApprovalId, DecisionId, HomeChanges, HomeState, Invalid, KeyId, Moment, ResponseId, TeamId,
    TraceId,
};

/// Implements the names of an enum: `name`, `Display` and `FromStr`, for the wire and the store.
macro_rules! named {
    ($type:ident, $field:literal: $($variant:ident = $name:literal),+ $(,)?) => {
        impl $type {
            /// Every variant.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name on the wire.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }

        impl FromStr for $type {
            type Err = Invalid;

            fn from_str(name: &str) -> Result<Self, Invalid> {
                Self::ALL.iter().copied().find(|each| each.name() == name).ok_or_else(|| {
                    let names = [$($name),+].join(", ");
                    Invalid::new(format!("{} must be one of: {names}", $field))
                })
            }
        }
    };
}

/// A tool offered to agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AgentTool {
    /// Runs code. Risk tier T4: without a policy, a call needs approval by a person.
    ExecuteCode,
    /// Writes a file into a home that code runs in. Same tier and same policy.
    WriteFile,
    /// Asks a search engine. Without a policy, no call may run.
    WebSearch,
    /// Reads a public page. Without a policy, no call may run.
    FetchUrl,
    /// Looks for people. Without a policy, no call may run.
    PeopleSearch,
}

named!(
    AgentTool, "tool":
    ExecuteCode = "execute_code", WriteFile = "write_file", WebSearch = "web_search",
    FetchUrl = "fetch_url", PeopleSearch = "people_search",
);

impl AgentTool {
    /// The name of the setting that holds its policy.
    #[must_use]
    pub const fn policy_name(self) -> &'static str {
        match self {
            Self::ExecuteCode | Self::WriteFile => Self::ExecuteCode.name(),
            Self::WebSearch | Self::FetchUrl | Self::PeopleSearch => self.name(),
        }
    }

    /// Whether it runs code, or changes what code will run.
    #[must_use]
    pub const fn runs_code(self) -> bool {
        matches!(self, Self::ExecuteCode | Self::WriteFile)
    }
}

/// A web tool: it asks a service outside on behalf of a model, or of code in a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WebTool {
    /// Asks a search engine.
    WebSearch,
    /// Reads a public page.
    FetchUrl,
    /// Looks for people.
    PeopleSearch,
}

named!(
    WebTool, "tools":
    WebSearch = "web_search", FetchUrl = "fetch_url", PeopleSearch = "people_search",
);

impl From<WebTool> for AgentTool {
    fn from(tool: WebTool) -> Self {
        match tool {
            WebTool::WebSearch => Self::WebSearch,
            WebTool::FetchUrl => Self::FetchUrl,
            WebTool::PeopleSearch => Self::PeopleSearch,
        }
    }
}

/// How often a web tool was used, and what that cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebToolUsage {
    /// The tool.
    pub tool: WebTool,
    /// Calls that a provider answered.
    pub calls: u64,
    /// What they cost, in millionths of a dollar.
    pub micro_dollars: u64,
}

/// A call of a web tool that a provider answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebToolRecord {
    /// The decision that allowed it.
    pub decision: DecisionId,
    /// The team.
    pub team: TeamId,
    /// The key.
    pub key: KeyId,
    /// The tool.
    pub tool: WebTool,
    /// The execution whose code made it; `None` if a model made it.
    pub execution: Option<TraceId>,
    /// The response that it belongs to.
    pub response: Option<ResponseId>,
    /// Its price in millionths of a dollar.
    pub micro_dollars: u64,
    /// When it was answered.
    pub at: Moment,
}

/// A team's policy for a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolPolicy {
    /// Every call may run.
    Allow,
    /// Every call needs approval by a person.
    Ask,
    /// No call may run.
    Deny,
}

named!(ToolPolicy, "execute_code": Allow = "allow", Ask = "ask", Deny = "deny");

/// How a response of the Agent API is shown while a call of it waits for a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PendingApproval {
    /// As in progress, so a client that polls until it is over needs to know nothing else.
    InProgress,
    /// As a response that requires action.
    RequiresAction,
}

named!(
    PendingApproval, "pending_approval":
    InProgress = "in_progress", RequiresAction = "requires_action",
);

/// The gate settings of a team or of the whole fleet. An absent setting falls back from the team to
/// the fleet, and then to the safe default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GateSettings {
    /// Whether agents may run code at all.
    pub agent_sandbox: Option<bool>,
    /// The policy for calls of `execute_code`.
    pub execute_code: Option<ToolPolicy>,
    /// Whether the person at the calling MCP client may answer.
    pub elicitation: Option<bool>,
    /// How a response is shown while a call of it waits for a person.
    pub pending_approval: Option<PendingApproval>,
    /// The policy for calls of `web_search`.
    pub web_search: Option<ToolPolicy>,
    /// The policy for calls of `fetch_url`.
    pub fetch_url: Option<ToolPolicy>,
    /// The policy for calls of `people_search`.
    pub people_search: Option<ToolPolicy>,
}

impl GateSettings {
    /// Fills absent settings from `outer`.
    #[must_use]
    pub fn with_fallback(self, outer: Self) -> Self {
        Self {
            agent_sandbox: self.agent_sandbox.or(outer.agent_sandbox),
            execute_code: self.execute_code.or(outer.execute_code),
            elicitation: self.elicitation.or(outer.elicitation),
            pending_approval: self.pending_approval.or(outer.pending_approval),
            web_search: self.web_search.or(outer.web_search),
            fetch_url: self.fetch_url.or(outer.fetch_url),
            people_search: self.people_search.or(outer.people_search),
        }
    }

    /// Whether agents may run code; false by default.
    #[must_use]
    pub fn allows_agents(self) -> bool {
        self.agent_sandbox.unwrap_or(false)
    }

    /// The policy for this tool; without one, its risk tier decides.
    #[must_use]
    pub fn policy_for(self, tool: AgentTool) -> ToolPolicy {
        let usual = if tool.runs_code() { ToolPolicy::Ask } else { ToolPolicy::Deny };
        self.set_policy(tool).unwrap_or(usual)
    }

    /// The policy for this tool, if one is set.
    #[must_use]
    pub const fn set_policy(self, tool: AgentTool) -> Option<ToolPolicy> {
        match tool {
            AgentTool::ExecuteCode | AgentTool::WriteFile => self.execute_code,
            AgentTool::WebSearch => self.web_search,
            AgentTool::FetchUrl => self.fetch_url,
            AgentTool::PeopleSearch => self.people_search,
        }
    }

    /// Whether the person at the calling MCP client may answer; true by default.
    #[must_use]
    pub fn allows_elicitation(self) -> bool {
        self.elicitation.unwrap_or(true)
    }

    /// How a response is shown while a call of it waits for a person. By default, one in the
    /// background is in progress, because its client polls; any other requires action, because its
    /// client waits for the answer.
    #[must_use]
    pub fn pending_approval_of(self, background: bool) -> PendingApproval {
        self.pending_approval.unwrap_or(match background {
            true => PendingApproval::InProgress,
            false => PendingApproval::RequiresAction,
        })
    }
}

/// The state of an approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ApprovalState {
    /// Not answered yet.
    Pending,
    /// A person approved it; the call may be made once.
    Approved,
    /// A person denied it.
    Denied,
    /// It was not answered in time, or the approved call was not made in time.
    Expired,
    /// The call was made.
    Used,
}

named!(
    ApprovalState, "state":
    Pending = "pending", Approved = "approved", Denied = "denied", Expired = "expired", Used = "used",
);

/// A tool call that waits, or waited, for a person's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approval {
    /// Its id.
    pub id: ApprovalId,
    /// The team of the agent.
    pub team: TeamId,
    /// The key of the agent. Only this key can use the approval, and this key cannot give it.
    pub key: KeyId,
    /// The tool to call.
    pub tool: AgentTool,
    /// SHA-256 of the arguments in their canonical form.
    pub digest: String,
    /// The arguments for a person to read, truncated if long. Removed once the approval is settled.
    pub arguments: Option<String>,
    /// The length of the full arguments in bytes.
    pub arguments_bytes: u64,
    /// The home that the call runs in. The approval is valid only for this state of the home.
    pub home: Option<HomeState>,
    /// The changes in the home since the last approval. Removed once the approval is settled.
    pub changes: Option<HomeChanges>,
    /// Its state.
    pub state: ApprovalState,
    /// When it was requested.
    pub created_at: Moment,
    /// The deadline for an answer; after approval, the deadline for the call.
    pub expires_at: Moment,
    /// When it was answered.
    pub decided_at: Option<Moment>,
    /// The person who answered.
    pub decided_by: Option<String>,
    /// The reason given with the answer, or why an expired approval is no longer valid.
    pub reason: Option<String>,
}

/// The kind of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecisionKind {
    /// The policy allowed a call.
    Allowed,
    /// A gate or the policy refused a call.
    Refused,
    /// A call waits for a person.
    Asked,
    /// A person approved the call.
    Approved,
    /// A person denied the call.
    Denied,
    /// The approval was not answered in time, or not used in time.
    Expired,
    /// A call used its approval and may run.
    Used,
    /// The settings of a team or of the fleet changed.
    Changed,
}

named!(
    DecisionKind, "kind":
    Allowed = "allowed", Refused = "refused", Asked = "asked", Approved = "approved",
    Denied = "denied", Expired = "expired", Used = "used", Changed = "changed",
);

/// One decision, with its author and time. Decisions are append-only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Its id.
    pub id: DecisionId,
    /// What was decided.
    pub kind: DecisionKind,
    /// The author: a person, a key, a policy, or the expiry timer.
    pub by: String,
    /// When it was made.
    pub at: Moment,
    /// The team concerned; `None` for the fleet.
    pub team: Option<TeamId>,
    /// The key of the call.
    pub key: Option<KeyId>,
    /// The tool.
    pub tool: Option<AgentTool>,
    /// SHA-256 of the arguments.
    pub digest: Option<String>,
    /// The approval concerned.
    pub approval: Option<ApprovalId>,
    /// The execution that it allowed.
    pub execution: Option<TraceId>,
    /// The reason, or the setting that was changed.
    pub note: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_closed_by_default() {
        let settings = GateSettings::default();
        assert!(!settings.allows_agents());
        assert_eq!(settings.policy_for(AgentTool::ExecuteCode), ToolPolicy::Ask);
        for tool in WebTool::ALL {
            assert_eq!(settings.policy_for((*tool).into()), ToolPolicy::Deny, "{tool}");
        }
    }

    #[test]
    fn team_settings_override_fleet_settings() {
        let fleet = GateSettings {
            agent_sandbox: Some(true),
            execute_code: Some(ToolPolicy::Allow),
            ..GateSettings::default()
        };
        let own = GateSettings { agent_sandbox: Some(false), ..GateSettings::default() };
        assert!(!own.with_fallback(fleet).allows_agents());
        assert_eq!(own.with_fallback(fleet).policy_for(AgentTool::ExecuteCode), ToolPolicy::Allow);
    }

    #[test]
    fn names_round_trip() {
        for kind in DecisionKind::ALL {
            assert_eq!(kind.name().parse::<DecisionKind>(), Ok(*kind));
        }
        let error = "maybe".parse::<ToolPolicy>().unwrap_err();
        assert_eq!(error.to_string(), "execute_code must be one of: allow, ask, deny");
    }
}
